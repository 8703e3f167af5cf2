"""Trace formats, one module each: `matches(head)`, `read(source, conf)`; a new file is a new `workload.format`."""

import pkgutil
from importlib import import_module
from typing import Protocol, cast

from sim.documents import nearest, user_path
from sim.workload.conf import WorkloadConf
from sim.workload.source import Head, Source, Trace, head_of, load


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
        known = ["auto", *names()]
        raise ValueError(f"workload.format wants one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    return cast(Reader, import_module(f"{__name__}.{name}"))


def read_trace(conf: WorkloadConf, path: str, key: str = "path") -> Trace:
    """Read the file `path` (plain or gzip) in `conf.format`, found from header or first object where it is `auto`.

    Errors: `ValueError` with file and line for a missing or empty file, an unknown format, broken rows, and lengths
    or times that are none.
    """
    source = load(user_path(path, f"workload.{key}"), key)
    name = conf.format if conf.format != "auto" else _detect(source)
    trace = reader(name).read(source, conf)
    if len(trace) == 0:
        raise ValueError(f"{source.path}: wanted at least one request, got none in the format {name}")
    return trace


def _detect(source: Source) -> str:
    head = head_of(source)
    found = [name for name in names() if reader(name).matches(head)]
    if len(found) == 1:
        return found[0]
    columns = ", ".join(sorted(head.names)) or "nothing"
    got = (
        f"one that fits {' and '.join(found)}"
        if found
        else f"one with {'the keys' if head.json else 'the columns'} {columns}"
    )
    csv = "the columns arrival_s, input_tokens, output_tokens in its first line make a csv of the format plain"
    advice = "workload.format=NAME would name it" if found or head.json else f"{csv} (docs/cli.md has all)"
    raise ValueError(
        f"{source.path}: wanted a file of one known trace format ({', '.join(names())}), got {got:.300}; {advice}"
    )
