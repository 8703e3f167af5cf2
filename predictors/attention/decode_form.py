"""Seconds of a decode-attention kernel from what it has to do: the physics under the learned residual.

A block holds the query heads of one KV head, `tile` rows at a time, of one sequence; long rows are split over several
blocks. With q blocks (before splitting), s splits, U compute units and mean and longest context m and X:

    stream = bytes/rate,  rate: memory's, or the cache's where the batch's keys fit and were read just before (`warm`)
    compute = flops/(share peak)            rows of a tile that no query head fills are computed, too
    block  = a + c X/s                      one block of the longest row
    wave   = q (a s + c m)/U                all blocks over the units
    t = t0 + t_split (1 - 1/s) + several [n > 1] + rows n + io/rate
        + ((stream + add block)^p + max(block, wave)^p + compute^p)^(1/p)

Streams start slowly: the rate is `stream/(1 + ramp/(1 + bytes/ramp_bytes))`. What the memory does is the device's, all
else the kernel's. Splits follow the kernel: "waves" (FlashAttention: the fewest that fill the last wave nearly as well
as any), or as many as there are idle units.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


BLOCK_KEYS = 128.0
FULL_WAVES, NEARLY, MOST_SPLITS = 0.8, 0.85, 128
"""FlashAttention splits below this share of a wave of blocks, takes the fewest splits within this share of the best."""
MEMORY = {"stream": 1.0, "ramp": 0.2, "ramp_bytes": 5e8, "knee": 0.7}
"""Constants of the device, where the descent starts: shares of its rates and of the cache's bytes."""
KERNEL = {
    "floor": 6e-6,
    "split": 2e-6,
    "several": 5e-7,
    "row": 1e-8,
    "block": 1e-6,
    "key": 5e-9,
    "add": 0.3,
    "io": 1.0,
    "compute": 1.0,
    "power": 4.0,
    "read": 1.0,
    "cache": 3.0,
}
"""Constants of each kernel: seconds, but for the shares `add`, `io` and `cache` (of the memory's rate) and
`compute`."""
BOUNDS = {
    "stream": (0.8, 1.1),
    "ramp": (1e-3, 1.5),
    "cache": (0.7, 20.0),
    "knee": (0.3, 1.5),
    "floor": (1e-6, 1e-4),
    "split": (1e-8, 5e-5),
    "several": (1e-9, 2e-5),
    "row": (1e-10, 1e-6),
    "block": (1e-8, 2e-5),
    "key": (2e-9, 1e-6),
    "add": (1e-3, 3.0),
    "io": (0.1, 30.0),
    "compute": (0.02, 1.5),
    "power": (1.5, 8.0),
    "read": (0.8, 1.1),
    "ramp_bytes": (1e8, 4e9),
}


class Rates(NamedTuple):
    """Of the device, as a plan has them (`sim.deployment.plan.DeviceArrays`, `AttentionSlots.flops_per_s`)."""

    memory_bytes_per_s: Any
    cache_bytes: Any
    units: Any
    flops_per_s: Any


class Rows(NamedTuple):
    """Decode batches of one layer on one rank; contexts after the window.

    `reach`: longest context before the window over the one after; `windowed`: 1 with a window; `packed`: query rows
    that share a block (0: each query head has its own); `rule`: how rows are split, 0 over idle units, 1 so that waves
    of `slots` blocks per unit are full, 2 not at all.
    """

    rows: Any
    mean: Any
    variance: Any
    longest: Any
    reach: Any
    q_heads: Any
    kv_heads: Any
    dims: Any
    kv_bytes: Any
    windowed: Any
    latent: Any
    warm: Any
    packed: Any
    slots: Any
    rule: Any


class Work(NamedTuple):
    """What a batch makes a kernel do; see the module. `fill`: bytes over those of the cache."""

    blocks: Any
    splits: Any
    bytes: Any
    io_bytes: Any
    fill: Any
    flops: Any


