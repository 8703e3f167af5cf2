"""Physics of one layer's routed experts on one rank, with constants by kernel.

With A active experts of H x I and gm matrices, R rows and P padded rows of a tile (`loads`), T k rows in all,

    t = t0 + (products^p + stream^p)^(1/p) + around + cE E + cT T
    products = a tile's 2 P gm H I/(share peak) + sum over both products (1 + blocks/units)(start + step K)
    stream = (A gm H I e + 2 R (H + 4 I))/(share memory rate)
    around = 2 (ca gm I + cb H) T k near/(share memory rate)

where a product of N columns and depth K has `blocks = P/tile N/128`. Libraries that search for the best tile get the
least over tiles; an untuned Triton kernel takes 16 rows up to as many tokens as the rank has experts, 64 beyond.
`around` is the activation and the weighted sum: they run over all T k rows, also under expert parallelism; `near` is a
share while their bytes fit into the last-level cache, 1 far beyond. Rates are shares of the device's, so that gradients
reach those.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from predictors.moe.loads import TILES, Loads


BLOCK_COLUMNS = 128.0
OUTPUT_BYTES = 2.0


class Experts(NamedTuple):
    """What one rank runs of a layer. `inter`: of this rank; `flops_per_s`: of products of the weights' type."""

    hidden: Float[Array, "*axes"]
    inter: Float[Array, "*axes"]
    experts: Float[Array, "*axes"]
    local_experts: Float[Array, "*axes"]
    top_k: Float[Array, "*axes"]
    matrices: Float[Array, "*axes"]
    weight_bytes: Float[Array, "*axes"]
    flops_per_s: Float[Array, "*axes"]
    memory_bytes_per_s: Float[Array, "*axes"]
    units: Float[Array, "*axes"]
    cache_bytes: Float[Array, "*axes"]


class Parts(NamedTuple):
    """Seconds of one layer, and the parts that tell which regime it is in."""

    seconds: Float[Array, "*axes"]
    weights_s: Float[Array, "*axes"]
    products_s: Float[Array, "*axes"]
    around_s: Float[Array, "*axes"]


FEW, MANY = TILES.index(16), TILES.index(64)
"""Tiles of an untuned kernel."""

START = {
    "t0": 2e-5,
    "memory_share": 1.0,
    "tile_share": (0.3, 0.5, 0.7, 0.8),
    "start": 1e-6,
    "step": 5e-10,
    "activation": 1.0,
    "sum": 0.7,
    "expert": 2e-8,
    "token": 2e-9,
    "power": 2.2,
    "cached": 0.6,
    "cache_share": 1.0,
}
"""Where the descent starts; entries of a tuple are by tile."""

BOUNDS = {
    "t0": (1e-6, 5e-4),
    "memory_share": (0.3, 2.0),
    "tile_share": (0.01, 1.6),
    "start": (1e-8, 2e-5),
    "step": (1e-12, 2e-8),
    "activation": (1e-2, 20.0),
    "sum": (1e-2, 20.0),
    "expert": (1e-11, 1e-6),
    "token": (1e-12, 1e-7),
    "power": (1.0, 8.0),
    "cached": (0.05, 1.0),
    "cache_share": (0.2, 5.0),
}


def moe_parts(constants: Mapping[str, Any], work: Experts, loads: Loads, tokens: Float[Array, "*axes"]) -> Parts:
    """Seconds of one layer over `tokens` tokens.

    `constants`: broadcast to the axes, `tile_share` with tiles in front; `untuned` is 1 where the tile follows from
    the tokens, 0 where it is searched for.
    """
    weights = work.matrices * work.hidden * work.inter
    peak = 2.0 * weights / work.flops_per_s
    columns = ((work.matrices - 1.0) * work.inter, work.hidden)
    depths = (work.hidden, work.inter)
    tiles_s = []
    for index, tile in enumerate(TILES):
        products_s = loads.padded[index] * peak / constants["tile_share"][index]
        for n, k in zip(columns, depths, strict=True):
            blocks = loads.padded[index] / tile * n / BLOCK_COLUMNS
            products_s = products_s + (1.0 + blocks / work.units) * (constants["start"] + constants["step"] * k)
        tiles_s.append(products_s)
    ruled_s = jnp.where(tokens <= work.local_experts, tiles_s[FEW], tiles_s[MANY])
    best = jnp.where(constants["untuned"] > 0.5, ruled_s, reduce(jnp.minimum, tiles_s))
    rate = constants["memory_share"] * work.memory_bytes_per_s
    weights_s = loads.active * weights * work.weight_bytes / rate
    stream_s = weights_s + loads.rows * (work.hidden + 4.0 * work.inter) * OUTPUT_BYTES / rate
    high = jnp.maximum(best, stream_s)
    ratio = jnp.minimum(best, stream_s) / high
    power = constants["power"]
    body_s = high * (1.0 + ratio**power) ** (1.0 / power)
    each = (constants["activation"] * work.matrices * work.inter + constants["sum"] * work.hidden) * OUTPUT_BYTES
    around_bytes = each * tokens * work.top_k
    square = jnp.minimum(around_bytes / (constants["cache_share"] * jnp.maximum(work.cache_bytes, 1.0)), 1e4) ** 2
    fill = square * square
    around_s = around_bytes / rate * (fill + constants["cached"]) / (1.0 + fill)
    seconds = constants["t0"] + body_s + around_s + constants["expert"] * work.experts + constants["token"] * tokens
    return Parts(seconds, weights_s, best, around_s)


def moe_features(
    work: Experts, loads: Loads, parts: Parts, tokens: Float[Array, "*axes"]
) -> Float[Array, "*axes feature"]:
    """What the residual sees of a layer, mostly logarithms."""
    rows, active = jnp.maximum(loads.rows, 1e-3), jnp.maximum(loads.active, 1e-3)
    per_s = 1.0 / parts.seconds
    numbers = [
        *(jnp.log(x) for x in (parts.seconds, tokens, rows, active, rows / active)),
        *(jnp.log(jnp.maximum(loads.padded[tile], 1e-3) / rows) for tile in (0, 2, 3)),
        *(jnp.log(x) for x in (work.hidden, work.inter, work.experts, work.local_experts, work.top_k)),
        *(jnp.log(x * per_s + 1e-3) for x in (parts.weights_s, parts.products_s, parts.around_s)),
        jnp.log(tokens * work.top_k * work.local_experts / work.experts / rows),
        jnp.where(tokens <= work.local_experts, 0.0, 1.0),
        work.inter / 128.0 % 1.0,
        work.matrices,
    ]
    return jnp.stack(jnp.broadcast_arrays(*numbers), axis=-1)
