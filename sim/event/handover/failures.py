"""Loads that fail as a whole, and blocks that nobody comes for.

A pull fails when its last byte would have come, drawn for each request by itself: the decode instance hears of it with
its next step and computes the prompt, or ends the request with an error. Nobody tells the prefill instance, which frees
the blocks when its lease has run out. The engine's own lease is renewed by the decode instance as long as that wants
the KV, so that it counts from the failure; one of the user's counts from the end of the prefill, and a pull that begins
later finds nothing.

Source: scheduler and NIXL connector of vLLM 0.33.0 (recorded decisions; lease and heartbeat read).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Failures:
    """`rate`: share of pulls that fail. `recomputes`: whether their prompts are computed where they were awaited.

    `lease_s`: of blocks whose reader is gone. `expires`: also of those whose reader has not come yet.
    """

    rate: float
    recomputes: bool
    lease_s: float
    expires: bool = False
    seed: int = 0

    def fails(self, i: int) -> bool:
        """Whether the pull of request i does, by a counter hash of seed and request."""
        draw = int(np.random.SeedSequence((self.seed, i, 0xFA11)).generate_state(1, np.uint64)[0])
        return (draw >> 11) * 2.0**-53 < self.rate
