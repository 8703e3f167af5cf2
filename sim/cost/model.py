"""The one protocol at the waist: `(plan arrays, batch) -> step cost`, pure, jittable, differentiable.

A cost splits in three parts that the engines use apart: what depends on the padded token count and graph mode, what
depends on the number of emitting rows, and what depends on the lengths. The first two are tabulated once per plan
by a jitted kernel (`sim.cost.table`); the last is a short closed form that the engines evaluate per step, on
Python floats (exact engine) or arrays (wide engine), through the same function.
"""

import abc

import equinox as eqx

from sim.cost.stats import BatchStats
from sim.cost.step_cost import StepCost
from sim.deployment.plan import PlanArrays


class CostModel(eqx.Module):
    """Prices one step of one rank."""

    @abc.abstractmethod
    def __call__(self, plan: PlanArrays, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats`, by component. Shapes: any common leading axes."""
