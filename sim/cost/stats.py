"""The waist, first value: what one forward pass contains, as sufficient statistics."""

import equinox as eqx
from jaxtyping import Array, Float


class BatchStats(eqx.Module):
    """One step's batch. Every field is a number, or has a leading `config` (or `step`) axis.

    Prefill chunk i computes `c_i` new tokens on `p_i` tokens of prior context; decode row j
    reads a context of `l_j` tokens, the one it computes included.

    **Fields:**

    - `prefill_tokens`: sum c_i.
    - `prefill_chunks`: number of prefill rows.
    - `prefill_area`: query-key pairs, sum (c_i p_i + c_i (c_i + 1) / 2).
    - `prefill_kv_tokens`: sum (p_i + c_i), keys read once per chunk.
    - `prefill_max_tokens`: max (p_i + c_i), the longest chain of one chunk.
    - `decodes`: number of decode rows n.
    - `decode_sum`, `decode_max`, `decode_sumsq`: sum, max and sum of squares of l_j.
    - `emitting`: rows that sample (decodes and last prefill chunks); with each draft token, they need logits.
    - `padded_tokens`: tokens the token-wise operators of one rank see (graph padding), >= prefill + decodes + drafts,
      or, where ranks divide the tokens of a prefill, its share of them + decodes.
    - `graph_mode`: 0 eager, 1 piecewise CUDA graph, 2 full CUDA graph.
    - `draft_tokens`: tokens that rows verify, beside those of a chunk or the one of a decode row (whose l_j counts
      them).
    """

    prefill_tokens: Float[Array, "*config"]
    prefill_chunks: Float[Array, "*config"]
    prefill_area: Float[Array, "*config"]
    prefill_kv_tokens: Float[Array, "*config"]
    prefill_max_tokens: Float[Array, "*config"]
    decodes: Float[Array, "*config"]
    decode_sum: Float[Array, "*config"]
    decode_max: Float[Array, "*config"]
    decode_sumsq: Float[Array, "*config"]
    emitting: Float[Array, "*config"]
    padded_tokens: Float[Array, "*config"]
    graph_mode: Float[Array, "*config"]
    draft_tokens: Float[Array, "*config"]


LENGTHS = tuple(BatchStats.__dataclass_fields__)[:9]
"""The fields that the closed form of the lengths reads, in the order of its arguments."""
