"""The prefix-cache hit rate as engines report it: of the most recent look-ups, in the engine's own updates."""

from dataclasses import dataclass

import numpy as np

from sim.report.result import LOOKUPS, StepTable


WINDOW_LOOKUPS = 1000
"""vLLM's window, in look-ups: repeated ones of a blocked request count, where the version counts them at all."""


def recent_hit_rate(
    lookups: np.ndarray, queries: np.ndarray, hits: np.ndarray, drops_one_update: bool, window: int = WINDOW_LOOKUPS
) -> np.ndarray:
    """Share of the tokens asked for that were found, after each update of the engine; 0 before the first look-up.

    The arguments are running totals, axis `update`. The window holds whole updates: the most recent ones that
    together have at most `window` look-ups, and the last one whatever it has. With `drops_one_update` (vLLM 0.10) an
    update that finds the window too full throws out its oldest one only, and updates without look-ups have a
    place as well.
    """
    totals = np.stack([np.asarray(x, np.int64) for x in (lookups, queries, hits)])
    before = np.concatenate([np.zeros((3, 1), np.int64), totals], 1)
    if drops_one_update:
        first = _first_when_one_is_dropped(totals[0], window)
        return _share(totals - before[:, first])
    kept = np.flatnonzero(np.diff(before[0]))
    if not len(kept):
        return np.zeros(totals.shape[1])
    ends = totals[:, kept]
    starts = np.concatenate([np.zeros((3, 1), np.int64), ends[:, :-1]], 1)
    first = np.minimum(np.searchsorted(starts[0], ends[0] - window), np.arange(len(kept)))
    last = np.searchsorted(kept, np.arange(totals.shape[1]), side="right") - 1
    return np.where(last >= 0, _share(ends - starts[:, first])[last], 0.0)


@dataclass(frozen=True)
class LookupTotals:
    """What an engine counted in a run: look-ups, tokens asked for and found; of preempted requests apart."""

    lookups: int
    queries: int
    hits: int
    preempted_lookups: int
    preempted_queries: int
    preempted_hits: int

    @property
    def hit_rate(self) -> float | None:
        """Share of 1 of the tokens asked for, without requests that had been preempted."""
        return self.hits / self.queries if self.queries else None

    @property
    def hit_rate_with_preempted(self) -> float | None:
        """The same over all look-ups: a preempted request finds its own tokens again."""
        queries = self.queries + self.preempted_queries
        return (self.hits + self.preempted_hits) / queries if queries else None


def lookup_totals(steps: StepTable) -> LookupTotals | None:
    """The counts at the end of the run, all replicas together; None without any look-up."""
    if not looked_up(steps):
        return None
    replica = np.asarray(steps.replica)
    last = np.flatnonzero(np.append(replica[1:] != replica[:-1], True))
    return LookupTotals(*(int(np.sum(np.asarray(getattr(steps, name))[last])) for name in LOOKUPS))


def looked_up(steps: StepTable) -> bool:
    """Whether anything was looked up in a prefix cache at all."""
    return bool(np.any(np.asarray(steps.lookups)) or np.any(np.asarray(steps.preempted_lookups)))


def _first_when_one_is_dropped(lookups: np.ndarray, window: int) -> np.ndarray:
    first = np.zeros(len(lookups), np.int64)
    if not len(lookups) or lookups[-1] <= window:
        return first
    before = [0, *lookups.tolist()]
    oldest = 0
    for update in range(len(lookups)):
        if before[update + 1] - before[oldest] > window:
            oldest += 1
        first[update] = oldest
    return first


def _share(totals: np.ndarray) -> np.ndarray:
    """Hits per query of `totals`, shape `[3, ...]`."""
    return np.where(totals[1] > 0, totals[2] / np.maximum(totals[1], 1), 0.0)
