"""Names of the constants: which there are, and what a factor does."""

import equinox as eqx
import jax
import numpy as np
import pytest

from predictors.constants import check_name, constants, of_plan, scaled


def test_rates_times_and_shares_have_names_and_sizes_have_none(cost, plan):
    named = constants(cost, plan)
    assert {"device.memory_bytes_per_s", "gemm.flops_per_s", "decode.floor_s", "gemm.tile_share"} <= set(named)
    assert not {"gemm.n", "attention.window", "device.compute_units", "gemm.tile_rows", "device.cache_bytes"} & set(
        named
    )


def test_no_name_belongs_to_both_trees(cost, plan):
    own = [name for name in constants(cost, plan) if not of_plan(name, plan)]
    for group, field in (name.split(".") for name in own):
        assert not hasattr(getattr(plan, group, None), field), f"{group}.{field}"


def test_a_factor_moves_its_constant_and_nothing_else(cost, plan):
    factors = {"gemm.flops_per_s": 0.5, "device.kernel_floor_s": 3.0, "gemm.tile_share": 2.0}
    before, after = constants(cost, plan), constants(*scaled(cost, plan, factors))
    for name, value in before.items():
        assert np.array_equal(after[name], factors.get(name, 1.0) * value), name
    new_cost, new_plan = scaled(cost, plan, factors)
    moved = sum(not np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (plan, new_plan)), strict=True))
    assert moved == 2 and eqx.tree_equal(cost.decode, new_cost.decode)


def test_without_factors_the_trees_are_the_same(cost, plan):
    assert scaled(cost, plan, {}) == (cost, plan)


@pytest.mark.parametrize(
    ("name", "near"),
    [("device.memory_byte_per_s", "device.memory_bytes_per_s"), ("memory_bytes_per_s", "device.memory_bytes_per_s")],
)
def test_an_unknown_name_gets_the_nearest(cost, plan, name, near):
    with pytest.raises(
        ValueError, match=f"'{name}' is no rate, time or share that can be fitted; the nearest is '{near}'"
    ):
        check_name(name, constants(cost, plan))
