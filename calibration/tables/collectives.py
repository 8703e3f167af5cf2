"""Collective tables as csv: `nccl_perf_normalised_bytes.csv.gz`, `custom_allreduce_perf.csv.gz` ...

The tables of `aiconfigurator-core` for every system at once, with the system and the folder in the columns `sys` and
`backend_dir`; only the first has bytes where the package has elements. `calibration.collectives` fits the same files.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from calibration.collectives import NCCL_TABLE, OPERATIONS
from calibration.tables.aiconfigurator import DEVICES, DEVICES_PER_NODE
from calibration.tables.aiconfigurator_exchange import EXCHANGE
from calibration.tables.aiconfigurator_rows import MS, Convert, Origin, Rows, number
from calibration.tables.rows import Part, check_columns, dtypes, renamed, table, words
from predictors.table import OperatorTable


SOURCE = "aiconfigurator-core csv"
SUFFIX = ".csv.gz"


def nccl_bytes(stored: pa.Table, origin: Origin) -> Rows:
    """NCCL's tables with sizes in bytes."""
    ranks = number(stored, "num_gpus")
    columns = {"bytes": number(stored, "bytes"), "ranks": ranks, "nodes": np.ceil(ranks / origin.devices_per_node)}
    labels: dict[str, Any] = {
        "engine": "nccl",
        "kernel": "NCCL",
        "dtype": dtypes(words(stored["nccl_dtype"])),
        "op": renamed(words(stored["op_name"]), lambda name: OPERATIONS.get(name, name)),
        "timing": "kernel",
    }
    return columns, labels, number(stored, "latency_ms") * MS


FILES: dict[str, Convert] = {name: convert for name, convert in EXCHANGE.items() if name != "nccl_perf"} | {
    NCCL_TABLE.removesuffix(SUFFIX): Convert(
        "collective", ("op_name", "nccl_dtype", "num_gpus", "bytes", "latency_ms"), ("device", "lib"), nccl_bytes
    )
}
"""How each file is read, by its name."""


def matches(path: Path) -> bool:
    """Whether the folder holds one of these files, or the path is one."""
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else [path / f"{name}{SUFFIX}" for name in FILES]
    return sorted(file for file in found if file.is_file() and file.name.removesuffix(SUFFIX) in FILES)


def parts(path: Path) -> Iterator[Part]:
    """One part per file, known device and library or engine."""
    for file in _files(path):
        stored = pyarrow.csv.read_csv(file)
        name = "lib" if "lib" in stored.column_names else "backend_dir"
        builds = set(zip(stored["sys"].to_pylist(), stored[name].to_pylist(), strict=True))
        for system, build in sorted(builds):
            if system in DEVICES:
                chosen = pc.and_(pc.equal(stored["sys"], system), pc.equal(stored[name], build))
                convert = FILES[file.name.removesuffix(SUFFIX)]
                read = partial(_read, stored.filter(chosen), file, system, build, convert)
                engine = "nccl" if name == "lib" else build.split("/")[0]
                yield Part(SOURCE, DEVICES[system], convert.family, engine, file, read)


def _read(stored: pa.Table, file: Path, system: str, build: str, convert: Convert) -> OperatorTable:
    check_columns(stored.column_names, convert.needed, (*convert.ignored, "sys", "backend_dir"), file)
    engine, version = build.split("/")
    columns, labels, seconds = convert.rows(stored, Origin(SOURCE, engine, version, DEVICES_PER_NODE.get(system, 8)))
    known = {"source": SOURCE, "engine": engine, "engine_version": version}
    shared = {name: words(label, len(seconds)) for name, label in (known | labels).items()}
    return table(convert.family, DEVICES[system], seconds, columns, shared)
