"""Where results go, and what is said where an earlier result lies there."""

import os
from dataclasses import dataclass
from pathlib import Path

from sim.documents import user_path


def free_folder(folder: Path) -> Path:
    """`folder`, or with `-2`, `-3` ... behind it if it exists: two runs may start in one second."""
    number, free = 2, folder
    while free.exists():
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free


@dataclass(frozen=True)
class ResultsFolder:
    """A folder that results can go to; `notes`: that an earlier result is replaced there."""

    path: Path
    notes: list[str]


def results_folder(given: str | None, name: str, marker: str) -> ResultsFolder:
    """The folder `given`, or a new `results/NAME`; an earlier result is told by the file `marker`.

    **Raises:** ValueError if it is a file, cannot be written, or holds what is no earlier result.
    """
    if given is None:
        folder = free_folder(Path("results") / name)
        check_writable(folder / marker, "results")
        return ResultsFolder(folder, [])
    folder = user_path(given, "results")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"results={folder} wants a folder, this is a file.")
    check_writable(folder / marker, "results")
    earlier = (folder / marker).is_file()
    if folder.is_dir() and any(folder.iterdir()) and not earlier:
        raise ValueError(f"results={folder} wants a new or an empty folder, or one of an earlier result of its kind.")
    return ResultsFolder(folder, [replaced(folder)] if earlier else [])


def replaced(folder: Path) -> str:
    """The sentence for an earlier result that a new one took the place of."""
    return f"the earlier result in {folder} was replaced"


def check_writable(path: Path, key: str) -> None:
    """Raise `ValueError` that names `key` where `path` could not be written: said before the work, not after it."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{key}={path} cannot be written: {folder} is no folder one can write to.")
