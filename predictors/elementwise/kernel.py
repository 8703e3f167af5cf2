"""The elementwise kernels of a plan, priced by fitted constants of their kind.

A kind takes the constants of the engine's own kernel where it was measured, else those of what it is most like, else
the analytic ones; the latter two are marked as outside calibration.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from predictors.elementwise.form import analytic_constants_of, kernel_s, move_terms, plan_rates
from predictors.elementwise.learn import ANY, BEYOND, LIKE, LIMITS, OPS, within
from predictors.family import Fitted
from sim.cost.analytic import analytic_cost
from sim.cost.elementwise import MoveTerms
from sim.cost.kernel import TokenKernel
from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.deployment.plan import ELEMENTWISE_KINDS, DeviceArrays, ElementwiseSlots
from sim.hardware.spec import DeviceConf


class MovingTerms(NamedTuple):
    """What of the kernels does not depend on the batch; `times`: kernels of this size and kind per step.

    `constants`: of their kind; `limits`: see `LIMITS`; all leaves `[elementwise, *config]`.
    """

    times: Float[Array, "elementwise *config"]
    bytes_per_token: Float[Array, "elementwise *config"]
    constants: Any
    move: MoveTerms
    rel_error: Float[Array, "elementwise *config"]
    certain: Float[Array, "elementwise *config"]
    limits: Any


class ElementwiseKernel(TokenKernel):
    """Constants of `predictors.elementwise.form` for each of `ELEMENTWISE_KINDS`; `floor_s` is t0,
    `row_s` row, `block_s` block.

    `certain`: 1 where the kind was measured as the engine runs it; `limits`: `LIMITS` of what was measured.
    """

    floor_s: Float[Array, " kind"]
    row_s: Float[Array, " kind"]
    block_s: Float[Array, " kind"]
    near: Float[Array, " kind"]
    far: Float[Array, " kind"]
    cache_share: Float[Array, " kind"]
    rel_error: Float[Array, " kind"]
    certain: Float[Array, " kind"]
    limits: Float[Array, "limit kind"]

    def terms(self, slots: ElementwiseSlots, device: DeviceArrays) -> MovingTerms:
        """Constants of all slots; the slots' last axis first."""
        slots = slots_first(slots)
        dtype, code = jnp.asarray(slots.bytes_per_token).dtype, jnp.asarray(slots.kind).astype(int)

        def of(leaf: Any) -> Float[Array, "elementwise *config"]:
            return jnp.asarray(leaf, dtype)[code]

        constants = {"t0": of(self.floor_s), "row": of(self.row_s), "block": of(self.block_s)}
        passes = {"near": of(self.near), "far": of(self.far), "share": of(self.cache_share)}
        return MovingTerms(
            times=slots.count,
            bytes_per_token=slots.bytes_per_token,
            constants=constants,
            move=move_terms(jnp, passes, plan_rates(device)),
            rel_error=of(self.rel_error),
            certain=of(self.certain),
            limits=[of(limit) for limit in self.limits],
        )

    def price(self, terms: MovingTerms, rows: Float[Array, "#slot *config"]) -> Priced:
        """All kernels of each slot, `[elementwise, *config]`, over `rows` tokens."""
        width = terms.bytes_per_token
        seconds = terms.times * jnp.where(rows > 0.0, kernel_s(jnp, terms.constants, terms.move, rows, width), 0.0)
        outside = 1.0 - terms.certain * within(jnp, width, rows * width, *terms.limits)
        return Priced(seconds, seconds * terms.rel_error * (1.0 + (BEYOND - 1.0) * outside), seconds * outside)


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> ElementwiseKernel:
    """What `engine` runs of each kind; see the top."""
    kinds = [of_kind(fitted, kind, engine) for kind in ELEMENTWISE_KINDS]
    renamed = {"t0": "floor_s", "row": "row_s", "block": "block_s", "share": "cache_share"}
    leaves: dict[str, Any] = {
        renamed.get(name, name): np.array([kind[name] for kind in kinds]) for name in kinds[0] if name not in LIMITS
    }
    limits: Any = np.array([[kind[name] for kind in kinds] for name in LIMITS])
    return ElementwiseKernel(**leaves, limits=limits)


def of_kind(fitted: Fitted, kind: str, engine: str) -> dict[str, float]:
    """Constants, error and limits of one kind of kernel, and whether it was measured for `engine`."""
    arrays = fitted.arrays
    for ops, same in ((OPS[kind], True), (LIKE.get(kind, ()), False)):
        found = chosen(fitted, ops, engine)
        if found is not None:
            code, own = found
            constants = {name: float(values[code]) for name, values in arrays["constants"].items()}
            limits = {name: float(arrays[name][code]) for name in LIMITS}
            return constants | limits | {"rel_error": float(arrays["error"][code]), "certain": float(own and same)}
    nothing = {"low_width": np.inf, "high_width": 0.0, "low_bytes": np.inf, "high_bytes": 0.0}
    error = float(analytic_cost().rel_error) / BEYOND  # always outside, where it counts `BEYOND` times
    return analytic_constants_of() | nothing | {"rel_error": error, "certain": 0.0}


def chosen(fitted: Fitted, ops: Sequence[str], engine: str) -> tuple[int, bool] | None:
    """Variant of the first of `ops` that was measured, and whether as `engine` runs it; None where none was.

    Preference: the engine's own, rows of no named engine, more rows. Versions ("vllm/0.19.0") are not looked at.
    """
    engine = engine.partition("/")[0]
    for op in ops:
        ranked = [
            (owner == engine, owner == ANY, float(fitted.arrays["rows"][index]), -index)
            for index, (owner, *_, measured) in enumerate(kernel.split() for kernel in fitted.kernels)
            if measured == op
        ]
        if ranked:
            own, unnamed, _, index = max(ranked)
            return -index, own or unnamed
    return None
