"""From a HuggingFace config (or one of our files) to a `ModelSpec`."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sim.documents import mapping, read_mapping, user_path
from sim.model.config import Config
from sim.model.families import families
from sim.model.quantisation import DTYPE_NAMES, KV_DTYPE_NAMES, online, read_dtype, read_quantisation
from sim.model.spec import ModelConf, ModelSpec
from sim.model.towers import tower_params


NAMED = 5
"""How many near names a message lists."""

CATALOGUE = Path(__file__).resolve().parents[2] / "conf" / "model"


def read_model(config: Mapping[str, Any], name: str, dtype: str = "auto", quantization: str | None = None) -> ModelSpec:
    """A model from the contents of its config.json.

    `dtype` replaces the checkpoint's type of unquantised weights; `quantization` is what an engine's flag of that name
    makes of a checkpoint without `quantization_config`. ValueError: unknown `model_type` (with the nearest known),
    a missing, misspelt or senseless key.
    """
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}: a model config must be a mapping of keys, got {type(config).__name__}.")
    readers = families()
    values = text_part(config)
    model_type, notes = reader_name(values, readers, name)
    values["model_type"] = model_type
    keys = Config(values, name)
    chosen = keys.text("dtype", "torch_dtype", default="bfloat16") if dtype == "auto" else dtype
    base = read_dtype(chosen, name, "dtype" if dtype == "auto" else "model.dtype")
    if quantization is not None and "quantization_config" not in keys.values:
        keys.values["quantization_config"] = online(quantization)
    model = readers[model_type](keys, read_quantisation(keys, base))
    unread = keys.left_over()
    told, tower = beside(config, model.hidden, name)
    notes += told
    if unread:
        notes.append(f"config keys not used: {', '.join(sorted(unread))}")
    if dtype == "auto" and not {"dtype", "torch_dtype"} & set(keys.values):
        notes.append("the config names no dtype: bfloat16 taken")
    if model.draft_layers:
        notes.append(f"its draft layers (MTP, {len(model.draft_layers)}) are loaded only with speculative decoding")
    return replace(model, name=name, model_type=model_type, tower_params=tower).noted(*notes)


def reader_name(values: Mapping[str, Any], readers: Mapping[str, Any], where: str) -> tuple[str, list[str]]:
    """The known `model_type` of a config, or of its architecture with a note; ValueError with the nearest known."""
    given = values.get("model_type")
    if isinstance(given, str) and given in readers:
        return given, []
    architectures = values.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else []:
        plain = re.sub(r"For(CausalLM|ConditionalGeneration)$", "", str(architecture)).lower()
        for known in readers:
            if known.replace("_", "") == plain:
                return known, [f"model_type {given!r} is not known: read as {known}, by its architecture"]
    near = get_close_matches(given, readers, 3, 0.4) if isinstance(given, str) else []
    hint = f"the nearest known are {', '.join(near)}" if near else f"known are {', '.join(sorted(readers))}"
    what = "the config has no model_type" if given is None else f"model_type {given!r} is not known"
    raise ValueError(f"{where}: {what}; {hint} (set 'model_type' in the config).")


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's keys of a config that may wrap one."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    outside = ("quantization_config", "compression_config", "torch_dtype", "dtype", "tie_word_embeddings")
    values = {key: config[key] for key in outside if key in config} | dict(inner)
    values.setdefault("model_type", config.get("model_type"))
    return values


def beside(config: Mapping[str, Any], hidden: int, where: str) -> tuple[list[str], int]:
    """Notes on the towers beside the language model, and the parameters of the vision tower if its shape is given."""
    notes, params = [], 0
    section = config.get("vision_config")
    wraps = "text_config" in config and "ConditionalGeneration" in str(config.get("architectures"))
    if isinstance(section, Mapping) and section:
        found = tower_params(section, hidden, where)
        params = found or 0
        size = (
            f"its weights, {found / 1e6:.0f}M parameters by its shape, are counted" if found else "nor are its weights"
        )
        notes.append(f"the vision tower is not modelled: images and their tokens are not simulated; {size}")
    elif wraps:
        notes.append("towers for images or audio, their weights and tokens are not modelled")
    if config.get("audio_config"):
        notes.append("the audio tower, its weights and tokens are not modelled")
    return notes, params


def model_from_conf(conf: ModelConf, folder: Path | None = None) -> ModelSpec:
    """A model from a catalogue entry; a relative `path` is taken from `folder` (default: the working directory)."""
    if conf.path:
        path = user_path(conf.path, "model.path")
        model = load_model(
            str(path if path.is_absolute() or folder is None else folder / path), conf.dtype, conf.quantization
        )
        model = model if conf.name == "model" else replace(model, name=conf.name)
    elif conf.config:
        model = read_model(conf.config, conf.name, conf.dtype, conf.quantization)
    else:
        raise ValueError(f"{conf.name}: a model needs 'config' (keys of a config.json) or 'path' (a file).")
    if conf.kv_dtype != "auto":
        if conf.kv_dtype not in KV_DTYPE_NAMES:
            raise ValueError(
                f"model.kv_dtype must be auto or one of {', '.join(KV_DTYPE_NAMES)}, got {conf.kv_dtype!r}."
            )
        model = replace(model, kv_dtype=KV_DTYPE_NAMES[conf.kv_dtype])
    return replace(model, source=conf.source or conf.path or model.source)


def load_model(name_or_path: str, dtype: str = "auto", quantization: str | None = None) -> ModelSpec:
    """A model by its name in the catalogue, or from a config.json, a folder with one, or a file like the catalogue's.

    Hub names of catalogue entries (`Qwen/Qwen3-8B`) are names too. ValueError if there is no such model or file
    (with the nearest names), or the file cannot be read.
    """
    path = user_path(name_or_path, "model")
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ValueError(f"model path {name_or_path}: the folder holds no config.json.")
    if not path.is_file():
        known = catalogue()
        slug = name_or_path.lower()
        slug = by_hub_name().get(slug, slug) if "/" in slug else slug
        if slug in known:
            path = known[slug]
        elif path.suffix in (".json", ".yaml", ".yml"):
            raise ValueError(f"model path {name_or_path}: there is no such file.")
        else:
            near = get_close_matches(slug.rsplit("/", 1)[-1], known, NAMED, 0.4)
            told = f"the nearest names are {', '.join(near)}" if near else "`headway models` lists the catalogue"
            raise ValueError(
                f"model {name_or_path!r} is neither in the catalogue nor a file; {told} "
                "(give a config.json for any other model)."
            )
    if path.suffix in (".yaml", ".yml"):
        conf = load_conf(path)
        conf.dtype, conf.quantization = dtype, quantization or conf.quantization
        return model_from_conf(conf, path.parent)
    values = read_mapping(path)
    beside = path.parent / "hf_quant_config.json"
    if "quantization_config" not in values and beside.is_file():
        made = read_mapping(beside).get("quantization") or {}
        values = {
            **values,
            "quantization_config": {"quant_method": "modelopt", **mapping(made, f"{beside}: 'quantization'")},
        }
    name = path.parent.name if path.name == "config.json" else path.stem
    return replace(read_model(values, name or path.stem, dtype, quantization), source=str(path))


def load_conf(path: Path) -> ModelConf:
    """One file of the catalogue as its schema; ValueError for an unknown key or a file that is not a mapping."""
    values = read_mapping(path)
    known = [field.name for field in fields(ModelConf)]
    for key in values:
        if key not in known:
            near = get_close_matches(str(key), known, 1, 0.0)
            raise ValueError(f"{path}: unknown key '{key}'; is '{near[0]}' meant?")
    for field in fields(ModelConf):
        value = values.get(field.name)
        if field.type in (str, str | None) and value is not None and not isinstance(value, str):
            raise ValueError(f"{path}: '{field.name}' must be a text, got {value!r:.60}.")
    if str(values.get("path") or "").endswith((".yaml", ".yml")):
        raise ValueError(f"{path}: 'path' must name a config.json or its folder, got {values['path']}.")
    return ModelConf(**{"name": path.stem, **{key: value for key, value in values.items() if value is not None}})


def catalogue() -> dict[str, Path]:
    """The files of the catalogue by name."""
    return {path.stem: path for path in sorted(CATALOGUE.glob("*.yaml"))}


def by_hub_name() -> dict[str, str]:
    """Names in the catalogue by lower-case HuggingFace name."""
    hubs = {}
    for slug, path in catalogue().items():
        # one line of each file: parsing all of them takes a second
        lines = path.read_text(encoding="utf-8").splitlines()
        hub = next((line.removeprefix("hf_id:").strip(" '\"") for line in lines if line.startswith("hf_id:")), "")
        if hub:
            hubs[hub.lower()] = slug
    return hubs


__all__ = [
    "CATALOGUE",
    "DTYPE_NAMES",
    "KV_DTYPE_NAMES",
    "by_hub_name",
    "catalogue",
    "load_conf",
    "load_model",
    "model_from_conf",
    "read_model",
]
