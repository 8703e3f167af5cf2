"""KV-cache groups: from what each layer keeps to blocks, tokens and requests, by engine version.

A *block* holds `block_size` tokens of every layer of one group; its share of one layer is a *page*. Layers of one kind
form groups of nearly equal size, so that a block of any group has the same bytes and all groups draw from one pool.
A request needs `m_g` blocks of group g; the sum over groups decides how many requests fit.

Source: recorded KV-cache configurations of vLLM 0.10.2, 0.19.0 and 0.33.0.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sim.model.linear import CacheKind, CacheSpec


RULES = ("0.10.2", "0.19.0", "0.33.0")


@dataclass(frozen=True)
class LayerCache:
    """What `layers` equal layers of one rank keep: bytes per token each, or a state of `state_bytes` each."""

    kind: CacheKind
    layers: int
    bytes_per_token: float = 0.0
    window: int | None = None
    state_bytes: int = 0

    @property
    def sort(self) -> tuple[CacheKind, int | None]:
        """Layers of one sort can share a block table."""
        return self.kind, self.window


@dataclass(frozen=True)
class RequestShape:
    """The longest request and how far ahead of it blocks may be taken.

    `max_model_len` tokens; `max_num_batched_tokens` per batch, `batches_in_flight` of them scheduled ahead;
    `state_blocks`: blocks per request of a group with recurrent states (2 when states are kept for prefix reuse).
    """

    max_model_len: int
    max_num_batched_tokens: int
    batches_in_flight: int = 1
    state_blocks: int = 1


@dataclass(frozen=True)
class CacheGroup:
    """`layers` layers that share one block table; `page_bytes` are those of one layer (of all, if they differ)."""

    kind: CacheKind
    layers: int
    block_size: int
    page_bytes: int
    window: int | None = None

    def blocks(self, shape: RequestShape, ahead_tokens: int) -> int:
        """Blocks of one request of the full length: all of it, or the window and what is computed ahead of it."""
        length = shape.max_model_len
        if self.kind == "mamba":
            return shape.state_blocks
        if self.kind == "swa":
            return -(-min((self.window or 0) - 1 + ahead_tokens, length) // self.block_size) + 1
        if self.kind == "chunk":
            return -(-min((self.window or 0) + ahead_tokens, length) // self.block_size)
        return -(-length // self.block_size)


@dataclass(frozen=True)
class CacheLayout:
    """Groups of one rank and the bytes one block takes there; `rule` is the version whose accounting holds."""

    rule: str
    layers: tuple[LayerCache, ...]
    groups: tuple[CacheGroup, ...]
    bytes_per_block: int
    block_size: int

    def ahead_tokens(self, shape: RequestShape) -> int:
        """Tokens that may be in computation beyond a window."""
        batches = shape.batches_in_flight if self.rule == "0.33.0" else 1
        return batches * shape.max_num_batched_tokens

    def blocks_per_request(self, shape: RequestShape) -> int:
        """Sum of `m_g` over groups."""
        return sum(group.blocks(shape, self.ahead_tokens(shape)) for group in self.groups)

    def num_blocks(self, available_bytes: float) -> int:
        """Blocks that fit into `available_bytes` of this rank; 0 if negative."""
        return max(int(available_bytes // self.bytes_per_block), 0)

    def needed_bytes(self, shape: RequestShape) -> float:
        """Bytes one request of the full length needs at start-up, or the engine refuses to start.

        0.10.2 sums over layers, windows included even where the block tables ignore them; 0.33.0 keeps one block aside.
        """
        if self.rule == "0.10.2":
            ahead = self.ahead_tokens(shape)
            return sum(
                layer.layers * group.blocks(shape, ahead) * group.page_bytes
                for layer in self.layers
                for group in [_group(layer, self.block_size, self.page_of(layer))]
            )
        return self.bytes_per_block * (self.blocks_per_request(shape) + (self.rule == "0.33.0"))

    def page_of(self, layer: LayerCache) -> int:
        """Page of one layer; a state is padded to the largest page."""
        pages = [int(x.bytes_per_token * self.block_size) for x in self.layers if x.kind != "mamba"]
        own = layer.state_bytes if layer.kind == "mamba" else int(layer.bytes_per_token * self.block_size)
        return max([own, *pages]) if layer.kind == "mamba" else own

    def concurrency(self, blocks: int, shape: RequestShape) -> float:
        """Requests of the full length that fit at once."""
        return blocks / self.blocks_per_request(shape)

    def tokens(self, blocks: int, shape: RequestShape) -> int:
        """The engine's "GPU KV cache size": blocks over groups, or (0.33.0) concurrency times length."""
        if self.rule == "0.33.0":
            return int(self.concurrency(blocks, shape) * shape.max_model_len)
        return blocks // len(self.groups) * min(group.block_size for group in self.groups)


