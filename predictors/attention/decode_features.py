"""What the residual of decode attention sees of a batch.

Kernels switch between ways of working at powers of two, so beside smooth features there are hats, tents of width one
over the logarithms of blocks, context, heads per KV head and fill of the cache. Beyond the work that was measured, a
batch is seen as the largest one measured with as many blocks, so that the physics extrapolates alone.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from predictors.attention.decode_form import Rates, Rows, Work


BLOCKS, KEYS, FILL, ROWS = (0, 17), (1, 17), (-6, 5), (0, 11)
GROUPS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 48.0, 64.0, 96.0, 128.0)
DIMS = (64.0, 128.0, 192.0, 256.0, 512.0, 544.0)


def within(batch: Rows, most: Any) -> Rows:
    """The batch with contexts shortened to the measured work."""
    share = jnp.minimum(1.0, most / (batch.rows * batch.kv_heads * batch.mean))
    return batch._replace(mean=batch.mean * share, longest=batch.longest * share, variance=batch.variance * share**2)


def features(
    batch: Rows, done: Work, physics_s: Any, rates: Rates, code: Any, kernels: int
) -> Float[Array, "*axes feature"]:
    """Features of each row; `done`, `physics_s` of the same batch; `code`: index of its kernel."""
    group = batch.q_heads / batch.kv_heads
    queue = batch.rows * batch.kv_heads
    filled = done.blocks * done.splits / rates.units
    spread = batch.variance / (batch.mean * batch.mean)
    beyond = batch.longest - batch.mean
    long_rows = batch.variance / (batch.variance + beyond * beyond + 1e-6)
    log_fill = jnp.log2(done.fill)
    smooth = [
        jnp.log(queue),
        jnp.log(batch.mean),
        jnp.log(group),
        log_fill,
        jnp.log(batch.dims),
        jnp.log(done.io_bytes),
        jnp.log(physics_s),
        jnp.log(physics_s * rates.memory_bytes_per_s / done.bytes),
        jnp.log(done.blocks),
        jnp.log(done.splits),
        jnp.where(filled > 1.0, jnp.ceil(filled) / filled, 1.0),
        jnp.tanh(2.0 * log_fill),
        jnp.minimum(jnp.log2(batch.reach), 8.0),
        batch.windowed,
        batch.latent,
        batch.warm,
        jnp.log(batch.longest / batch.mean),
        jnp.log1p(spread),
        long_rows,
        jnp.log(1.0 + long_rows * batch.rows),
    ]
    hats = [
        _hats(jnp.log2(queue), *BLOCKS),
        _hats(jnp.log2(batch.mean), *KEYS),
        _hats(
            jnp.interp(jnp.log2(group), jnp.log2(jnp.asarray(GROUPS)), jnp.arange(float(len(GROUPS)))),
            0,
            len(GROUPS) - 1,
        ),
        _hats(log_fill, *FILL),
        _hats(jnp.log2(batch.rows), *ROWS),
        _hats(jnp.interp(batch.dims / 2.0, jnp.asarray(DIMS), jnp.arange(float(len(DIMS)))), 0, len(DIMS) - 1),
        (code[..., None] == jnp.arange(kernels)).astype(physics_s.dtype),
    ]
    return jnp.concatenate([jnp.stack(jnp.broadcast_arrays(*smooth), axis=-1), *hats], axis=-1)


def _hats(place: Any, low: int, high: int) -> Any:
    places = jnp.arange(float(low), high + 1.0)
    return jnp.maximum(1.0 - jnp.abs(jnp.clip(place, low, high)[..., None] - places), 0.0)
