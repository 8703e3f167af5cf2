"""The shape of a replica's KV cache, as a scheduler needs it: how many blocks, of which groups, named or counted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupShape:
    """One block table per request: `kind` is full, swa, chunk, mla or mamba; `window` tokens where the kind has one."""

    kind: str
    block_size: int
    window: int | None = None


@dataclass(frozen=True)
class CacheShape:
    """`usable_blocks` (the null block is not counted) shared by `groups`; `named`: requests say something to find."""

    usable_blocks: int
    named: bool
    groups: tuple[GroupShape, ...]
