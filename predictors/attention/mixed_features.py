"""What the residual sees of a batch with prefill: all smooth in the lengths, so that few nodes of a grid tell it.

Two networks: one for kernels whose tables hold decodes (`mixed`), one for those of prefill alone (`alone`). The first
does not see the heads, of which its tables hold few: only what they do to the schedule, the streams and the cache.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from predictors.attention.mixed_form import Heads, Lengths
from sim.cost.prefill import PrefillTerms


def features(
    terms: PrefillTerms, heads: Heads, lengths: Lengths, kernel: Float[Array, "*axes kernel"], mixed: bool
) -> Float[Array, "*axes feature"]:
    """Features of the network for mixed batches, or of the one for prefill alone; `kernel` 1 at the row's own."""
    tokens, chunks, prior = lengths.tokens, lengths.chunks, lengths.prior / lengths.chunks
    riders = terms.joint * lengths.decodes
    longest = terms.joint * lengths.longest
    chunk = tokens / chunks
    depth = jnp.maximum(chunk * terms.tiles_per_token, 1.0)
    tiles = chunks * depth
    share = terms.heads / terms.units
    keys = tiles * (lengths.seen + 0.5 * chunk / depth) + riders * lengths.mean
    work_s = share * (terms.key_s * keys + terms.block_s * (tiles + riders))
    stream_s = terms.kv_token_s * (lengths.context + riders * lengths.mean) + terms.row_token_s * (tokens + riders)
    chain_s = terms.key_s * jnp.maximum(lengths.deepest, longest) + terms.block_s
    idle_s = share * terms.empty_s * riders * depth
    rough_s = jnp.sqrt(work_s * work_s + stream_s * stream_s + chain_s * chain_s)
    fill = riders * lengths.mean * terms.cache_share
    stretch = longest / jnp.maximum(lengths.mean, 1.0)
    numbers = [
        jnp.log(rough_s),
        jnp.log(work_s / rough_s + 1e-2),
        jnp.log(stream_s / rough_s + 1e-2),
        jnp.log(chain_s / rough_s + 1e-2),
        terms.floor_s / (terms.floor_s + rough_s),
        jnp.log(tokens),
        jnp.log(chunk),
        jnp.log(chunks),
        jnp.log(1.0 + prior),
        jnp.log(share * (tiles + riders) + 0.05),
        jnp.log(terms.token_s * (tokens + riders) / rough_s + 1e-2),
    ]
    if mixed:
        numbers += [
            jnp.log(1.0 + riders),
            jnp.log(1.0 + lengths.mean),
            jnp.log(tokens / (riders + 1.0)),
            jnp.log(jnp.maximum(stretch, 1.0)),
            jnp.log(fill + 0.1),
            jnp.log(idle_s / rough_s + 1e-2),
        ]
    else:
        whole = jnp.maximum(prior + chunk, 1.0)
        group = heads.q_heads / jnp.maximum(heads.kv_heads, 1.0)
        numbers += [
            jnp.log(heads.q_heads),
            jnp.log(group),
            jnp.log(heads.dim),
            jnp.log(jnp.minimum(heads.window, whole) / whole),
        ]
    row = jnp.stack(jnp.broadcast_arrays(*numbers), axis=-1)
    return jnp.concatenate([row, jnp.broadcast_to(kernel, (*row.shape[:-1], kernel.shape[-1]))], axis=-1)
