"""The step log: one row per executed batch, appended cheaply and read as numpy columns."""

from array import array
from dataclasses import fields

import numpy as np

from sim.memory.hits import HitStats
from sim.report.result import LOOKUPS, StepTable
from sim.scheduler.base import Batch


AFTERWARDS = ("ended", "freed_blocks")
"""Known only once the output of a batch has been processed: `StepLog.ended` has them."""

COLUMNS = tuple(field.name for field in fields(StepTable) if field.name not in (*AFTERWARDS, *LOOKUPS))
"""In the order in which `StepLog.append` writes them; look-ups are written only when they have changed."""


class StepLog:
    """Rows of one run, all replicas together, one after the other in one buffer of 64-bit integers."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._ended = array("q")
        self._lookups = array("q")

    def append(
        self,
        replica: int,
        issued_ns: int,
        start_ns: int,
        end_ns: int,
        batch: Batch,
        padded: int,
        mode: int,
        hits: HitStats,
    ) -> None:
        """Record one executed batch, decided at `issued_ns`, and the replica's look-ups up to then."""
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
                batch.draft_tokens,
                batch.accepted_tokens,
                batch.running,
                batch.waiting,
                batch.free_blocks,
                len(batch.preempted),
                issued_ns,
            )
        )
        if hits.changed:
            hits.changed = False
            self._lookups.extend(
                (
                    len(self._numbers) // len(COLUMNS) - 1,
                    hits.requests,
                    hits.queries,
                    hits.hits,
                    hits.preempted_requests,
                    hits.preempted_queries,
                    hits.preempted_hits,
                )
            )

    def ended(self, replica: int, now_ns: int, requests: int, freed_blocks: int) -> None:
        """Record that with the output processed at `now_ns` so many requests ended and gave back so many blocks."""
        self._ended.extend((replica, now_ns, requests, freed_blocks))

    def table(self) -> StepTable:
        """All rows as columns, ordered by replica and then by issue."""
        rows = np.array(self._numbers, dtype=np.int64).reshape(-1, len(COLUMNS))
        order = np.argsort(rows[:, 0], kind="stable")
        rows = rows[order]
        columns = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(COLUMNS)}
        for name in AFTERWARDS:
            columns[name] = np.zeros(len(rows), np.int64)
        ended = np.array(self._ended, dtype=np.int64).reshape(-1, 2 + len(AFTERWARDS))
        for replica in np.unique(ended[:, 0]):
            mine = ended[ended[:, 0] == replica]
            first, last = np.searchsorted(columns["replica"], (replica, replica + 1))
            # an output is processed when it is there, or later where the host is behind, but before the next one
            at = first + np.searchsorted(columns["end_ns"][first:last], mine[:, 1], side="right") - 1
            for i, name in enumerate(AFTERWARDS, 2):
                np.add.at(columns[name], at, mine[:, i])
        looked = np.array(self._lookups, dtype=np.int64).reshape(-1, 1 + len(LOOKUPS))
        changed = np.zeros(len(rows), bool)
        changed[looked[:, 0]] = True
        changed = changed[order]
        place = np.empty(len(rows), np.int64)
        place[looked[:, 0]] = np.arange(len(looked))
        # the last change of the same replica up to each row; a replica's first rows may have none
        last = np.maximum.accumulate(np.where(changed, np.arange(len(rows)), -1))
        known = last >= np.searchsorted(columns["replica"], columns["replica"])
        found = place[order[last]]
        for i, name in enumerate(LOOKUPS, 1):
            columns[name] = np.zeros(len(rows), np.int64)
            columns[name][known] = looked[found[known], i]
        return StepTable(**columns)
