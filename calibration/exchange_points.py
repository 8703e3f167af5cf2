"""Measured dispatch and combine of experts -> `sim/hardware/exchange_points.csv`, fits in `exchanges.csv`, and errors.

`python -m calibration.exchange_points FOLDER YYYY-MM` reads the installed operator tables (family `exchange`), writes
both files into FOLDER and prints the table of errors. What counts:

- DeepEP as SGLang's tables time it, kernels alone; high throughput with 20 multiprocessors, DeepEP's own default;
  inside a node the newest build, across nodes the only one. Rows of the same kernels behind other engines hold the
  host's time (45 us and more at one token) and are left out.
- NVLink one-sided in TensorRT-LLM's tables.

Bytes of a number: dispatch in fp8 with a scale of 4 bytes per 128 numbers, combine in bf16, as DeepEP's documentation
times them; 16-bit dispatch would need more than the link's rate (H200, high throughput, 131,072 tokens). One-sided:
nvfp4 with a scale byte per 16 numbers.
"""

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from calibration.tables.aiconfigurator import installed, parts
from sim.hardware.collective_points import POINTS, build_order
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, ONE_SIDED, OPS, Constants, Shape, exchange_s
from sim.hardware.exchange_table import COLUMNS, NUMBER_BYTES, POINT_COLUMNS, ExchangePoints, ExchangeRow


KERNELS = {"deepep low latency": LOW_LATENCY, "deepep normal, 20 units": HIGH_THROUGHPUT, "NVLinkOneSided": ONE_SIDED}
ORIGIN = "aiconfigurator-core 0.12.0 tables"
START = Constants(1e-5, 1e-8, 1e-10, 1e-6, 400e9, 100e9, 1e-9, 45e9)
SMALLEST = 1e-13
"""Free constants are logarithms: one that ends below this is 0."""
CLIP = 0.05
AT_MOST = 4.0
"""Rates stay below so many times those of `START`: two limits of one kernel cannot always be told apart."""
FREE = {
    LOW_LATENCY: ("base_s", "expert_s", "number_s", "start_s", "bytes_per_s", "unit_bytes_per_s"),
    HIGH_THROUGHPUT: ("base_s", "number_s", "bytes_per_s", "unit_bytes_per_s", "row_s"),
    ONE_SIDED: ("base_s", "bytes_per_s"),
}
ACROSS = ("base_s", "nic_bytes_per_s")
"""What is fitted of a group of several nodes; the rest is that of one node."""
NOTHING = Constants(0.0, 0.0, 0.0, 0.0, np.inf, np.inf, 0.0, 0.0)


class Spread(NamedTuple):
    """Absolute relative errors, as fractions."""

    median: float
    p95: float
    mean: float


class Fit(NamedTuple):
    """A fitted row and its errors by what was held out."""

    row: ExchangeRow
    errors: dict[str, Spread]


