"""Runs of ASTRA-sim's analytical network, read from tables of single collectives and from files of graphs.

A table (csv) has one collective a row: `backend` (unaware, aware of congestion), `topology` and `algorithm`, `npus`,
`bandwidth_GBps`, `latency_ns` (one part per dimension, joined by x), `collective`, `bytes` a rank puts in,
`dataset_splits`, `active_chunks`, `endpoint_delay`, `local_mem_bw_GBps`, and the slowest rank's `cycles_ns`. A file of
graphs (json) is a list of `name`, `network`, `opts`, each rank's nodes in `graph`, and `finish_ns` of each rank.

ASTRA-sim's GB per second of a network is 2**30 bytes; that of a memory is 10**9.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.documents import parse_json, read_text
from sim.event.fabric.graph import COLLECTIVE, COMPUTE, LOAD, RECEIVE, SEND, Node
from sim.hardware.collective_rules import Dimension, Rules


BYTES_PER_NS = 2**30 / 1e9
"""One of its GB per second of a network."""
COLUMNS = (
    "backend",
    "topology",
    "npus",
    "collective",
    "bytes",
    "bandwidth_GBps",
    "latency_ns",
    "algorithm",
    "dataset_splits",
    "active_chunks",
    "endpoint_delay",
    "local_mem_bw_GBps",
    "cycles_ns",
)
LEAST_RATE = 1e-9
GRAPH_RULES = Rules(queued=True)
"""The graphs ran on the network that is aware of congestion, with the endpoints of the tables."""


@dataclass(frozen=True)
class Run:
    """One collective: what it is, and when the slowest rank had ended."""

    backend: str
    topology: str
    op: str
    algorithm: str
    size_bytes: int
    dimensions: tuple[Dimension, ...]
    rules: Rules
    finish_ns: int


@dataclass(frozen=True)
class GraphRun:
    """One run of a graph: each rank's nodes, which memory it loads from, and when it ended."""

    name: str
    dimensions: tuple[Dimension, ...]
    graphs: dict[int, dict[int, Node]]
    memory_of: dict[int, int]
    finish_ns: dict[int, int]


def read_runs(path: Path) -> list[Run]:
    """The rows of a table. **Raises:** `ValueError` for columns that are missing, or a row that cannot be read."""
    rows = csv.DictReader(line for line in read_text(path).splitlines() if not line.startswith("#"))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"collectives={path}: the table lacks the columns {', '.join(missing)}.")
    runs = []
    for number, row in enumerate(rows, 2):
        try:
            runs.append(_run(row))
        except ValueError as error:
            raise ValueError(f"collectives={path}, row {number}: {str(error).removesuffix('.')}.") from error
    return runs


def _run(row: dict[str, str]) -> Run:
    if row["backend"] not in ("unaware", "aware"):
        raise ValueError(f"backend wants unaware or aware, got {row['backend']!r}")
    sizes = [_number("npus", cell, 1, int) for cell in _cells(row, "npus")]
    latencies = [_number("latency_ns", cell, 0) for cell in _cells(row, "latency_ns")]
    rates = [_number("bandwidth_GBps", cell, LEAST_RATE) for cell in _cells(row, "bandwidth_GBps")]
    kinds, ways = _cells(row, "topology"), _cells(row, "algorithm")
    if len({len(part) for part in (sizes, latencies, rates, kinds, ways)}) > 1:
        raise ValueError("topology, npus, latency_ns, bandwidth_GBps and algorithm want as many parts, joined by x")
    parts = zip(kinds, sizes, latencies, rates, ways, strict=True)
    rules = Rules(
        int(_number("dataset_splits", row["dataset_splits"], 1, int)),
        int(_number("active_chunks", row["active_chunks"], 1, int)),
        int(_number("endpoint_delay", row["endpoint_delay"], 0, int)),
        _number("local_mem_bw_GBps", row["local_mem_bw_GBps"], LEAST_RATE),
        row["backend"] == "aware",
    )
    return Run(
        row["backend"],
        row["topology"],
        row["collective"],
        row["algorithm"],
        int(_number("bytes", row["bytes"], 1, int)),
        tuple(Dimension(kind, int(n), ns, rate * BYTES_PER_NS, how) for kind, n, ns, rate, how in parts),
        rules,
        int(_number("cycles_ns", row["cycles_ns"], 1, int)),
    )


def _cells(row: dict[str, str], name: str) -> list[str]:
    """The parts of a cell, one per dimension."""
    return (row[name] or "").split("x")


def _number(name: str, cell: str | None, least: float, kind: type[int] | type[float] = float) -> float:
    """The number of a cell; `ValueError` that names its column otherwise."""
    try:
        value = kind(cell or "")
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} wants {what} of at least {least:g}, got {cell!r}")
    return value


def read_graphs(path: Path) -> list[GraphRun]:
    """The graphs of a file. **Raises:** `ValueError` for what cannot be read."""
    try:
        found = list(_graphs(parse_json(read_text(path), f"collectives={path}")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"collectives={path}: wanted a list of graphs, each with name, network, opts, graph and finish_ns."
        ) from error
    if not found:
        raise ValueError(f"collectives={path} has no graphs.")
    return found


def _graphs(entries: list[dict[str, Any]]) -> Iterator[GraphRun]:
    for entry in entries:
        net, compute, memory = entry["network"], entry["opts"].get("sysx", {}), entry["opts"].get("rem", {})
        way = Dimension(net["topology"], net["npus"], net["latency_ns"], net["bandwidth_GBps"] * BYTES_PER_NS)
        alone = memory.get("memory-type") == "PER_NPU_MEMORY_EXPANSION"
        per_node = memory.get("num-npus-per-node", way.size)
        yield GraphRun(
            entry["name"],
            (way,),
            {
                int(rank): {one["id"]: _node(one, compute, memory) for one in own}
                for rank, own in entry["graph"].items()
            },
            {rank: rank if alone else rank // per_node for rank in range(way.size)},
            {int(rank): finish for rank, finish in entry["finish_ns"].items()},
        )


def _node(one: dict[str, Any], compute: dict[str, Any], memory: dict[str, Any]) -> Node:
    after, size = tuple(one.get("deps", ())), one.get("bytes", 0)
    if one["t"] == "COMP":
        return Node(COMPUTE, after, one["us"] * 1000 if "us" in one else _roofline_ns(one, compute))
    if one["t"] == "COLL":
        return Node(COLLECTIVE, after, op=one["coll"], size_bytes=size)
    if one["t"] == "LOAD":
        return Node(LOAD, after, int(memory["remote-mem-latency"] + size / memory["remote-mem-bw"]))
    channel = (one["comm_src"], one["comm_dst"], one["comm_tag"])
    return Node({"SEND": SEND, "RECV": RECEIVE}[one["t"]], after, size_bytes=size, channel=channel)


def _roofline_ns(one: dict[str, Any], compute: dict[str, Any]) -> int:
    """Operations over the lesser of the peak (1e12 a second) and what the memory feeds."""
    fed = GRAPH_RULES.memory_bytes_per_ns * one["ops"] / one["tsize"]
    return int(one["ops"] / min(fed, compute["peak-perf"] * 1e3))
