"""Measured collectives -> `sim/hardware/collective_points.csv`, and how well what lies between them is predicted.

`python -m calibration.collective_points TABLES OUT.csv YYYY-MM` reads the folder of `calibration.collectives`. Every
build of a library keeps its own series (cut-offs move between versions). Elements are of 16 bits, as activations are
(sums of 8-bit integers are up to a quarter slower); of engines' kernels those count that a graph replayed.
"""

import csv
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from calibration.collectives import (
    CUSTOM_BYTES_PER_ELEMENT,
    CUSTOM_TABLE,
    FAMILIES,
    LIBRARIES,
    NCCL_TABLE,
    NOT_SHIPPED,
    OPERATIONS,
    ORIGIN,
    PINNED_BUILDS,
    UNSOUND,
    UNSOUND_GROUPS,
    Series,
    every_second,
    predict_s,
    problem,
    solve,
    table_rows,
)
from sim.hardware.collective_points import COLUMNS, CollectivePoints, between, monotone, time_at


SIXTEEN_BITS = ("half", "bfloat16")


def read(folder: Path) -> list[CollectivePoints]:
    """Every sound series of the two tables in `folder`, in a fixed order."""
    times: dict[tuple[str, str, str, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in table_rows(folder / NCCL_TABLE):
        op = OPERATIONS.get(row["op_name"], row["op_name"])
        key = (row["sys"], "nccl", _version(row["lib"]), op, int(row["num_gpus"]))
        if row["lib"].startswith("nccl/") and row["nccl_dtype"] in SIXTEEN_BITS:
            times[key][int(row["bytes"])].append(float(row["latency_ms"]) * 1e-3)
    for row in table_rows(folder / CUSTOM_TABLE):
        library, build = LIBRARIES[row["framework"]], row["backend_dir"]
        pinned = PINNED_BUILDS.get((row["sys"], library), build)
        foreign = not build.startswith(f"{library}/")
        if row["sys"] in NOT_SHIPPED or row["kernel_source"].endswith("_eager") or foreign or build != pinned:
            continue
        key = (row["sys"], library, _version(build), "all_reduce", int(row["num_gpus"]))
        size = CUSTOM_BYTES_PER_ELEMENT * int(row["message_size"])
        times[key][size].append(float(row["latency"]) * 1e-3)
    found = []
    for (system, library, build, op, group), points in sorted(times.items()):
        if (system, library) in UNSOUND and group in UNSOUND_GROUPS:
            continue
        sizes = sorted(points)
        medians = tuple(float(f"{statistics.median(points[size]):.4g}") for size in sizes)
        family = FAMILIES.get(system, system)
        found.append(CollectivePoints(family, library, build, op, group, tuple(map(float, sizes)), medians))
    return found


def _version(build: str) -> str:
    return re.sub(r"^.*/", "", build)


def write(series: Iterable[CollectivePoints], path: Path | str, date: str) -> None:
    """Writes the table that `sim.hardware.collective_points` reads."""
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        stream.write(
            f"# Median times of collectives as measured, bytes:seconds; {ORIGIN} (Apache-2.0), read by "
            f"calibration/collective_points.py, {date}.\n"
        )
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(COLUMNS)
        for one in series:
            pairs = zip(one.size_bytes, one.time_s, strict=True)
            points = " ".join(f"{size:.0f}:{time:.4g}" for size, time in pairs)
            table.writerow((one.family, one.library, one.build, one.op, one.group, points))


def errors_between_sizes(series: list[CollectivePoints]) -> list[float]:
    """Mean absolute relative error of each series at every second inner size, which neither form nor ratio has seen."""
    problems = []
    for one in series:
        points = np.array([one.size_bytes, one.time_s], np.float64)
        rows = Series(one.family, one.library, one.op, one.group, points[0], points[1], "")
        whole = problem([rows], pooled=False)
        problems.append(whole._replace(weight=every_second(len(one.size_bytes))))
    found = []
    for one, some, constants in zip(series, problems, solve(problems), strict=True):
        kept = some.weight > 0
        with jax.enable_x64(True):
            a_s, hop_s, rates = (jnp.asarray(leaf) for leaf in constants)
            form = predict_s((a_s, hop_s, rates), jnp.asarray(some.traffic_bytes), jnp.asarray(some.steps))
        form_s, sent = np.asarray(form), np.log(some.traffic_bytes)
        times_s = np.asarray(one.time_s, np.float64)
        ratio = np.log(np.asarray(monotone(times_s[kept].tolist())) / form_s[kept])
        predicted = form_s * np.exp(np.interp(sent, sent[kept], ratio))
        found.append(float(np.mean(np.abs(predicted / times_s - 1.0)[~kept])))
    return found


def errors_between_groups(series: list[CollectivePoints]) -> dict[CollectivePoints, float]:
    """Mean error of each series of 4 ranks, predicted from those of 2 and 8 of the same build."""
    place = {(one.family, one.library, one.build, one.op, one.group): one for one in series}
    found = {}
    for key, one in place.items():
        low, high = place.get((*key[:4], 2)), place.get((*key[:4], 8))
        if one.group == 4 and low and high:
            sizes, times = between(low, high, 4)
            inside = [(size, time) for size, time in zip(sizes, times, strict=True) if size <= one.size_bytes[-1]]
            found[one] = statistics.mean(abs(time / time_at(one, size) - 1.0) for size, time in inside)
    return found


def summary(series: list[CollectivePoints]) -> str:
    """Mean errors in percent, by family: NCCL all-reduce, other NCCL operations, engines' all-reduce."""
    sizes = dict(zip(series, errors_between_sizes(series), strict=True))
    groups = errors_between_groups(series)
    families = sorted({one.family for one in series})
    lines = ["family         kind               sizes held out   group of 4 held out"]
    for family in [*families, "all"]:
        for kind in ("NCCL all-reduce", "other NCCL", "engine all-reduce"):
            errors = [
                [error for one, error in found.items() if _kind(one) == kind and family in (one.family, "all")]
                for found in (sizes, groups)
            ]
            shown = [f"{100 * statistics.mean(some):.1f}" if some else "-" for some in errors]
            lines.append(f"{family:14s} {kind:18s} {shown[0]:>14s} {shown[1]:>21s}")
    return "\n".join(lines)


def _kind(series: CollectivePoints) -> str:
    if series.library != "nccl":
        return "engine all-reduce"
    return "NCCL all-reduce" if series.op == "all_reduce" else "other NCCL"


def main(tables: str, out: str, date: str) -> None:
    """Reads, writes and prints the errors."""
    series = read(Path(tables))
    write(series, out, date)
    print(summary(series))


if __name__ == "__main__":
    main(*sys.argv[1:4])
