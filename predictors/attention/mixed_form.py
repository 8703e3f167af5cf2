"""The closed form of batches with prefill (`sim.cost.prefill`) with constants by kernel, and what the residual sees.

Rates are shares of the device's, so that gradients reach those. A block of `tile_rows` query rows reads a key in

    2 tile_rows (qk + v + extra) units resident/(compute_share rate)

seconds, with `resident` blocks at once on a unit; `extra`: operations per key that do not depend on dimensions.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sim.cost.prefill import ACTIVATION_BYTES, STEPPED_ROWS, PrefillTerms, prefill_s


START = {
    "floor": 6e-6,
    "block": 1e-6,
    "empty": 2e-7,
    "compute_share": 1.2,
    "extra": 60.0,
    "memory_share": 1.0,
    "row_share": 1.0,
    "before_q": 0.1,
    "before_kv": 0.5,
    "wave": 0.7,
    "cache_share": 1.0,
}
"""Where the descent starts, every kernel alike."""

BOUNDS = {
    "floor": (1e-6, 2e-4),
    "block": (1e-8, 3e-5),
    "empty": (1e-9, 2e-6),
    "compute_share": (0.05, 4.0),
    "extra": (1.0, 500.0),
    "memory_share": (0.03, 4.0),
    "row_share": (0.1, 20.0),
    "before_q": (1e-3, 10.0),
    "before_kv": (1e-3, 20.0),
    "wave": (0.02, 1.0),
    "cache_share": (0.3, 3.0),
}
COLD = {"memory_share": (1.0, 1.06), "cache_share": (0.9, 1.1)}
"""Bounds for kernels measured between others of a model: memory and cache do there what the device says."""


class Cut(NamedTuple):
    """How a kernel cuts its work: see `sim.cost.prefill`; `resident`: blocks that one unit runs at once."""

    tile_rows: Any
    packed: Any
    resident: Any
    joint: Any


class Heads(NamedTuple):
    """What one rank runs of a layer; rates as the device's plan has them.

    `dim`: of score and value products together; `kv_token_bytes`: keys and values of one token that the kernel reads;
    `window`: keys a row may look back.
    """

    q_heads: Any
    kv_heads: Any
    dim: Any
    kv_token_bytes: Any
    window: Any
    flops_per_s: Any
    memory_bytes_per_s: Any
    cache_bytes: Any
    units: Any


class Lengths(NamedTuple):
    """What `prefill_s` reads of a batch, after the window; arrays of numpy or jax, of one shape."""

    tokens: Any
    chunks: Any
    seen: Any
    context: Any
    deepest: Any
    prior: Any
    decodes: Any
    mean: Any
    variance: Any
    longest: Any


def prefill_terms(xp: Any, constants: Mapping[str, Any], cut: Cut, heads: Heads) -> PrefillTerms:
    """Terms of the closed form; `constants` and `cut` broadcast to the axes of `heads`."""
    group = xp.maximum(heads.q_heads / xp.maximum(heads.kv_heads, 1.0), 1.0)
    together = 1.0 + cut.packed * (group - 1.0)
    units = heads.units * cut.resident
    rate = constants["compute_share"] * heads.flops_per_s
    stream = constants["memory_share"] * heads.memory_bytes_per_s
    row_bytes = ACTIVATION_BYTES * heads.q_heads * heads.dim
    rereads = (1.0 - cut.packed) * (group - 1.0)
    stepped = xp.where(cut.tile_rows == STEPPED_ROWS, 1.0 - cut.packed, 0.0)
    same = xp.ones_like(heads.q_heads)
    return PrefillTerms(
        floor_s=constants["floor"] * same,
        tiles_per_token=together / cut.tile_rows,
        heads=heads.q_heads / together,
        units=units,
        key_s=2.0 * cut.tile_rows * (heads.dim + constants["extra"]) * units / rate,
        block_s=constants["block"] * same,
        empty_s=constants["empty"] * same,
        stepped=stepped * same,
        wave=constants["wave"] * same,
        kv_token_s=heads.kv_token_bytes / stream,
        row_token_s=row_bytes / (constants["row_share"] * heads.memory_bytes_per_s),
        token_s=(
            constants["before_q"] * row_bytes + constants["before_kv"] * ACTIVATION_BYTES * heads.kv_heads * heads.dim
        )
        / heads.memory_bytes_per_s,
        context_token_s=0.0 * same,
        rereads=rereads,
        rereads_per_block=rereads / units,
        cache_share=heads.kv_token_bytes
        / (constants["cache_share"] * xp.maximum(heads.cache_bytes, 1.0) * xp.maximum(heads.kv_heads, 1.0)),
        joint=cut.joint * same,
    )


def kernel_s(xp: Any, terms: PrefillTerms, lengths: Lengths) -> Any:
    """Seconds of the prefill kernel alone: decodes that have their own kernel are left out."""
    return prefill_s(xp, terms, *lengths, 0.0)
