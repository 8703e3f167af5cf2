"""Physics of a product `[m, k] x [k, n]` with constants by kernel: tiles, waves, streams.

A tile of tm x tn outputs with k split in s parts is one block, and blocks run in whole waves:

    block = start + finish tm tn/16384    [of all waves but the first, the share `exposed`: loads of the next hide it]
            + (k/s) max(2 tm tn units/(share peak), (tm e_in + tn e_w) units/(unit_rate memory))
    blocks = ceil(m/tm) ceil(n/tn) s,    tiles = ceil(blocks/units) block + [s > 1](split + 4 s m n/(rate memory))
    stream = (n k e_w cold + m k e_in + 2 m n)/(rate memory)
    t = t0 + (tiles^p + stream^p)^(1/p) + ragged + quantising,    tiles: the least over tiles and splits
    quantising = m (row + passes k (2 + e_in)/(rate memory))    [inputs below 16 bits]

e: bytes per element. `cold` is 1 where weights come from memory, as in a model; a table that repeats one product finds
weights below `cached` of the last-level cache there, and reads them faster by 1 + `gain`. `ragged`: some 8-bit
libraries take longer where m is no multiple of 16, `ragged n k e_w/(rate memory)`, above 256 rows. Tables time the
kernel that quantises the inputs too, which stands by itself in a plan: a product in a model is without it and without
`quantise`, what t0 is longer for it. A `launched` time shows the host: soft maximum of it and `host`. Rates are shares
of the device's, so that gradients reach those.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 4, 8, 16, 32)
TILE_OUTPUTS = 16384.0
ACTIVATION_BYTES, OUTPUT_BYTES, PARTIAL_BYTES = 2.0, 2.0, 4.0
ALIGNED = 16.0
LARGE_ROWS = 256.0
SMOOTH = 35
TENTS = ((0, 14), (5, 17), (5, 16))
"""Powers of two of m, n, k with a tent each."""
STEPS = (1, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
"""Row counts beyond which some library takes another kernel."""
KNEE = 8.0
"""How sharply weights leave the cache, and the host's time gives way to the device's."""

START: Mapping[str, Any] = {
    "t0": 2e-6,
    "start": 5e-7,
    "finish": 5e-7,
    "exposed": 0.5,
    "split": 1e-6,
    "power": 4.0,
    "share": (0.9,) * len(TILES),
    "rate": 1.0,
    "unit_rate": 3.0,
    "cached": 0.2,
    "gain": 0.5,
    "ragged": 0.01,
    "row": 1e-9,
    "passes": 0.3,
    "quantise": 0.0,
    "host": 1e-5,
}
"""Where the descent starts; entries of a tuple are by tile. Other kernels tell `quantise` (`predictors.gemm.learn`)."""

BOUNDS = {
    "t0": (3e-7, 3e-5),
    "start": (1e-8, 2e-5),
    "finish": (1e-8, 5e-5),
    "exposed": (1e-3, 1.0),
    "split": (1e-8, 5e-5),
    "power": (1.5, 8.0),
    "share": (0.02, 1.6),
    "rate": (0.5, 1.35),
    "unit_rate": (0.2, 50.0),
    "cached": (0.05, 1.0),
    "gain": (0.01, 4.0),
    "ragged": (1e-4, 10.0),
    "row": (1e-13, 5e-8),
    "passes": (1e-3, 10.0),
    "host": (1e-6, 1e-3),
}


class Product(NamedTuple):
    """Weights, arithmetic and device of some products; `launched` is 1 where a time holds the host's launch."""

    n: Float[Array, "*axes"]
    k: Float[Array, "*axes"]
    weight_bytes: Float[Array, "*axes"]
    input_bytes: Float[Array, "*axes"]
    flops_per_s: Float[Array, "*axes"]
    memory_bytes_per_s: Float[Array, "*axes"]
    cache_bytes: Float[Array, "*axes"]
    units: Float[Array, "*axes"]
    launched: Float[Array, "*axes"]


class Parts(NamedTuple):
    """Seconds of one product, and the times it is made of.

    `warm_s`: as a table that repeats it measures it; `cold_s`: in a model. `tiles_s`: the least over splits, tiles in
    front; `splits_s`: the least over tiles, splits in front.
    """

    warm_s: Float[Array, "*axes"]
    cold_s: Float[Array, "*axes"]
    stream_s: Float[Array, "*axes"]
    least_s: Float[Array, "*axes"]
    tiles_s: Float[Array, "tile *axes"]
    splits_s: Float[Array, "split *axes"]


