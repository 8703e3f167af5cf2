"""Decode attention: the kernel that runs when nothing is prefilled, query heads packed per KV head.

The cache is streamed, S tokens at `b` seconds each; but a row longer than the others is read by its own block, one
token per `c` seconds, when the others are done. With A(w) rows longer than w, that is the integral of max(c, b A(w))
over w. Here the lengths are taken as two classes with the batch's mean, variance V and maximum X, for which it is

    b S + (X - lo) max(0, c - m b) + lo max(0, c - n b),    m = n V/(V + (X - mean)^2),    lo = mean - V/(X - mean)

and max(b S, c X) for equal lengths. With few rows the kernel splits each over more blocks: c shrinks, and a
reduction follows.

A decode block holds the query heads of one KV head, padded to 64 rows; it reads a key in
`c = max(2 rows (qk + v) units/rate, bytes/unit stream)`, and all blocks together stream the cache at
`b = (stream^4 + compute^4)^(1/4)` per token.

**Windows.** A row of length l reads min(l, w) keys; from the mean mu and variance V alone (k = 2/pi):

    E[min(l, w)] = min(mu, w) - k V/(2 (d + sqrt(d^2 + k V))),    d = |mu - w|

exact when all lengths are equal, and for a normal law with its mean at w. With chunked-local attention a row past its
chunk reads any part of it, half on average.
"""

import math
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from sim.cost.grid import Grid, Roots, Steps, factor, float_reader
from sim.cost.kernel import LengthKernel
from sim.cost.number import Number
from sim.cost.soft import soft_maximum
from sim.cost.stats import BatchStats
from sim.deployment.plan import AttentionSlots, DeviceArrays


NORMAL_SHARE = 2.0 / math.pi
TINY_TOKENS = 1e-6

DECODE_AXES = (
    Steps((1.0, 16.0, 64.0, 256.0, 1024.0), (1.0, 4.0, 16.0, 64.0)),
    Roots(2.0, 2.0**18, 28),
    Roots(1.0, 16.0, 9),
)
"""Of the learned factor: rows, mean keys of a row, and the longest row's over the mean."""
_float_factor = float_reader(DECODE_AXES)
USUAL_SPREAD, USUAL_SHARE = 0.35, 0.4
"""Variance over mean times what the longest has beyond it, and the most over mean squared: a third for lengths spread
evenly from 0, one for exponential ones."""


class DecodeTerms(NamedTuple):
    """The decode kernel of one layer.

    - `floor_s`: one short row; `several_s`: more if there are more rows; `split_s`: more while rows are split.
    - `row_s`: start and end of one row's blocks.
    - `token_s`: one token of one row streamed by the whole device; `chain_s`: by one block.
    - `split_share`: one over the number of rows below which a row is split over several blocks.
    - `grid`: a learned factor on all of it, by `DECODE_AXES`.
    """

    floor_s: Number
    several_s: Number
    split_s: Number
    row_s: Number
    token_s: Number
    chain_s: Number
    split_share: Number
    grid: Grid | None = None


