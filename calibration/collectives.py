"""Measured collectives -> three-protocol constants (`sim/hardware/collectives.csv`).

`python -m calibration.collectives TABLES OUT.csv YYYY-MM`, with TABLES the folder that holds
`nccl_perf_normalised_bytes.csv.gz` and `custom_allreduce_perf.csv.gz` (tables of aiconfigurator-core 0.12.0,
Apache-2.0). Deterministic.

One fit per (family, library, operation, group size), and one over all group sizes of a series (group 0), in which each
protocol's latency grows by a hop per ring step. Constants stay positive as exponentials; the loss is Huber's, of the
log error.
"""

import csv
import gzip
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from sim.cost.collective import soft_min
from sim.hardware.collective_table import ANY_GROUP, COLUMNS, CollectiveRow, triple
from sim.hardware.collectives import algorithm_factor, algorithm_steps


NCCL_TABLE = "nccl_perf_normalised_bytes.csv.gz"
CUSTOM_TABLE = "custom_allreduce_perf.csv.gz"
ORIGIN = "aiconfigurator-core 0.12.0 tables"
CUSTOM_BYTES_PER_ELEMENT = (
    2  # `message_size` of the custom table counts bf16 elements, unlike the normalised NCCL table
)
OPERATIONS = {"alltoall": "all_to_all"}
FAMILIES = {"rtx_pro_6000_server": "rtx_pro_6000"}
LIBRARIES = {"vLLM": "vllm", "SGLang": "sglang", "TRTLLM": "trtllm"}
NOT_SHIPPED = ("b60",)  # no such device in the catalogue

# The L40S host behind most rows had no peer-to-peer beyond a pair (1.4 GB/s bus at 8 GPUs; a sound one reaches 21);
# one SGLang build ran on another host, and stands for the family at 4 and 8.
UNSOUND = {("l40s", "nccl"), ("l40s", "vllm"), ("l40s", "trtllm")}
UNSOUND_GROUPS = (4, 8)
PINNED_BUILDS = {
    ("l40s", "sglang"): "sglang/0.5.12",
    # The newer vLLM builds ran on a GB200 pair that is 2.6 times slower above 4 MB than NCCL, older vLLM and GB300.
    ("gb200", "vllm"): "vllm/0.14.0",
}

STEPS = 2500
LEARNING_RATE = 0.03
HUBER_LOG_ERROR = 0.05
CEILING = 1.2  # bandwidths stay below this multiple of the highest rate seen
LEAST_LATENCY_S = 1e-6  # no collective ends before its kernel has started, however few bytes it moves
# Starting points: latencies of LL128 and Simple over LL's, bandwidths of LL and LL128 over Simple's.
STARTS = [(a, b, c, d) for a, b in ((1.1, 2), (1.5, 5), (1.2, 10), (2, 20)) for c, d in ((0.05, 0.4), (0.01, 0.2))]


class Series(NamedTuple):
    """Medians of one measured series, one group size: sizes and times of its points, and where they came from."""

    family: str
    library: str
    op: str
    group: int
    size_bytes: np.ndarray
    time_s: np.ndarray
    source: str


class Problem(NamedTuple):
    """One fit: points as (bytes each rank sends, ring steps, time), and the weight that leaves some of them out.

    `ceiling_bytes_per_s` bounds the bandwidths: a protocol that no point reaches would drift anywhere.
    """

    traffic_bytes: np.ndarray
    steps: np.ndarray
    time_s: np.ndarray
    weight: np.ndarray
    ceiling_bytes_per_s: np.ndarray


