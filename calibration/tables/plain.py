"""A user's own profile: one csv per family, in the columns of `predictors.table` (docs/operator-tables.md).

`gemm.csv`, `attention.csv`, `gemm-layer7.csv` ...: a name that begins with the family. The header has `device`, any of
the labels, the columns of the family, and one time: `time_s`, `time_ms`, `time_us` or `time_ns`.
"""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from calibration.tables.rows import Part, check_columns, otherwise_written, table, unknown, words
from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.hardware.read import list_devices


TIME_S = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9}
BLANK = {"window": np.inf, "active": np.nan, "max_load": np.nan, "skew": np.nan}
"""What an empty cell means in the columns that may have one, and that a file may leave out."""


def matches(path: Path) -> bool:
    """Whether the path is such a file, or a folder with some."""
    return bool(_files(path))


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.glob("*.csv"))
    return [
        file
        for file in found
        if file.suffix == ".csv" and family_of(file) and otherwise_written("device", _header(file))
    ]


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return [name.strip() for name in next(csv.reader(stream), [])]


def family_of(path: Path) -> str:
    """Family that the name begins with, "" for none."""
    return next((family for family in FAMILIES if path.stem == family or path.stem.startswith(f"{family}-")), "")


def parts(path: Path) -> Iterator[Part]:
    """One part per file, device and engine.

    **Raises:** ValueError for unknown columns and devices, and for cells that are no numbers.
    """
    for file in _files(path):
        stored = _stored(file)
        family = family_of(file)
        engines = words(stored["engine"]) if "engine" in stored.column_names else words("", len(stored))
        devices = words(stored["device"])
        for device, engine in dict.fromkeys(zip(devices.tolist(), engines.tolist(), strict=True)):
            mine = stored.filter((devices == device) & (engines == engine))
            yield Part(file.name, device, family, engine, file, partial(_read, mine, file, family, device))


def _stored(path: Path) -> pa.Table:
    family, header = family_of(path), _header(path)
    times = [name for name in header if name in TIME_S]
    if len(times) != 1:
        got = ", ".join(times or [name for name in header if name.lower() in TIME_S]) or "none"
        raise ValueError(f"{path} must have one time column ({', '.join(TIME_S)}), got {got}.")
    needed = tuple(name for name in FAMILIES[family] if name not in BLANK)
    check_columns(header, ("device", *needed, times[0]), (*LABELS, *BLANK), path)
    text = {name: pa.string() for name in ("device", *LABELS)}
    numbers = {name: pa.float64() for name in (*FAMILIES[family], times[0])}
    options = pyarrow.csv.ConvertOptions(column_types=text | numbers, strings_can_be_null=True)
    try:
        stored = pyarrow.csv.read_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(column_names=header, skip_rows=1),
            convert_options=options,
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} must be a csv of numbers below its header: {str(error).splitlines()[0]}.") from None
    known = list_devices()
    for device in pc.unique(stored["device"]).to_pylist():
        if device not in known:
            raise unknown(f"{path}: the device", str(device), known, " (`headway hardware` lists them)")
    for name in (*needed, times[0]):
        empty = pc.index(pc.is_null(stored[name]), True).as_py()
        if empty >= 0:
            raise ValueError(f"{path} needs a number in column '{name}' of every row; row {empty + 1} has none.")
    return stored


def _read(stored: pa.Table, path: Path, family: str, device: str) -> OperatorTable:
    unit = next(name for name in stored.column_names if name in TIME_S)
    columns = {name: _numbers(stored, name) for name in FAMILIES[family]}
    labels = {name: words(stored[name]) for name in LABELS if name in stored.column_names}
    source = labels.get("source", np.full(len(stored), "", object))
    timing = labels.get("timing", np.full(len(stored), "", object))
    labels["timing"] = np.where(timing == "", "kernel", timing).astype(object)
    labels["source"] = np.where(source == "", path.name, source).astype(object)
    return table(family, device, _numbers(stored, unit) * TIME_S[unit], columns, labels)


def _numbers(stored: pa.Table, name: str) -> np.ndarray:
    blank = BLANK.get(name, np.nan)
    if name not in stored.column_names:
        return np.full(len(stored), blank)
    values = np.asarray(stored[name].to_numpy(), np.float64)
    return np.where(np.isnan(values), blank, values)


def write(rows: OperatorTable, path: Path | str) -> None:
    """Writes a table as the reader above reads it, times in seconds; all digits of a number are kept."""
    if family_of(Path(path)) != rows.family:
        raise ValueError(f"the name of the file must begin with its family, '{rows.family}', got {Path(path).name}.")
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(("device", *LABELS, *FAMILIES[rows.family], "time_s"))
        columns = [rows.columns[name].tolist() for name in FAMILIES[rows.family]]
        numbers = zip(*columns, rows.seconds.tolist(), strict=True)
        labels = zip(*(rows.labels[name].tolist() for name in LABELS), strict=True)
        for words_of_row, numbers_of_row in zip(labels, numbers, strict=True):
            cells = ("" if value != value or value == np.inf else f"{value:.17g}" for value in numbers_of_row)
            out.writerow((rows.device, *words_of_row, *cells))
