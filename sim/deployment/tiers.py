"""KV caches behind the devices' own: what a tier holds, how fast it is, what comes in, and whom a recall delays."""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.units import GB


THROUGH, EVICT = "through", "evict"
REQUEST, BATCH = "request", "batch"
KEY = "deployment.cache_tiers"


@dataclass
class TierConf:
    """Schema of one of `deployment.cache_tiers`, looked into in their order (`sim.runtime.tiers`).

    - `size_gb`: of each rank's own; of all together where it is `shared` between replicas.
    - `read_gb_per_s`, `write_gb_per_s`: of the tier, divided by those who use it; 0: the host link of a rank's devices
      alone bounds them, which every byte passes. `latency_s`: before the first byte of a recall.
    - `chunk_tokens`: KV comes and goes in chunks of so many tokens, whole blocks; 0: in blocks.
    - `write`: `through` as soon as blocks are computed, or what is about to be lost in the tier before (`evict`).
    - `prefetch`: what a request that comes will want of it goes into the tier before, while the request waits.
    - `recall`: it delays the `request` alone, which waits without a seat, or the `batch` that begins it.
    """

    size_gb: float = 0.0
    read_gb_per_s: float = 0.0
    write_gb_per_s: float = 0.0
    latency_s: float = 0.0
    chunk_tokens: int = 0
    write: str = THROUGH
    shared: bool = False
    recall: str = REQUEST
    prefetch: bool = False


@dataclass(frozen=True)
class Tier:
    """One tier as it is simulated: `chunks` of `chunk_blocks` blocks of `block_bytes`, rates 0 where it has none."""

    name: str
    chunks: int
    chunk_blocks: int
    block_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float
    through: bool
    shared: bool
    delays_batch: bool
    prefetches: bool = False


def tiers_of(confs: Mapping[str, TierConf], block_tokens: int, block_bytes: float) -> tuple[Tier, ...]:
    """The tiers of a rank whose KV blocks have so many tokens, and bytes on all its devices together.

    **Raises:** `ValueError`, one sentence, for what cannot be.
    """
    found: list[Tier] = []
    for name, conf in confs.items():
        key = f"{KEY}.{name}"
        for what in ("size_gb", "read_gb_per_s", "write_gb_per_s", "latency_s", "chunk_tokens"):
            value = getattr(conf, what)
            if not 0 <= value < 1e9:
                raise ValueError(f"{key}.{what} wants a number from 0 on, got {value:g}.")
        for what, known in (("write", (THROUGH, EVICT)), ("recall", (REQUEST, BATCH))):
            if getattr(conf, what) not in known:
                raise ValueError(f"{key}.{what} wants one of {', '.join(known)}, got {getattr(conf, what)!r:.40}.")
        tokens = conf.chunk_tokens or block_tokens
        if tokens % block_tokens:
            raise ValueError(
                f"{key}.chunk_tokens wants a multiple of engine.block_size={block_tokens}, got {conf.chunk_tokens}."
            )
        blocks = tokens // block_tokens
        before = found[-1].chunk_blocks if found else 1
        if conf.write == EVICT and blocks != before:
            raise ValueError(
                f"{key}.write=evict takes what the tier before gives up, {before * block_tokens} tokens at a time: set "
                f"chunk_tokens={before * block_tokens}, or write=through; got {tokens}."
            )
        if conf.prefetch and (not found or blocks != before or not conf.read_gb_per_s):
            raise ValueError(
                f"{key}.prefetch brings chunks into the tier before: it wants one with the same chunk_tokens, and a "
                "read_gb_per_s above 0; leave it out, or change these."
            )
        chunks = int(conf.size_gb * GB / (blocks * block_bytes))
        if not chunks:
            raise ValueError(
                f"{key}.size_gb wants room for a chunk of {tokens} tokens, {blocks * block_bytes / GB:.3g} GB, got "
                f"{conf.size_gb:g}."
            )
        found.append(
            Tier(
                name,
                chunks,
                blocks,
                block_bytes,
                conf.read_gb_per_s * GB,
                conf.write_gb_per_s * GB,
                conf.latency_s,
                conf.write == THROUGH,
                conf.shared,
                conf.recall == BATCH,
                conf.prefetch,
            )
        )
    return tuple(found)
