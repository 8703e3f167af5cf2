"""The text of a trace file, and the checks every reader makes on its cells: one clear sentence with file and line."""

import csv
import gzip
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sim.workload.trace import MOST_SECONDS, MOST_TOKENS, NEVER_ABORTS


LOOKED_AT = 1000
"""Lines of a JSON file that may decide its format."""

MOST_PRIORITY = 1 << 31
"""Of either sign."""

LARGEST_NS = 9e18
"""Times in a file, whose origin may be a calendar's: what nanoseconds in 64 bits hold."""


@dataclass(frozen=True)
class Source:
    """The lines of one trace file; numbers in messages count lines (or records of a JSON array) from 1."""

    path: Path
    lines: list[str]
    unit: str = "line"

    def error(self, number: int, wanted: str, got: str) -> ValueError:
        """The error for one line of the file."""
        return ValueError(f"{self.path}, {self.unit} {number}: wanted {wanted}, got {got}")


@dataclass(frozen=True)
class Head:
    """What a format is recognised by: columns of a csv header or keys of the first JSON object, in lower case.

    `rows`: the first objects of a JSON file, up to one that is broken.
    """

    json: bool
    names: frozenset[str]
    rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Trace:
    """Requests of a file in file order; `arrival_ns` is None for data sets without times; `line`: where each stands.

    `session`: a number for each, alike for the rounds of one session, which stand together in order; `latency_ns`: from
    the end of the round before until it is sent (of first rounds: anything), None where the file does not say.
    """

    prompt_tokens: Int[np.ndarray, " request"]
    output_tokens: Int[np.ndarray, " request"]
    line: Int[np.ndarray, " request"]
    arrival_ns: Int[np.ndarray, " request"] | None = None
    token_ids: list[np.ndarray] | None = None
    output_token_ids: list[np.ndarray] | None = None
    block_hashes: list[np.ndarray] | None = None
    hash_block_tokens: int | None = None
    provenance: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    priority: Int[np.ndarray, " request"] | None = None
    abort_after_ns: Int[np.ndarray, " request"] | None = None
    session: Int[np.ndarray, " request"] | None = None
    latency_ns: Int[np.ndarray, " request"] | None = None

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def take(self, rows: Int[np.ndarray, " row"], note: str | None = None) -> "Trace":
        """The requests `rows`, in that order, with one more note."""

        def pick(values: list[np.ndarray] | None) -> list[np.ndarray] | None:
            return None if values is None else [values[row] for row in rows]

        return Trace(
            self.prompt_tokens[rows],
            self.output_tokens[rows],
            self.line[rows],
            None if self.arrival_ns is None else self.arrival_ns[rows],
            pick(self.token_ids),
            pick(self.output_token_ids),
            pick(self.block_hashes),
            self.hash_block_tokens,
            self.provenance,
            self.notes if note is None else (*self.notes, note),
            None if self.priority is None else self.priority[rows],
            None if self.abort_after_ns is None else self.abort_after_ns[rows],
            None if self.session is None else self.session[rows],
            None if self.latency_ns is None else self.latency_ns[rows],
        )


