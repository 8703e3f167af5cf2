"""One self-contained page for a sweep: what each configuration trades for what, and the table."""

from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.collect import SHOWN, TEXTS, cell, failure_groups, override_keys, setting_of, table_notes
from sim.report.page.build import fill, framed
from sim.report.page.parts import table


def pareto_front(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows that no other row beats in both `x` and `y` (more is better), by rising x; of equal points the first."""
    order = np.lexsort((-np.asarray(y), -np.asarray(x)))
    front, best = [], -np.inf
    for row in order:
        if y[row] > best:
            front.append(int(row))
            best = y[row]
    return np.array(front[::-1], np.int64)


def runs_with_page(rows: Sequence[dict[str, Any]], folder: Path) -> frozenset[str]:
    """The runs of a collected folder that have a page of their own."""
    return frozenset(row["run"] for row in rows if (folder / row["run"] / "report.html").is_file())


def sweep_page(rows: Sequence[dict[str, Any]], name: str, pages: Collection[str] = ()) -> str:
    """The page of a collected sweep as HTML text; runs in `pages` lead to `<run>/report.html` beside it."""
    good = [row for row in rows if row["status"] == "ok"]
    keys = override_keys(rows, varying=True)
    points = [
        {
            "run": row["run"],
            "label": " ".join(f"{key}={row[key]}" for key in keys if key in row) or row["run"],
            "user": row["output_throughput_per_user"],
            "gpu": row["output_throughput_per_gpu"],
            "ttft": row["p99_ttft_ms"],
            "tpot": row["median_tpot_ms"],
            "usd": row["usd_per_1m_output_tokens"],
            "bottleneck": row["bottleneck"],
        }
        for row in good
    ]
    front: list[int] = []
    placed = [i for i, point in enumerate(points) if point["user"] is not None and point["gpu"] is not None]
    if placed:
        user, gpu = (np.array([points[i][axis] for i in placed], float) for axis in ("user", "gpu"))
        front = [placed[i] for i in pareto_front(user, gpu)]
    bad = [row for row in rows if row["status"] != "ok"]
    facts = [
        *_shared(good),
        f"{len(rows)} configurations",
        f"{len(good)} ran",
        *([f"{len(bad)} did not"] if bad else []),
    ]
    slots = {"table": _table(good, keys, set(front), pages) + _note(rows), "failures": _failures(bad, keys)}
    line = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return framed("sweep", name, line, fill("sweep.html", slots), {"points": points, "front": front}, "sweep.js")


def _shared(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What all runs have in common: model, device, workload and overrides with one value."""
    if not rows:
        return []
    named = {"model": "model_name", "hardware": "device_name", "workload": "workload_name"}
    named = {key: name for key, name in named.items() if _one(rows, name)}
    facts = [f"workload {rows[0][name]}" if key == "workload" else str(rows[0][name]) for key, name in named.items()]
    keys = [key for key in override_keys(rows) if key.split("@")[0] not in named and _one(rows, key)]
    return facts + [f"{key}={rows[0][key]}" for key in keys]


def _one(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return rows[0].get(name) is not None and all(row.get(name) == rows[0][name] for row in rows)


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str], front: set[int], pages: Collection[str]) -> str:
    if not rows:
        return '<p class="note">No configuration ran.</p>'
    body = []
    for i, row in enumerate(rows):
        run = escape(row["run"])
        name = f'<a href="{run}/report.html">{run}</a>' if row["run"] in pages else run
        mark = ' <span class="front" title="on the Pareto front">●</span>' if i in front else ""
        values = [escape(cell(row.get(key))) for key in keys] + [
            escape(cell(row[column], column)) for column, _ in SHOWN
        ]
        body.append([name + mark, *values])
    head = ["run", *(escape(key) for key in keys), *(escape(title) for _, title in SHOWN)]
    words = {1 + i for i, key in enumerate(keys) if not all(_is_number(row.get(key)) for row in rows)}
    words |= {1 + len(keys) + i for i, (column, _) in enumerate(SHOWN) if column in TEXTS}
    return table(head, body, "numbers", words)


def _note(rows: Sequence[dict[str, Any]]) -> str:
    notes = table_notes(rows)
    return "".join(f'<p class="note">{escape(note[0].upper() + note[1:])}.</p>' for note in notes)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _failures(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    if not rows:
        return ""
    body = []
    for group in failure_groups(rows):
        runs = "<br>".join(escape(row["run"]) for row in group.rows)
        settings = "<br>".join(escape(setting_of(row, keys)) for row in group.rows)
        body.append([runs, settings, escape(group.status), escape(group.reason)])
    return "<section><h2>Did not run</h2>" + table(["run", "setting", "status", "why"], body, "terms") + "</section>"
