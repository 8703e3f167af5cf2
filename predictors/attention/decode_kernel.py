"""The fitted decode kernels of one device as a kernel of `sim.cost`: a closed form and a factor on a grid.

The closed form (`sim.cost.decode`) takes its constants from the physics; the factor is what physics and residual
together make of it, evaluated once per plan at the nodes of `DECODE_AXES`. Rates are the plan's, so that gradients
reach them. The cache is taken to be cold: between two layers of a step other layers use it.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from predictors.attention.decode_features import features, within
from predictors.attention.decode_form import Rates, chosen, seconds, work
from predictors.attention.decode_kernels import BEYOND, NO_WINDOW, WITHIN, Kernels, nearest, rows_with
from predictors.residual import Residual
from sim.cost.decode import DECODE_AXES, DecodeTerms, decode_s, usual_variance
from sim.cost.grid import grid, mesh
from sim.cost.kernel import LengthKernel
from sim.cost.stats import BatchStats
from sim.deployment.plan import UNLIMITED, AttentionSlots, DeviceArrays


FAR = 4.0
"""Contexts over the window, of batches that pass it."""
OUTSIDE = 2.0
"""The error claimed beyond what was measured, over that within."""
LEAST_SHARE = 1e-3
"""A node this near to the window, as a share of the distance of nodes, is taken to lie on it."""
WORK_SLACK = 1.01
"""Work this much above the most measured is still within."""


class Layers(eqx.Module):
    """What the fit knows of each kind of attention layer, leaves `[kind, *config, 1]`; `code`: kernel of batches within
    the window, `past` of those that pass it (the same without one)."""

    q_heads: Any
    kv_heads: Any
    dims: Any
    kv_bytes: Any
    latent: Any
    windowed: Any
    window: Any
    code: Any
    past: Any


class LearnedDecode(LengthKernel[DecodeTerms]):
    """See the module. `nets`: the residual of the engine's kernels, and of others' that take the place of ones not
    measured; `net_of`: which one prices a kernel, -1 for kernels that are not used."""

    constants: dict[str, Any]
    kernels: Kernels
    nets: tuple[Residual, ...]
    rel_error: Float[Array, " kernel"]
    net_of: Float[np.ndarray, " kernel"]

    def terms(self, xp: Any, slots: AttentionSlots, device: DeviceArrays) -> DecodeTerms:
        """Closed-form constants of all slots at once; `slots` and result with leaves `[kind, *config]`."""
        layers = self._layers(slots)
        rates = _rates(slots, device)
        terms = _closed_form(layers, rates, chosen(self._constants(), layers.past), self.kernels)
        rows, mean, stretch = (jnp.asarray(axis, jnp.result_type(terms.floor_s)) for axis in mesh(DECODE_AXES))
        mean = jnp.minimum(mean, layers.window)
        longest = jnp.minimum(jnp.minimum(mean * stretch, mean * rows), layers.window)
        variance = usual_variance(jnp, rows, mean, longest)
        plain = decode_s(jnp, terms, rows, mean, variance, longest)
        code = jnp.where(mean >= 0.999 * layers.window, layers.past, layers.code)
        learned = self._seconds(layers, rates, code, rows, mean, variance, longest)
        flat = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, slots.count.shape + (1,))[..., 0], terms)
        return flat._replace(grid=grid(_exact_at_window(learned / plain, layers.window)))

    def doubt(self, slots: AttentionSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """The kernel's error on its tables, and twice that beyond what was measured."""
        layers = self._layers(slots)
        known = self.kernels
        code = layers.past[..., 0]
        keys = jnp.minimum(stats.decode_sum, stats.decodes * slots.window)
        outside = keys * slots.kv_heads > WORK_SLACK * jnp.asarray(known.work)[code]
        outside |= (
            (jnp.abs(layers.dims[..., 0] - jnp.asarray(known.dims)[code]) > 0.5)
            | (layers.latent[..., 0] != jnp.asarray(known.latent)[code])
            | (jnp.abs(_element_bytes(slots) - jnp.asarray(known.kv_element_bytes)[code]) > 0.1)
        )
        marked = outside.astype(keys.dtype)
        return jnp.asarray(self.rel_error)[code] * (1.0 + (OUTSIDE - 1.0) * marked), marked

    def _constants(self) -> dict[str, Any]:
        return {name: jnp.asarray(value) for name, value in self.constants.items()}

    def _layers(self, slots: AttentionSlots) -> Layers:
        heads = jnp.maximum(slots.kv_heads, 1.0)
        windowed = slots.window < UNLIMITED
        what = {
            "group": slots.q_heads / heads,
            "element_bytes": _element_bytes(slots),
            "latent": _latent(slots).astype(heads.dtype),
            "dims": slots.qk_dim + slots.v_dim,
        }
        allowed = self.net_of >= 0.0
        inside = nearest(self.kernels, allowed, past=jnp.where(windowed, WITHIN, NO_WINDOW), **what)
        past = nearest(self.kernels, allowed, past=jnp.where(windowed, BEYOND, NO_WINDOW), **what)
        layers = Layers(
            q_heads=jnp.maximum(slots.q_heads, 1.0),
            kv_heads=heads,
            dims=what["dims"],
            kv_bytes=slots.kv_bytes_per_token,
            latent=what["latent"],
            windowed=windowed.astype(heads.dtype),
            window=slots.window,
            code=inside,
            past=past,
        )
        return jax.tree.map(lambda leaf: leaf[..., None], layers)

    def _seconds(
        self, layers: Layers, rates: Rates, code: Any, rows: Any, mean: Any, variance: Any, longest: Any
    ) -> Any:
        """Physics times residual, at batches with a last axis."""
        passed = jnp.where((mean >= 0.999 * layers.window) & (layers.windowed > 0.0), FAR, 1.0)
        shape = jnp.broadcast_shapes(jnp.shape(code), jnp.shape(mean), jnp.shape(rows))
        parts = {
            "rows": rows,
            "mean": mean,
            "variance": variance,
            "longest": longest,
            "reach": passed,
            "q_heads": layers.q_heads,
            "kv_heads": layers.kv_heads,
            "dims": layers.dims,
            "kv_bytes": layers.kv_bytes,
            "windowed": layers.windowed,
            "latent": layers.latent,
            "warm": jnp.zeros(()),
        }
        batch = rows_with(
            self.kernels,
            jnp.broadcast_to(code, shape),
            **{name: jnp.broadcast_to(value, shape).astype(mean.dtype) for name, value in parts.items()},
        )
        rates = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape), rates)
        c = chosen(self._constants(), jnp.broadcast_to(code, shape))
        physics_s = seconds(batch, work(batch, rates), rates, c)
        known = within(batch, jnp.asarray(self.kernels.work)[code])
        done = work(known, rates)
        seen = features(
            known, done, seconds(known, done, rates, c), rates, jnp.broadcast_to(code, shape), len(self.net_of)
        )
        place = jnp.asarray(self.net_of)[code]
        log_factor = jnp.zeros(shape, jnp.float32)
        for index, net in enumerate(self.nets):
            log_factor = jnp.where(place == index, net(seen.astype(jnp.float32)).log_factor, log_factor)
        return physics_s * jnp.exp(log_factor.astype(physics_s.dtype))