class DecodeConstants(LengthKernel[DecodeTerms]):
    """Floors and tiles of decode kernels. Source: `analytic.toml`."""

    floor_s: Float[Array, ""]
    several_s: Float[Array, ""]
    split_s: Float[Array, ""]
    block_s: Float[Array, ""]
    tile_rows: Float[Array, ""]
    split_blocks_per_unit: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, xp: Any, slots: AttentionSlots, device: DeviceArrays) -> DecodeTerms:
        """Closed-form constants of all slots at once; `slots` and result with leaves `[kind, *config]`."""
        kv_heads = xp.maximum(slots.kv_heads, 1.0)
        group = xp.maximum(slots.q_heads / kv_heads, 1.0)
        row_blocks = kv_heads * xp.ceil(group / self.tile_rows)
        block_flops = 2.0 * self.tile_rows * (slots.qk_dim + slots.v_dim)
        chain_compute_s = block_flops * device.compute_units / slots.flops_per_s
        chain_load_s = slots.kv_bytes_per_token / kv_heads / device.unit_stream_bytes_per_s
        stream_s = slots.kv_bytes_per_token / device.memory_bytes_per_s
        compute_s = row_blocks * block_flops / slots.flops_per_s
        same = xp.ones_like(slots.count)
        return DecodeTerms(
            floor_s=self.floor_s * same,
            several_s=self.several_s * same,
            split_s=self.split_s * same,
            row_s=self.block_s * row_blocks / device.compute_units,
            token_s=soft_maximum(xp, stream_s, compute_s),
            chain_s=xp.maximum(chain_compute_s, chain_load_s),
            split_share=row_blocks / (self.split_blocks_per_unit * device.compute_units),
        )

    def doubt(self, slots: AttentionSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Nothing was measured."""
        return self.rel_error, 1.0


def decode_s(xp: Any, terms: DecodeTerms, decodes: Number, mean: Number, variance: Number, longest: Number) -> Number:
    """Seconds of one layer over `decodes` rows whose keys have the given mean, variance and maximum; 0 for none."""
    floor_s, several_s, split_s, row_s, token_s, chain_s, split_share, grid = terms
    rows = xp.maximum(decodes, 1.0)
    beyond = longest - mean
    if grid is not None:
        variance = usual_variance(xp, rows, mean, longest)
    long_rows = rows * variance / (variance + beyond * beyond + TINY_TOKENS)
    low = xp.maximum(mean - variance / (beyond + TINY_TOKENS), 0.0)
    unsplit = xp.minimum(rows * split_share, 1.0)
    chain_s = chain_s * unsplit
    seconds = (
        floor_s
        + several_s * xp.minimum(rows - 1.0, 1.0)
        + split_s * (1.0 - unsplit)
        + row_s * rows
        + token_s * (mean * rows)
        + (longest - low) * xp.maximum(chain_s - long_rows * token_s, 0.0)
        + low * xp.maximum(chain_s - rows * token_s, 0.0)
    )
    if grid is not None:
        seconds = seconds * factor(xp, grid, DECODE_AXES, rows, mean, longest / xp.maximum(mean, 1.0))
    return xp.where(decodes > 0, seconds, 0.0)


def decode_float_s(terms: Any, rows: float, mean: float, variance: float, longest: float) -> float:
    """What `decode_s` gives on numbers, bit for bit, in half the time; `rows` whole, at least 1."""
    floor_s, several_s, split_s, row_s, token_s, chain_s, split_share, grid = terms
    beyond = longest - mean
    if grid is not None:
        variance, widest = USUAL_SPREAD * (mean * beyond), USUAL_SHARE * (mean * mean)
        variance = variance if variance < widest else widest
        one_long = beyond * beyond / (rows - 1.0 if rows > 2.0 else 1.0)
        variance = variance if variance > one_long else one_long
        most = mean * beyond + TINY_TOKENS
        variance = variance if variance < most else most
    long_rows = rows * variance / (variance + beyond * beyond + TINY_TOKENS)
    low = mean - variance / (beyond + TINY_TOKENS)
    if low < 0.0:
        low = 0.0
    unsplit = rows * split_share
    if unsplit > 1.0:
        unsplit = 1.0
    chain_s = chain_s * unsplit
    late_s, early_s = chain_s - long_rows * token_s, chain_s - rows * token_s
    seconds: float = (
        floor_s
        + several_s * (1.0 if rows > 2.0 else rows - 1.0)
        + split_s * (1.0 - unsplit)
        + row_s * rows
        + token_s * (mean * rows)
        + (longest - low) * (late_s if late_s > 0.0 else 0.0)
        + low * (early_s if early_s > 0.0 else 0.0)
    )
    if grid is None:
        return seconds
    stretch = longest / (mean if mean > 1.0 else 1.0)
    return seconds * _float_factor(grid.values, rows, mean, stretch)


def usual_variance(xp: Any, rows: Number, mean: Number, longest: Number) -> Number:
    """Of lengths with that mean and maximum, as requests in all stages of their output have it.

    No less than one long row makes, no more than can be. A learned factor is tabulated for it, and read for any other.
    """
    beyond = longest - mean
    usual = xp.minimum(USUAL_SPREAD * (mean * beyond), USUAL_SHARE * (mean * mean))
    one_long = beyond * beyond / xp.maximum(rows - 1.0, 1.0)
    return xp.minimum(xp.maximum(usual, one_long), mean * beyond + TINY_TOKENS)


def windowed_rows(
    xp: Any, mean: Number, variance: Number, longest: Number, window: Number, chunked: Number
) -> tuple[Number, Number, Number]:
    """Mean, variance and maximum of the keys that decode rows of the given lengths read."""
    gap = mean - window
    spread = NORMAL_SHARE * variance
    root = xp.sqrt(gap * gap + spread + TINY_TOKENS)
    distance = xp.maximum(gap, -gap)
    inside = xp.minimum(mean, window) - spread / (2.0 * (distance + root))
    # Lengths are not below 0. Below half the mean square over the mean, a window holds fewest keys where some lengths
    # are 0 and all others alike (Scarf's bound).
    square = mean * mean
    least = window * square / (square + variance + TINY_TOKENS)
    inside = xp.where(2.0 * mean * window < square + variance, xp.maximum(inside, least), inside)
    share_past = 0.5 + 0.5 * gap / root
    in_chunks = chunked * share_past * window
    variance = variance * (1.0 - share_past) + in_chunks * window / 12.0
    return inside - 0.5 * in_chunks, variance, xp.minimum(longest, window)
