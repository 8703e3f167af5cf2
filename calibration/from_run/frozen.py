"""A simulated run with its decisions frozen: latencies as a linear function of the times of its steps.

When step k takes `t_k - t_k(0)` longer, and S_k sums that over the replica's steps up to k, then

    TTFT_i = TTFT_i(0) + S_first(i) - S_since(i)

and the end-to-end latency likewise with its last step. A request of a closed loop was sent at the end of a step,
since(i). One of an open loop was sent at a fixed time: if nobody waited then, since(i) is the last step that had ended;
if somebody did, the last step before the queue formed: all that the steps erred since then has moved its turn, so a
queue amplifies what each step errs, as it does on a real server.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from sim.report.result import FINISHED, SimulationResult


@dataclass(frozen=True, eq=False)
class Frozen:
    """Finished requests of a run, axis `request`, and its steps, axis `step` (replica after replica).

    `first`, `last`: the step that delivered its first and last token; `since`: see above, -1 where there was none;
    `order`: the rows of the step table.
    """

    index: Int[np.ndarray, " request"]
    ttft_s: Float[np.ndarray, " request"]
    e2el_s: Float[np.ndarray, " request"]
    tokens: Int[np.ndarray, " request"]
    first: Int[np.ndarray, " request"]
    last: Int[np.ndarray, " request"]
    since: Int[np.ndarray, " request"]
    order: Int[np.ndarray, " step"]

    def latencies(self, change_s: Float[Array, " step"]) -> tuple[Any, Any]:
        """TTFT and end-to-end latency of each request when step k (in `order`) takes `change_s[k]` longer."""
        total = jnp.concatenate([jnp.zeros_like(change_s[:1]), jnp.cumsum(change_s)])
        before = total[self.since + 1]
        return self.ttft_s + total[self.first + 1] - before, self.e2el_s + total[self.last + 1] - before


def frozen(result: SimulationResult) -> Frozen:
    """Freeze a run.

    **Raises:** ValueError for pipeline stages, whose steps overlap, and for a run in which nothing finished.
    """
    if result.stages is not None:
        raise ValueError(
            "a run of several pipeline stages cannot be learned from yet; set deployment.pipeline_parallel=1."
        )
    steps, requests = result.steps, result.requests
    done = np.flatnonzero(np.asarray(requests.status) == FINISHED)
    if not len(done):
        raise ValueError(
            "no request of the simulated run finished; check the workload's lengths against max_model_len."
        )
    order = np.lexsort((steps.start_ns, steps.replica))
    replica, start, end = (np.asarray(column)[order] for column in (steps.replica, steps.start_ns, steps.end_ns))
    free = np.asarray(steps.waiting)[order] == 0
    queue_began = np.maximum.accumulate(np.where(free, np.arange(len(order)), -1))

    def step_at(when_ns: np.ndarray, of_replica: np.ndarray) -> np.ndarray:
        """The last step of a replica that ended by then; the one before its first if none did."""
        found = np.empty(len(when_ns), np.int64)
        for one in np.unique(of_replica):
            rows = np.flatnonzero(replica == one)
            mine = of_replica == one
            place = np.searchsorted(end[rows], when_ns[mine], side="right") - 1
            found[mine] = np.where(place >= 0, rows[np.maximum(place, 0)], rows[0] - 1)
        return found

    arrival, first, last = (
        np.asarray(column)[done] for column in (requests.arrival_ns, requests.first_token_ns, requests.finish_ns)
    )
    at = np.asarray(requests.replica)[done]
    sent = step_at(arrival, at)
    if result.workload.concurrency is None:
        queued = np.where(sent >= 0, queue_began[np.maximum(sent, 0)], -1)
        sent = np.where((sent >= 0) & (replica[np.maximum(queued, 0)] == at), queued, sent)
    return Frozen(
        index=done,
        ttft_s=1e-9 * (first - arrival),
        e2el_s=1e-9 * (last - arrival),
        tokens=np.asarray(requests.output_tokens)[done],
        first=step_at(first, at),
        last=step_at(last, at),
        since=sent,
        order=order,
    )
