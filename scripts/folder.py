"""Where results go when nobody says."""

import os
from pathlib import Path


def free_folder(folder: Path) -> Path:
    """`folder`, or with `-2`, `-3` ... behind it if it exists: two runs may start in one second."""
    number, free = 2, folder
    while free.exists():
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free


def check_writable(path: Path, key: str) -> None:
    """Raise `ValueError` that names `key` where `path` could not be written: said before the work, not after it."""
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{key}={path} cannot be written: {folder} is no folder one can write to.")
