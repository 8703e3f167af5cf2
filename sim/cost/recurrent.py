"""State layers (Mamba, linear attention): states read and written per sequence, a scan per prefilled token."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from sim.cost.kernel import LengthKernel
from sim.cost.number import Number
from sim.cost.stats import BatchStats
from sim.deployment.plan import DeviceArrays, RecurrentSlots


class RecurrentTerms(NamedTuple):
    """One kind of state layer, `layers` of them.

    `floor_s` if anything runs, `sequence_s` per sequence (state read and written), `token_s` per prefilled token.
    """

    layers: Number
    floor_s: Number
    sequence_s: Number
    token_s: Number


def recurrent_s(xp: Any, terms: RecurrentTerms, tokens: Number, chunks: Number, decodes: Number) -> Number:
    """Seconds of one layer over `decodes` rows and `chunks` of `tokens` prefilled tokens; 0 for none."""
    sequences = chunks + decodes
    busy_s = terms.floor_s + terms.sequence_s * sequences + terms.token_s * tokens
    return xp.where(sequences > 0, busy_s, 0.0)


class RecurrentConstants(LengthKernel[RecurrentTerms]):
    """Kernels per state layer, their floor, the scan's share of the matrix ceiling. Source: `analytic.toml`."""

    kernels: Float[Array, ""]
    floor_s: Float[Array, ""]
    share: Float[Array, ""]
    rel_error: Float[Array, ""]

    def terms(self, xp: Any, slots: RecurrentSlots, device: DeviceArrays) -> RecurrentTerms:
        """Closed-form constants; leaves `[recurrent, *config]`."""
        return RecurrentTerms(
            layers=slots.count,
            floor_s=self.kernels * self.floor_s * xp.ones_like(slots.count),
            sequence_s=2.0 * slots.state_bytes / device.memory_bytes_per_s,
            token_s=slots.flops_per_token / (self.share * slots.flops_per_s),
        )

    def doubt(self, slots: RecurrentSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Nothing was measured."""
        return self.rel_error, 1.0
