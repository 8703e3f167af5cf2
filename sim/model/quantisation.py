"""How a checkpoint's matrices are stored: `quantization_config` of a HuggingFace config, module by module."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from sim.model.config import Config
from sim.model.linear import DTYPE_BYTES, Dtype, Formats, WeightFormat


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


@dataclass(frozen=True)
class Quantisation:
    """Which modules are stored how: rules (pattern, format) tried in order, and patterns that stay `base`."""

    name: str
    base: WeightFormat
    rules: tuple[tuple[str, WeightFormat], ...] = ()
    ignored: tuple[str, ...] = ()
    kv_dtype: Dtype | None = None
    notes: tuple[str, ...] = ()

    def of(self, module: str) -> WeightFormat:
        """The format of one module, named as in the checkpoint (`model.layers.0.mlp.up_proj`)."""
        if any(matches(pattern, module) for pattern in self.ignored):
            return self.base
        return next((stored for pattern, stored in self.rules if matches(pattern, module)), self.base)

    def formats(self, layer: int, **modules: str) -> Formats:
        """Formats of one layer's matrices, from our name of each to its module's name inside the layer."""
        found = {name: self.of(f"model.layers.{layer}.{module}") for name, module in modules.items()}
        if len(set(found.values())) == 1:
            return Formats(next(iter(found.values())))
        return Formats(self.base, tuple(sorted((name, x) for name, x in found.items() if x != self.base)))


def matches(pattern: str, module: str) -> bool:
    """Whether a pattern of a checkpoint (exact, prefix, suffix, `*` or `re:`) covers a module.

    The wrapper of a model with a vision tower (`language_model.`) is not part of the name.
    """
    if pattern == "Linear":
        return True
    if pattern.startswith("re:"):
        expression = re.compile(pattern[3:])
        names = (module, module.removeprefix("model."), f"language_model.{module}", f"model.language_{module}")
        return any(expression.match(name) for name in names)
    pattern = re.sub(r"^(model\.)?language_model\.", "", pattern).removeprefix("model.")
    name = module.removeprefix("model.")
    if "*" in pattern:
        return fnmatch(name, pattern) or fnmatch(name, f"{pattern}.*") or fnmatch(name, f"*.{pattern}")
    return f".{pattern}." in f".{name}."


def read_dtype(name: str, where: str, key: str) -> Dtype:
    """A dtype by any of its names; ValueError listing them."""
    plain = name.removeprefix("torch.")
    if plain not in DTYPE_NAMES:
        raise ValueError(f"{where}: '{key}' must be one of {', '.join(DTYPE_NAMES)}, got {name!r}.")
    return DTYPE_NAMES[plain]


def grouped(bits: int, group: int, zero_points: bool, scale_bytes: float = 2.0) -> WeightFormat:
    """Integers of 4 or 8 bits with one scale (and zero point) per `group` inputs; -1: per whole row, not counted."""
    dtype: Dtype = "int4" if bits == 4 else "int8"
    each = 0.0 if group <= 0 else (scale_bytes + (bits / 8 if zero_points else 0)) / group
    return WeightFormat(dtype, bits / 8 + each)


def read_quantisation(config: Config, base: Dtype) -> Quantisation:
    """The quantisation of a config, `quantization_config` (or `compression_config`), or none."""
    stored = WeightFormat(base, DTYPE_BYTES[base])
    section = config.part("quantization_config", "compression_config")
    if section is None:
        return Quantisation("none", stored)
    method = str(section.text("quant_method", default="compressed-tensors" if "config_groups" in section.values else ""))
    reader = METHODS.get(method.replace("_", "-").lower())
    if reader is None:
        raise ValueError(f"{section.where}: 'quant_method' must be one of {', '.join(sorted(METHODS))}, got {method!r}.")
    found = reader(section, stored)
    ignored = [
        pattern
        for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")
        for pattern in section.sequence(key, of=str, default=[])
    ]
    return Quantisation(found.name, stored, found.rules, (*ignored, "lm_head"), found.kv_dtype, found.notes)


def bits_of(section: Config, *names: str) -> int:
    """A width of 4 or 8 bits."""
    key, bits = section.get(*names)
    if bits not in (4, 8) or isinstance(bits, bool):
        raise ValueError(f"{section.where}: '{key}' must be 4 or 8, got {bits!r}.")
    return int(bits)


def _fp8(section: Config, base: WeightFormat) -> Quantisation:
    block = section.sequence("weight_block_size", of=int, default=None)
    scale = 4 / (block[0] * block[1]) if block else 0.0
    return Quantisation("fp8", base, (("Linear", WeightFormat("fp8", 1 + scale)),))


def _gptq(section: Config, base: WeightFormat) -> Quantisation:
    stored = grouped(bits_of(section, "bits"), section.integer("group_size", least=-1), zero_points=True)
    return Quantisation(f"gptq {stored.dtype}", base, (("Linear", stored),))


def _awq(section: Config, base: WeightFormat) -> Quantisation:
    group = section.integer("group_size", "q_group_size", least=-1)
    stored = grouped(bits_of(section, "bits", "w_bit"), group, section.flag("zero_point", default=True))
    return Quantisation(f"awq {stored.dtype}", base, (("Linear", stored),))


def _bitsandbytes(section: Config, base: WeightFormat) -> Quantisation:
    if section.flag("load_in_8bit", "_load_in_8bit", default=False):
        return Quantisation("bitsandbytes int8", base, (("Linear", WeightFormat("int8", 1.0)),))
    # one float per 64 elements, or with double quantisation one byte per 64 and one float per 256 of those
    nested = section.flag("bnb_4bit_use_double_quant", default=False)
    stored = WeightFormat("int4", 0.5 + ((1 + 4 / 256) / 64 if nested else 4 / 64))
    return Quantisation("bitsandbytes int4", base, (("Linear", stored),))


MXFP4 = WeightFormat("fp4", 0.5 + 1 / 32)
NVFP4 = WeightFormat("fp4", 0.5 + 1 / 16)


def _mxfp4(section: Config, base: WeightFormat) -> Quantisation:
    return Quantisation("mxfp4", base, (("Linear", MXFP4),))


def _int8(section: Config, base: WeightFormat) -> Quantisation:
    return Quantisation("int8", base, (("Linear", WeightFormat("int8", 1.0)),))


def _modelopt(section: Config, base: WeightFormat) -> Quantisation:
    algorithms = {"FP8": WeightFormat("fp8", 1.0), "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "MXFP8": WeightFormat("fp8", 1 + 1 / 32)}
    algorithms |= {"W4A16": grouped(4, 128, False), "W4A8_AWQ": grouped(4, 128, False), "FP8_PB_WO": WeightFormat("fp8", 1 + 4 / 128**2)}
    algorithm = section.text("quant_algo")
    kv_name = section.text("kv_cache_quant_algo", default=None)
    kv: Dtype | None = "fp8" if kv_name == "FP8" else "fp4" if kv_name == "NVFP4" else None

    def known(name: str) -> WeightFormat:
        if name not in algorithms:
            raise ValueError(f"{section.where}: 'quant_algo' must be one of {', '.join(algorithms)}, got {name!r}.")
        return algorithms[name]

    if algorithm == "MIXED_PRECISION":
        layers = section.mapping("quantized_layers")
        rules = tuple((name, known(str(entry.get("quant_algo")))) for name, entry in layers.items())
    else:
        rules = (("Linear", known(algorithm)),)
    return Quantisation(f"modelopt {algorithm}", base, rules, kv_dtype=kv)


def _compressed_tensors(section: Config, base: WeightFormat) -> Quantisation:
    rules, names = [], []
    for name, group in section.mapping("config_groups").items():
        where = f"{section.where}, config_groups, {name}"
        if not isinstance(group, Mapping):
            raise ValueError(f"{where}: a group must be a mapping, got {group!r}.")
        weights = Config(group, where).part("weights")
        if weights is None:
            continue
        stored = _scheme(weights)
        names.append(stored.dtype)
        rules += [(str(target), stored) for target in group.get("targets", ["Linear"])]
    scheme = section.part("kv_cache_scheme")
    kv: Dtype | None = None
    if scheme is not None:
        kv = "fp8" if scheme.text("type", default="float") == "float" else "int8"
    # specific targets before the general one
    rules.sort(key=lambda rule: rule[0] == "Linear")
    return Quantisation(f"compressed-tensors {'/'.join(sorted(set(names)))}", base, tuple(rules), kv_dtype=kv)


def _scheme(weights: Config) -> WeightFormat:
    """One weight scheme of compressed-tensors: element type, and scales per group, block or not at all."""
    bits, kind = bits_of(weights, "num_bits"), weights.text("type", default="int")
    strategy, group = weights.text("strategy", default="channel"), weights.integer("group_size", default=-1, least=-1)
    zero_points = not weights.flag("symmetric", default=True)
    if strategy not in ("group", "tensor_group"):
        block = weights.sequence("block_structure", of=int, default=None) if strategy == "block" else None
        scale = 4 / (block[0] * block[1]) if block else 0.0
        if kind == "float":
            return WeightFormat("fp8" if bits == 8 else "fp4", bits / 8 + scale)
        stored = grouped(bits, -1, zero_points)
        return WeightFormat(stored.dtype, stored.bytes_per_param + scale)
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "float":
        return WeightFormat("fp8", 1 + 2 / group)
    return grouped(bits, group, zero_points)


METHODS: dict[str, Callable[[Config, WeightFormat], Quantisation]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "gptq": _gptq,
    "gptq-marlin": _gptq,
    "awq": _awq,
    "awq-marlin": _awq,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "int8": _int8,
    "experts-int8": _int8,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "compressed-tensors": _compressed_tensors,
}


def online(name: str) -> dict[str, Any]:
    """The section that an engine's `--quantization NAME` stands for when the checkpoint has none; ValueError otherwise."""
    known: dict[str, dict[str, Any]] = {
        "fp8": {"quant_method": "fp8"},
        "mxfp4": {"quant_method": "mxfp4"},
        "int8": {"quant_method": "int8"},
        "experts_int8": {"quant_method": "experts_int8"},
        "bitsandbytes": {"quant_method": "bitsandbytes"},
    }
    if name not in known:
        raise ValueError(
            f"model.quantization must be one of {', '.join(known)} for a checkpoint that is not quantised, got {name!r}."
        )
    return known[name]