def layer_caches(specs: Iterable[CacheSpec]) -> tuple[LayerCache, ...]:
    """Equal caches of a rank counted together, in order of first occurrence; layers that keep nothing are left out."""
    counts: dict[LayerCache, int] = {}
    for spec in specs:
        if spec.bytes_per_token or spec.state_bytes:
            key = LayerCache(spec.kind, 1, spec.bytes_per_token, spec.window, spec.state_bytes)
            counts[key] = counts.get(key, 0) + 1
    return tuple(replace(key, layers=count) for key, count in counts.items())


def layout(
    rule: str, layers: Sequence[LayerCache], block_size: int, *, hybrid: bool = True, max_model_len: int | None = None
) -> CacheLayout:
    """Groups of one rank by the rule of a version.

    `hybrid` off: windows are ignored, every attention layer keeps everything. `max_model_len` is the block size of
    groups with recurrent states, which need one block whatever the length. ValueError, one sentence, where the
    version refuses (pages of unequal size it cannot unify).
    """
    if rule not in RULES:
        raise ValueError(
            f"the group rule must be one of {', '.join(RULES)}, got {rule!r}: change engine.profile.groups_rule"
        )
    if not layers:
        raise ValueError("the model keeps no KV cache and no state: there is nothing to divide into blocks")
    kept = [layer if hybrid or layer.kind == "mamba" else _unwindowed(layer) for layer in layers]
    merged = _merge(kept)
    pages = {layer: int(layer.bytes_per_token * block_size) for layer in merged if layer.kind != "mamba"}
    largest = max(pages.values(), default=0)
    for layer in merged:
        if layer.kind == "mamba":
            pages[layer] = max(largest, layer.state_bytes)
    if len({layer.sort for layer in merged}) == 1 and len(merged) > 1 and rule != "0.10.2":
        # One sort in several sizes: all layers in one group, a block being one page of each.
        page = sum(layer.layers * pages[layer] for layer in merged)
        group = CacheGroup(merged[0].kind, sum(layer.layers for layer in merged), block_size, page, merged[0].window)
        return CacheLayout(rule, tuple(layers), (group,), page, block_size)
    single = [_group(layer, block_size, pages[layer]) for layer in merged]
    unified = [_unify(rule, group, max(g.page_bytes for g in single)) for group in single]
    if len(unified) == 1:
        (group,) = unified
        return CacheLayout(rule, tuple(layers), (group,), group.page_bytes * group.layers, block_size)
    deal = _deal_in_order if rule == "0.10.2" else _deal_round_robin
    groups = tuple(replace(group, layers=n) for group in unified for n in deal(group.layers, _size(rule, unified)))
    if rule == "0.10.2":
        groups = tuple(sorted(groups, key=lambda group: group.kind))
    bytes_per_block = unified[0].page_bytes * max(group.layers for group in groups)
    states = max_model_len or block_size
    groups = tuple(replace(g, block_size=states) if g.kind == "mamba" else g for g in groups)
    return CacheLayout(rule, tuple(layers), groups, bytes_per_block, block_size)


def _group(layer: LayerCache, block_size: int, page_bytes: int) -> CacheGroup:
    return CacheGroup(layer.kind, layer.layers, block_size, page_bytes, layer.window)


def _unwindowed(layer: LayerCache) -> LayerCache:
    return replace(layer, kind="full" if layer.kind in ("swa", "chunk") else layer.kind, window=None)


def _merge(layers: Iterable[LayerCache]) -> list[LayerCache]:
    counts: dict[LayerCache, int] = {}
    for layer in layers:
        key = replace(layer, layers=0)
        counts[key] = counts.get(key, 0) + layer.layers
    return [replace(key, layers=count) for key, count in counts.items()]


def _unify(rule: str, group: CacheGroup, largest: int) -> CacheGroup:
    """Give the group the largest page: more tokens per block where it divides, else padding where the version pads."""
    if group.page_bytes == largest:
        return group
    if rule != "0.10.2" and largest % group.page_bytes == 0:
        ratio = largest // group.page_bytes
        return replace(group, block_size=group.block_size * ratio, page_bytes=largest)
    if rule == "0.33.0" and group.kind != "mla":
        return replace(group, page_bytes=largest)
    raise ValueError(
        f"vLLM {rule} refuses layers whose pages differ ({group.page_bytes:,} and {largest:,} bytes): "
        "use a later engine version or engine.hybrid_kv_cache=false"
    )


def _size(rule: str, groups: Sequence[CacheGroup]) -> int:
    """Layers per group: those of the rarest kind, or from 0.19 of the commonest if that is under 1.5 times as many."""
    fewest, most = min(g.layers for g in groups), max(g.layers for g in groups)
    return most if rule != "0.10.2" and most < 1.5 * fewest else fewest


def _deal_in_order(layers: int, size: int) -> list[int]:
    return [min(size, layers - start) for start in range(0, layers, size)]


def _deal_round_robin(layers: int, size: int) -> list[int]:
    count = -(-layers // size)
    each, rest = divmod(layers, count)
    return [each + 1] * rest + [each] * (count - rest)


def largest_length(fits: Callable[[int], bool], limit: int) -> int:
    """The largest length up to `limit` for which the monotone test `fits` holds; 0 if it holds for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
