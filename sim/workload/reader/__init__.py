"""Trace formats, one module each: `matches(head)` and `read(source, conf)`; a new file here is a new `workload.format`."""

import gzip
import json
import math
import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from jaxtyping import Int

from sim.workload.conf import WorkloadConf


@dataclass(frozen=True)
class Source:
    """The text of one trace file; line numbers in messages count from 1."""

    path: Path
    lines: list[str]

    def error(self, line: int, wanted: str, got: str) -> ValueError:
        """The error for one line of the file."""
        return ValueError(f"{self.path}, line {line}: wanted {wanted}, got {got}")


@dataclass(frozen=True)
class Head:
    """What a format is recognised by: column names of a csv header or keys of the first JSON object, lower case."""

    json: bool
    names: frozenset[str]
    first: dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """Requests of a file in file order; `arrival_ns` is None for data sets without times. `line` is where each stands."""

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


class Reader(Protocol):
    """One trace format."""

    def matches(self, head: Head) -> bool:
        """Whether the file looks like this format."""
        ...

    def read(self, source: Source, conf: WorkloadConf) -> Trace:
        """All requests of the file, or its first `conf.limit`."""
        ...


def names() -> list[str]:
    """The trace formats there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def reader(name: str) -> Reader:
    """The reader called `name`; `ValueError` with the known names otherwise."""
    if name not in names():
        raise ValueError(f"workload.format wants one of {', '.join(['auto', *names()])}, got {name!r}")
    return cast(Reader, import_module(f"{__name__}.{name}"))


def read_trace(conf: WorkloadConf) -> Trace:
    """Read `conf.path` in `conf.format`, found from the header or the first object where it is `auto`.

    Gzip is accepted. Errors: `ValueError` with file and line for a missing or empty file, an unknown format, broken
    rows, and lengths that are no positive integers.
    """
    if not conf.path:
        raise ValueError("workload.path wants the path of a trace file, got none")
    source = _load(Path(conf.path).expanduser())
    name = conf.format if conf.format != "auto" else _detect(source)
    return reader(name).read(source, conf)


def _load(path: Path) -> Source:
    if not path.is_file():
        raise ValueError(f"workload.path wants a trace file, got {path}, which does not exist or is no file")
    raw = path.read_bytes()
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        text = raw.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: wanted UTF-8 text, plain or gzip, got a file that can't be decoded ({problem})") from None
    # Only \n ends a line: str.splitlines would also cut JSON strings at other separators.
    lines = text.split("\n")
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path}: wanted a trace of at least one request, got an empty file")
    return Source(path, lines)


def _detect(source: Source) -> str:
    head = _head(source)
    found = [name for name in names() if reader(name).matches(head)]
    if len(found) != 1:
        got = "one that fits " + " and ".join(found) if found else f"one with {', '.join(sorted(head.names)) or 'none'}"
        raise ValueError(
            f"{source.path}: wanted a file of a known trace format ({', '.join(names())}), got {got}; set workload.format"
        )
    return found[0]


def _head(source: Source) -> Head:
    first = next(line for line in source.lines if line.strip()).strip()
    if first.startswith("["):
        start = json_document(source)
        item = start[0] if start and isinstance(start[0], dict) else {}
        return Head(True, frozenset(str(key).lower() for key in item), item)
    if first.startswith("{"):
        number = next(n for n, line in enumerate(source.lines, 1) if line.strip())
        item = json_line(source, number, first)
        return Head(True, frozenset(str(key).lower() for key in item), item)
    return Head(False, frozenset(cell.strip().strip('"').lower() for cell in first.replace("\t", ",").split(",")), {})


def json_document(source: Source) -> list[Any]:
    """The JSON array that the whole file is."""
    try:
        document = json.loads("\n".join(source.lines))
    except json.JSONDecodeError as problem:
        raise source.error(problem.lineno, "valid JSON", f"{problem.msg} at column {problem.colno}") from None
    if not isinstance(document, list):
        raise source.error(1, "a JSON array of records", type(document).__name__)
    return document


def json_line(source: Source, line: int, text: str) -> dict[str, Any]:
    """The JSON object on one line."""
    try:
        item = json.loads(text)
    except json.JSONDecodeError as problem:
        raise source.error(line, "one JSON object per line", f"broken JSON ({problem.msg} at column {problem.colno})") from None
    if not isinstance(item, dict):
        raise source.error(line, "one JSON object per line", f"a {type(item).__name__}")
    return item


def json_lines(source: Source, limit: int | None) -> list[tuple[int, dict[str, Any]]]:
    """Line number and object of each non-empty line."""
    rows = [(number, line) for number, line in enumerate(source.lines, 1) if line.strip()]
    return [(number, json_line(source, number, line)) for number, line in rows[:limit]]


def field(source: Source, line: int, item: dict[str, Any], key: str) -> Any:
    """`item[key]`, or the error that says which keys there are."""
    if key not in item:
        raise source.error(line, f"the key {key!r}", f"only {', '.join(map(repr, item)) or 'an empty object'}")
    return item[key]


def tokens(source: Source, line: int, what: str, value: Any) -> int:
    """A token count: an integer >= 1, written as a number or as text."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not (number >= 1 and number == int(number) if math.isfinite(number) else False):
        raise source.error(line, f"{what} as an integer >= 1", repr(value))
    return int(number)


def nanoseconds(source: Source, line: int, what: str, value: Any, unit_ns: float) -> int:
    """A time >= 0 given in units of `unit_ns`, rounded to nanoseconds (halves up)."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise source.error(line, f"{what} as a finite number >= 0", repr(value))
    if isinstance(value, int) and float(unit_ns).is_integer():
        return value * int(unit_ns)
    return int(number * unit_ns + 0.5)