def _exact_at_window(factors: Any, window: Any) -> Any:
    """Factors `[*axes, node]` whose first node of mean keys beyond the window is moved, so that they are exact at it.

    That node holds the factor at the window, where all batches past it are read: between the last node before, on
    which another kernel runs, and this one. No batch is read beyond.
    """
    rows, keys, stretches = (axis.count for axis in DECODE_AXES)
    table = factors.reshape(*factors.shape[:-1], rows, keys, stretches)
    where: Any = DECODE_AXES[1].place(jnp, window)
    place = where[..., None, None]
    cell = jnp.minimum(jnp.floor(place), keys - 2.0)
    before = jnp.roll(table, 1, axis=-2)
    moved = before + (table - before) / jnp.maximum(place - cell, LEAST_SHARE)
    first_beyond = jnp.arange(keys)[:, None] == (cell + 1.0).astype(int)
    return jnp.where(first_beyond, moved, table).reshape(factors.shape)


def _rates(slots: AttentionSlots, device: DeviceArrays) -> Rates:
    return Rates(
        memory_bytes_per_s=jnp.asarray(device.memory_bytes_per_s)[..., None],
        cache_bytes=jnp.asarray(device.cache_bytes)[..., None],
        units=jnp.asarray(device.compute_units)[..., None],
        flops_per_s=jnp.asarray(slots.flops_per_s)[..., None],
    )


def _latent(slots: AttentionSlots) -> Any:
    """Layers whose values are a part of their keys, from which prefill expands both."""
    return slots.context_flops > 0.0


def _element_bytes(slots: AttentionSlots) -> Any:
    """Bytes of one cached number."""
    read = jnp.where(_latent(slots), slots.qk_dim, slots.qk_dim + slots.v_dim)
    return slots.kv_bytes_per_token / (jnp.maximum(slots.kv_heads, 1.0) * jnp.maximum(read, 1.0))


def _closed_form(layers: Layers, rates: Rates, c: Any, kernels: Kernels) -> DecodeTerms:
    """The part of the physics that the closed form can say, leaves `[kind, *config, 1]`."""
    group = layers.q_heads / layers.kv_heads
    packed = jnp.asarray(kernels.packed)[layers.past]
    tiles = jnp.where(packed > 0.0, jnp.ceil(group / jnp.maximum(packed, 1.0)), group)
    io_s = c["io"] * 2.0 * layers.q_heads * layers.dims / rates.memory_bytes_per_s
    return DecodeTerms(
        floor_s=c["floor"] + c["block"],
        several_s=c["several"],
        split_s=c["split"],
        row_s=c["row"] + io_s,
        token_s=c["read"] * layers.kv_bytes / (c["stream"] * rates.memory_bytes_per_s),
        chain_s=c["key"] * layers.dims / 256.0,
        split_share=layers.kv_heads * tiles / rates.units,
    )