def load(path: Path, key: str) -> Source:
    """The text of `path`, plain or gzip; `key` is the setting to name where the file is missing."""
    if not path.is_file():
        raise ValueError(f"workload.{key} wants a file, got {path}, which does not exist or is no file")
    raw = path.read_bytes()
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: wanted UTF-8 text, plain or gzip, got bytes that don't decode ({problem})") from None
    if not text.strip():
        raise ValueError(f"{path}: wanted at least one request, got an empty file")
    # Only \n, \r\n and \r end a line: str.splitlines would also cut JSON strings at other separators.
    return Source(path, text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def head_of(source: Source) -> Head:
    """Header or first objects of a file."""
    number = next(n for n, line in enumerate(source.lines, 1) if line.strip())
    first = source.lines[number - 1].strip()
    if first.startswith("["):
        rows = [item for item in json_array(source)[:1] if isinstance(item, dict)]
    elif first.startswith("{"):
        rows = [json_object(source, number, first)]
        for below, line in enumerate(source.lines[number : number + LOOKED_AT], number + 1):
            try:
                rows += [json_object(source, below, line)] if line.strip() else []
            except ValueError:
                break  # the reader names it
    else:
        return Head(False, frozenset(_cells(source, number)))
    return Head(True, frozenset(str(key).lower() for key in (rows[0] if rows else ())), tuple(rows))


def json_array(source: Source) -> list[Any]:
    """The JSON array that the whole file is."""
    try:
        document = json.loads("\n".join(source.lines))
    except json.JSONDecodeError as problem:
        raise Source(source.path, []).error(
            problem.lineno, "valid JSON", f"{problem.msg} (column {problem.colno})"
        ) from None
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{source.path}: wanted a JSON array of records, got {_unreadable(problem)}") from None
    if not isinstance(document, list):
        raise Source(source.path, []).error(1, "a JSON array of records", f"a JSON {type(document).__name__}")
    return document


def json_object(source: Source, number: int, text: str) -> dict[str, Any]:
    """The JSON object on one line."""
    try:
        item = json.loads(text)
    except json.JSONDecodeError as problem:
        raise source.error(number, "one JSON object", f"broken JSON: {problem.msg} (column {problem.colno})") from None
    except (ValueError, RecursionError) as problem:
        raise source.error(number, "one JSON object", _unreadable(problem)) from None
    if not isinstance(item, dict):
        raise source.error(number, "one JSON object", f"a JSON {type(item).__name__}")
    return item


def _unreadable(problem: Exception) -> str:
    return "one nested too deeply" if isinstance(problem, RecursionError) else "a number of thousands of digits"


def json_lines(source: Source, limit: int | None) -> list[tuple[int, dict[str, Any]]]:
    """Number and object of each line that is not blank, at most `limit`."""
    rows = [(number, line) for number, line in enumerate(source.lines, 1) if line.strip()]
    return [(number, json_object(source, number, line)) for number, line in rows[:limit]]


def json_columns(source: Source, rows: list[tuple[int, dict[str, Any]]], keys: tuple[str, ...]) -> dict[str, list[Any]]:
    """The values of `keys` over all rows; every row must have them all."""
    for number, item in rows:
        for key in keys:
            if key not in item:
                raise source.error(
                    number, f"the key {key!r}", f"only {', '.join(map(repr, item)) or 'an empty object'}"
                )
    return {key: [item[key] for _, item in rows] for key in keys}


def csv_columns(
    source: Source, keys: tuple[str, ...], limit: int | None
) -> tuple[dict[str, list[str]], Int[np.ndarray, " row"]]:
    """The cells of the columns `keys` (any case) and each row's line; every row must be as wide as the header."""
    number = next(n for n, line in enumerate(source.lines, 1) if line.strip())
    header = source.lines[number - 1]
    columns = _cells(source, number)
    twice = [key for key in keys if columns.count(key) > 1]
    if twice:
        raise source.error(number, f"one column {twice[0]!r}", f"{columns.count(twice[0])}")
    missing = [key for key in keys if key not in columns]
    if missing:
        raise source.error(number, f"a column {missing[0]!r}", f"only {', '.join(map(repr, columns))}")
    reader = csv.reader(source.lines[number:], delimiter="\t" if "\t" in header else ",")
    rows: list[list[str]] = []
    lines: list[int] = []
    for row in _rows(source, reader, number):
        if not row or (len(row) == 1 and not row[0].strip()):
            continue
        if limit is not None and len(rows) == limit:
            break
        if len(row) != len(columns):
            raise source.error(number + reader.line_num, f"{len(columns)} columns as in the header", f"{len(row)}")
        rows.append(row)
        lines.append(number + reader.line_num)
    if not rows:
        raise ValueError(f"{source.path}: wanted at least one request, got a header alone")
    cells = list(zip(*rows, strict=True))
    return {key: list(cells[columns.index(key)]) for key in keys}, np.array(lines)


def _cells(source: Source, number: int) -> list[str]:
    header = source.lines[number - 1]
    reader = csv.reader([header], delimiter="\t" if "\t" in header else ",")
    return [cell.strip().lower() for cell in next(_rows(source, reader, number - 1))]


def _rows(source: Source, reader: Any, before: int) -> Iterator[list[str]]:
    """The rows of a csv reader that begins after line `before`; a row it can't read is an error with its line."""
    try:
        yield from reader
    except csv.Error as problem:
        raise source.error(before + max(reader.line_num, 1), "a row of a csv table", str(problem)) from None


def tokens(
    source: Source, lines: Int[np.ndarray, " row"], what: str, cells: list[Any], least: int = 1
) -> Int[np.ndarray, " row"]:
    """Token counts: integers from `least` to `MOST_TOKENS`, given as numbers or text."""
    wanted = f"{what} as an integer >= {least}"
    values = _numbers(source, lines, wanted, cells, MOST_TOKENS, lambda x: (x >= least) & (x == np.floor(x)))
    return values.astype(np.int64)


def priorities(
    source: Source, lines: Int[np.ndarray, " row"], cells: list[Any] | None
) -> Int[np.ndarray, " row"] | None:
    """Priorities, integers of either sign; None where the file has none."""
    if cells is None:
        return None
    values = _numbers(
        source,
        lines,
        "priority as an integer",
        cells,
        MOST_PRIORITY,
        lambda x: (x >= -MOST_PRIORITY) & (x == np.floor(x)),
    )
    return values.astype(np.int64)


def patience_ns(source: Source, lines: Int[np.ndarray, " row"], what: str, cells: list[str]) -> Int[np.ndarray, " row"]:
    """How long clients wait for each request, from cells in seconds; an empty one is for ever."""
    found = np.full(len(cells), NEVER_ABORTS, np.int64)
    given = np.array([bool(cell.strip()) for cell in cells], bool)
    if given.any():
        wanted = f"{what} as a number > 0, or nothing where the client waits to the end"
        values = _numbers(
            source, lines[given], wanted, [cell for cell in cells if cell.strip()], MOST_SECONDS, lambda x: x > 0
        )
        found[given] = np.maximum(np.floor(values * 1e9 + 0.5), 1).astype(np.int64)
    return found


def times_ns(
    source: Source, lines: Int[np.ndarray, " row"], what: str, cells: list[Any], unit_ns: float
) -> Int[np.ndarray, " row"]:
    """Times >= 0 in units of `unit_ns`, rounded to nanoseconds, halves up; integers of whole units stay exact."""
    wanted = f"{what} as a finite number >= 0"
    values = _numbers(source, lines, wanted, cells, LARGEST_NS / unit_ns, lambda x: x >= 0)
    if unit_ns == 1 and all(isinstance(cell, int) for cell in cells):
        return np.array(cells, dtype=np.int64)
    return np.floor(values * unit_ns + 0.5).astype(np.int64)


def _numbers(
    source: Source,
    lines: Int[np.ndarray, " row"],
    wanted: str,
    cells: list[Any],
    most: float,
    good: Callable[[Float[np.ndarray, " row"]], Bool[np.ndarray, " row"]],
) -> Float[np.ndarray, " row"]:
    try:
        values = np.array([_number(cell) for cell in cells]) if _mixed(cells) else np.array(cells).astype(np.float64)
    except (ValueError, OverflowError):
        values = np.array([_number(cell) for cell in cells])
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(values) & (values <= most) & good(values))
    if bad.any():
        row = int(np.argmax(bad))
        if most < values[row] < math.inf:
            wanted += f" and at most {most:.10g}"
        cell = cells[row]
        raise source.error(int(lines[row]), wanted, f"{(cell.strip() if isinstance(cell, str) else cell)!r:.60}")
    return values


