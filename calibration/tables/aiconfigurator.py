"""The `aiconfigurator-core` package: `systems/data/<system>/<family>/<engine>/<version>/<table>.parquet`.

Kernels run alone, warmed up and replayed as graphs, one shape a row; mean latency. What is not read: batched products
of MLA, encoder, sparse and hash attention, whole MLPs.
"""

from collections.abc import Iterator
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq

from calibration.tables.aiconfigurator_exchange import EXCHANGE
from calibration.tables.aiconfigurator_moe import MOE
from calibration.tables.aiconfigurator_rows import KERNELS, Convert, Origin
from calibration.tables.rows import Part, check_columns, table, words
from predictors.table import OperatorTable


PACKAGE = "aiconfigurator-core"
EXTRA = "headway[profiles] (in a checkout: .venv/bin/pip install -e '.[profiles]')"
DEVICES = {
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
DEVICES_PER_NODE = {"gb200": 4, "gb300": 4}
TABLES: dict[str, Convert] = {**KERNELS, **MOE, **EXCHANGE}


def installed() -> Path | None:
    """The folder of the installed package, nothing where it is not installed. Nothing of it is imported."""
    found = find_spec(PACKAGE.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def data_folder(path: Path) -> Path | None:
    """`systems/data` of a package folder, or of a folder that holds the package."""
    below = (".", "data", "systems/data", f"{PACKAGE.replace('-', '_')}/systems/data")
    folders = (path / name for name in below)
    return next((data for data in folders if any((data / system).is_dir() for system in DEVICES)), None)


def matches(path: Path) -> bool:
    """Whether the folder holds the package's tables."""
    return path.is_dir() and data_folder(path) is not None


def parts(path: Path) -> Iterator[Part]:
    """One part per table of a known device, in the order of paths; tables of other kinds are left out."""
    data = data_folder(path)
    assert data is not None
    source = f"{PACKAGE} {_version(data)}".strip()
    for system, device in DEVICES.items():
        for file in sorted((data / system).glob("*/*/*/*.parquet")):
            convert = TABLES.get(file.stem)
            if convert is not None:
                engine = "nccl" if file.stem == "nccl_perf" else file.parent.parent.name
                origin = Origin(source, engine, file.parent.name, DEVICES_PER_NODE.get(system, 8))
                yield Part(source, device, convert.family, engine, file, partial(_read, file, device, convert, origin))


def _read(file: Path, device: str, convert: Convert, origin: Origin) -> OperatorTable:
    stored = pq.read_table(file, use_threads=False)
    check_columns(stored.column_names, convert.needed, convert.ignored, file)
    columns, labels, seconds = convert.rows(stored, origin)
    known = {"source": origin.source, "engine": origin.engine, "engine_version": origin.version}
    shared = {name: words(label, len(seconds)) for name, label in (known | labels).items()}
    return table(convert.family, device, seconds, columns, shared)


def _version(data: Path) -> str:
    """Of the distribution beside the package folder, or of the installed one."""
    beside = sorted(data.parents[2].glob(f"{PACKAGE.replace('-', '_')}-*.dist-info")) if len(data.parents) > 2 else []
    if beside:
        return beside[-1].name.removesuffix(".dist-info").split("-")[-1]
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return ""
