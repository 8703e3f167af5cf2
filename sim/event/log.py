"""The step log: one row per executed batch, appended cheaply and read as numpy columns."""

import numpy as np

from sim.report.result import StepTable
from sim.scheduler.base import Batch


COLUMNS = (
    "replica",
    "start_ns",
    "end_ns",
    "prefill_tokens",
    "prefill_chunks",
    "prefill_area",
    "prefill_kv_tokens",
    "prefill_max_tokens",
    "decodes",
    "decode_sum",
    "decode_max",
    "decode_sumsq",
    "emitting",
    "padded_tokens",
    "graph_mode",
    "running",
    "waiting",
    "free_blocks",
    "preempted",
)
_BLOCK_ROWS = 1 << 15


class StepLog:
    """Rows of one run, all replicas together; kept as int64 blocks so that long runs stay small."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[np.ndarray] = []

    def append(self, replica: int, start_ns: int, end_ns: int, batch: Batch, padded: int, mode: int) -> None:
        """Record one executed batch."""
        rows = self._rows
        rows.append(
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
        if len(rows) == _BLOCK_ROWS:
            self._blocks.append(np.array(rows, dtype=np.int64))
            rows.clear()

    def table(self) -> StepTable:
        """All rows as columns, ordered by replica and then by issue."""
        tail = np.array(self._rows, dtype=np.int64).reshape(-1, len(COLUMNS))
        rows = np.concatenate([*self._blocks, tail])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        return StepTable(**{name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(COLUMNS)})
