"""The learned prefill kernel of a plan: closed-form terms by kernel, and the residual on the nodes of a grid."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from predictors.attention.mixed_features import features
from predictors.attention.mixed_form import Heads, Lengths, prefill_terms
from predictors.attention.mixed_kernels import LATENT_DIMS, Known, beyond, cuts_of, nearest
from predictors.residual import Residual
from sim.cost.grid import grid, mesh
from sim.cost.kernel import LengthKernel
from sim.cost.lengths import windowed_chunk, windowed_rows
from sim.cost.prefill import ACTIVATION_BYTES, BATCH_AXES, PREFILL_AXES, PrefillTerms
from sim.cost.stats import BatchStats
from sim.deployment.plan import AttentionSlots, DeviceArrays


class MixedKernel(LengthKernel[PrefillTerms]):
    """Prefill as a fit of family `mixed` prices it.

    - `constants`: by kernel; `known`: what is known of each; `allowed`: 1 for those of the plan's engine.
    - `nets`: the ensembles, by name; `outside_error`: relative error claimed outside the measured range.
    - `kinds`: the name of the ensemble of each kernel.
    """

    constants: dict[str, Float[Array, " kernel"]]
    known: Known
    allowed: Float[Array, " kernel"]
    nets: dict[str, Residual]
    outside_error: Float[Array, ""]
    kinds: tuple[str, ...] = eqx.field(static=True)

    def terms(self, xp: Any, slots: AttentionSlots, device: DeviceArrays) -> PrefillTerms:
        """Closed-form constants of all slots at once; `slots` and result with leaves `[kind, *config]`."""
        bare: Any
        code, heads = self._kernel(slots, device)
        bare = self._terms(code, heads, slots)
        wide: Any = type(bare)(*(None if leaf is None else leaf[..., None] for leaf in bare))
        many = Heads(*(leaf[..., None] for leaf in heads))
        tokens, prior, riders, mean, stretch = mesh(PREFILL_AXES)
        chunk, chunks = mesh(BATCH_AXES)
        joined = np.minimum(chunk * chunks, PREFILL_AXES[0].high)
        none, one = 0.0 * chunk, 0.0 * chunk + 1.0
        # all in one call, for each is compiled: lone chunks, several, and one of as many tokens as those
        columns = (
            (tokens, chunk * chunks, joined),
            (0.0 * tokens + 1.0, chunks, one),
            (prior - 1.0, none, none),
            (riders - 1.0, none, none),
            (mean - 1.0, none, none),
            (stretch, one, one),
        )
        factors = self._factor(code, wide, many, slots, *(jnp.asarray(np.concatenate(each)) for each in columns))
        alone, several, joint = jnp.split(factors, np.cumsum([len(tokens), len(chunk)]), axis=-1)
        several = several / joint
        nodes: Any = jnp.concatenate([alone, several], axis=-1)
        if xp is np:
            bare = type(bare)(*(None if leaf is None else np.asarray(leaf, np.float64) for leaf in bare))
            nodes = np.asarray(nodes, np.float64)
        found: PrefillTerms = bare._replace(grid=grid(nodes))
        return found

    def doubt(self, slots: AttentionSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Relative error, and 1 where the batch lies outside the ranges its kernel was measured in."""
        code, heads = self._kernel(slots, device)
        tokens, chunks = jnp.maximum(stats.prefill_tokens, 1.0), jnp.maximum(stats.prefill_chunks, 1.0)
        rows = jnp.maximum(stats.decodes, 1.0)
        mean = jnp.minimum(stats.decode_sum / rows, slots.window)
        prior = stats.prefill_kv_tokens - stats.prefill_tokens
        empty = 0.0 * mean
        lengths = Lengths(tokens, chunks, empty, empty, empty, prior, stats.decodes, mean, empty, empty)
        outside = beyond(self.known, code, lengths, heads)
        error = jnp.asarray(self.known.error)[code]
        return jnp.where(outside > 0.0, jnp.maximum(error, self.outside_error), error), outside

    def _kernel(self, slots: AttentionSlots, device: DeviceArrays) -> tuple[Any, Heads]:
        """Index of the kernel of each slot, and what it runs."""
        latent = jnp.asarray(slots.context_flops) > 0.0
        q_heads = jnp.maximum(jnp.asarray(slots.q_heads), 1.0)
        kv_heads = jnp.where(latent, q_heads, jnp.maximum(slots.kv_heads, 1.0))
        read_dims = jnp.where(latent, slots.qk_dim, slots.qk_dim + slots.v_dim) * jnp.where(latent, 1.0, kv_heads)
        element = slots.kv_bytes_per_token / jnp.maximum(read_dims, 1.0)
        dim = jnp.where(latent, LATENT_DIMS, jnp.maximum(slots.prefill_dim, 1.0))
        code = nearest(
            self.known,
            self.allowed,
            element_bytes=jnp.clip(element, 0.5, 4.0),
            dim=dim,
            latent=latent.astype(dim.dtype),
        )
        expanded = q_heads * dim * ACTIVATION_BYTES
        heads = Heads(
            q_heads=q_heads,
            kv_heads=kv_heads,
            dim=dim,
            kv_token_bytes=jnp.where(latent, expanded, slots.kv_bytes_per_token),
            window=jnp.asarray(slots.window),
            flops_per_s=jnp.asarray(slots.flops_per_s),
            memory_bytes_per_s=device.memory_bytes_per_s + 0.0 * q_heads,
            cache_bytes=device.cache_bytes + 0.0 * q_heads,
            units=device.compute_units + 0.0 * q_heads,
        )
        return code, heads

    def _terms(self, code: Any, heads: Heads, slots: AttentionSlots) -> PrefillTerms:
        constants = {name: jnp.asarray(value)[code] for name, value in self.constants.items()}
        terms = prefill_terms(jnp, constants, cuts_of(self.known, code), heads)
        stream = heads.memory_bytes_per_s
        expanded = jnp.where(slots.context_flops > 0.0, 2.0 * heads.kv_token_bytes, 0.0)
        context_token_s = slots.context_flops / slots.flops_per_s + expanded / stream
        return terms._replace(joint=terms.joint * slots.joint, context_token_s=context_token_s)

    def _factor(self, code, terms, heads, slots, tokens, chunks, prior, decodes, mean, stretch) -> Any:
        """What the ensemble of each slot's kernel makes of the closed form at nodes, `[kind, *config, node]`.

        `prior`: of one chunk; `mean`: keys of a decode after the window; `stretch`: of the longest, over the mean.
        """
        window, chunked = (jnp.asarray(leaf)[..., None] for leaf in (slots.window, slots.chunked))
        chunk, context = tokens / chunks, tokens + prior * chunks
        seen, context, deepest = windowed_chunk(
            jnp, prior + 0.5 * (chunk + 1.0), chunk, chunks, context, prior + chunk, window, chunked
        )
        zero = 0.0 * mean
        keys, _, longest = windowed_rows(jnp, mean, zero, mean * stretch, window, chunked)
        lengths = Lengths(tokens, chunks, seen, context, deepest, prior * chunks, decodes, keys, zero, longest)
        log_factor: Any = 0.0
        for name, net in self.nets.items():
            of_net = np.array([kind == name for kind in self.kinds])
            own = np.flatnonzero(of_net)
            one_hot = (code[..., None, None] == own).astype(tokens.dtype)
            found = net(features(terms, heads, lengths, one_hot, name == "mixed")).log_factor
            log_factor = log_factor + jnp.where(jnp.asarray(of_net)[code][..., None], found, 0.0)
        return jnp.exp(log_factor)


def stored_nets(nets: Mapping[str, Mapping[str, Any]]) -> dict[str, Residual]:
    """The ensembles of an artifact."""
    return {
        name: Residual(width=stored["parameters"]["Dense_0"]["bias"].shape[-1], **stored)
        for name, stored in nets.items()
    }
