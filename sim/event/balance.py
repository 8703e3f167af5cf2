"""Which data-parallel rank of a replica gets a request.

- `queues`: the rank with the least 4 x waiting + running, the first of equals. The front end knows these numbers as a
  coordinator published them last, which it does when one of them has changed, but not more often than every
  `stats_interval_s`; since then it has counted each request it sent as waiting. Ranks that run for themselves report
  nothing, so the one that was sent the least is next.
- `least_outstanding`: the rank with the fewest requests sent and not ended.
- `round_robin`: in turn.

Source of the first: coordinator and client of vLLM 0.10.2 and 0.21, read.
"""

from collections.abc import Callable, Sequence

from sim.event.replica import Replica


WAITING_WEIGHT = 4


class RankGroup:
    """The ranks of one replica, for a router."""

    def __init__(self, ranks: Sequence[Replica]):
        self.ranks = ranks

    @property
    def outstanding(self) -> int:
        """Requests sent to any of them and not ended."""
        return sum(rank.outstanding for rank in self.ranks)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of those that have no token yet."""
        return sum(rank.prompt_tokens for rank in self.ranks)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, the mean over its ranks."""
        return sum(rank.kv_usage for rank in self.ranks) / len(self.ranks)


def target_of(ranks: Sequence[Replica]) -> RankGroup | Replica:
    """What a router sees of a replica: its only rank, or all together."""
    return ranks[0] if len(ranks) == 1 else RankGroup(ranks)


class Queues:
    """The front end's view of the ranks' queues: `(waiting, running)` of each."""

    def __init__(self, ranks: int, interval_ns: int):
        self._interval_ns = interval_ns
        self._known = [[0, 0] for _ in range(ranks)]
        self._latest = [(0, 0)] * ranks
        self._reported = [(0, 0)] * ranks
        self._changes: list[tuple[int, int, int, int]] = []
        self._published_ns = -interval_ns

    def report(self, now_ns: int, rank: int, waiting: int, running: int) -> None:
        """A rank's loop says how long its queues are; only what has changed reaches the coordinator."""
        if self._reported[rank] != (waiting, running):
            self._reported[rank] = waiting, running
            self._changes.append((now_ns, rank, waiting, running))

    def pick(self, now_ns: int) -> int:
        """The rank for the next request, which counts as waiting there from now on."""
        changes, taken = self._changes, 0
        while taken < len(changes):
            at_ns = max(self._published_ns + self._interval_ns, changes[taken][0])
            if at_ns > now_ns:
                break
            while taken < len(changes) and changes[taken][0] <= at_ns:
                _, rank, waiting, running = changes[taken]
                self._latest[rank] = waiting, running
                taken += 1
            self._published_ns = at_ns
            self._known = [list(counts) for counts in self._latest]
        del changes[:taken]
        known = self._known
        best = min(range(len(known)), key=lambda rank: WAITING_WEIGHT * known[rank][0] + known[rank][1])
        known[best][0] += 1
        return best


def in_turn(ranks: int) -> Callable[[], int]:
    """Ranks 0, 1, ... and again from 0."""
    sent = [-1]

    def pick() -> int:
        sent[0] = (sent[0] + 1) % ranks
        return sent[0]

    return pick


def balancer(name: str, ranks: Sequence[Replica], queues: Queues | None, now: Callable[[], int]) -> Callable[[], int]:
    """Picks among `ranks` by the rule `name`. `queues`: what ranks report, where they do; `now`: the time in ns."""
    if name == "least_outstanding":
        return lambda: min(range(len(ranks)), key=lambda i: ranks[i].outstanding)
    if name == "queues" and queues is not None:
        known = queues
        return lambda: known.pick(now())
    return in_turn(len(ranks))
