"""From the groups of a memory budget to the block tables of a scheduler."""

from collections.abc import Sequence

from sim.deployment.rules import CacheRules
from sim.memory.cache.chunked import Chunked
from sim.memory.cache.full import Full
from sim.memory.cache.kind import Kind
from sim.memory.cache.recurrent import Recurrent
from sim.memory.cache.sliding import Sliding
from sim.memory.groups import CacheLayout
from sim.memory.shape import CacheShape, GroupShape


def cache_shape(layout: CacheLayout, blocks: int, named: bool) -> CacheShape:
    """The cache of a replica with `blocks` blocks in the groups of a budget's `layout`; the null block is not usable.

    `named`: requests say something to find.
    """
    groups = tuple(GroupShape(group.kind, group.block_size, group.window) for group in layout.groups)
    return CacheShape(max(blocks - 1, 0), named, groups)


def make_kinds(shape: CacheShape, rules: CacheRules, max_model_len: int) -> list[Kind]:
    """One object per kind, block size and window, in order of first occurrence, with the numbers of its groups.

    ValueError, one sentence: no groups, an unknown kind, a block size or window that cannot be.
    """
    if not shape.groups:
        raise ValueError("a KV cache must have at least one group, got none: add one to groups")
    if shape.usable_blocks < 0:
        raise ValueError(f"usable_blocks must not be negative, got {shape.usable_blocks}: change num_gpu_blocks")
    kinds: dict[GroupShape, Kind] = {}
    for number, group in enumerate(shape.groups):
        if group not in kinds:
            kinds[group] = _make(group, rules, max_model_len)
        kinds[group].numbers.append(number)
    return list(kinds.values())


def check_reuse(kinds: Sequence[Kind], rules: CacheRules, eagle: bool) -> None:
    """ValueError, one sentence, for groups over which the engine does not reuse prefixes but refuses to start."""
    if rules.registration not in ("all", "aligned", "sparse"):
        raise ValueError(
            f"engine.profile.cache.registration must be all, aligned or sparse, got {rules.registration!r}"
        )
    off = "set engine.enable_prefix_caching=false"
    full = [kind for kind in kinds if kind.name in ("full", "mla")]
    sizes = sorted({kind.block_size for kind in kinds})
    single = len(kinds) == 1 and len(kinds[0].numbers) == 1
    if rules.one_window_kind and not single and (len(kinds) != 2 or len(full) != 1 or len(sizes) > 1):
        text = ", ".join(_describe(kind) for kind in kinds)
        raise ValueError(
            "this engine version reuses prefixes over full attention and one other kind, of one block size, "
            f"got {text}: {off} or choose a later engine.version"
        )
    if any(kind.name == "chunk" for kind in kinds):
        if len(sizes) > 1:
            raise ValueError(
                "chunked-local groups reuse prefixes only if all groups have one block size, "
                f"got {', '.join(map(str, sizes))}: {off}"
            )
        if eagle:
            raise ValueError(
                f"chunked-local groups do not go with an EAGLE drafter where prefixes are reused: {off} "
                "or engine.hybrid_kv_cache=false"
            )


def _describe(kind: Kind) -> str:
    window = f" of {kind.window}" if kind.window else ""
    return f"{len(kind.numbers)} {kind.name}{window} in blocks of {kind.block_size}"


def _make(group: GroupShape, rules: CacheRules, max_model_len: int) -> Kind:
    if group.block_size < 1:
        raise ValueError(
            f"a block must hold at least one token, got {group.block_size} in a {group.kind} group: "
            "change engine.block_size"
        )
    if group.kind in ("full", "mla"):
        return Full(group.kind, group.block_size)
    if group.kind == "mamba":
        return Recurrent(max_model_len)
    if group.kind not in ("swa", "chunk"):
        raise ValueError(f"the kind of a group must be full, swa, chunk, mla or mamba, got {group.kind!r}")
    if group.window is None or group.window < 1:
        raise ValueError(f"a {group.kind} group needs a window of at least one token, got {group.window}")
    if group.kind == "swa":
        return Sliding(group.block_size, group.window)
    return Chunked(group.block_size, group.window, rules.chunks_keep_registered)
