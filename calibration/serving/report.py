"""What a person and a program read of a scored table: tables of text, and one csv row per row of the table."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calibration.serving.score import METRICS, Point


CSV_COLUMNS = (
    "line", "bench", "hardware", "num_gpus", "engine", "engine_version", "model", "precision", "tp", "ep", "dp", "isl",
    "osl", "concurrency", "date", "period", "excluded", "status", "why", "version_used", "version_is", "statistic",
    "measured_ttft_ms", "predicted_ttft_ms", "ttft_error", "measured_tpot_ms", "predicted_tpot_ms", "tpot_error",
    "measured_throughput_per_gpu", "predicted_throughput_per_gpu", "throughput_error", "preemptions", "steps",
    "claimed_error", "outside_share", "left_out", "overrides",
)  # fmt: skip

SHOWN = ("engine", "device", "model", "version", "parallel", "concurrency", "period")


def csv_text(points: Sequence[Point]) -> str:
    """One row per row of the table, in its order, those that do not count with the reason."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for point in points:
        writer.writerow(csv_row(point))
    return text.getvalue()


def csv_row(point: Point) -> dict[str, Any]:
    """The cells of one row; empty where there is nothing to say."""
    row, setup, found = point.row, point.setup, point.prediction
    cells: dict[str, Any] = {
        key: getattr(row, key)
        for key in (
            "line", "bench", "hardware", "num_gpus", "engine", "engine_version", "model", "precision", "tp", "ep", "dp",
            "isl", "osl", "concurrency", "date", "period", "statistic",
        )
    }  # fmt: skip
    cells |= {"excluded": point.excluded, "status": found.status if found else "", "why": found.reason if found else ""}
    if found and found.status == "ok":
        cells |= {key: getattr(found, key) for key in ("preemptions", "steps", "claimed_error", "outside_share")}
    if setup:
        cells |= {"version_used": setup.version.name, "version_is": setup.version.kind}
        cells |= {"left_out": "; ".join(setup.left_out), "overrides": " ".join(setup.overrides)}
    for metric in METRICS:
        unit = "_per_gpu" if metric == "throughput" else "_ms"
        values = (point.measured(metric), point.predicted(metric), point.error(metric))
        names = (f"measured_{metric}{unit}", f"predicted_{metric}{unit}", f"{metric}_error")
        cells |= {name: "" if value is None else f"{value:.6g}" for name, value in zip(names, values, strict=True)}
    return {key: "" if value is None else value for key, value in cells.items()}


def percent(value: float | None, signed: bool = False) -> str:
    """A share in percent with one decimal; a dash where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:{'+' if signed else ''}.1f}"


def summary_cells(label: str, found: Mapping[str, Any]) -> list[str]:
    """Label, rows, failed, then median, mean, P90 and bias (%) of each metric, without those nobody measured."""
    cells = [label, str(found["rows"]), str(found.get("failed", ""))]
    for metric in METRICS:
        one = found.get(metric)
        if one is None or (metric == "throughput" and not one["rows"]):
            cells += ["-"] * 4
        else:
            cells += [percent(one[key]) for key in ("median_error", "mean_error", "p90_error")]
            cells.append(percent(one["bias"], True))
    return cells


HEAD = ["", "rows", "failed"] + [
    f"{name} {word}" for name in ("TTFT", "TPOT", "tok/s") for word in ("med", "mean", "P90", "bias")
]


def report_text(fields: Mapping[str, Any], table: Callable[[list[str], list[list[str]]], str]) -> str:
    """The whole answer for a terminal; `table` lays out a head and rows."""
    counted = {key: fields[key] for key in ("rows", "failed", *METRICS)}
    rows = [summary_cells("all that count", counted)]
    for dimension in SHOWN:
        rows.append([f"by {dimension}", *[""] * (len(HEAD) - 1)])
        rows += [summary_cells(f"  {label}", found) for label, found in fields["by"][dimension].items()]
    regret = fields["regret"]
    lines = [table(HEAD, rows), "", "Errors in percent of the measured value; bias: median of the signed errors."]
    if fields["excluded"]:
        said = ", ".join(f"{number:,} {reason}" for reason, number in fields["excluded"].items())
        lines.append(f"Not counted: {said}.")
    if regret["groups"]:
        lines.append(
            f"Choice of configuration: {regret['groups']} groups, median regret {percent(regret['median'])} %, mean "
            f"{percent(regret['mean'])} %, the best picked in {regret['best_picked']}; median rank correlation of "
            f"throughput {regret['rank_correlation']:.3f}."
        )
    else:
        lines.append("Choice of configuration: no group has six configurations.")
    lines += [f"no price ({number}): {reason}" for reason, number in fields["reasons"].items()]
    return "\n".join(lines)
