"""The step log: one row per executed batch, appended cheaply and read as numpy columns."""

from array import array
from dataclasses import fields

import numpy as np

from sim.report.result import StepTable
from sim.scheduler.base import Batch


COLUMNS = tuple(field.name for field in fields(StepTable))
"""In the order in which `StepLog.append` writes them."""


class StepLog:
    """Rows of one run, all replicas together, one after the other in one buffer of 64-bit integers."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def append(self, replica: int, start_ns: int, end_ns: int, batch: Batch, padded: int, mode: int) -> None:
        """Record one executed batch."""
        self._numbers.extend(
            (
                replica,
                start_ns,
                end_ns,
                batch.prefill_tokens,
                batch.prefill_chunks,
                batch.prefill_area,
                batch.prefill_kv_tokens,
                batch.prefill_max_tokens,
                batch.decodes,
                batch.decode_sum,
                batch.decode_max,
                batch.decode_sumsq,
                batch.emitting,
                padded,
                mode,
                batch.running,
                batch.waiting,
                batch.free_blocks,
                len(batch.preempted),
            )
        )

    def table(self) -> StepTable:
        """All rows as columns, ordered by replica and then by issue."""
        rows = np.array(self._numbers, dtype=np.int64).reshape(-1, len(COLUMNS))
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return StepTable(**{name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(COLUMNS)})
