"""The one protocol at the waist: `(plan arrays, batch) -> step cost`, pure, jittable, differentiable.

A cost splits in three parts that the engines use apart: what depends on the padded token count and graph mode, what
depends on the number of emitting rows, and what depends on the lengths. The first two are tabulated once per plan
by a jitted kernel (`sim.cost.table`); the last is a short closed form that the engines evaluate per step, on
Python floats (exact engine) or arrays (wide engine), through the same function.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sim.cost.lengths import LengthTerms
from sim.cost.priced import Priced
from sim.cost.stats import BatchStats
from sim.cost.step_cost import StepCost
from sim.deployment.plan import PlanArrays


class CostModel(eqx.Module):
    """Prices one step of one rank.

    The components must split as the table needs: `attention_s` depends on lengths only, `head_s` on the emitting rows
    only, all others on the padded tokens and graph mode only.
    """

    @abc.abstractmethod
    def terms(self, plan: PlanArrays) -> Any:
        """What of a step's price does not depend on the batch. Whoever prices many batches computes it once."""

    @abc.abstractmethod
    def price(self, terms: Any, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats`, by component, from the plan's `terms`. Shapes: the same `config` axes."""

    @abc.abstractmethod
    def attention(self, terms: Any, stats: BatchStats) -> Priced:
        """What of `price` depends on lengths: attention and state layers, of all kinds together."""

    @abc.abstractmethod
    def experts(
        self,
        terms: Any,
        tokens: Float[Array, "*config"],
        rows: Float[Array, "*config"],
        active: Float[Array, "*config"],
    ) -> Priced:
        """Routed experts, `[slot, *config]`, of a step of `tokens` tokens on a rank whose experts get `rows` rows.

        `active` of its experts get any. All layers of a slot, each with the same loads.
        """

    @abc.abstractmethod
    def lengths(self, terms: Any) -> LengthTerms:
        """Constants of the lengths' closed form: one entry per used kind, leaves Python floats.

        `terms` are those of one plan, as arrays that have been computed.
        """

    def __call__(self, plan: PlanArrays, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats`, by component; an empty batch costs nothing.

        Shapes: `stats` has the plan's `config` axes, and perhaps more in front.
        """
        price = self.price
        for _ in range(jnp.ndim(stats.decodes) - jnp.ndim(plan.device.host_s)):
            price = jax.vmap(price, (None, 0))
        return price(self.terms(plan), stats)