def read() -> list[ExchangePoints]:
    """Every series, tokens rising, in a fixed order."""
    folder = installed()
    if folder is None:
        raise ValueError("no operator tables are installed: pip install -e '.[profiles]'.")
    found: dict[tuple, dict[int, float]] = {}
    for part in parts(folder):
        if part.family != "exchange":
            continue
        table = part.read()
        names = ("tokens", "hidden", "top_k", "experts", "ranks", "nodes", "kernel", "op", "timing", "engine_version")
        for seconds, *row in zip(table.seconds, *(table[name] for name in names), strict=True):
            tokens, hidden, top_k, experts, ranks, nodes, kernel, op, timing, build = row
            mode = KERNELS.get(kernel)
            if mode is None or op not in OPS or timing != "kernel":
                continue
            nodes = 1 if mode == ONE_SIDED else int(nodes)
            key = (part.device.replace("-", "_"), mode, op, int(ranks), nodes, int(hidden), int(top_k), int(experts))
            found.setdefault((*key, build), {})[int(tokens)] = float(seconds)
    newest = {key[:-1]: key[-1] for key in sorted(found, key=lambda key: (key[:-1], build_order(key[-1])))}
    series = []
    for key, build in sorted(newest.items()):
        tokens, times = zip(*_thinned(sorted(found[(*key, build)].items())), strict=True)
        series.append(ExchangePoints(*key, build, tuple(map(float, tokens)), times))
    return series


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most as many as a plan holds, both ends among them."""
    places = np.unique(np.round(np.linspace(0, len(points) - 1, min(len(points), POINTS))).astype(int))
    return [points[place] for place in places]


def shape_of(series: ExchangePoints) -> Shape:
    """The exchange that was measured."""
    width = series.hidden * NUMBER_BYTES[series.mode, series.op]
    return Shape(series.hidden, width, series.top_k, series.experts, series.ranks, series.nodes)


def fit(several: Sequence[ExchangePoints], start: Constants, free: Sequence[str]) -> Constants:
    """The constants named by `free` that make the form pass through the series, the others as in `start`.

    Least squares of the logarithm of predicted over measured time, robust (soft L1 beyond 5 %).
    """
    mode = several[0].mode
    first = np.log([getattr(START, name) for name in free])
    highest = np.array([AT_MOST if name.endswith("bytes_per_s") else np.exp(6.0) for name in free])

    def made(logs: np.ndarray) -> Constants:
        values = [float(np.exp(log)) for log in logs]
        return start._replace(**{k: v if v > SMALLEST else 0.0 for k, v in zip(free, values, strict=True)})

    def residuals(logs: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.concatenate([log_ratio(mode, made(logs), one) for one in several])

    found = least_squares(
        residuals, first, loss="soft_l1", f_scale=CLIP, bounds=(first - 12.0, first + np.log(highest))
    )
    return made(found.x)


def log_ratio(mode: str, constants: Constants, series: ExchangePoints) -> np.ndarray:
    """Of predicted over measured times."""
    predicted = exchange_s(mode, constants, shape_of(series), np.array(series.tokens))
    ratios: np.ndarray = np.log(predicted / np.array(series.time_s))
    return ratios


def spread(errors: Iterable[np.ndarray]) -> Spread:
    """Of log ratios."""
    every = np.abs(np.expm1(np.concatenate(list(errors))))
    return Spread(float(np.median(every)), float(np.quantile(every, 0.95)), float(np.mean(every)))


def between_tokens(constants: Constants, series: ExchangePoints) -> np.ndarray:
    """Log ratios at every second inner size, from the form times the ratio interpolated between the others."""
    ratio, sizes = log_ratio(series.mode, constants, series), np.log(series.tokens)
    kept = np.ones(len(sizes), bool)
    kept[1:-1:2] = False
    difference: np.ndarray = (ratio - np.interp(sizes, sizes[kept], ratio[kept]))[~kept]
    return difference


def held_out(
    several: Sequence[ExchangePoints], start: Constants, free: Sequence[str], key: Callable[[ExchangePoints], int]
) -> Spread:
    """Errors on the series of each value of `key`, from a fit to those of the others."""
    found = []
    for value in sorted({key(one) for one in several}):
        constants = fit([one for one in several if key(one) != value], start, free)
        found += [log_ratio(one.mode, constants, one) for one in several if key(one) == value]
    return spread(found)


def fits(series: Sequence[ExchangePoints]) -> list[Fit]:
    """One fit for each family, mode, direction and number of ranks."""
    groups: dict[tuple[str, str, str], dict[tuple[int, int], list[ExchangePoints]]] = {}
    for one in series:
        groups.setdefault((one.family, one.mode, one.op), {}).setdefault((one.nodes, one.ranks), []).append(one)
    found = []
    for (_, mode, _), by_ranks in groups.items():
        inside = {ranks: several for (nodes, ranks), several in sorted(by_ranks.items()) if nodes == 1}
        across = {key: several for key, several in sorted(by_ranks.items()) if key[0] > 1}
        constants = NOTHING
        for ranks, several in inside.items():
            constants = fit(several, NOTHING, FREE[mode])
            errors = _seen(several, constants)
            if len(several) > 1:
                errors["hidden"] = held_out(several, NOTHING, FREE[mode], lambda one: one.hidden)
                errors["top_k"] = held_out(several, NOTHING, FREE[mode], lambda one: one.top_k)
            else:
                others = [one for other, some in inside.items() if other != ranks for one in some]
                near = fit(_nearest(others, ranks), NOTHING, FREE[mode])
                errors["ranks"] = spread([log_ratio(mode, near, several[0])])
            found.append(_fit(several, constants, errors))
        fitted = {key: fit(several, constants, ACROSS) for key, several in across.items()}
        for key, several in across.items():
            others = [one for other, some in across.items() if other != key for one in some]
            near = fitted[_nearest(others, key[1])[0].nodes, _nearest(others, key[1])[0].ranks]
            errors = _seen(several, fitted[key])
            errors["ranks"] = spread(log_ratio(mode, near, one) for one in several)
            found.append(_fit(several, fitted[key], errors))
    return found


def _seen(several: Sequence[ExchangePoints], constants: Constants) -> dict[str, Spread]:
    """Errors on what was fitted, and between the points of each series."""
    ratios = [log_ratio(one.mode, constants, one) for one in several]
    return {"fit": spread(ratios), "tokens": spread(between_tokens(constants, one) for one in several)}


def _nearest(series: Sequence[ExchangePoints], ranks: int) -> list[ExchangePoints]:
    """Those of the group size nearest to `ranks`, by ratio; the smaller of two."""
    best = min(sorted({one.ranks for one in series}), key=lambda size: abs(np.log(size / ranks)))
    return [one for one in series if one.ranks == best]


def _fit(several: Sequence[ExchangePoints], constants: Constants, errors: dict[str, Spread]) -> Fit:
    first = several[0]
    held = max(error.mean for what, error in errors.items() if what not in ("fit", "tokens"))
    rounded = Constants(*(float(f"{value:.4g}") for value in constants))
    points = sum(len(one.tokens) for one in several)
    source = f"{ORIGIN}: {'trtllm' if first.mode == ONE_SIDED else 'sglang'}/{first.build}"
    row = ExchangeRow(
        first.family,
        first.mode,
        first.op,
        first.ranks,
        first.nodes,
        rounded,
        len(several),
        points,
        round(errors["tokens"].mean, 3),
        round(errors["fit"].mean, 3),
        round(held, 3),
        source,
    )
    return Fit(row, errors)


def write(series: Sequence[ExchangePoints], found: Sequence[Fit], folder: Path, date: str) -> None:
    """The two tables that `sim.hardware.exchange_table` reads."""
    remark = f"{ORIGIN} (Apache-2.0), read by calibration/exchange_points.py, {date}.\n"
    with (folder / "exchange_points.csv").open("w", encoding="utf-8", newline="") as stream:
        stream.write(f"# Mean times of dispatch and combine, tokens of a rank:seconds; {remark}")
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(POINT_COLUMNS)
        for one in series:
            pairs = zip(one.tokens, one.time_s, strict=True)
            table.writerow((*one[:-2], " ".join(f"{tokens:.0f}:{time:.4g}" for tokens, time in pairs)))
    with (folder / "exchanges.csv").open("w", encoding="utf-8", newline="") as stream:
        stream.write(f"# Constants of sim/hardware/exchange_form.py; {remark}")
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(COLUMNS)
        for row, _ in found:
            table.writerow((*row[:5], *(f"{value:.4g}" for value in row.constants), *row[6:]))


def summary(found: Sequence[Fit]) -> str:
    """Median and 95th percentile of errors in percent, by what the fit had not seen."""
    names = ("tokens", "fit", "hidden", "top_k", "ranks")
    lines = [f"{'family':10s} {'mode':24s} {'op':9s} ranks shapes points " + " ".join(f"{name:>12s}" for name in names)]
    for row, errors in found:
        cells = [errors.get(name) for name in names]
        shown = " ".join(f"{f'{100 * cell.median:.1f} / {100 * cell.p95:.0f}' if cell else '-':>12s}" for cell in cells)
        lines.append(
            f"{row.family:10s} {row.mode:24s} {row.op:9s} {row.ranks:5d} {row.shapes:6d} {row.points:6d} {shown}"
        )
    return "\n".join(lines)


def main(folder: str, date: str) -> None:
    """Reads, fits, writes and prints the errors."""
    series = read()
    found = fits(series)
    write(series, found, Path(folder), date)
    print(summary(found))


if __name__ == "__main__":
    main(*sys.argv[1:3])
