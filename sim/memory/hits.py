"""Prefix-cache statistics as engines report them: every look-up counts, also the repeated ones of a blocked request."""

from dataclasses import dataclass, field


@dataclass
class HitStats:
    """Look-ups so far, and the tokens asked for and found; those of requests that had been preempted stand apart.

    `changed`: something was counted since somebody who reads along last set it to False.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    changed: bool = field(default=False, compare=False)

    def count(self, queries: int, hits: int, preempted: bool, times: int = 1) -> None:
        """One look-up of `queries` tokens that found `hits`, made `times` times over."""
        self.changed = True
        if preempted:
            self.preempted_requests += times
            self.preempted_queries += queries * times
            self.preempted_hits += hits * times
        else:
            self.requests += times
            self.queries += queries * times
            self.hits += hits * times

    def ask_more(self, queries: int, preempted: bool) -> None:
        """A look-up that was counted before asked for so many tokens more."""
        self.changed = True
        if preempted:
            self.preempted_queries += queries
        else:
            self.queries += queries
