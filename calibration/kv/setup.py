"""From a case to what the memory sum wants: a device, an engine's settings and a parallel shape."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from calibration.kv.case import KVCase
from calibration.kv.legacy import as_of
from calibration.kv.model import model_of
from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import load_engine
from sim.documents import mapping, parse_yaml
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf
from sim.model.spec import MLA, ModelSpec
from sim.units import GIB


shipped = cache(load_device)

NOMINAL_SHARE = 0.98
"""Of a nominal size in the text, what a device reports, where nothing better is known."""

ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True)
class Server:
    """A case, described. `notes`: what was guessed."""

    model: ModelSpec
    device: DeviceConf
    engine: EngineConf
    deployment: DeploymentConf
    notes: tuple[str, ...] = ()


def server_of(case: KVCase, said: Mapping[str, int]) -> Server:
    """What `case` ran. `said`: settings that its source states in another case (`settings_said`).

    **Raises:** ValueError, one sentence, where model, device or engine cannot be told. Nothing measured is read.
    """
    device, notes = device_of(case.hardware)
    # a server that has a cache got past the check of its length
    length = int(case.max_model_len) if case.counts and case.max_model_len.isdecimal() else 0
    model = model_of(case.model, case.dtype, length)
    if case.tensor_parallel is None:
        raise ValueError("the log does not tell over how many devices the model is spread.")
    if case.engine not in ENGINES:
        raise ValueError(f"the engine must be one of {', '.join(ENGINES)}, got {case.engine!r:.40}.")
    version = version_of(case)
    own = quoted(case.quote)
    known = {**said, **own}
    fraction = re.search(r"\d*\.\d+|\d+", case.utilization)
    kv = re.search(r"kv=(\w+)", case.dtype)
    conf = replace(
        load_engine(case.engine, version),
        gpu_memory_utilization=float(fraction[0]) if fraction else None,
        max_model_len=int(case.max_model_len) if case.max_model_len.isdecimal() else None,
        max_num_seqs=int(case.max_num_seqs) if case.max_num_seqs.isdecimal() else known.get("max_num_seqs"),
        max_num_batched_tokens=case.max_num_batched_tokens or known.get("max_num_batched_tokens"),
        kv_cache_dtype=cache_type(kv[1] if kv else "", case.engine, model, device),
    )
    block = block_size(case) or known.get("block_size")
    if block is not None and case.engine == "vllm":
        conf = replace(conf, block_size=block)
    conf = as_of(conf, case.engine_version, model.max_model_len)
    if version_words(case) == "":
        notes.append(f"the log tells no version: {version} taken")
    deployment = DeploymentConf(
        tensor_parallel=case.tensor_parallel,
        pipeline_parallel=case.pipeline_parallel or 1,
        data_parallel=own.get("data_parallel", 1),
        expert_parallel=bool(own.get("expert_parallel", 0)),
    )
    return Server(model, device, conf, deployment, tuple(notes))


def settings_said(cases: Iterable[KVCase]) -> dict[str, dict[str, int]]:
    """By source: settings that one of its cases states, and that its others are silent about.

    A harness states them once. Those that differ between its cases are left out.
    """
    found: dict[str, dict[str, set[int]]] = {}
    for case in cases:
        for key, value in quoted(case.quote).items():
            if key in ("block_size", "max_num_batched_tokens"):
                found.setdefault(case.source, {}).setdefault(key, set()).add(value)
    return {
        source: {key: next(iter(values)) for key, values in settings.items() if len(values) == 1}
        for source, settings in found.items()
    }


def quoted(text: str) -> dict[str, int]:
    """Settings that a quotation of the log states."""
    patterns = {
        "max_num_batched_tokens": r"max[_-]num[_-]batched[_-]tokens[ =:]+(\d+)",
        "max_num_seqs": r"max[_-]num[_-]seqs[ =:]+(\d+)",
        "block_size": r"block[_-]size[ =:]+(\d+)",
        "data_parallel": r"\bDP=(\d+)",
    }
    found = {key: match for key, pattern in patterns.items() if (match := re.search(pattern, text))}
    settings = {key: int(match[1]) for key, match in found.items()}
    return settings | ({"expert_parallel": 1} if re.search(r"\bEP (on|=)", text) else {})


def block_size(case: KVCase) -> int | None:
    """Tokens of a block, where the unit of the blocks names them (`blocks of 64`)."""
    blocks = case.reported.get("num_gpu_blocks")
    match = re.search(r"blocks of (\d+)", blocks.unit) if blocks else None
    return int(match[1]) if match else None


def cache_type(words: str, engine: str, model: ModelSpec, device: DeviceConf) -> str:
    """The engine's name of a cache type. Two engines choose it themselves where none is given.

    TensorRT-LLM keeps the cache of an FP8 checkpoint in FP8; vLLM that of sparse latent attention in its packed 8-bit
    form on workstation Blackwell, where its one kernel reads nothing else (0.28.0, read).
    """
    sparse = any(isinstance(layer.mixer, MLA) and layer.mixer.indexer for layer in model.layers)
    if words in ("", "bf16", "fp16"):
        chosen = (engine == "trtllm" and "fp8" in model.quantisation) or (sparse and "RTX PRO 6000" in device.name)
        return "fp8" if chosen else "auto"
    return words


def device_of(text: str) -> tuple[DeviceConf, list[str]]:
    """The device of a hardware cell, with the memory the cell states, and what was guessed."""
    plain = text.strip().lower()
    tables = _file("devices.yaml")
    names = mapping(tables["names"], "devices.yaml: names")
    stand_ins = mapping(tables["stand_ins"], "devices.yaml: stand_ins")
    stated = stated_memory(plain)
    for part, entry in stand_ins.items():
        if str(part) in plain:
            facts = mapping(entry, f"devices.yaml: {part}")
            memory = stated or nominal_memory(plain) or float(facts["memory_gib"]) * GIB
            base = shipped(str(facts["device"]))
            words = f"{text} is not in the catalogue: {base.name} stands in, with {memory / GIB:.2f} GiB"
            return _with_memory(base, memory, stated is None), [words]
    slug = next((str(slug) for part, slug in names.items() if str(part) in plain), None)
    if slug is None:
        raise ValueError(f"the device {text!r:.40} is not known.")
    device = shipped(slug)
    return (_with_memory(device, stated, False) if stated else device), []


def stated_memory(text: str) -> float | None:
    """Bytes that a text states as the device's own count (`79.19 GiB`, `101976440832 B`)."""
    gib = re.search(r"(\d+(?:\.\d+)?) ?gib", text)
    if gib:
        return float(gib[1]) * GIB
    plain = re.search(r"(\d{9,}) ?b\b", text)
    return float(plain[1]) if plain else None


