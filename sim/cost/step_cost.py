"""The waist, second value: what one step costs, by component."""

import equinox as eqx
from jaxtyping import Array, Float


class StepCost(eqx.Module):
    """Seconds by component, and what was moved and computed. Shapes follow the `BatchStats`.

    `rel_error` is the relative error the model claims for the total; `outside_share` the share of
    the seconds that lies outside its calibrated range.
    """

    gemm_s: Float[Array, "*config"]
    attention_s: Float[Array, "*config"]
    moe_s: Float[Array, "*config"]
    elementwise_s: Float[Array, "*config"]
    head_s: Float[Array, "*config"]
    collective_s: Float[Array, "*config"]
    launch_s: Float[Array, "*config"]
    host_s: Float[Array, "*config"]
    memory_bytes: Float[Array, "*config"]
    flops: Float[Array, "*config"]
    rel_error: Float[Array, "*config"]
    outside_share: Float[Array, "*config"]

    @property
    def total_s(self) -> Float[Array, "*config"]:
        """Sum of the components."""
        return (
            self.gemm_s
            + self.attention_s
            + self.moe_s
            + self.elementwise_s
            + self.head_s
            + self.collective_s
            + self.launch_s
            + self.host_s
        )


SECONDS = (
    "gemm_s",
    "attention_s",
    "moe_s",
    "elementwise_s",
    "head_s",
    "collective_s",
    "launch_s",
    "host_s",
)
