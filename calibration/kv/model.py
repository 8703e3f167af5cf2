"""The model of a case: what its log calls it -> a shape, and how its matrices are stored."""

import re
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

from sim.documents import mapping, parse_yaml
from sim.model.quantisation import ONLINE
from sim.model.read import by_hub_name, catalogue, load_conf, read_model
from sim.model.spec import ModelSpec


PRECISIONS = {"fp32": "float32", "fp16": "float16"}
"""Types of activations that differ from the checkpoint's; all else is left as it is."""

STORED = re.compile(r"-(fp8|w8a8|w4a16)$")
"""What the catalogue's names add for a model that is stored otherwise."""


hub_names, shapes = cache(by_hub_name), cache(catalogue)


@cache
def model_of(name: str, dtype: str, least_length: int = 0) -> ModelSpec:
    """The model that a log calls `name`, `dtype` being what it says of types (`bf16;w=fp8;kv=fp8`).

    `least_length`: tokens that its checkpoint has positions for at least, as a server runs with that many.

    **Raises:** ValueError, one sentence, for a model that no rule finds, or a format that is not known.
    """
    slug = twin(slug_of(name), name)
    words = f"{name.lower()} {re.sub(r';?kv=.*', '', dtype.lower())}"
    config = deepcopy(dict(config_of(slug)))
    given = dict(part.partition("=")[::2] for part in dtype.split(";"))
    online = given.get("w") if given.get("w") in ONLINE else None
    activation = PRECISIONS.get(dtype.split(";")[0].strip().lower(), "auto")
    section = stored_as(words)
    if section is not None and repacked(slug, name, config):
        del config["quantization_config"]
    if not config.get("quantization_config") and section is not None and (online is None or online in name.lower()):
        # a format in the name is the checkpoint's own, not what the engine makes of it
        kept = mapping(_file()["kept"], "models.yaml: kept").get(slug, [])
        config["quantization_config"] = {**section, "ignore": [*section.get("ignore", []), *kept]}
        online = None
    _reduce(config, name)
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    if least_length > text.get("max_position_embeddings", least_length):
        text["max_position_embeddings"] = least_length
    return read_model(config, name, activation, online)


def repacked(slug: str, name: str, config: Mapping[str, Any]) -> bool:
    """Whether the name tells another format than the one the model's makers store it in (`DeepSeek-R1-FP4`)."""
    made, told = config.get("quantization_config"), stored_as(name.lower())
    if not made or told is None or STORED.search(slug):
        return False
    return bool(told["quant_method"] != made.get("quant_method"))


def slug_of(name: str) -> str:
    """The catalogue's (or this room's) name: the hub name, else the longest known name that is part of it."""
    plain = name.strip().lower()
    hub = hub_names().get(plain)
    if hub is not None:
        return hub
    last = plain.rpartition("/")[2]
    aliases = mapping(_file()["names"], "models.yaml: names")
    for part, slug in aliases.items():
        if _within(str(part), last):
            return str(slug)
    known = [slug for slug in (*shapes(), *_configs()) if _within(STORED.sub("", slug), last)]
    if not known:
        raise ValueError(f"the model {name!r:.60} is neither in the catalogue nor in calibration/kv/models.yaml.")
    bare = [slug for slug in known if not STORED.search(slug)] or known
    return max(bare, key=len)


def twin(slug: str, name: str) -> str:
    """The catalogue's entry of the same model stored as the name says, where it has one."""
    found = re.search(r"fp8|w8a8|w4a16", name.lower())
    other = f"{slug}-{found[0]}" if found else ""
    return other if other in shapes() else slug


def _within(part: str, name: str) -> bool:
    """Whether `part` stands in `name` as whole words."""
    return re.search(rf"(?<![a-z0-9.]){re.escape(part)}(?![a-z0-9]|\.\d)", name) is not None


def config_of(slug: str) -> Mapping[str, Any]:
    """The config.json keys of a name that `slug_of` gives."""
    own = _configs().get(slug)
    if own is None:
        return load_conf(shapes()[slug]).config
    changes = dict(mapping(own, f"models.yaml: {slug}"))
    base = changes.pop("base", None)
    return changes if base is None else {**load_conf(shapes()[str(base)]).config, **changes}


def stored_as(words: str) -> dict[str, Any] | None:
    """The `quantization_config` that a part of `words` stands for; None where none does."""
    for part, section in _file()["formats"]:
        if str(part) in words:
            return deepcopy(dict(section))
    return None


def _reduce(config: dict[str, Any], name: str) -> None:
    """`-16L64E` in a name: that many layers and routed experts of the same shape."""
    found = re.search(r"-(\d+)L(\d+)E\b", name)
    if found:
        config["num_hidden_layers"] = int(found[1])
        key = next((key for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in config), None)
        if key is not None:
            config[key] = int(found[2])


def _configs() -> Mapping[str, Any]:
    return mapping(_file()["configs"], "models.yaml: configs")


@cache
def _file() -> Mapping[str, Any]:
    text = (resources.files("calibration.kv") / "models.yaml").read_text(encoding="utf-8")
    return mapping(parse_yaml(text, "models.yaml"), "models.yaml")
