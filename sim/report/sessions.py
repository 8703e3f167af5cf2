"""What came of sessions: how long they take, when their last answer comes, and what their further rounds found again.

The last round of a session is its answer (of an agent the one that a person sees), those before are hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.report.metrics import PERCENTILES
from sim.report.percentile import Distribution, distribution
from sim.report.result import FINISHED, SimulationResult
from sim.units import NS_PER_S


@dataclass(frozen=True)
class SessionFigures:
    """Sessions in numbers; those that `completed` had all rounds finished, and times are of these.

    - `rounds` of all sessions, `unsent`: after one that did not finish; `rounds_mean` per session as planned.
    - `answer_ttft`: from sending the last round to its first token; `answer_from_start`: from sending the first round;
      `duration`: from there to the last token.
    - `latency_share`: of the durations, what passes between rounds (tools, thinking).
    - `live_mean`: sessions under way, averaged from the first arrival to the last finish.
    - `hidden_rounds_per_s`, `hidden_tokens_per_s`: hidden rounds finished, and their output, over the same time.
    - Of further rounds that finished: `further_prompt_tokens`, of which `repeated_tokens` had been said before (None
      where a trace has content of its own), and `found_tokens` were in the prefix cache.
    - `same_replica_share`: of further rounds that were sent, those that went where the round before had been.
    """

    sessions: int
    completed: int
    rounds: int
    unsent: int
    rounds_mean: float
    answer_ttft: Distribution
    answer_from_start: Distribution
    duration: Distribution
    latency_share: float | None
    live_mean: float | None
    hidden_rounds_per_s: float | None
    hidden_tokens_per_s: float | None
    further_prompt_tokens: int
    repeated_tokens: int | None
    found_tokens: int
    same_replica_share: float | None


def session_figures(result: SimulationResult, percentiles: Sequence[float] = PERCENTILES) -> SessionFigures | None:
    """The figures of a run whose workload has sessions; None of any other."""
    sessions, r = result.workload.sessions, result.requests
    if sessions is None:
        return None
    status, begins = np.asarray(r.status), sessions.begins
    finished = status == FINISHED
    arrival_ns, finish_ns, first_token_ns = (
        np.asarray(column, np.int64) for column in (r.arrival_ns, r.finish_ns, r.first_token_ns)
    )
    whole = np.logical_and.reduceat(finished, sessions.first[:-1])
    start, last = sessions.first[:-1][whole], sessions.last[whole]
    duration_s = (finish_ns[last] - arrival_ns[start]) / NS_PER_S
    latency_s = np.add.reduceat(sessions.latency_ns, sessions.first[:-1])[whole] / NS_PER_S
    hidden = finished.copy()
    hidden[sessions.last] = False
    span_s = (int(finish_ns.max()) - r.first_arrival_ns) / NS_PER_S if finished.any() else 0.0

    def per_second(count: float) -> float | None:
        return count / span_s if span_s > 0 else None

    further = finished & ~begins
    named = result.workload.token_ids is not None or result.workload.block_hashes is not None
    sent = np.flatnonzero(r.sent & ~begins)
    replica = np.asarray(r.replica)
    return SessionFigures(
        sessions=len(sessions),
        completed=int(whole.sum()),
        rounds=len(r),
        unsent=int((~r.sent).sum()),
        rounds_mean=len(r) / len(sessions),
        answer_ttft=distribution((first_token_ns - arrival_ns)[last] / NS_PER_S, percentiles=percentiles),
        answer_from_start=distribution((first_token_ns[last] - arrival_ns[start]) / NS_PER_S, percentiles=percentiles),
        duration=distribution(duration_s, percentiles=percentiles),
        latency_share=float(latency_s.sum() / duration_s.sum()) if len(duration_s) else None,
        live_mean=per_second(float(duration_s.sum())) if whole.all() else None,
        hidden_rounds_per_s=per_second(int(hidden.sum())),
        hidden_tokens_per_s=per_second(int(np.asarray(r.output_tokens)[hidden].sum())),
        further_prompt_tokens=int(np.asarray(r.prompt_tokens)[further].sum()),
        repeated_tokens=None if named else int(sessions.history_tokens[further].sum()),
        found_tokens=int(np.asarray(r.cached_tokens)[further].sum()),
        same_replica_share=float((replica[sent] == replica[sent - 1]).mean()) if len(sent) else None,
    )