def work(batch: Rows, rates: Rates) -> Work:
    """The work of each row."""
    group = batch.q_heads / batch.kv_heads
    tiles = jnp.where(batch.packed > 0.0, jnp.ceil(group / jnp.maximum(batch.packed, 1.0)), group)
    blocks = batch.rows * batch.kv_heads * tiles
    read = batch.rows * batch.mean * batch.kv_bytes
    computed = jnp.where(batch.packed > 0.0, tiles * batch.packed, group)
    return Work(
        blocks=blocks,
        splits=splits(batch, blocks, rates.units),
        bytes=read,
        io_bytes=2.0 * batch.rows * batch.q_heads * batch.dims,
        fill=read / rates.cache_bytes,
        flops=2.0 * batch.rows * batch.kv_heads * computed * batch.mean * batch.dims,
    )


def splits(batch: Rows, blocks: Any, units: Any) -> Any:
    """Blocks over which one row is split, at least 1; differentiable nowhere but for idle units."""
    steps = jnp.ceil(batch.longest / BLOCK_KEYS)
    idle = jnp.clip(units / blocks, 1.0, jnp.maximum(steps, 1.0))
    slots = batch.slots * units
    count = jnp.arange(1.0, MOST_SPLITS + 1.0)
    filled = (blocks / slots)[..., None] * count
    share = filled / jnp.ceil(filled)
    allowed = count <= jnp.minimum(steps, slots)[..., None]
    share = jnp.where(allowed, share, 0.0)
    best = jnp.max(share, axis=-1, keepdims=True)
    fewest = 1.0 + jnp.argmax(share >= NEARLY * best, axis=-1).astype(share.dtype)
    by_waves = jnp.where(blocks >= FULL_WAVES * slots, 1.0, fewest)
    return jnp.where(batch.rule == 0.0, idle, jnp.where(batch.rule == 1.0, by_waves, 1.0))


def seconds(batch: Rows, done: Work, rates: Rates, constants: Mapping[str, Any]) -> Float[Array, "*axes"]:
    """The form above; `constants` broadcast against the rows."""
    c = constants
    rate = c["stream"] * rates.memory_bytes_per_s
    ramp = 1.0 + c["ramp"] / (1.0 + done.bytes / c["ramp_bytes"])
    full = (done.fill / c["knee"]) ** 8
    cold = jnp.where(batch.warm > 0.0, full / (1.0 + full), 1.0)
    stream_s = c["read"] * done.bytes / rate * (cold * ramp + (1.0 - cold) / c["cache"])
    key_s = c["key"] * batch.dims / 256.0
    block_s = c["block"] + key_s * batch.longest / done.splits
    wave_s = done.blocks / rates.units * (c["block"] * done.splits + key_s * batch.mean)
    schedule_s = jnp.maximum(block_s, wave_s)
    compute_s = done.flops / (c["compute"] * rates.flops_per_s)
    busy_s = jnp.stack(jnp.broadcast_arrays(stream_s + c["add"] * block_s, schedule_s, compute_s), axis=-1)
    most_s = jnp.max(busy_s, axis=-1)
    power = c["power"]
    main_s = most_s * jnp.sum((busy_s / most_s[..., None]) ** jnp.asarray(power)[..., None], axis=-1) ** (1.0 / power)
    return (
        c["floor"]
        + c["split"] * (1.0 - 1.0 / done.splits)
        + c["several"] * jnp.minimum(batch.rows - 1.0, 1.0)
        + c["row"] * batch.rows
        + c["io"] * done.io_bytes / rates.memory_bytes_per_s
        + main_s
    )


def starts(kernels: int) -> dict[str, np.ndarray]:
    """Where the descent starts, with an entry per kernel."""
    found = {name: np.asarray(value) for name, value in MEMORY.items()}
    return found | {name: np.full(kernels, value) for name, value in KERNEL.items()}


def chosen(constants: Mapping[str, Any], code: Any) -> dict[str, Any]:
    """The constants of each row's kernel."""
    return {name: constants[name] if name in MEMORY else constants[name][code] for name in (*MEMORY, *KERNEL)}
