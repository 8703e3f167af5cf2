"""A replica in pipeline stages: when each stage runs each batch.

Stage s of batch k starts at the later of

- the end of stage s - 1 of batch k, and the hand-over of its activations;
- the end of stage s of batch k - 1.

The first stage waits for the host, and with asynchronous scheduling, where the host does not bring them, for the tokens
its rows continue from: sampled on the last stage, they come back over the link. Where the engine
receives them of every batch before the next (`one_at_a_time`), stages cannot overlap. The output is there
when the last stage ends. That a sender waits for a busy receiver is not modelled.
"""

from array import array
from collections.abc import Callable, Sequence

import numpy as np

from sim.event.batch_queue import BatchQueue
from sim.event.log import StepLog
from sim.event.replica import Port, Replica, Watcher
from sim.report.result import StageTable
from sim.scheduler.base import Batch


class StageLog:
    """Start and end of every stage of every batch of one run, in the order in which batches were issued."""

    def __init__(self, stages: int):
        self._stages = stages
        self._replica = array("q")
        self._times = array("q")

    def append(self, replica: int, times_ns: Sequence[int]) -> None:
        """Record one batch: start and end of each stage in turn."""
        self._replica.append(replica)
        self._times.extend(times_ns)

    def table(self) -> StageTable:
        """Rows in the order of `StepLog.table`."""
        order = np.argsort(np.array(self._replica, np.int64), kind="stable")
        times = np.array(self._times, np.int64).reshape(-1, self._stages, 2)[order]
        return StageTable(np.ascontiguousarray(times[:, :, 0]), np.ascontiguousarray(times[:, :, 1]))


class StagedReplica(Replica):
    """A replica whose device is a pipeline.

    **Arguments**, beside those of `Replica`, whose `price` is that of the first stage: `prices` of all stages in turn;
    `hand_over_ns` by padded tokens; `return_ns` from the last stage to the first, None where the host brings the
    tokens; `one_at_a_time`: a batch starts only when the last stage of the one before has ended.
    """

    def __init__(
        self,
        index: int,
        queue: BatchQueue,
        prices: Sequence[Callable[[Batch], tuple[int, int, int]]],
        client: Watcher,
        log: StepLog,
        *,
        stage_log: StageLog,
        hand_over_ns: Sequence[int],
        return_ns: int | None,
        one_at_a_time: bool = False,
        host_ns: int = 0,
        idle_sleep_ns: int = 0,
        port: Port | None = None,
    ):
        super().__init__(index, queue, prices[0], client, log, host_ns=host_ns, idle_sleep_ns=idle_sleep_ns, port=port)
        distinct = list(dict.fromkeys(prices))
        self._prices = distinct
        self._price_of = [distinct.index(price) for price in prices]
        self._stage_log = stage_log
        self._hand_over_ns = hand_over_ns
        self._return_ns = return_ns
        self._one_at_a_time = one_at_a_time
        self._free_ns = [0] * len(prices)
        self._sampled: dict[int, int] = {}

    def _execute(self, batch: Batch, now_ns: int) -> int:
        """The forward pass through all stages, behind the one before; returns the end of the last."""
        found = [price(batch) for price in self._prices]
        _, padded, mode = found[0]
        self._host_free_ns = at = max(self._host_free_ns, now_ns) + self._host_ns
        if self._return_ns is not None:
            awaited = self._gpu_free_ns if self._one_at_a_time else self._sampled_ns(batch)
            if awaited:
                at = max(at, awaited + self._return_ns)
        hop = self._hand_over_ns[padded]
        free, times = self._free_ns, []
        for stage, price in enumerate(self._price_of):
            start = max(at, free[stage])
            free[stage] = end = start + found[price][0]
            times += [start, end]
            at = end + hop
        self._gpu_free_ns = end
        if self._return_ns is not None and not self._one_at_a_time:
            for row in batch.rows:
                if row.emits:
                    self._sampled[row.request.index] = end
        self._log.append(self.index, now_ns, times[0], end, batch, padded, mode, self._hits)
        self._stage_log.append(self.index, times)
        if self.on_step is not None:
            self.on_step(batch, times[0], end)
        return end

    def _sampled_ns(self, batch: Batch) -> int:
        """When the last stage has sampled the last of the tokens that rows continue from; 0 if none does."""
        sampled = self._sampled
        return max((sampled.get(row.request.index, 0) for row in batch.rows), default=0)
