"""Finds recorded sets: folders with `scenarios/` and `traces/`, at any depth, and who belongs to whom in them."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


SCENARIOS, TRACES = "scenarios", "traces"
ENDINGS = {SCENARIOS: (".json", ".json.gz"), TRACES: (".jsonl", ".jsonl.gz")}


@dataclass(frozen=True)
class Pair:
    """One recording: its name, unique in its set, and its two files."""

    name: str
    scenario: Path
    trace: Path


@dataclass
class RecordedSet:
    """The recordings of one folder; `orphans`: traces without a scenario; `left_over`: other files, with the reason."""

    name: str
    folder: Path
    pairs: list[Pair] = field(default_factory=list)
    orphans: list[Path] = field(default_factory=list)
    left_over: list[tuple[Path, str]] = field(default_factory=list)


def find_sets(path: Path) -> list[RecordedSet]:
    """The sets at or below `path`, by name. `path` may also lie in a set: then only what is there is read.

    `ValueError` if nothing is found.
    """
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder.")
    inside = enclosing(path)
    if inside is not None:
        folder, part = inside
        sets = [read_set(folder, part)]
    elif path.is_file():
        raise ValueError(
            f"{path}: a file that lies in no scenarios/ or traces/; if it is a server's log, add --run DIR, the "
            "results folder of a simulated run to compare it with."
        )
    else:
        sets = [read_set(folder) for folder in folders(path)]
    sets = [found for found in sets if found.pairs or found.orphans or found.left_over]
    if not sets:
        raise ValueError(f"{path}: no recordings here; wanted are folders with scenarios/ and traces/ in them.")
    names = Counter(found.folder.resolve().name for found in sets)
    for found in sets:
        own = found.folder.resolve().name
        found.name = own if names[own] == 1 else found.folder.relative_to(path).as_posix()
    return sorted(sets, key=lambda found: found.name)


def enclosing(path: Path) -> tuple[Path, str] | None:
    """If `path` is in a set's scenarios/ or traces/: the set's folder, and the part of it that `path` chooses."""
    whole = Path(os.path.abspath(path))
    for above in (whole, *whole.parents):
        if above.name in ENDINGS and above.is_dir():
            part = whole.relative_to(above).as_posix()
            return above.parent, stem(part, above.name) or part
    return None


def folders(path: Path) -> Iterator[Path]:
    """Every folder at or below `path` that holds scenarios/ or traces/."""
    seen: set[str] = set()
    for at, below, _ in os.walk(path, onerror=unreadable, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        kinds = [name for name in ENDINGS if name in below]
        if kinds:
            yield Path(at)
        below[:] = sorted(name for name in below if name not in kinds)


def unreadable(error: OSError) -> None:
    """A folder that may not be read is not passed over; one that is not there is."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def read_set(folder: Path, part: str = ".") -> RecordedSet:
    """The recordings of one set; `part` is a file (without ending) or a folder in scenarios/ and traces/."""
    found = RecordedSet(folder.name, folder)
    scenarios = listing(folder / SCENARIOS, SCENARIOS, found)
    traces = listing(folder / TRACES, TRACES, found)
    by_last = Counter(name.rpartition("/")[2] for name in scenarios)
    last = {name.rpartition("/")[2]: name for name in scenarios}
    paired: set[str] = set()
    for name, trace in traces.items():
        end = name.rpartition("/")[2]
        mate = name if name in scenarios else last[end] if by_last[end] == 1 else None
        if mate is not None:
            paired.add(mate)
        if not chosen(name, part) and not (mate and chosen(mate, part)):
            continue
        if mate is None:
            found.orphans.append(trace)
        else:
            found.pairs.append(Pair(name, scenarios[mate], trace))
    for name, scenario in scenarios.items():
        if name not in paired and chosen(name, part):
            found.left_over.append((scenario, "a scenario without a trace"))
    return found


def chosen(name: str, part: str) -> bool:
    """Whether a recording is the one, or in the folder, that `part` names."""
    return part == "." or name == part or name.startswith(f"{part}/")


def listing(folder: Path, kind: str, found: RecordedSet) -> dict[str, Path]:
    """The files of a kind below a folder, by name without ending; a second copy of one is left over."""
    files: dict[str, Path] = {}
    for at, below, names in os.walk(folder, onerror=unreadable):
        below.sort()
        for name in sorted(names):
            path = Path(at, name)
            short = stem(path.relative_to(folder).as_posix(), kind)
            if short is None:
                continue
            if short in files:
                found.left_over.append((path, f"a second copy of {files[short].name}, not read"))
            else:
                files[short] = path
    return files


def stem(name: str, kind: str) -> str | None:
    """A file's name without the ending of its kind; None if it is no such file."""
    for ending in ENDINGS[kind]:
        if name.endswith(ending):
            return name[: -len(ending)]
    return None
