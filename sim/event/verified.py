"""Counts drafts as their outputs come: how many a row verified, and how many of them were right."""

import numpy as np

from sim.report.result import SpeculationTable
from sim.scheduler.base import Batch


class Verified:
    """Of one replica; rows of requests that were gone do not count, nor dummies."""

    def __init__(self, method: str, most: int):
        self._method = method
        self._most = most
        self._counts = [0] * ((most + 1) * (most + 1))
        self._rows = self._committed = self._cut = 0

    def count(self, batch: Batch) -> None:
        """A batch whose output was processed: `delivered` follows the order of its rows."""
        delivered = iter(batch.delivered)
        due, tokens = next(delivered, (None, 0))
        side = self._most + 1
        for row in batch.rows:
            if row.request is not due or not row.emits:
                continue
            if row.drafts and not row.padded:
                self._counts[row.drafts * side + row.accepted] += 1
            self._rows += 1
            self._committed += tokens
            self._cut += 1 + row.accepted - tokens
            due, tokens = next(delivered, (None, 0))

    def table(self) -> SpeculationTable:
        """What was counted."""
        verified = np.array(self._counts, np.int64).reshape(self._most + 1, self._most + 1)
        return SpeculationTable(self._method, verified, self._rows, self._committed, self._cut)
