"""Where results go when nobody says."""

from pathlib import Path


def free_folder(folder: Path) -> Path:
    """`folder`, or with `-2`, `-3` ... behind it if it exists: two runs may start in one second."""
    number, free = 2, folder
    while free.exists():
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free
