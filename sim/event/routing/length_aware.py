"""Long prompts have replicas of their own, so that short ones do not wait behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.event.routing.base import Arrival, Router, Target, least


@dataclass(frozen=True)
class Options:
    """Prompts of more than `split_tokens` go to the last `share` of the replicas, at least one, others to the rest."""

    split_tokens: int = 4096
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.split_tokens < 1:
            raise ValueError(f"split_tokens must be at least 1, got {self.split_tokens}.")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {self.share:g}.")


def make(options: Options, seed: int) -> Router:
    """Inside each part the least outstanding."""

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        count = len(targets)
        if count == 1:
            return 0
        long = min(max(round(options.share * count), 1), count - 1)
        places = range(count - long, count) if arrival.prompt_tokens > options.split_tokens else range(count - long)
        return least(targets, places)

    return pick
