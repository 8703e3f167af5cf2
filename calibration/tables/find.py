"""Operator tables wherever they lie: which reader reads a path, and the tables of one device and family."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from calibration.tables import aiconfigurator, collectives, frontier, llmservingsim, plain, vidur
from calibration.tables.rows import Part, unknown
from predictors.table import FAMILIES, OperatorTable
from sim.hardware.read import list_devices


PACKAGE = aiconfigurator.PACKAGE
"""Names the installed package among sources."""

READERS: tuple[ModuleType, ...] = (aiconfigurator, llmservingsim, frontier, vidur, collectives, plain)
"""In the order they are asked; each has `matches(path)` and `parts(path)`."""


def tables_for(
    device: str,
    family: str | None = None,
    sources: Iterable[str | Path] = (),
    engine: str | None = None,
) -> list[OperatorTable]:
    """The tables of one device, one per file, in a fixed order; only the files asked for are opened.

    **Arguments:**

    - `device`: name in the catalogue; `family`: one of `predictors.table.FAMILIES`, all without.
    - `sources`: folders and files of any format, `aiconfigurator-core` for the installed package; that without any.
    - `engine`: vllm, sglang, trtllm, nccl ...: of tables that tell one.

    **Raises:** ValueError for an unknown device or family, a path that no reader knows, and what the readers refuse.
    """
    _check_known("device", device, list_devices())
    if family is not None:
        _check_known("family", family, list(FAMILIES))
    chosen = (
        part
        for part in all_parts(sources)
        if part.device == device and family in (None, part.family) and engine in (None, part.engine)
    )
    return [part.read() for part in chosen]


def all_parts(sources: Iterable[str | Path] = ()) -> Iterator[Part]:
    """What the sources hold, file by file and unread."""
    for source in list(sources) or [PACKAGE]:
        path = aiconfigurator.installed() if source == PACKAGE else Path(source)
        if path is None:
            raise ValueError(
                f"sources names {PACKAGE}, which is not installed: install {aiconfigurator.EXTRA}, or give folders of "
                "tables."
            )
        yield from reader_of(path).parts(path)


def reader_of(path: Path) -> ModuleType:
    """The reader that knows the format.

    **Raises:** ValueError for a path that does not exist or that none knows; it names the folders below that one knows.
    """
    if not path.exists():
        raise ValueError(f"sources must name existing folders or files, got {path}.")
    for reader in READERS:
        if reader.matches(path):
            return reader
    below = _below(path)
    if below:
        raise ValueError(
            f"sources: {path} itself holds no tables, but folders below it do: give "
            f"sources={','.join(map(str, below))}."
        )
    names = ", ".join(reader.__name__.rsplit(".", 1)[-1] for reader in READERS)
    raise ValueError(f"sources: {path} holds tables of no known format ({names}).")


def _below(path: Path) -> list[Path]:
    """The nearest folders with tables, one or two floors below. Reading all of them unasked might mix two of a kind."""
    for pattern in ("*/", "*/*/"):
        found = [folder for folder in sorted(path.glob(pattern)) if any(reader.matches(folder) for reader in READERS)]
        if found:
            return found
    return []


def _check_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise unknown(f"the {what}", name, known)
