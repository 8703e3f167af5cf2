"""`headway validate collectives=FILE`: runs of ASTRA-sim against the same by rule, as events and in closed form.

FILE is a csv of single collectives or a json of graphs (`calibration.astra_sim`).
"""

from pathlib import Path
from statistics import median
from typing import Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.plain_keys import PlainKeys
from scripts.table import table
from sim.documents import user_path


KEYS = ("collectives",)
HEAD = ("network", "topology", "collective", "algorithm", "runs", "exact events", "worst", "closed form", "worst")


def run(arguments: Arguments) -> Answer:
    """Errors by network, topology, collective and algorithm; of graphs, the times that are exact."""
    keys = PlainKeys.of("headway validate", arguments.words, KEYS)
    path = user_path(keys.text("collectives"), "collectives")
    if path.suffix == ".json":
        return _graphs(path)
    from calibration.astra_sim import read_runs
    from sim.event.fabric.collective import finish_ns
    from sim.hardware.collective_rules import closed_form_ns

    by: dict[tuple[str, ...], list[tuple[float, float | None]]] = {}
    for one in read_runs(path):
        what = (one.op, one.size_bytes, one.dimensions, one.rules)
        events = finish_ns(*what) / one.finish_ns - 1
        try:
            form = float(closed_form_ns(*what)) / one.finish_ns - 1
        except ValueError:
            form = None
        by.setdefault((one.backend, one.topology, one.op, one.algorithm), []).append((events, form))
    if not by:
        raise ValueError(f"collectives={path} has no rows.")
    groups = [_group(key, found) for key, found in sorted(by.items())]
    runs, exact = (sum(group[key] for group in groups) for key in ("runs", "events_exact"))
    every = [abs(form) for found in by.values() for _, form in found if form is not None]
    forms = {
        "rows": len(every),
        "within_half_percent": sum(one <= 0.005 for one in every),
        "worst": max(every, default=None),
    }
    fields = {"status": "ok", "runs": runs, "events_exact": exact, "closed_form": forms, "groups": groups}
    rows = [[*(str(group[key]) for key in HEAD[:4]), *_cells(group)] for group in groups]
    text = (
        f"{table(HEAD, rows, 4)}\n\n{runs} runs: {exact} exact to the nanosecond as events; by closed form "
        f"{forms['within_half_percent']} of {forms['rows']} within 0.5 %, {runs - forms['rows']} have none."
    )
    return Answer(fields, text)


def _group(key: tuple[str, ...], found: list[tuple[float, float | None]]) -> dict:
    forms = [abs(form) for _, form in found if form is not None]
    return {
        **dict(zip(HEAD[:4], key, strict=True)),
        "runs": len(found),
        "events_exact": sum(events == 0 for events, _ in found),
        "events_worst": max(abs(events) for events, _ in found),
        "closed_form_median": median(forms) if forms else None,
        "closed_form_worst": max(forms) if forms else None,
    }


def _cells(group: dict) -> list[str]:
    errors = [group[key] for key in ("events_worst", "closed_form_median", "closed_form_worst")]
    shown = ["-" if error is None else f"{100 * error:.2f} %" for error in errors]
    return [str(group["runs"]), str(group["events_exact"]), *shown]


def _graphs(path: Path) -> Answer:
    from calibration.astra_sim import GRAPH_RULES, read_graphs
    from sim.event.fabric.graph import Graph

    graphs: list[dict[str, Any]] = []
    for one in read_graphs(path):
        found = Graph(one.dimensions, GRAPH_RULES, one.graphs, one.memory_of).run()
        exact = sum(found[rank] == wanted for rank, wanted in one.finish_ns.items())
        makespan, wanted = max(found.values()), max(one.finish_ns.values())
        graphs.append(
            {
                "name": one.name,
                "ranks": len(found),
                "ranks_exact": exact,
                "makespan_ns": makespan,
                "astra_sim_ns": wanted,
                "error": makespan / wanted - 1,
            }
        )
    head = ("graph", "ranks", "exact", "ASTRA-sim", "Headway", "error")
    rows = [
        [
            graph["name"],
            str(graph["ranks"]),
            str(graph["ranks_exact"]),
            f"{graph['astra_sim_ns']:,} ns",
            f"{graph['makespan_ns']:,} ns",
            f"{100 * graph['error']:.2f} %",
        ]
        for graph in graphs
    ]
    return Answer({"status": "ok", "graphs": graphs}, table(head, rows))
