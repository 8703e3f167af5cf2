"""A sweep in one table: the summaries of many runs, one row each, failures included."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.documents import read_document, read_mapping
from sim.report.results import SUMMARY


COLUMNS = (
    "completed",
    "aborted",
    "failed",
    "cut_requests",
    "gpus",
    "request_throughput",
    "request_goodput",
    "goodput_share",
    "output_throughput",
    "total_token_throughput",
    "output_throughput_per_gpu",
    "output_throughput_per_user",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "kv_usage_max",
    "preemptions",
    "usd_per_1m_output_tokens",
    "bottleneck",
    "model_name",
    "device_name",
    "workload_name",
    "simulated_by",
    "run_seed",
    "run_predictor",
    "prices_taught",
    "workload_digest",
)

TEXTS = (
    "bottleneck",
    "model_name",
    "device_name",
    "workload_name",
    "simulated_by",
    "run_predictor",
    "prices_taught",
    "workload_digest",
)

# Named apart from the overrides that chose them (model=..., seed=...), which have columns of their own.
RENAMED = {
    "model_name": "model",
    "device_name": "device",
    "simulated_by": "engine",
    "run_seed": "seed",
    "run_predictor": "predictor",
    "prices_taught": "taught",
}

NAMED = 8
"""Runs that a note names before it counts the others; the table's column `prices_taught` tells all."""

SETTING = re.compile(r"([A-Za-z_][\w.@/]*=)([^\s,;]*[^\s,;.])")
"""`key=value` in a sentence."""

SHOWN = (
    ("output_throughput", "out tok/s"),
    ("output_throughput_per_gpu", "/GPU"),
    ("output_throughput_per_user", "/user"),
    ("median_ttft_ms", "TTFT p50"),
    ("p99_ttft_ms", "TTFT p99"),
    ("median_tpot_ms", "TPOT p50"),
    ("p99_tpot_ms", "TPOT p99"),
    ("kv_usage_max", "KV max"),
    ("preemptions", "preempt"),
    ("bottleneck", "bottleneck"),
)


