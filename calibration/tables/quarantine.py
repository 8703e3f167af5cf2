"""Rows that were set aside, why and how many, with an example of each."""

from dataclasses import dataclass

import numpy as np

from predictors.table import FAMILIES, OperatorTable


@dataclass(frozen=True, eq=False)
class Aside:
    """Rows of one family and device that were set aside for one reason; `of`: rows there were in all."""

    reason: str
    rows: OperatorTable
    of: int

    def __str__(self) -> str:
        """Counts, reason, where the rows came from, and the first of them."""
        rows = self.rows
        origins = sorted(
            {" ".join(filter(None, words)) for words in _words(rows, "source", "engine", "engine_version")}
        )
        numbers = (f"{name} {rows[name][0]:g}" for name in FAMILIES[rows.family] if not np.isnan(rows[name][0]))
        first = " ".join([*filter(None, next(iter(_words(rows, "kernel", "dtype", "op")))), ", ".join(numbers)])
        return (
            f"{rows.device} {rows.family}: {len(rows)} of {self.of} rows: {self.reason} ({', '.join(origins)}); "
            f"first: {first}: {1e6 * rows.seconds[0]:.4g} us"
        )


@dataclass(frozen=True, eq=False)
class Quarantine:
    """All that was set aside, and how many rows were merged into the median of others of their shape."""

    aside: tuple[Aside, ...] = ()
    merged: int = 0

    def __len__(self) -> int:
        """Rows that were set aside."""
        return sum(len(one.rows) for one in self.aside)

    def __str__(self) -> str:
        """A line per reason, with counts and an example."""
        lines = [str(one) for one in self.aside]
        if self.merged:
            lines.append(f"{self.merged} rows repeat a shape and agree: the median of each is kept")
        return "\n".join(lines) or "nothing was set aside"


def _words(rows: OperatorTable, *names: str) -> list[tuple[str, ...]]:
    return list(zip(*(rows[name].tolist() for name in names), strict=True))
