"""Runs of ASTRA-sim's analytical network, read from tables of single collectives and from files of graphs.

A table (csv) has one collective a row: `backend` (unaware, aware of congestion), `topology` and `algorithm`, `npus`,
`bandwidth_GBps`, `latency_ns` (one part per dimension, joined by x), `collective`, `bytes` a rank puts in,
`dataset_splits`, `active_chunks`, `endpoint_delay`, `local_mem_bw_GBps`, and the slowest rank's `cycles_ns`. A file of
graphs (json) is a list of `name`, `network`, `opts`, each rank's nodes in `graph`, and `finish_ns` of each rank.

ASTRA-sim's GB per second of a network is 2**30 bytes; that of a memory is 10**9.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    with path.open(encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(line for line in stream if not line.startswith("#"))
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise ValueError(
                f"collectives={path}: the table lacks {', '.join(missing)}; it wants {', '.join(COLUMNS)}."
            )
        runs = []
        for number, row in enumerate(rows, 2):
            try:
                runs.append(_run(row))
            except (ValueError, TypeError) as error:
                raise ValueError(f"collectives={path}, row {number} cannot be read: {error}") from error
    return runs


def _run(row: dict[str, str]) -> Run:
    if row["backend"] not in ("unaware", "aware"):
        raise ValueError(f"backend wants unaware or aware, got {row['backend']!r}")
    columns = ("topology", "npus", "latency_ns", "bandwidth_GBps", "algorithm")
    parts = zip(*(row[name].split("x") for name in columns), strict=True)
    rules = Rules(
        int(row["dataset_splits"]),
        int(row["active_chunks"]),
        int(row["endpoint_delay"]),
        float(row["local_mem_bw_GBps"]),
        row["backend"] == "aware",
    )
    return Run(
        row["backend"],
        row["topology"],
        row["collective"],
        row["algorithm"],
        int(row["bytes"]),
        tuple(Dimension(kind, int(n), float(ns), float(rate) * BYTES_PER_NS, how) for kind, n, ns, rate, how in parts),
        rules,
        int(row["cycles_ns"]),
    )


def read_graphs(path: Path) -> list[GraphRun]:
    """The graphs of a file. **Raises:** `ValueError` for what cannot be read."""
    try:
        return list(_graphs(json.loads(path.read_text(encoding="utf-8"))))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"collectives={path}: no list of graphs with network, graph and finish_ns: {error!r}."
        ) from error


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
