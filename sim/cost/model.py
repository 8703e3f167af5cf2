"""The one protocol at the waist: `(plan arrays, batch) -> step cost`, pure, jittable, differentiable.

A cost splits in three parts that the engines use apart: what depends on the padded token count and graph mode, what
depends on the number of emitting rows, and what depends on the lengths. The first two are tabulated once per plan
by a jitted kernel (`sim.cost.table`); the last is a short closed form that the engines evaluate per step, on
Python floats (exact engine) or arrays (wide engine), through the same function.
"""

import abc

import equinox as eqx

from sim.cost.lengths import LengthTerms
from sim.cost.stats import BatchStats
from sim.cost.step_cost import StepCost
from sim.deployment.plan import PlanArrays


class CostModel(eqx.Module):
    """Prices one step of one rank.

    The components must split as the table needs: `attention_s` depends on lengths only, `head_s` on the emitting rows
    only, all others on the padded tokens and graph mode only.
    """

    @abc.abstractmethod
    def __call__(self, plan: PlanArrays, stats: BatchStats) -> StepCost:
        """Cost of the batch `stats`, by component. Shapes: any common leading axes."""

    @abc.abstractmethod
    def length_terms(self, plan: PlanArrays) -> LengthTerms:
        """Constants of the lengths' closed form for one plan: one entry per used kind, leaves Python floats."""