def collect(folder: str | Path) -> list[dict[str, Any]]:
    """One row per run found in `folder` or below it, in natural order of their paths.

    A row has `run` (its path below `folder`), `status`, `reason`, one column per override (from overrides.yaml or
    .hydra/overrides.yaml) and `COLUMNS`. A run that was started but left no summary has status "missing", one that
    cannot be read "unreadable". Raises `ValueError` if there is no run.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"collect wants the folder of a multirun, got {root}, which is not a folder")
    found = {path.parent for path in root.rglob(SUMMARY)}
    found |= {path.parent.parent for path in root.rglob(".hydra/overrides.yaml")}
    # A multirun's own folder may hold a .hydra of the launcher; it is not a run if runs lie below it.
    found = {path for path in found if (path / SUMMARY).is_file() or not any(path in other.parents for other in found)}
    if not found:
        raise ValueError(f"collect wants a folder with runs in it ({SUMMARY} in each), found none in {root}")
    return [_row(path, root) for path in sorted(found, key=lambda path: natural(path.relative_to(root).as_posix()))]


def natural(text: str) -> list[tuple[bool, int, str]]:
    """Orders names as people do: numbers by their value, `llama-7b` before `llama-13b`."""
    parts = re.split(r"(\d+)", text)
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts if part]


def _row(path: Path, root: Path) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": path.relative_to(root).as_posix(),
        "status": "missing",
        "reason": f"no {SUMMARY}: the run did not end",
    }
    fields: dict[str, Any] = {}
    try:
        row |= overrides(path)
        if (path / SUMMARY).is_file():
            fields = summary_fields(path / SUMMARY)
            row |= {"status": fields["status"], "reason": fields["reason"]}
    except ValueError as error:
        row |= {"status": "unreadable", "reason": str(error)}
    for name in COLUMNS:
        row[name] = fields.get(RENAMED.get(name, name))
    row["bottleneck"] = (fields.get("bottleneck") or {}).get("kind")
    workload = fields.get("workload") or {}
    row["workload_digest"], row["workload_name"] = workload.get("digest"), workload.get("name")
    return row


def summary_fields(path: Path) -> dict[str, Any]:
    """A summary of ours; `ValueError` that names the file for anything else."""
    fields = read_mapping(path)
    where = f"{path.name} is not a summary of ours"
    for name in ("status", "reason"):
        if not isinstance(fields.get(name), str):
            raise ValueError(f"{where}: it has no text {name!r}")
    for name in ("bottleneck", "workload"):
        if not isinstance(fields.get(name) or {}, dict):
            raise ValueError(f"{where}: {name!r} is no mapping")
    for name in COLUMNS:
        if name in TEXTS:
            continue
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"{where}: {name!r} is no number")
    return fields


def overrides(path: Path) -> dict[str, str]:
    """The overrides of a run as key -> value, the leading +, ++ or ~ of a key dropped."""
    for name in ("overrides.yaml", ".hydra/overrides.yaml"):
        if (path / name).is_file():
            items = read_document(path / name) or []
            if not isinstance(items, list):
                raise ValueError(f"{name} is no list of overrides but a {type(items).__name__}")
            pairs = (str(item).lstrip("+~").partition("=") for item in items)
            return {key: value for key, _, value in pairs}
    return {}


def override_keys(rows: Sequence[dict[str, Any]], varying: bool = False) -> list[str]:
    """Override columns in order of appearance; with `varying`, only those that differ between rows."""
    known = {"run", "status", "reason", *COLUMNS}
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in known))
    return [key for key in keys if not varying or len({row.get(key) for row in rows}) > 1]


def collect_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The table as CSV text, nothing for None."""
    out = io.StringIO()
    writer = csv.DictWriter(
        out, ["run", *override_keys(rows), "status", *COLUMNS, "reason"], restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def cell(value: Any, name: str = "") -> str:
    """A value in few characters; the share of KV blocks in percent."""
    if value is None:
        return "-"
    if name == "kv_usage_max":
        return f"{100 * value:.0f}%"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def collect_text(rows: Sequence[dict[str, Any]]) -> str:
    """The table for a terminal: overrides that differ, the usual metrics, each failure with its sentence, a note."""
    keys = override_keys(rows, varying=True)
    good = [row for row in rows if row["status"] == "ok"]
    head = ["run", *keys, *(title for _, title in SHOWN)]
    body = [
        [row["run"], *(cell(row.get(key)) for key in keys), *(cell(row[name], name) for name, _ in SHOWN)]
        for row in good
    ]
    lines = []
    if body:
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        words = 1 + len(keys)
        for line in (head, *body):
            padded = [
                text.ljust(w) if i < words or i == len(head) - 1 else text.rjust(w)
                for i, (text, w) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        lines.append("")
    bad = [row for row in rows if row["status"] != "ok"]
    lines.append(f"{len(rows)} runs, {len(good)} ok" + (f", {len(bad)} not:" if bad else "."))
    for group in failure_groups(bad):
        runs = [f"  {row['run']}  {setting_of(row, keys)}" for row in group.rows]
        said = f"{group.status}: {group.reason}"
        lines += [f"{runs[0]}  {said}"] if len(runs) == 1 else [*runs, f"    each {said}"]
    for note in table_notes(rows):
        lines += ["", f"note: {note}"]
    return "\n".join(lines)


def table_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What a reader should know before comparing the runs."""
    return [note for note in (taught_note(rows), cut_runs_note(rows)) if note]


def cut_runs_note(rows: Sequence[dict[str, Any]]) -> str:
    """Which of the runs cut outputs short; empty where none does."""
    cut = [row["run"] for row in rows if row["status"] == "ok" and row.get("cut_requests")]
    if not cut:
        return ""
    named = ", ".join(cut[:NAMED]) + (f" and {len(cut) - NAMED} more" if len(cut) > NAMED else "")
    return (
        f"outputs end at engine.max_model_len in {len(cut)} of {len(rows)} runs ({named}; column cut_requests), which "
        "therefore serve fewer tokens than the workload asks for"
    )


def taught_note(rows: Sequence[dict[str, Any]]) -> str:
    """Which of the runs are priced with what measured servers taught and which without; empty where all are alike.

    `predictor=auto` corrects the engines and devices that were measured only, which moves their TTFT above all.
    """
    keys = override_keys(rows, varying=True)
    sides: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        if row["status"] == "ok" and row.get("run_predictor") == "auto" and isinstance(row.get("prices_taught"), bool):
            sides[row["prices_taught"]].append(f"{row['run']} ({setting_of(row, keys)})")
    if not (sides[True] and sides[False]):
        return ""
    with_them, without = (
        ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
        for names in (sides[True], sides[False])
    )
    return (
        f"measured servers taught the prices of runs {with_them}, not of runs {without}, so TTFTs do not compare; "
        "predictor=kernels compares them alike"
    )


@dataclass(frozen=True)
class FailureGroup:
    """Runs that failed for one `reason`; where it names a setting by `key=value`, with the values of all of them."""

    status: str
    reason: str
    rows: list[dict[str, Any]]


def failure_groups(rows: Sequence[dict[str, Any]]) -> list[FailureGroup]:
    """The failed runs by status and reason, reasons being equal if they differ in values of `key=value` only."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["status"], SETTING.sub(r"\1", row["reason"]))
        groups.setdefault(key, []).append(row)
    return [FailureGroup(key[0], _joined([row["reason"] for row in found]), found) for key, found in groups.items()]


def setting_of(row: dict[str, Any], keys: Sequence[str]) -> str:
    """`key=value` of each key that the run has."""
    return " ".join(f"{key}={row[key]}" for key in keys if key in row)


def _joined(reasons: Sequence[str]) -> str:
    """One sentence for reasons that differ in values only: `key=2|4`."""
    values = [list(dict.fromkeys(column)) for column in zip(*(_values(text) for text in reasons), strict=True)]
    left = iter(values)
    return SETTING.sub(lambda match: match[1] + "|".join(next(left)), reasons[0])


def _values(reason: str) -> list[str]:
    return [match[2] for match in SETTING.finditer(reason)]
