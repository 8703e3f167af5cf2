"""Acceptance that was measured: a csv file with a row for each verification, in order.

`accepted`: drafts that were. With a column `request`, the simulated requests take those of the file in turn, each with
its own rows, over and over; without, each begins at a drawn row.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.documents import read_text, user_path
from sim.workload import draws
from sim.workload.acceptance import KEY, NEEDED, Law


READS: dict[str, Any] = {"path": NEEDED}
PLACE = -1
"""The number of the event that decides where a request begins: its verifications count from 0."""


def make(options: Mapping[str, Any], most: int, seed: int) -> Law:
    """See `sim.workload.acceptance`; rows with more than `most` count as `most`."""
    found = list(_rows(user_path(options["path"], f"{KEY}.path")).values())
    if len(found) > 1:
        return lambda request, number: min(found[request % len(found)][number % len(found[request % len(found)])], most)
    rows = found[0]

    def accepted(request: int, number: int) -> int:
        first = int(draws.counted(seed, request, PLACE) * len(rows))
        return min(rows[(first + number) % len(rows)], most)

    return accepted


def _rows(path: Path) -> dict[str, list[int]]:
    """Accepted drafts by request, in order."""
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"{KEY}.path={error}") from None
    rows = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip().lower() for name in next(rows, [])]
    if "accepted" not in header:
        raise ValueError(f"{KEY}.path={path}: wanted the column accepted, got {', '.join(header)}.")
    place, of = header.index("accepted"), header.index("request") if "request" in header else None
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        try:
            value, request = int(row[place]), "" if of is None else row[of]
        except (ValueError, IndexError):
            value, request = -1, ""
        if value < 0:
            raise ValueError(
                f"{KEY}.path={path}, line {number}: wanted a number of accepted drafts, got {','.join(row)}."
            )
        found.setdefault(request, []).append(value)
    if not found:
        raise ValueError(f"{KEY}.path={path}: wanted at least one verification, got no rows.")
    return found
