"""State layers (Mamba, linear attention): states read and written per decoding row, a scan per prefilled token.

    decodes   floor + sequence n
    chunks    floor + beside T + ((chain L)^4 + (chunk c + token T)^4)^(1/4)

for n rows, and c chunks of T tokens, L = T/c each: a chunk's scan goes through its tokens one after the other, and the
scans of all heads and chunks share the units; the convolution runs before. Engines run the two parts of a mixed batch
one after the other.
"""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from sim.cost.kernel import LengthKernel
from sim.cost.number import Number
from sim.cost.soft import soft_maximum
from sim.cost.stats import BatchStats
from sim.deployment.plan import DeviceArrays, RecurrentSlots


class RecurrentTerms(NamedTuple):
    """One kind of state layer, `layers` of them.

    `floor_s` if any row decodes, `sequence_s` per row (state read and written). `chunk_floor_s` if there is any chunk,
    `chunk_s` per chunk, `token_s` per prefilled token, `chain_s` per token of a chunk where nothing else runs;
    `beside_s` per prefilled token, by kernels before the scan.
    """

    layers: Number
    floor_s: Number
    sequence_s: Number
    chunk_floor_s: Number
    chunk_s: Number
    token_s: Number
    chain_s: Number
    beside_s: Number


def recurrent_s(xp: Any, terms: RecurrentTerms, tokens: Number, chunks: Number, decodes: Number) -> Number:
    """Seconds of one layer over `decodes` rows and `chunks` of `tokens` prefilled tokens; 0 for none."""
    work_s: Any = terms.chunk_s * chunks + terms.token_s * tokens
    chain_s: Any = terms.chain_s * (tokens / xp.maximum(chunks, 1.0))
    scan_s = soft_maximum(xp, chain_s, work_s)
    chunks_s = xp.where(chunks > 0, terms.chunk_floor_s + terms.beside_s * tokens + scan_s, 0.0)
    return xp.where(decodes > 0, terms.floor_s + terms.sequence_s * decodes, 0.0) + chunks_s


class RecurrentConstants(LengthKernel[RecurrentTerms]):
    """Kernels per state layer, their floor, the scan's share of the matrix ceiling. Source: `analytic.toml`."""

    kernels: Float[Array, ""]
    floor_s: Float[Array, ""]
    share: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, xp: Any, slots: RecurrentSlots, device: DeviceArrays) -> RecurrentTerms:
        """Closed-form constants; leaves `[recurrent, *config]`."""
        floor_s = self.kernels * self.floor_s * xp.ones_like(slots.count)
        sequence_s = 2.0 * slots.state_bytes / device.memory_bytes_per_s
        return RecurrentTerms(
            layers=slots.count,
            floor_s=floor_s,
            sequence_s=sequence_s,
            chunk_floor_s=floor_s,
            chunk_s=sequence_s,
            token_s=slots.flops_per_token / (self.share * slots.flops_per_s),
            chain_s=xp.zeros_like(slots.count),
            beside_s=xp.zeros_like(slots.count),
        )

    def doubt(self, slots: RecurrentSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Nothing was measured."""
        return self.rel_error, 1.0