def nominal_memory(text: str) -> float | None:
    """Bytes that a nominal size (`24gb`) stands for."""
    found = re.search(r"(\d+) ?gb\b", text)
    return float(found[1]) * GIB * NOMINAL_SHARE if found else None


def _with_memory(device: DeviceConf, memory: float, estimated: bool) -> DeviceConf:
    return replace(device, memory_bytes=memory, memory_bytes_estimated=estimated)


def version_words(case: KVCase) -> str:
    """The release or month in a version cell, the later of two; "" for neither."""
    cell = re.sub(r"\(.*?\)", "", case.engine_version) or case.engine_version
    releases = re.findall(r"\d+\.\d+(?:\.\d+)?", cell)
    if releases:
        return str(releases[-1])
    month = re.search(r"20\d\d-\d\d(?:-\d\d)?", case.engine_version)
    return month[0] if month else ""


def version_of(case: KVCase) -> str:
    """The engine's version: as stated, else the last one released by the day (the middle of the month) stated."""
    words = version_words(case)
    if words and not re.match(r"20\d\d-", words):
        return ".".join([*words.split("."), "0"][:3])
    releases = _file("releases.yaml").get(case.engine)
    if not releases:
        return "0.5.0" if case.engine == "sglang" else "1.0.0"
    known = [(str(day), str(version)) for version, day in mapping(releases, "releases.yaml").items()]
    day = words if len(words) != 7 else f"{words}-15"
    before = [version for at, version in known if not day or at <= day]
    return before[-1] if before else known[0][1]


@cache
def _file(name: str) -> Mapping[str, Any]:
    text = (resources.files("calibration.kv") / name).read_text(encoding="utf-8")
    return mapping(parse_yaml(text, name), name)
