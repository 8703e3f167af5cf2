"""The interfaces of the kernels that a step's price is the sum of; each may be analytic or learned.

A kernel splits in `terms`, what does not depend on the batch (computed once by whoever prices many batches), and a
price. Slots come as a plan declares them, slot axis last; terms and prices have slots first, configurations last.
"""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from sim.cost.priced import Priced
from sim.cost.stats import BatchStats
from sim.deployment.plan import DeviceArrays


class TokenKernel(eqx.Module):
    """Products, experts, elementwise kernels: priced by rows."""

    @abc.abstractmethod
    def terms(self, slots: Any, device: DeviceArrays) -> Any:
        """What of the slots' prices does not depend on the batch."""

    @abc.abstractmethod
    def price(self, terms: Any, rows: Float[Array, "#slot *config"]) -> Priced:
        """All kernels of each slot in a step, `[slot, *config]`, over `rows` rows (or tokens); 0 for none."""


class ExpertKernel(TokenKernel):
    """Routed experts: priced by tokens, with the loads a plan expects, or with given ones."""

    @abc.abstractmethod
    def price_loads(
        self,
        terms: Any,
        tokens: Float[Array, "*config"],
        rows: Float[Array, "#slot *config"],
        active: Float[Array, "#slot *config"],
    ) -> Priced:
        """As `price` over `tokens` tokens, on a rank whose experts get `rows` rows, `active` of them any."""


class LengthKernel[Terms](eqx.Module):
    """Attention or state layers: their price is the closed form of `sim.cost.lengths` on `Terms`."""

    @abc.abstractmethod
    def terms(self, xp: Any, slots: Any, device: DeviceArrays) -> Terms:
        """Closed-form constants; `slots` and result with leaves `[slot, *config]`. `xp`: `numpy` or `jax.numpy`."""

    @abc.abstractmethod
    def doubt(self, slots: Any, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Relative error, and 1 where the batch lies outside calibration (else 0), `[slot, *config]`.

        `slots` with leaves `[slot, *config]`.
        """