def fit(path_to_tables: Path | str) -> list[CollectiveRow]:
    """Fits every series of the two tables in a folder.

    **Returns:** rows in a fixed order. `held_out_error` is measured by a second fit that leaves out every second
    inner size (of the fit over all groups: a middle group).

    **Raises:** `ValueError` if a table is missing.
    """
    series = read_series(Path(path_to_tables))
    jobs: list[tuple[Series, int, Problem, Problem | None]] = []
    for one in series:
        whole = problem([one], pooled=False)
        jobs.append((one, one.group, whole, whole._replace(weight=every_second(len(one.size_bytes)))))
    for members in grouped(series):
        if len(members) > 1:
            whole = problem(members, pooled=True)
            middle = sorted(m.group for m in members)[1]
            kept = np.concatenate([np.full(len(m.size_bytes), float(m.group != middle)) for m in members])
            held_out = whole._replace(weight=kept) if len(members) > 2 else None
            jobs.append((members[0], ANY_GROUP, whole, held_out))
    full = solve([job[2] for job in jobs])
    partial_jobs = [i for i, job in enumerate(jobs) if job[3] is not None]
    partial = dict(zip(partial_jobs, solve([jobs[i][3] or jobs[i][2] for i in partial_jobs]), strict=True))
    rows = []
    for i, (one, group, whole, held_out) in enumerate(jobs):
        outside = None
        if held_out is not None:
            outside = mean_error(partial[i], whole, 1.0 - held_out.weight)
        rows.append(row(one, group, full[i], whole, outside))
    return rows