def gemm_parts(constants: Mapping[str, Any], product: Product, m: Float[Array, "*axes"]) -> Parts:
    """Times of products over `m` rows; `constants` broadcast to the axes, `share` with tiles in front."""
    n, k = jnp.maximum(product.n, 1.0), jnp.maximum(product.k, 1.0)
    rate = constants["rate"] * product.memory_bytes_per_s
    unit_s = product.units / (constants["unit_rate"] * product.memory_bytes_per_s)
    flop_s = product.units / product.flops_per_s
    reduce_s = PARTIAL_BYTES * m * n / rate
    per_unit = 1.0 / product.units
    found: list[list[Any]] = []
    for index, (rows, columns) in enumerate(TILES):
        area = float(rows * columns)
        loaded = rows * product.input_bytes + columns * product.weight_bytes
        depth_s = k * jnp.maximum(2.0 * area * flop_s / constants["share"][index], loaded * unit_s)
        fixed_s = constants["start"] + constants["finish"] * (area / TILE_OUTPUTS)
        blocks = jnp.ceil(m / rows) * jnp.ceil(n / columns)
        found.append([])
        for split in SPLITS:
            # half a block less: whole waves stay whole whatever the rounding of 1 / units
            waves = jnp.ceil((blocks * split - 0.5) * per_unit)
            seconds = waves * (depth_s / split) + fixed_s * (1.0 + (waves - 1.0) * constants["exposed"])
            found[-1].append(seconds if split == 1 else seconds + constants["split"] + split * reduce_s)
    tiles_s = [reduce(jnp.minimum, some) for some in found]
    splits_s = [reduce(jnp.minimum, some) for some in zip(*found, strict=True)]
    least_s = reduce(jnp.minimum, tiles_s)

    weights = n * k * product.weight_bytes
    moved_s = m * (k * product.input_bytes + n * OUTPUT_BYTES) / rate
    fill = jnp.minimum(weights / (constants["cached"] * jnp.maximum(product.cache_bytes, 1.0)), 30.0)
    kept = constants["gain"] / (1.0 + constants["gain"]) / (1.0 + fill**KNEE)
    weights_s = weights / rate
    ragged_s = jnp.where((m > LARGE_ROWS) & (m % ALIGNED > 0.0), constants["ragged"] * weights_s, 0.0)
    streams_s = (weights_s * (1.0 - kept) + moved_s, weights_s + moved_s)
    passed_s = k * (ACTIVATION_BYTES + product.input_bytes) / rate
    quantising_s = jnp.where(
        product.input_bytes < ACTIVATION_BYTES, m * (constants["row"] + constants["passes"] * passed_s), 0.0
    )
    warm_s, cold_s = (
        constants["t0"] + _soft(least_s, stream_s, constants["power"]) + ragged_s for stream_s in streams_s
    )
    warm_s, cold_s = warm_s + quantising_s, cold_s - constants["quantise"]
    warm_s = jnp.where(product.launched > 0.5, _soft(warm_s, constants["host"], KNEE), warm_s)
    return Parts(warm_s, cold_s, streams_s[0], least_s, jnp.stack(tiles_s), jnp.stack(splits_s))


def _soft(a: Any, b: Any, power: Any) -> Any:
    """`(a^power + b^power)^(1/power)` of positive times, without powers of small numbers."""
    high = jnp.maximum(a, b)
    return high * (1.0 + (jnp.minimum(a, b) / high) ** power) ** (1.0 / power)


def gemm_features(product: Product, parts: Parts, m: Float[Array, "*axes"]) -> Float[Array, "*axes feature"]:
    """What the residual sees of a product.

    First `SMOOTH` features that a range can be told of: sizes, regimes, how full tiles and waves are, what each choice
    costs. Then where libraries change kernels: tents over the logarithms of the sizes, and 1 for each row count passed.
    """
    n, k = jnp.maximum(product.n, 1.0), jnp.maximum(product.k, 1.0)
    moved = n * k * product.weight_bytes + m * (k * product.input_bytes + n * OUTPUT_BYTES)
    power_of_two = sum(jnp.where(m % step > 0.0, 0.0, 1.0) for step in (2.0, 4.0, 8.0, 16.0))
    numbers = [
        *(jnp.log(x) for x in (parts.warm_s, m, n, k, parts.stream_s / parts.least_s, moved, m * n * k / moved)),
        power_of_two,
        jnp.where((m > ALIGNED) & (m % ALIGNED > 0.0), 1.0, 0.0),
        n / 128.0 % 1.0,
        *(m / (rows * jnp.ceil(m / rows)) for rows in (16.0, 64.0, 128.0, 256.0)),
    ]
    for rows, columns in TILES:
        waves = jnp.ceil(m / rows) * jnp.ceil(n / columns) / product.units
        numbers += [jnp.log(waves), jnp.minimum(jnp.ceil(waves - 1e-6) / waves, 8.0)]
    numbers += [jnp.log(some / parts.least_s) for some in (*parts.tiles_s, *parts.splits_s)]
    smooth = jnp.stack(jnp.broadcast_arrays(*numbers), axis=-1)
    m, n, k = jnp.broadcast_arrays(m, n, k)
    tents = [_tents(jnp.log2(size), *ends) for size, ends in zip((m, n, k), TENTS, strict=True)]
    passed = (m[..., None] > jnp.asarray(STEPS, m.dtype)).astype(m.dtype)
    return jnp.concatenate([smooth, *tents, passed], axis=-1)


def _tents(place: Float[Array, "*axes"], low: int, high: int) -> Float[Array, "*axes tent"]:
    places = jnp.arange(float(low), high + 1.0, dtype=place.dtype)
    return jnp.maximum(1.0 - jnp.abs(jnp.clip(place, low, high)[..., None] - places), 0.0)
