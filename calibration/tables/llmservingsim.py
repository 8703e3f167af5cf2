"""Profiles of LLMServingSim, its `profiler` folder or one below: `perf/<hardware>/<model>/<dtype>/tp<N>/*.csv`.

Taken inside a running vLLM, kernel by kernel, so that other layers evict the cache between two calls of one. A context
of n tokens is the one before the computed token: a kernel that cuts it into blocks of 128 takes a second one at 128
already. The model's dimensions come from `configs/model/<model>.json` in a folder above.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from calibration.tables import layers, llmservingsim_v0
from calibration.tables.dimensions import config_of, from_config
from calibration.tables.layers import Profile, read_csv
from calibration.tables.rows import LENGTH_COLUMNS, Part, device_of, equal_lengths, renamed, table
from predictors.table import OperatorTable


SOURCE = "LLMServingSim profiler/perf"
DEVICES = {"RTXPRO6000": "rtx-pro-6000", "RTX4090": "rtx-4090"}
US = 1e-6
SKEW_ITERATIONS = 3.0
"""Times in skew.csv are the sum of so many iterations (the profile's `measurement_iterations`), not their mean."""
OPS = {"layernorm": "norm", "final_layernorm": "final_norm", "rotary_emb": "rotary", "act_fn": "activation"}
SKEW = ("n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us")


def matches(path: Path) -> bool:
    """Whether the folder holds these profiles, or the older ones."""
    return bool(_metas(path)) or llmservingsim_v0.matches(path)


def _metas(path: Path) -> list[Path]:
    below = (path / "profiler/perf", path / "perf", path)
    deep = ("*/*/*/meta.yaml", "*/*/*/*/meta.yaml")  # <hardware>/<model>/<dtype>, <hardware>/<owner>/<model>/<dtype>
    found = ([meta for pattern in deep for meta in folder.glob(pattern)] for folder in below)
    return sorted(next(filter(None, found), []))


def parts(path: Path) -> Iterator[Part]:
    """One part per family of each `tp<N>` folder; then those of the older profiles.

    **Raises:** ValueError for hardware that is no device of the catalogue, or a model without a config.json.
    """
    for meta in _metas(path):
        facts = yaml.safe_load(meta.read_text(encoding="utf-8"))
        for folder in sorted(meta.parent.glob("tp*")):
            profile = Profile(
                source=SOURCE,
                device=device_of(str(facts["hardware"]), DEVICES, meta),
                model=str(facts["model"]),
                tp=int(folder.name.removeprefix("tp")),
                dimensions=from_config(config_of(str(facts["model"]), meta)),
                engine="vllm",
                engine_version=str(facts["vllm_version"]),
                dtype=str(facts["variant"]),
            )
            for name, family, read in FILES:
                if (folder / name).is_file():
                    file = folder / name
                    yield Part(SOURCE, profile.device, family, "vllm", file, partial(read, file, profile))
    yield from llmservingsim_v0.parts(path)


def gemm(path: Path, profile: Profile) -> OperatorTable:
    """Projections of dense.csv."""
    return layers.gemm(*_dense(path), profile)


def elementwise(path: Path, profile: Profile) -> OperatorTable:
    """Layers of dense.csv that only move activations."""
    return layers.elementwise(*_dense(path), profile)


def _dense(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    stored = read_csv(path, ("layer", "tokens", "time_us"))
    return renamed(stored["layer"], lambda name: OPS.get(name, name)), stored["tokens"], stored["time_us"] * US


def sequence(path: Path, profile: Profile) -> OperatorTable:
    """The head and the sampler of per_sequence.csv."""
    stored = read_csv(path, ("layer", "sequences", "time_us"))
    return layers.sequence(stored["layer"], stored["sequences"], stored["time_us"] * US, profile)


def attention(path: Path, profile: Profile) -> OperatorTable:
    """One chunk on a prior context, and decodes of one length, in one kernel."""
    stored = read_csv(path, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"))
    chunk, decodes = stored["prefill_chunk"], stored["n_decode"]
    lengths = equal_lengths(chunk > 0.0, chunk, stored["kv_prefill"], decodes, stored["kv_decode"] + 1.0)
    op = np.where(chunk > 0.0, np.where(decodes > 0.0, "mixed", "prefill"), "decode").astype(object)
    return table("attention", profile.device, stored["time_us"] * US, lengths | profile.heads(), profile.labels(op=op))


def skewed_attention(path: Path, profile: Profile) -> OperatorTable:
    """Decodes of two lengths, `nb` of `n` long ones; as `..._uniform`, all of the mean and all of the long length."""
    stored = read_csv(path, SKEW, ("regime", "ratio", "skew", "alpha"))
    n, many, chunk = stored["n"], stored["nb"], stored["pc"]
    short, long, mean = (stored[name] + 1.0 for name in ("kvs", "kv_big", "kv_mean"))
    batches = (
        ("t_skew_us", "skewed", (n - many) * short + many * long, long, (n - many) * short**2 + many * long**2),
        ("t_mean_us", "uniform", n * mean, mean, n * mean**2),
        ("t_max_us", "uniform", n * long, long, n * long**2),
    )
    lengths = [
        equal_lengths(chunk > 0.0, chunk, stored["kp"], n)
        | {"decode_sum": total, "decode_max": longest, "decode_sumsq": squares}
        for _, _, total, longest, squares in batches
    ]
    regime = np.where(chunk > 0.0, "mixed_", "decode_").astype(object)
    return table(
        "attention",
        profile.device,
        np.concatenate([stored[time] for time, *_ in batches]) * US / SKEW_ITERATIONS,
        {name: np.concatenate([one[name] for one in lengths]) for name in LENGTH_COLUMNS} | profile.heads(),
        profile.labels(op=np.concatenate([regime + kind for _, kind, *_ in batches])),
    )


def moe(path: Path, profile: Profile) -> OperatorTable:
    """The whole expert block, router included (op `block`), of one rank that holds every expert whole."""
    stored = read_csv(path, ("tokens", "activated_experts", "time_us"))
    d = profile.dimensions
    shape = {"experts": d.experts, "top_k": d.top_k, "hidden": d.hidden, "inter": d.expert_inter, "matrices": 3.0}
    columns = shape | {
        "tokens": stored["tokens"],
        "tp": 1.0,
        "ep": 1.0,
        "active": stored["activated_experts"],
        "max_load": np.nan,
        "skew": np.nan,
    }
    return table("moe", profile.device, stored["time_us"] * US, columns, profile.labels(op="block"))


FILES: tuple[tuple[str, str, Callable[[Path, Profile], OperatorTable]], ...] = (
    ("dense.csv", "gemm", gemm),
    ("dense.csv", "elementwise", elementwise),
    ("per_sequence.csv", "sequence", sequence),
    ("attention.csv", "attention", attention),
    ("skew.csv", "attention", skewed_attention),
    ("moe.csv", "moe", moe),
)
"""Files of a `tp<N>` folder, the family that is read from each, and how."""