def read_series(folder: Path) -> list[Series]:
    """The measured series: NCCL over all builds and dtypes (they agree to 2 %), an engine's newest build in a graph."""
    points: dict[tuple[str, str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    builds: dict[tuple[str, str, str, int], set[str]] = defaultdict(set)

    def add(key: tuple[str, str, str, int], size_bytes: int, milliseconds: str, build: str) -> None:
        points[key][size_bytes].append(float(milliseconds) * 1e-3)
        builds[key].add(build)

    for entry in table_rows(folder / NCCL_TABLE):
        key = (entry["sys"], "nccl", OPERATIONS.get(entry["op_name"], entry["op_name"]), int(entry["num_gpus"]))
        add(key, int(entry["bytes"]), entry["latency_ms"], entry["lib"])
    engine_rows = [
        entry
        for entry in table_rows(folder / CUSTOM_TABLE)
        if entry["sys"] not in NOT_SHIPPED and not entry["kernel_source"].endswith("_eager")
    ]
    newest: dict[tuple[str, str, str, int], str] = {}
    for entry in engine_rows:
        key = _engine_key(entry)
        newest[key] = max(newest.get(key, ""), entry["backend_dir"], key=lambda build: _rank(build, key))
    for entry in engine_rows:
        key = _engine_key(entry)
        if entry["backend_dir"] == newest[key]:
            add(key, CUSTOM_BYTES_PER_ELEMENT * int(entry["message_size"]), entry["latency"], entry["backend_dir"])
    series = []
    for key in sorted(points):
        system, library, op, group = key
        if (system, library) in UNSOUND and group in UNSOUND_GROUPS:
            continue
        sizes = sorted(points[key])
        times = [statistics.median(points[key][size]) for size in sizes]
        source = f"{ORIGIN}: {', '.join(sorted(builds[key]))}"
        series.append(
            Series(FAMILIES.get(system, system), library, op, group, np.array(sizes, float), np.array(times), source)
        )
    return series


def every_second(points: int) -> np.ndarray:
    """Weights that leave out every second inner point: 1 0 1 0 ... 1, both ends kept."""
    weight = np.ones(points)
    weight[1 : points - 1 : 2] = 0
    return weight


def problem(members: Sequence[Series], pooled: bool) -> Problem:
    """Points of one fit; steps are 0 in a fit of one group, whose hops are inside its latencies."""
    traffic = [m.size_bytes * algorithm_factor(m.op, m.group) for m in members]
    steps = [np.full(len(m.size_bytes), float(algorithm_steps(m.op, m.group) if pooled else 0)) for m in members]
    times = np.concatenate([m.time_s for m in members])
    sent = np.concatenate(traffic)
    return Problem(sent, np.concatenate(steps), times, np.ones(len(times)), CEILING * np.max(sent / times))


def grouped(series: Iterable[Series]) -> list[list[Series]]:
    """Series of one family, library and operation together, in order."""
    together: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for one in series:
        together[one.family, one.library, one.op].append(one)
    return list(together.values())


def predict_s(
    constants: tuple[Float[Array, "3"], Float[Array, "3"], Float[Array, "3"]],
    traffic: Float[Array, "point"],
    steps: Float[Array, "point"],
) -> Float[Array, "point"]:
    """Seconds by point from three latencies, three hops and three bandwidths."""
    a, hop, bandwidth = constants
    return soft_min([a[p] + hop[p] * steps + traffic / bandwidth[p] for p in range(len(a))])


def _unpack(free: Float[Array, "nine"], ceiling: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """Constants from nine free numbers: exponentials, latencies from the least up, bandwidths below the ceiling."""
    a, hop, bandwidth = jnp.split(jnp.exp(free), 3)
    return LEAST_LATENCY_S + a, hop, ceiling * bandwidth / (1.0 + bandwidth)


def solve(problems: Sequence[Problem]) -> np.ndarray:
    """Best constants of each problem, `[fit, 3, protocol]`: Adam from `STARTS`, all problems in one compiled batch."""
    width = max(len(p.time_s) for p in problems)
    padded = [
        np.stack([np.pad(getattr(p, name), (0, width - len(p.time_s)), constant_values=fill) for p in problems])
        for name, fill in (("traffic_bytes", 1.0), ("steps", 0.0), ("time_s", 1.0), ("weight", 0.0))
    ]
    starts = np.stack([_starts(p) for p in problems])
    ceilings = np.array([p.ceiling_bytes_per_s for p in problems])
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        constants, loss = _solve(*(jnp.asarray(x) for x in (starts, *padded, ceilings)))
        best = np.argmin(np.asarray(loss), axis=1)
        return np.asarray(constants)[np.arange(len(problems)), best]


@jax.jit
def _solve(
    starts: Float[Array, "fit start nine"],
    traffic: Float[Array, "fit point"],
    steps: Float[Array, "fit point"],
    time_s: Float[Array, "fit point"],
    weight: Float[Array, "fit point"],
    ceiling: Float[Array, "fit"],
) -> tuple[Float[Array, "fit start 3 protocol"], Float[Array, "fit start"]]:
    optimiser = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, STEPS))

    def one(
        start: Array, traffic: Array, steps: Array, time_s: Array, weight: Array, ceiling: Array
    ) -> tuple[Array, Array]:
        def loss(free: Array) -> Array:
            error = jnp.log(predict_s(_unpack(free, ceiling), traffic, steps)) - jnp.log(time_s)
            return jnp.sum(weight * optax.losses.huber_loss(error, delta=HUBER_LOG_ERROR)) / jnp.sum(weight)

        def step(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
            free, state = carry
            updates, state = optimiser.update(jax.grad(loss)(free), state)
            return (free + updates, state), None

        (free, _), _ = jax.lax.scan(step, (start, optimiser.init(start)), None, length=STEPS)
        return jnp.stack(_unpack(free, ceiling)), loss(free)

    over_starts = jax.vmap(one, in_axes=(0, None, None, None, None, None))
    return jax.vmap(over_starts)(starts, traffic, steps, time_s, weight, ceiling)


def _starts(p: Problem) -> np.ndarray:
    kept = p.weight > 0
    latency = p.time_s[kept].min()
    hop = 0.05 * latency
    starts = []
    for a, b, c, d in STARTS:
        shares = np.array([c, d, 1.0]) / CEILING
        starts.append(np.log([0.9 * latency, a * latency, b * latency, hop, hop, hop, *(shares / (1 - shares))]))
    return np.stack(starts)


def mean_error(constants: np.ndarray, p: Problem, weight: np.ndarray) -> float:
    """Weighted mean absolute relative error of a fit."""
    with jax.enable_x64(True):
        a, hop, bandwidth = (jnp.asarray(x) for x in constants)
        traffic, steps = jnp.asarray(p.traffic_bytes), jnp.asarray(p.steps)
        predicted = np.asarray(predict_s((a, hop, bandwidth), traffic, steps))
    return float(np.sum(weight * np.abs(predicted / p.time_s - 1)) / np.sum(weight))


def row(one: Series, group: int, constants: np.ndarray, whole: Problem, held_out_error: float | None) -> CollectiveRow:
    """One row of the table, constants to four digits, protocols by rising bandwidth."""
    a, hop, bandwidth = constants
    order = np.argsort(bandwidth, kind="stable")
    a_s, hop_s, bytes_per_s = (triple(float(f"{x:.4g}") for x in values[order]) for values in (a, hop, bandwidth))
    if group != ANY_GROUP:
        hop_s = (0.0, 0.0, 0.0)
    error = mean_error(np.array([a_s, hop_s, bytes_per_s]), whole, whole.weight)
    return CollectiveRow(
        family=one.family,
        library=one.library,
        op=one.op,
        group=group,
        a_s=a_s,
        hop_s=hop_s,
        bytes_per_s=bytes_per_s,
        points=len(whole.time_s),
        fit_error=round(error, 4),
        held_out_error=None if held_out_error is None else round(held_out_error, 4),
        source=one.source,
    )


def write(rows: Iterable[CollectiveRow], path: Path | str, date: str) -> None:
    """Writes the table that `sim.hardware.collective_table` reads."""
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        stream.write(f"# Three-protocol constants fitted by calibration/collectives.py, {date}. Errors are shares.\n")
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(COLUMNS)
        for r in rows:
            held_out = "" if r.held_out_error is None else r.held_out_error
            numbers = (*r.a_s, *r.hop_s, *r.bytes_per_s, r.points, r.fit_error, held_out)
            table.writerow((r.family, r.library, r.op, r.group, *numbers, r.source))


def summary(rows: Iterable[CollectiveRow]) -> str:
    """Mean errors by family, in percent: engine all-reduce, NCCL all-reduce, other NCCL operations."""
    kinds = {
        "engine all-reduce": lambda r: r.library != "nccl",
        "NCCL all-reduce": lambda r: r.op == "all_reduce",
        "other": lambda r: True,
    }
    rows = list(rows)
    lines = ["family         kind               sizes held out   fit   middle group held out"]
    for family in sorted({r.family for r in rows}):
        left = [r for r in rows if r.family == family]
        for kind, chosen in kinds.items():
            mine = [r for r in left if chosen(r)]
            left = [r for r in left if not chosen(r)]
            single = [r for r in mine if r.group != ANY_GROUP]
            middle = [r.held_out_error for r in mine if r.group == ANY_GROUP and r.held_out_error is not None]
            values = [
                _percent(r.held_out_error for r in single),
                _percent(r.fit_error for r in single),
                _percent(middle),
            ]
            lines.append(f"{family:14s} {kind:18s} {values[0]:>14s} {values[1]:>5s} {values[2]:>23s}")
    return "\n".join(lines)


def _percent(errors: Iterable[float | None]) -> str:
    known = [error for error in errors if error is not None]
    return f"{100 * statistics.mean(known):.1f}" if known else "-"


def table_rows(path: Path) -> list[dict[str, str]]:
    """Rows of one of the tables; ValueError where it is missing."""
    if not path.is_file():
        raise ValueError(
            f"The tables folder must hold {path.name}, which is not in {path.parent}; give another folder."
        )
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _engine_key(entry: dict[str, str]) -> tuple[str, str, str, int]:
    return entry["sys"], LIBRARIES[entry["framework"]], "all_reduce", int(entry["num_gpus"])


def _rank(build: str, key: tuple[str, str, str, int]) -> tuple[bool, bool, list[int]]:
    """Order of builds: the pinned one, then the library's own folder, then the version."""
    return (
        build == PINNED_BUILDS.get(key[:2]),
        build.startswith(f"{key[1]}/"),
        [int(digits) for digits in re.findall(r"\d+", build)],
    )


def main(tables: str, out: str, date: str) -> None:
    """Fits, writes and prints the errors."""
    rows = fit(tables)
    write(rows, out, date)
    print(summary(rows))


if __name__ == "__main__":
    main(*sys.argv[1:4])
