"""How a checkpoint's matrices are stored: `quantization_config` of a HuggingFace config, module by module."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from sim.model.config import Config
from sim.model.linear import DTYPE_BYTES, Dtype, Formats, WeightFormat
from sim.model.schemes import SCHEMES, SIGNS


DTYPE_NAMES: dict[str, Dtype] = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
}

KV_DTYPE_NAMES: dict[str, Dtype] = {
    **DTYPE_NAMES,
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_ds_mla": "fp8",
    "int8": "int8",
    "nvfp4": "fp4",
}

ONLINE: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
    "int8": {"quant_method": "int8"},
    "experts_int8": {"quant_method": "experts_int8"},
    "bitsandbytes": {"quant_method": "bitsandbytes"},
}

IGNORED_KEYS = ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")


@dataclass(frozen=True)
class Quantisation:
    """Which modules are stored how: rules (pattern, format) tried in order, and patterns that stay `base`."""

    name: str
    base: WeightFormat
    rules: tuple[tuple[str, WeightFormat], ...] = ()
    ignored: tuple[str, ...] = ()
    kv_dtype: Dtype | None = None

    def of(self, module: str) -> WeightFormat:
        """The format of one module, named as in the checkpoint (`model.layers.0.mlp.up_proj`)."""
        if any(matches(pattern, module) for pattern in self.ignored):
            return self.base
        return next((stored for pattern, stored in self.rules if matches(pattern, module)), self.base)

    def formats(self, layer: int, **modules: str) -> Formats:
        """Formats of one layer's matrices, from our name of each to its module's name inside the layer."""
        if not self.rules:
            return Formats(self.base)
        found = {name: self.of(f"model.layers.{layer}.{module}") for name, module in modules.items()}
        # what has no name here (a router, a gate) stays in `base`
        return Formats(self.base, tuple(sorted((name, x) for name, x in found.items() if x != self.base)))


def matches(pattern: str, module: str) -> bool:
    """Whether a pattern of a checkpoint (exact, prefix, suffix, `*` or `re:`) covers a module.

    The wrapper of a model with a vision tower (`language_model.`) is not part of the name.
    """
    if pattern == "Linear":
        return True
    if pattern.startswith("re:"):
        names = (module, module.removeprefix("model."), f"language_model.{module}", f"model.language_{module}")
        return any(expression(pattern[3:]).match(name) for name in names)
    plain, name = unwrapped(pattern), module.removeprefix("model.")
    if "*" in plain:
        return any(fnmatchcase(name, form) for form in (plain, f"{plain}.*", f"*.{plain}"))
    return f".{plain}." in f".{name}."


@lru_cache(maxsize=4096)
def expression(text: str) -> re.Pattern[str]:
    """A compiled pattern; ValueError if it is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"quantization_config: 're:{text}' is no regular expression ({error}).") from None


@lru_cache(maxsize=4096)
def unwrapped(pattern: str) -> str:
    """A pattern without the names of the modules around the layers."""
    return re.sub(r"^(model\.)?language_model\.", "", pattern).removeprefix("model.")


def read_dtype(name: str, where: str, key: str) -> Dtype:
    """A dtype by any of its names; ValueError listing them."""
    plain = name.removeprefix("torch.")
    if plain not in DTYPE_NAMES:
        raise ValueError(f"{where}: '{key}' must be one of {', '.join(DTYPE_NAMES)}, got {name!r}.")
    return DTYPE_NAMES[plain]


def read_quantisation(config: Config, base: Dtype) -> Quantisation:
    """The quantisation of a config, `quantization_config` (or `compression_config`), or none."""
    stored = WeightFormat(base, DTYPE_BYTES[base])
    section = config.part("quantization_config", "compression_config")
    if section is None:
        return Quantisation("none", stored)
    guess = next((method for key, method in SIGNS.items() if key in section.values), "")
    method = str(section.text("quant_method", default=guess))
    scheme = SCHEMES.get(method.replace("_", "-").lower())
    if scheme is None:
        raise ValueError(
            f"{section.where}: 'quant_method' must be one of {', '.join(sorted(SCHEMES))}, got {method!r}."
        )
    name, rules = scheme(section)
    ignored = [pattern for key in IGNORED_KEYS for pattern in section.sequence(key, of=str, default=[])]
    if not any("lm_head" in pattern for pattern, _ in rules):
        # a rule for all matrices does not mean the head: engines keep it in 16 bits unless it is named
        ignored.append("lm_head")
    return Quantisation(name, stored, tuple(rules), tuple(ignored), kv_scheme(section))


def kv_scheme(section: Config) -> Dtype | None:
    """The cache type a checkpoint is calibrated for: `kv_cache_scheme` (a scheme or a name), `kv_cache_quant_algo`."""
    _, value = section.get("kv_cache_quant_algo", "kv_cache_scheme", default=None)
    if isinstance(value, dict):
        scheme = Config(value, f"{section.where}, kv_cache_scheme")
        bits, kind = scheme.integer("num_bits"), scheme.text("type", default="float")
        found: dict[tuple[str, int], Dtype] = {("float", 8): "fp8", ("float", 4): "fp4", ("int", 8): "int8"}
        if (kind, bits) not in found:
            raise ValueError(f"{scheme.where}: a cache of {bits}-bit {kind} values is not known (8 or 4 bits are).")
        return found[kind, bits]
    names: dict[str, Dtype] = {"FP8": "fp8", "NVFP4": "fp4", "INT8": "int8"}
    return names.get(str(value))


def online(name: str) -> dict[str, Any]:
    """The section that `--quantization NAME` stands for when the checkpoint has none; ValueError otherwise."""
    if name not in ONLINE:
        raise ValueError(
            f"model.quantization of an unquantised checkpoint must be one of {', '.join(ONLINE)}, got {name!r}."
        )
    return ONLINE[name]
