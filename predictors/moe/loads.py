"""How many rows the experts of the busiest rank get: expected values for a plan, from the popularity of experts.

T tokens go to k of E experts each. An expert's popularity is 1 (`skew` 0) or follows a bounded power law with that
exponent on [1, 0.8 T] (on [0.01, 2] while T k <= E), scaled to T k rows in all. With n rows expected at an expert, it
gets some with the chance `1 - exp(-n)` and fills `n/tile + (tile - 1)/(2 tile)` tiles of rows, or one where n is less
than half of it. Of the ranks of an expert-parallel group the busiest is waited for: it gets the mean plus `c` standard
deviations, c the expected largest of as many normal numbers.

Plans assume even routing. Benchmarks send random prompts, and measured steps of one (Qwen3-30B-A3B, vLLM 0.19) follow
the active experts of even routing; traces of skewed domains would need their own exponent.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float


TILES = (16, 32, 64, 128)
QUANTILES = 16
LEAST_SPREAD = 1e-3
"""Exponents nearer to 0 than this are even routing; ones so near to 1 are moved off the pole of the formula."""


class Loads(NamedTuple):
    """What one rank's experts have to do: rows, experts with any, and rows after padding to each of `TILES`."""

    rows: Float[Array, "*axes"]
    active: Float[Array, "*axes"]
    padded: Float[Array, "tile *axes"]


def expected_loads(
    tokens: Float[Array, "*axes"],
    experts: Float[Array, "*axes"],
    local_experts: Float[Array, "*axes"],
    top_k: Float[Array, "*axes"],
    skew: Float[Array, ""],
) -> Loads:
    """Loads of the busiest of `experts/local_experts` ranks; all 0 for no tokens. Shapes broadcast."""
    mean = tokens * top_k / experts
    share, variation = popularity(tokens, mean * experts, experts, skew)
    ranks = jnp.maximum(experts / local_experts, 1.0)
    # of one rank's rows: its experts differ from the mean, and tokens choose at random
    chosen = mean * (experts - top_k) / jnp.maximum(experts - 1.0, 1.0)
    variance = local_experts * (mean * mean * variation + chosen) * (1.0 - 1.0 / ranks)
    extra = jnp.where(ranks > 1.0, largest_of(ranks) * jnp.sqrt(variance + 1e-12), 0.0)
    rows = local_experts * mean + extra
    rows = jnp.minimum(rows, jnp.minimum(local_experts, top_k) * tokens)
    each = jnp.minimum(rows / local_experts * share, tokens)
    visited = -jnp.expm1(-each)
    some = tokens > 0.0

    def of_all(by_quantile: Float[Array, "quantile *axes"]) -> Float[Array, "*axes"]:
        return jnp.where(some, local_experts * jnp.mean(by_quantile, axis=0), 0.0)

    def tiles(tile: int) -> Float[Array, "quantile *axes"]:
        return jnp.where(each < 0.5 * tile, visited, jnp.maximum(visited, (each + 0.5 * (tile - 1.0)) / tile))

    padded = jnp.stack([jnp.maximum(tile * of_all(tiles(tile)), jnp.where(some, rows, 0.0)) for tile in TILES])
    return Loads(jnp.where(some, rows, 0.0), of_all(visited), padded)


def known_loads(rows: Float[Array, "*axes"], active: Float[Array, "*axes"]) -> Loads:
    """Loads where it is known how many experts share the rows: each fills its tiles but, on average, half a tile."""
    some = rows > 0.0
    padded = [jnp.maximum(active * tile, rows + 0.5 * active * (tile - 1.0)) for tile in TILES]
    return Loads(rows, active, jnp.where(some, jnp.stack(padded), 0.0))


def popularity(
    tokens: Float[Array, "*axes"],
    all_rows: Float[Array, "*axes"],
    experts: Float[Array, "*axes"],
    skew: Float[Array, ""],
) -> tuple[Float[Array, "quantile *axes"], Float[Array, "*axes"]]:
    """Rows of an expert over the mean of all, averaged over each sixteenth of its law, and their squared variation.

    The law's quantile function is `q(u) = (low^p + u (high^p - low^p))^(1/p)`, p = 1 - skew.
    """
    power = 1.0 - jnp.where(jnp.abs(skew - 1.0) < LEAST_SPREAD, 1.0 + LEAST_SPREAD, skew)
    many = all_rows > experts
    low, high = jnp.where(many, 1.0, 0.01), jnp.where(many, jnp.maximum(0.8 * tokens, 2.0), 2.0)
    width = high**power - low**power
    at = jnp.asarray(np.arange(QUANTILES + 1) / QUANTILES, low.dtype).reshape(-1, *(1,) * low.ndim)

    def integral(order: float) -> Float[Array, "edge *axes"]:
        """Of q^order from 0 to u."""
        exponent = order / power + 1.0
        return (low**power + at * width) ** exponent / (exponent * width)

    first, second = jnp.diff(integral(1.0), axis=0), jnp.sum(jnp.diff(integral(2.0), axis=0), axis=0)
    mean = jnp.sum(first, axis=0)
    even = skew < LEAST_SPREAD
    share = jnp.where(even, 1.0, QUANTILES * first / mean)
    return share, jnp.where(even, 0.0, second / (mean * mean) - 1.0)


def largest_of(count: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Expected largest of `count` standard normal numbers (Blom's approximation); 0 for one."""
    return ndtri((count - 0.375) / (count + 0.25))
