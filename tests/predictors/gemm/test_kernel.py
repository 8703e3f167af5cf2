"""The learned products in a plan: what they cost beside rows of a table, zero rows, gradients, the mark."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors import gemm
from sim.deployment.formats import FORMATS
from sim.deployment.lower import lower
from sim.model.read import load_model
from tests.predictors.gemm.conftest import product_table


@pytest.fixture(scope="module")
def plan(h100):
    """With the slots that the model does not use."""
    return lower(load_model("llama-3.1-8b"), h100)


@pytest.fixture(scope="module")
def priced(fitted, plan, h100):
    """Prices `[gemm]` over rows, and the slope of their sum, both for factors on the memory's rate and the FLOP/s."""
    kernel = gemm.kernel(fitted, h100, "vllm")

    def total(factors, rows, form, kernel, plan):
        device, slots = (jax.tree.map(jnp.asarray, part) for part in (plan.device, plan.gemm))
        device = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factors[0])
        slots = dataclasses.replace(slots, flops_per_s=slots.flops_per_s * factors[1], format=form + 0.0 * slots.n)
        found = kernel.price(kernel.terms(slots, device), rows)
        return jnp.sum(found.seconds), found

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))

    def call(rows, factors=(1.0, 1.0), form="bf16"):
        code = float(FORMATS.index(form))
        with jax.enable_x64(True):
            found = compiled(*(jnp.asarray(value) for value in (factors, float(rows), code)), kernel, plan)
            (total_s, priced), slope = jax.tree.map(np.asarray, found)
        return priced, total_s, slope

    return call


@pytest.mark.parametrize("rows", [1.0, 96.0, 1024.0])
def test_a_plan_costs_what_a_table_row_costs(priced, plan, priced_rows, rows):
    # Both from cold weights: kernels in a model are told apart from those that repeat one product.
    used = plan.gemm.count > 0.0
    n, k = plan.gemm.n[used], plan.gemm.k[used]
    table = product_table(m=[rows] * len(n), n=n, k=k, model=["m"] * len(n))
    found, row = priced(rows)[0], priced_rows(table)
    assert found.seconds[used] / plan.gemm.count[used] == pytest.approx(row.seconds, rel=1e-4)
    assert found.error_s[used] / found.seconds[used] == pytest.approx(row.rel_error, rel=1e-3)
    assert found.outside_s[used] == pytest.approx(np.where(row.outside > 0.0, found.seconds[used], 0.0))
    assert not found.seconds[~used].any()


def test_no_rows_cost_nothing_and_slopes_stay_finite(priced):
    found, total, slope = priced(0.0)
    assert total == 0.0 and not found.error_s.any() and not found.outside_s.any()
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(("rows", "which"), [(8.0, 0), (4096.0, 1)])
def test_slopes_by_finite_differences(priced, rows, which):
    # In float64 but for the networks, which compute in float32.
    slope = priced(rows)[2][which]
    ends = [priced(rows, [1.0 + step * (index == which) for index in range(2)])[1] for step in (1e-5, -1e-5)]
    assert slope < 0.0 and slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)


def test_a_format_that_was_not_measured_is_all_outside(priced, plan, fitted):
    found, total_s, _ = priced(64.0, form="fp8")
    used = plan.gemm.count > 0.0
    assert total_s > 0.0 and (found.outside_s == found.seconds).all()
    # The physics of the kernel of the same engine, and twice its error.
    error = np.asarray(fitted.arrays["error"])[fitted.kernels.index("vllm/0.24.0 bf16 in a model")]
    assert found.error_s[used] / found.seconds[used] == pytest.approx(2 * error)