def _mixed(cells: list[Any]) -> bool:
    """Whether numpy's own conversion can't be trusted with the cells (JSON may hold true, null, lists)."""
    return not (all(isinstance(cell, str) for cell in cells) or all(type(cell) in (int, float) for cell in cells))


def _number(cell: Any) -> float:
    try:
        return float(cell) if not isinstance(cell, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


def integer_rows(source: Source, lines: Int[np.ndarray, " row"], what: str, rows: list[Any]) -> list[np.ndarray]:
    """Lists of integers (token ids, block hashes), one per request."""
    arrays = []
    for number, row in zip(lines, rows, strict=True):
        array = np.array(row) if isinstance(row, list) and not any(isinstance(x, (list, dict)) for x in row) else None
        if array is None or not (array.size == 0 or array.dtype.kind in "iu"):
            bits = " of 64 bits" if array is not None and all(isinstance(x, int) for x in row) else ""
            raise source.error(int(number), f"{what} as a list of integers{bits}", f"{row!r:.60}")
        arrays.append(array.astype(np.int64))
    return arrays


def id_rows(
    source: Source, lines: Int[np.ndarray, " row"], key: str, rows: list[Any], lengths: Int[np.ndarray, " row"]
) -> list[np.ndarray]:
    """Token ids of each request, as many as it has tokens."""
    found = integer_rows(source, lines, key, rows)
    for number, row, length in zip(lines, found, lengths, strict=True):
        if len(row) != length:
            raise source.error(int(number), f"{length} entries in {key}", str(len(row)))
    return found


def from_first(arrival_ns: Int[np.ndarray, " row"]) -> Int[np.ndarray, " row"]:
    """Times since the earliest, for clocks whose origin is a calendar's."""
    return arrival_ns - arrival_ns.min()
