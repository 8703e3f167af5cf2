"""The replica that was sent the longest part of the prompt before, if that is worth it; else the least outstanding.

The router knows what it has sent, not what a replica still has in its cache: as cache-aware routers in use do.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.event.routing.base import Arrival, Router, Target, least


@dataclass(frozen=True)
class Options:
    """What a match must be worth.

    `match`: least share of the prompt that a replica must know. `imbalance`: requests that it may have outstanding more
    than the least loaded one. `block_tokens`: prefixes are compared in blocks of so many tokens; `blocks`: most blocks
    remembered per replica, the least recently sent are forgotten.
    """

    match: float = 0.5
    imbalance: int = 32
    block_tokens: int = 64
    blocks: int = 100_000

    def __post_init__(self) -> None:
        if not 0 < self.match <= 1:
            raise ValueError(f"match must be above 0 and at most 1, got {self.match:g}.")
        for name in ("block_tokens", "blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.imbalance < 0:
            raise ValueError(f"imbalance must be at least 0, got {self.imbalance}.")


def make(options: Options, seed: int) -> Router:
    """Its state are the prefixes sent to each replica."""
    sent: dict[int, OrderedDict[int, None]] = {}

    def pick(arrival: Arrival, targets: Sequence[Target]) -> int:
        chain = chain_of(arrival.content, options.block_tokens)
        known = [_known(sent.setdefault(place, OrderedDict()), chain) for place in range(len(targets))]
        fewest = least(targets)
        best = max(range(len(targets)), key=lambda place: (known[place], -targets[place].outstanding))
        enough = known[best] * options.block_tokens >= options.match * arrival.prompt_tokens
        apart = targets[best].outstanding - targets[fewest].outstanding
        chosen = best if enough and apart <= options.imbalance else fewest
        memory = sent[chosen]
        for key in chain:
            memory[key] = None
            memory.move_to_end(key)
        while len(memory) > options.blocks:
            memory.popitem(last=False)
        return chosen

    return pick


def chain_of(content: np.ndarray | None, size: int) -> list[int]:
    """Hashes of the prompt's whole blocks, each standing for all before it too."""
    key = 0
    found = []
    for start in range(0, 0 if content is None else len(content) - size + 1, size):
        assert content is not None
        key = hash((key, content[start : start + size].tobytes()))
        found.append(key)
    return found


def _known(memory: OrderedDict[int, None], chain: Sequence[int]) -> int:
    """Blocks from the start that were sent there."""
    for number, key in enumerate(chain):
        if key not in memory:
            return number
    return len(chain)
