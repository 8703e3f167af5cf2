"""Older profiles of LLMServingSim: `v0/perf_models/<hardware>/<model>/tp<N>/{layers,attention}.csv`.

Layers one by one, 1 to 2048 tokens, in nanoseconds, engine not told; attention in the columns of Vidur's profiler
(milliseconds), on the TPU in nanoseconds.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from calibration.tables import layers, vidur
from calibration.tables.dimensions import config_of, from_config
from calibration.tables.layers import Profile, read_csv
from calibration.tables.rows import Part, device_of, equal_lengths, renamed, table
from predictors.table import OperatorTable


SOURCE = "LLMServingSim profiler/v0"
DEVICES = {"A6000": "rtx-a6000", "H100": "h100-sxm", "RTX3090": "rtx-3090", "TPU-v6e-1": "tpu-v6e"}
NS = 1e-9
OPS = {
    "input_layernorm": "norm_only",
    "post_layernorm": "norm_only",
    "final_layernorm": "norm_only",
    "rope": "rotary",
    "act_fn": "activation",
    "gate": "router",
    "expert.w1": "expert_gate_proj",
    "expert.w2": "expert_down_proj",
    "expert.w3": "expert_up_proj",
}


def matches(path: Path) -> bool:
    """Whether the folder holds these profiles."""
    return bool(_layers(path))


def _layers(path: Path) -> list[Path]:
    below = (path / "profiler/v0/perf_models", path / "v0/perf_models", path / "perf_models", path)
    found = next((folder for folder in below if any((folder / name).is_dir() for name in DEVICES)), None)
    return sorted(found.glob("*/*/*/tp*/layers.csv")) if found else []


def parts(path: Path) -> Iterator[Part]:
    """One part per family of each `tp<N>` folder.

    **Raises:** ValueError for hardware that is no device of the catalogue, or a model without a config.json.
    """
    for file in _layers(path):
        hardware, *model, split = file.parent.parts[-4:]
        name = "/".join(model)
        profile = Profile(
            source=SOURCE,
            device=device_of(hardware, DEVICES, file),
            model=name,
            tp=int(split.removeprefix("tp")),
            dimensions=from_config(config_of(name, file)),
        )
        for family, read in LAYERS.items():
            yield Part(SOURCE, profile.device, family, "", file, partial(read, file, profile))
        beside = file.with_name("attention.csv")
        if beside.is_file():
            read_beside = tpu_attention if hardware.startswith("TPU") else vidur.attention
            yield Part(SOURCE, profile.device, "attention", "", beside, partial(read_beside, beside, profile))


def _stored(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stored = read_csv(path, ("layer_name", "input", "latency(ns)"), ("kv_cache", "tp_size"))
    op = renamed(stored["layer_name"], lambda name: OPS.get(name, name))
    return op, stored["input"], stored["latency(ns)"] * NS


def gemm(path: Path, profile: Profile) -> OperatorTable:
    """Projections, the router, and single experts."""
    return layers.gemm(*_stored(path), profile)


def elementwise(path: Path, profile: Profile) -> OperatorTable:
    """What only moves activations; norms do not add the residual."""
    return layers.elementwise(*_stored(path), profile)


def sequence(path: Path, profile: Profile) -> OperatorTable:
    """The head."""
    return layers.sequence(*_stored(path), profile)


def attention(path: Path, profile: Profile) -> OperatorTable:
    """Layer `attn`: one prompt without a prior context."""
    op, tokens, seconds = _stored(path)
    chosen = op == "attn"
    lengths = equal_lengths(np.ones(chosen.sum()), tokens[chosen])
    return table("attention", profile.device, seconds[chosen], lengths | profile.heads(), profile.labels(op="prefill"))


def tpu_attention(path: Path, profile: Profile) -> OperatorTable:
    """One chunk on a prior context, or decodes of one length; medians."""
    shape = ("prefill_chunk_size", "kv_cache_size", "batch_size", "is_prefill")
    stored = read_csv(path, (*shape, "p50_ns"), ("mean_ns", "p90_ns", "max_ns"))
    lengths, op = vidur.lengths(*(stored[name] for name in shape))
    return table("attention", profile.device, stored["p50_ns"] * NS, lengths | profile.heads(), profile.labels(op=op))


LAYERS: dict[str, Callable[[Path, Profile], OperatorTable]] = {
    "gemm": gemm,
    "elementwise": elementwise,
    "sequence": sequence,
    "attention": attention,
}
"""What is read from layers.csv."""
