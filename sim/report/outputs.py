"""What an engine knows each time it has processed a batch's output: that is when it takes its statistics."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from sim.report.result import LOOKUPS, StepTable


@dataclass(frozen=True)
class Outputs:
    """One replica, axis `output`: its steps in order, each as of when its output had been processed, at `end_ns`.

    By then the engine may have decided further batches. `running`, `waiting` and `free_blocks` are those of the last
    decision, less who has ended since; `lookups` (shape `[6, output]`, rows as in `LOOKUPS`) those made so far.
    A request that ended while it waited to resume after a preemption is counted as if it had run.
    """

    row: np.ndarray
    end_ns: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    free_blocks: np.ndarray
    lookups: np.ndarray


def clock(t_s: float) -> datetime:
    """The run's clock as a date: 0 is the first second of a year."""
    return datetime(2000, 1, 1) + timedelta(seconds=t_s)


def outputs_of(steps: StepTable, replica: int) -> Outputs:
    """The outputs of a replica's steps; `row` is the step's row in the table."""
    row = np.flatnonzero(np.asarray(steps.replica) == replica)
    end_ns, issued_ns = (np.asarray(column, np.int64)[row] for column in (steps.end_ns, steps.issued_ns))
    own = np.arange(len(row))
    # what is decided at the very time of an output is decided after it
    decided = np.maximum(np.searchsorted(issued_ns, end_ns, side="left") - 1, own)
    first = np.searchsorted(end_ns, issued_ns[decided], side="right")

    def since(column: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0], np.cumsum(np.asarray(column, np.int64)[row])])
        return total[own + 1] - total[np.minimum(first, own + 1)]

    latest = row[decided]
    return Outputs(
        row=row,
        end_ns=end_ns,
        running=np.maximum(np.asarray(steps.running)[latest] - since(steps.ended), 0),
        waiting=np.asarray(steps.waiting)[latest],
        free_blocks=np.asarray(steps.free_blocks)[latest] + since(steps.freed_blocks),
        lookups=np.stack([np.asarray(getattr(steps, name), np.int64)[latest] for name in LOOKUPS]),
    )
