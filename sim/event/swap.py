"""KV of preempted requests, swapped to host memory and back, instead of being computed again.

Who is preempted is the scheduler's choice (first come first served: the request admitted last). Its blocks go to others
in the very next step, which therefore waits until they have been copied: `blocks * block_bytes / rate` over the
host link of the rank. When there is room again the request is admitted as any other, with what was copied as computed,
and the step that admits it waits for the copy back. Blocks that are still in the rank's own cache are not copied back.
Where the host has no room, a request computes its KV again.

This is the rule of LLMServingSim (its first version) and of vLLM's swapping before version 1, whose copies and steps
followed each other too.
"""

from collections.abc import Sequence
from typing import Any

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.event.agenda import Agenda
from sim.event.replica import Replica
from sim.event.tier_checks import unsimulated
from sim.memory.shape import GroupShape
from sim.report.swap import SwapCount
from sim.scheduler.base import Batch
from sim.scheduler.find import find_scheduler
from sim.scheduler.hooks import NOTHING, Alone, External
from sim.units import GB, NS_PER_S, to_ns


KEY = "deployment.kv_swap_gb"


class SwapPort(Alone):
    """One rank's swapped KV: its scheduler's connector, which its loop asks how long the next step waits for copies."""

    busy = reports = polled = False
    """Nothing is under way beside the steps."""

    def __init__(self, agenda: Agenda, count: SwapCount, block_tokens: int, bytes_per_s: float):
        self._agenda = agenda
        self._count = count
        self._block_tokens = block_tokens
        self._block_s = count.block_bytes / bytes_per_s
        self._free = count.room_blocks
        self._swapped: dict[Any, tuple[int, int]] = {}
        self._behind_ns = 0

    def connect(self, replica: Replica) -> None:
        """The loop that it delays."""
        replica.behind_ns = self.behind_ns
        replica.on_step = self.launched

    @property
    def empty(self) -> bool:
        """Whether the host holds nothing."""
        return not self._swapped and self._free == self._count.room_blocks

    def preempted(self, request: Any) -> None:
        """Copy what it has computed, if there is room."""
        self._drop(request)
        blocks = self._blocks(request.computed)
        if not blocks:
            return
        count = self._count
        if blocks > self._free:
            count.refused += 1
            return
        self._swapped[request] = request.computed, self._agenda.now_ns
        self._free -= blocks
        count.swaps += 1
        count.out_blocks += blocks
        count.most_blocks = max(count.most_blocks, count.room_blocks - self._free)
        count.out_s += self._wait(blocks)

    def look_up(self, request: Any, local_tokens: int) -> External:
        """What was copied beyond what the rank's cache still has; the token that was known last is computed."""
        if request not in self._swapped:
            return NOTHING
        return External(max(0, self._held(request) - local_tokens))

    def allocated(self, request: Any, external: External, blocks: Sequence[int]) -> None:
        """It is admitted: copy that back, in the step that it begins with."""
        (copied,) = blocks
        held, since_ns = self._blocks(self._swapped[request][0]), self._swapped.pop(request)[1]
        self._free += held
        count = self._count
        count.in_blocks += copied
        count.dropped_blocks += held - copied
        count.in_s += self._wait(copied)
        count.away_s.append((self._agenda.now_ns - since_ns) / NS_PER_S)

    def keeps(self, request: Any, finished: bool) -> bool:
        """It has ended: nobody wants its copy."""
        self._drop(request)
        return False

    def launched(self, batch: Batch, start_ns: int, end_ns: int) -> None:
        """Who was admitted without its copy, since all of it was in the cache, needs it no more."""
        for request in batch.admitted:
            self._drop(request)

    def behind_ns(self) -> int:
        """How long the step that is priced now waits for copies."""
        found, self._behind_ns = self._behind_ns, 0
        return found

    def report(self) -> None:
        """Nothing is ever reported."""

    def _held(self, request: Any) -> int:
        return min(self._swapped[request][0], int(request.known) - 1)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _wait(self, blocks: int) -> float:
        seconds = blocks * self._block_s
        self._behind_ns += to_ns(seconds)
        return seconds

    def _drop(self, request: Any) -> None:
        if request in self._swapped:
            blocks = self._blocks(self._swapped.pop(request)[0])
            self._free += blocks
            self._count.dropped_blocks += blocks


def swap_checks(count: SwapCount, ports: Sequence[SwapPort]) -> dict[str, bool]:
    """Conservation: what was copied out came back or was dropped, and the host is empty and was never too full."""
    return {
        "every block swapped out came back or was dropped": count.out_blocks == count.in_blocks + count.dropped_blocks
        and all(port.empty for port in ports),
        "swapped blocks never took more than their room": count.most_blocks <= count.room_blocks,
    }


def swap_blocks(conf: DeploymentConf, block_bytes: float) -> int:
    """KV blocks of a rank that its host has room for; 0: no swapping.

    **Raises:** `ValueError`, one sentence, for a size that is none, or holds no block.
    """
    if not 0 <= conf.kv_swap_gb < 1e9:
        raise ValueError(f"{KEY} wants a number from 0 on, got {conf.kv_swap_gb:g}.")
    blocks = int(conf.kv_swap_gb * GB / block_bytes)
    if conf.kv_swap_gb and not blocks:
        raise ValueError(f"{KEY} wants room for a KV block, {block_bytes / GB:.3g} GB, got {conf.kv_swap_gb:g}.")
    return blocks


def check_swap(
    deployment: DeploymentConf, engine: EngineSettings, scheduler: str, groups: tuple[GroupShape, ...]
) -> None:
    """Raise `ValueError` where preempted requests are to be swapped and this is not simulated."""
    if not deployment.kv_swap_gb:
        return
    able = hasattr(find_scheduler(scheduler), "make_swapping")
    wrong = [
        (not able, f"is simulated with vLLM's scheduler, got {scheduler}"),
        (bool(deployment.cache_tiers), "is not simulated with deployment.cache_tiers, which recall preempted KV too"),
        *((bad, f"is {what}") for bad, what in unsimulated(deployment, engine, groups)),
    ]
    for bad, sentence in wrong:
        if bad:
            raise ValueError(f"{KEY}={deployment.kv_swap_gb:g} {sentence}; leave it out.")
