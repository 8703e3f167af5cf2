"""The KV cache of one replica: a pool of blocks, and per request one block table for each group of layers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sim.deployment.rules import CacheRules
from sim.memory.cache.kind import Kind
from sim.memory.cache.lookup import Lookup
from sim.memory.cache.shapes import check_reuse, make_kinds
from sim.memory.hits import HitStats
from sim.memory.pool import BlockPool
from sim.memory.shape import CacheShape


class Cached(Protocol):
    """What the cache reads and keeps of a request.

    `known` tokens are the prompt and what has been emitted; `computed` of them have KV or are about to, `in_flight` of
    those being under way.
    `tables`: the blocks of each group, 0 where a block is no longer needed; empty while the request holds nothing.
    `registered`: how many of each table have been decided on for the prefix cache. `junction`: where the last look-up
    saw a longer common prefix than it could use.
    """

    index: int
    prompt: int
    known: int
    computed: int
    in_flight: int
    preemptions: int
    token_ids: np.ndarray | None
    output_base: int
    block_keys: list[int]
    tables: list[list[int]]
    registered: list[int]
    junction: int


@dataclass
class Hit:
    """What a look-up found: `tokens`, and the blocks that hold them per group (0: before a window, not needed)."""

    tokens: int = 0
    blocks: list[list[int]] = field(default_factory=list)


class KVCache:
    """Block tables with identity, and the prefix cache over them, by the rules of an engine version.

    **Arguments:**

    - `shape`: usable blocks and the groups that share them.
    - `rules`: what the version does differently.
    - `reuse`: prefix caching. With recurrent states it is off whatever is asked for (`note` says so).
    - `max_model_len`: tokens; no request takes blocks beyond it.
    - `ahead_tokens`: tokens that may be under way at once (batches in flight times the token budget): they bound
      what a sliding window needs.
    - `eagle`: a drafter that reads the target's hidden states: the last block found is computed again.

    Recorded decisions of vLLM 0.10.2, 0.19.0 and 0.33.0.
    """

    def __init__(
        self,
        shape: CacheShape,
        rules: CacheRules,
        *,
        reuse: bool,
        max_model_len: int,
        ahead_tokens: int,
        eagle: bool = False,
    ):
        self.kinds = make_kinds(shape, rules, max_model_len)
        self.groups: list[Kind] = [kind for kind in self.kinds for _ in kind.numbers]
        for kind in self.kinds:
            for number in kind.numbers:
                self.groups[number] = kind
        self.usable = shape.usable_blocks
        self.rules = rules
        self.pool = BlockPool(self.usable, rules.unhashed_blocks_first)
        self.hit_stats = HitStats()
        recurrent = any(kind.name == "mamba" for kind in self.kinds)
        self.reuse = reuse and not recurrent
        if self.reuse:
            check_reuse(self.kinds, rules, eagle)
        self.note = (
            "prefixes are not reused: the reuse of recurrent states is not modelled" if reuse and recurrent else None
        )
        self.max_model_len = max_model_len
        self._caps = [kind.most_blocks(ahead_tokens, max_model_len) for kind in self.groups]
        self._lookup = Lookup(self.kinds, self.pool, rules, eagle) if self.reuse else None
        self._nothing: list[list[int]] = [[] for _ in self.groups]
        self._quiet: dict[Cached, tuple[float, float, float]] = {}
        self.on_registered: Callable[[Cached, int, int], None] | None = None
        """Told which blocks of a request's first group have been decided on: from one up to another."""

    @property
    def free(self) -> int:
        """Blocks nobody uses, cached ones included."""
        return self.pool.free

    def lookup(self, request: Cached) -> Hit:
        """What the cache holds of a request's start, leaving at least one token to compute.

        Counted in `hit_stats` on every call or, as the version has it, when blocks are allocated for the request.
        """
        request.junction = 0
        if self._lookup is None:
            return Hit(0, self._nothing)
        tokens, blocks, request.junction = self._lookup(request)
        hit = Hit(tokens, blocks)
        if not self.rules.counts_admitted_only:
            self._count(request, hit)
        return hit

    def fits_full_input(self, request: Cached, hit: Hit, spare: int = 0, external: int = 0) -> bool:
        """Whether all known tokens of an unadmitted request would fit in what is free now, less `spare` blocks.

        `external` tokens beyond the hit come from elsewhere.
        """
        start = request.computed + hit.tokens + external
        slots = min(request.known, self.max_model_len)
        return self._need(request, hit, start, slots, self.rules.window_capped_input) + spare <= self.pool.free

    def external_blocks(self, hit: Hit, external: int) -> list[int]:
        """Blocks of each group that hold the `external` tokens behind a hit, as far as a later token reads them."""
        end = hit.tokens + external
        return [
            max(0, -(-end // kind.block_size) - max(len(hits), kind.skipped_blocks(end)))
            for kind, hits in zip(self.groups, hit.blocks, strict=True)
        ]

    def missing(self, request: Cached, tokens: int) -> int:
        """Blocks that a request which is under way lacks for its first `tokens`."""
        slots = min(tokens, self.max_model_len)
        return self._need(request, None, request.computed, slots, self.rules.window_capped_input)

    def allocate(
        self,
        request: Cached,
        tokens: int,
        hit: Hit | None = None,
        lookahead: int = 0,
        spare: int = 0,
        external: int = 0,
        loads: bool = False,
    ) -> list[list[int]] | None:
        """Blocks for the next `tokens` and `lookahead` of a request; the new ones per group, or None if too few.

        With a `hit` the request begins: behind the tokens found come `external` ones whose KV is brought from
        elsewhere, then `tokens`. `spare` blocks are to stay free. With None nothing is taken, but blocks that windows
        have left are free. On success the full blocks among the known tokens become findable, unless it `loads`, which
        takes time. The answer is not to be changed.
        """
        end = request.computed + tokens
        start = request.computed
        if hit is None:
            quiet = self._quiet.get(request)
            if quiet and end + lookahead <= quiet[0] and end < quiet[1] and request.computed < quiet[2]:
                return self._nothing
        else:
            start += hit.tokens + external
            end += hit.tokens + external
        slots = min(end + lookahead, self.max_model_len)
        if request.tables:
            self._leave_windows(request, self._settled(request))
        if self._need(request, hit, start, slots, False) + spare > self.pool.free:
            return None
        if not request.tables:
            self._begin(request, hit, start, external > 0)
            if hit and self.rules.counts_admitted_only:
                self._count(request, hit)
        new = []
        for kind, table in zip(self.groups, request.tables, strict=True):
            taken = self.pool.take(-(-slots // kind.block_size) - len(table))
            table += taken
            new.append(taken)
        if not loads:
            self.register(request, end)
            self._set_quiet(request)
        return new

    def register(self, request: Cached, tokens: int) -> None:
        """Make the full blocks among the first `tokens` findable, as far as they are known."""
        if self._lookup is None or not request.tables:
            return
        tokens = min(tokens, request.known)
        for number, kind in enumerate(self.groups):
            full = self._lookup.registrable(kind, tokens) // kind.block_size
            first = request.registered[number]
            if full <= first:
                continue
            self._lookup.register(request, number, kind, request.tables[number], first, full)
            request.registered[number] = full
            self._quiet.pop(request, None)
            if self.on_registered is not None and number == 0:
                self.on_registered(request, first, full)

    def leave_windows(self, request: Cached, tokens: int) -> None:
        """Give back what no token after the first `tokens` reads."""
        if request.tables:
            self._leave_windows(request, tokens)

    def release(self, request: Cached) -> None:
        """Free all blocks, group by group, the last one first, so that a prefix outlives its continuation."""
        for table in request.tables:
            self.pool.give_back([block for block in reversed(table) if block])
        request.tables = []
        request.registered = []
        self._quiet.pop(request, None)

    def common_prefix(self, requests: Sequence[Cached]) -> int:
        """Blocks at the start that all of `requests` share (what cascade attention asks); 0 where it was removed."""
        if not self.reuse or not self.rules.common_prefix or not requests:
            return 0
        count = len(requests)
        references = self.pool.references
        shared = 0
        tables = requests[0].tables
        for block in tables[0] if tables and self.groups[0].window is None else ():
            if references[block] != count:
                break
            shared += 1
        return shared

    def _count(self, request: Cached, hit: Hit) -> None:
        if self.reuse:
            self.hit_stats.count(request.known, hit.tokens, request.preemptions > 0)

    def _leave_windows(self, request: Cached, computed: int) -> None:
        """Give back what no token after the `computed` ones reads, last block first."""
        for number, kind in enumerate(self.groups):
            kept = kind.first_kept(computed, request.registered[number])
            if kept <= 0:
                continue
            table = request.tables[number]
            left = []
            for i in range(min(kept, len(table)) - 1, -1, -1):
                if not table[i]:
                    break
                left.append(table[i])
                table[i] = 0
            if left:
                self.pool.give_back(left)

    def _settled(self, request: Cached) -> int:
        """Computed tokens that windows may move with."""
        return request.computed - request.in_flight if self.rules.windows_wait_for_output else request.computed

    def _need(self, request: Cached, hit: Hit | None, start: int, slots: int, capped: bool) -> int:
        """Blocks that would leave the free queue if the request, which goes on from `start`, grew to `slots` tokens."""
        need = 0
        references = self.pool.references
        for number, kind in enumerate(self.groups):
            blocks = -(-slots // kind.block_size)
            if capped:
                blocks = min(blocks, self._caps[number])
            held = len(request.tables[number]) if request.tables else 0
            hits = hit.blocks[number] if hit else []
            if self.rules.windows_need_all:
                need += blocks - len(hits) - held
            elif held:
                need += max(blocks - held, 0)
                continue
            else:
                skipped = kind.skipped_blocks(start)
                need += max(blocks - max(skipped, len(hits)), 0)
                hits = hits[skipped:]
            need += sum(1 for block in hits if block and not references[block])
        return need

    def _begin(self, request: Cached, hit: Hit | None, start: int, external: bool) -> None:
        """Tables of a request that has none: the blocks found, but those before a window.

        If some of the `start` tokens are `external`, blocks for those follow.
        """
        request.tables = []
        request.registered = []
        for number, kind in enumerate(self.groups):
            table = list(hit.blocks[number]) if hit else []
            if not self.rules.windows_need_all:
                skipped = kind.skipped_blocks(start)
                table[:skipped] = [0] * skipped
            self.pool.touch([block for block in table if block])
            request.tables.append(table)
            request.registered.append(len(table))
            if external and self.rules.external_by_group:
                table += self.pool.take(-(-start // kind.block_size) - len(table))
        if external and not self.rules.external_by_group:
            for kind, table in zip(self.groups, request.tables, strict=True):
                table += self.pool.take(-(-start // kind.block_size) - len(table))

    def _set_quiet(self, request: Cached) -> None:
        """Note up to where the next call does nothing: `slots` within, `end` and `computed` below."""
        computed = self._settled(request)
        slots = end = frees = math.inf
        for kind, table, registered in zip(self.groups, request.tables, request.registered, strict=True):
            held = len(table) * kind.block_size
            if held < self.max_model_len:
                slots = min(slots, held)
            if self.reuse:
                end = min(end, (registered + 1) * kind.block_size)
            frees = min(frees, kind.frees_at(computed))
        self._quiet[request] = (slots, end, frees)
