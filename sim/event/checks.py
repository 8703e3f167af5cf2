"""Conservation, checked in every run: nothing is lost, nothing is counted twice, no clock runs backwards."""

from collections.abc import Sequence

import numpy as np

from sim.report.result import ABORTED, FINISHED, RequestTable, StepTable
from sim.scheduler.base import Scheduler


class ConservationError(RuntimeError):
    """An invariant of the simulation was broken: a defect of the simulator, not of the input."""


def check_conservation(requests: RequestTable, steps: StepTable, schedulers: Sequence[Scheduler]) -> dict[str, bool]:
    """Check one finished run; returns what was checked, raises `ConservationError` on the first failure.

    - every request ended exactly once (finished or rejected), in the order arrival <= queued <= scheduled <
      first token <= finish;
    - tokens out: decodes and completed prefills of all steps give the requested output tokens, plus nothing;
    - every block is free again;
    - batches of a replica follow each other.
    """
    done = requests.status == FINISHED
    decodes = int(steps.decodes.sum())
    emitted = int(steps.emitting.sum())
    wanted = int(requests.output_tokens[done].sum())
    same = steps.replica[1:] == steps.replica[:-1]
    r = requests
    checks = {
        "every request ended once": not bool((requests.status == ABORTED).any()),
        "times of a request are in order": bool(
            (r.arrival_ns <= r.queued_ns)[done].all()
            and (r.queued_ns <= r.scheduled_ns)[done].all()
            and (r.scheduled_ns < r.first_token_ns)[done].all()
            and (r.first_token_ns <= r.finish_ns)[done].all()
        ),
        "tokens out = tokens asked for": emitted == wanted and decodes <= wanted,
        "every block is free again": all(s.free_blocks == s.usable_blocks for s in schedulers),
        "nobody is left in a queue": all(s.unfinished == 0 for s in schedulers),
        "clocks never run backwards": bool(
            (steps.start_ns <= steps.end_ns).all()
            and (np.where(same, steps.start_ns[1:] - steps.end_ns[:-1], 0) >= 0).all()
        ),
    }
    for name, holds in checks.items():
        if not holds:
            raise ConservationError(f"conservation broken: {name} (emitted {emitted} of {wanted} tokens)")
    return checks
