"""Rounds of sessions in a table, one row each, wherever they stand: put together by a column that names the session."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from sim.workload.source import Source, tokens


@dataclass(frozen=True)
class Grouped:
    """Rows of a file session by session: `row` in this order, and the `session` of each."""

    row: Int[np.ndarray, " request"]
    session: Int[np.ndarray, " request"]

    @property
    def begins(self) -> np.ndarray:
        """Which are first rounds."""
        return np.concatenate([[True], np.diff(self.session) != 0])

    @property
    def start(self) -> np.ndarray:
        """The place of each one's first round."""
        return np.maximum.accumulate(np.where(self.begins, np.arange(len(self.session)), 0))


def grouped(source: Source, lines: Int[np.ndarray, " row"], names: list[str], rounds: list[str] | None) -> Grouped:
    """Sessions in order of their first rows, rounds in that of the file; a row without a name stands alone.

    `rounds`: numbers that must go up by one within a session, from 0 or 1. Raises `ValueError` where they don't.
    """
    number: dict[str, int] = {}
    session = np.array([number.setdefault(name.strip() or f"\n{row}", len(number)) for row, name in enumerate(names)])
    row = np.argsort(session, kind="stable")
    found = Grouped(row, session[row])
    if rounds is not None:
        counts = tokens(source, lines, "round", rounds, least=0)[row]
        start = np.minimum(counts[found.start], 1)
        wanted = start + np.arange(len(row)) - found.start
        wrong = counts != wanted
        if wrong.any():
            at = int(np.argmax(wrong))
            said = f"round {wanted[at]} of session {names[row[at]].strip()!r}, whose rounds come in order from 0 or 1"
            raise source.error(int(lines[row[at]]), said, str(counts[at]))
    return found
