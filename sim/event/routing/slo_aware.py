"""Turns away what would miss its time to the first token anyway; others go where they will have it first.

The time is estimated from what each replica is seen to do: the prompt tokens it still has to prefill, the request's own
among them, over the rate at which it has prefilled lately (an exponential mean over `memory_s`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from sim.event.routing.base import Arrival, Router, Target
from sim.units import NS_PER_S


SHEDS = True


@dataclass(frozen=True)
class Options:
    """`ttft_s`: the bound. `tokens_per_s`: the prefill rate of a replica before any was seen. `memory_s`: see above."""

    ttft_s: float = 2.0
    tokens_per_s: float = 10_000.0
    memory_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tokens_per_s", "memory_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name):g}.")


class Seen:
    """What was seen of one replica: prompt tokens sent and prefilled, and the rate of that while it had any."""

    def __init__(self, rate: float):
        self.rate = rate
        self.sent = 0
        self.done = 0
        self.at_ns = 0

    def look(self, now_ns: int, outstanding: int, memory_s: float) -> None:
        """Take up how many prompt tokens have been prefilled since the last look."""
        span_s = (now_ns - self.at_ns) / NS_PER_S
        done = self.sent - outstanding
        if span_s <= 0:
            return
        if done > self.done:
            weight = 1 - exp(-span_s / memory_s)
            self.rate += weight * ((done - self.done) / span_s - self.rate)
        self.done, self.at_ns = done, now_ns


def make(options: Options, seed: int) -> Router:
    """Its state is what it has seen of each replica."""
    seen: dict[int, Seen] = {}

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int | None:
        waits = []
        for place, target in enumerate(targets):
            one = seen.setdefault(place, Seen(options.tokens_per_s))
            one.look(arrival.now_ns, target.prompt_tokens, options.memory_s)
            waits.append((target.prompt_tokens + arrival.prompt_tokens) / one.rate)
        best = min(range(len(targets)), key=lambda place: waits[place])
        if waits[best] > options.ttft_s:
            return None
        seen[best].sent += arrival.prompt_tokens
        return best

    return pick
