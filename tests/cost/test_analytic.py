"""The whole step: sums, splits, vmap against a loop, gradients, both precisions, monotone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.analytic import analytic_cost, constants
from sim.cost.step_cost import SECONDS
from sim.deployment.lower import lower


MIXED = ([(300, 1000)], [500, 900, 4000, 700])
DECODE = ([], [500, 900, 4000, 700])

# Gradients are large programs: compiled without optimisation.
QUICKLY = {"xla_backend_optimization_level": 0}

compiled = jax.jit(lambda cost, plan, stats: cost(plan, stats), compiler_options=QUICKLY)


def total(cost, plan, stats):
    return float(compiled(cost, plan, stats).total_s)


def as_dtype(tree, dtype):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


def test_components_by_kernel(cost, plan, batch):
    """Each component is its kernel's sum; no expert, no collective on one rank of a dense model."""
    price = compiled(cost, plan, batch(*MIXED))
    assert float(price.total_s) == pytest.approx(sum(float(getattr(price, name)) for name in SECONDS))
    assert float(price.moe_s) == float(price.collective_s) == 0.0
    for name in ("gemm_s", "attention_s", "elementwise_s", "head_s", "launch_s"):
        assert float(getattr(price, name)) > 0
    claim = constants()["claim"]
    assert min(claim.values()) < float(price.rel_error) < max(claim.values())
    assert float(price.outside_share) == pytest.approx(1.0)


def test_experts_and_collectives(cost, experts, device, batch):
    price = compiled(cost, lower(experts, device, tensor_parallel=4), batch(*MIXED))
    assert float(price.moe_s) > 0
    assert float(price.collective_s) > 0


def test_flops_and_bytes_by_hand(cost, plan, batch):
    # One decode of 400 tokens. Weights of both layers: qkv 1024 x 1536, o 1024 x 1024, gate_up 1024 x 8192,
    # down 4096 x 1024; head 1024 x 32000. FLOPs: twice the weights, and 2 x 16 heads x 128 x 400 per layer.
    price = compiled(cost, plan, batch(decodes=[400]))
    weights = 2 * 1024 * (1536 + 1024 + 8192 + 4096) + 1024 * 32000
    assert float(price.flops) == pytest.approx(2 * weights + 2 * 2 * 16 * 128 * 400)
    assert float(price.memory_bytes) == pytest.approx(2 * weights + 2 * 400 * 1024, rel=2e-3)


def test_an_empty_batch_costs_nothing(cost, plan, batch):
    price = compiled(cost, plan, batch())
    assert all(float(getattr(price, name)) == 0.0 for name in (*SECONDS, "memory_bytes", "flops"))


def test_splits_as_the_tables_need(cost, plan, batch):
    """Attention sees lengths only, the head emitting rows only, the rest padded tokens only."""
    base, longer = batch(*DECODE), batch([], [5000, 900, 4000, 700])
    one, two = compiled(cost, plan, base), compiled(cost, plan, longer)
    changed = {name for name in SECONDS if float(getattr(one, name)) != float(getattr(two, name))}
    assert changed == {"attention_s"}
    more_rows = compiled(cost, plan, replace(base, emitting=np.float64(64.0)))
    assert {name for name in SECONDS if float(getattr(one, name)) != float(getattr(more_rows, name))} == {"head_s"}
    padded = compiled(cost, plan, replace(base, padded_tokens=np.float64(300.0)))
    assert {name for name in SECONDS if float(getattr(one, name)) != float(getattr(padded, name))} == {
        "gemm_s",
        "elementwise_s",
    }


def test_vmap_over_configurations_equals_a_loop(cost, dense, experts, device, batch):
    plans = [lower(dense, device), lower(experts, device), lower(experts, device, 2), lower(dense, device, 4)]
    stats = [batch(*MIXED), batch(*DECODE), batch([(64, 0)]), batch()]
    stacked = [jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees) for trees in (plans, stats)]
    together = jax.jit(jax.vmap(cost), compiler_options=QUICKLY)(*stacked)
    for index, (one_plan, one_stats) in enumerate(zip(plans, stats, strict=True)):
        alone = compiled(cost, one_plan, one_stats)
        for name in (*SECONDS, "memory_bytes", "flops"):
            got, want = float(getattr(together, name)[index]), float(getattr(alone, name))
            assert got == pytest.approx(want, rel=1e-12)


def test_terms_serve_many_batches(cost, plan, batch):
    terms = jax.jit(lambda one: cost.terms(one), compiler_options=QUICKLY)(plan)
    price = jax.jit(lambda at, stats: cost.price(at, stats).total_s, compiler_options=QUICKLY)
    for stats in (batch(*MIXED), batch(*DECODE)):
        assert float(price(terms, stats)) == pytest.approx(total(cost, plan, stats), rel=1e-12)


def test_configurations_without_vmap(cost, dense, device, batch):
    """Stacked plans with stacked batches, and batches of several steps in front of the configurations."""
    plans = [lower(dense, device), lower(dense, device, 2)]
    stats = [batch(*MIXED), batch(*DECODE)]
    plan, steps = (jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees) for trees in (plans, stats))
    want = [[total(cost, one, step) for one in plans] for step in stats]
    assert np.allclose(compiled(cost, plan, steps).total_s, np.diag(want), rtol=1e-12)
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), steps)
    assert np.allclose(compiled(cost, plan, twice).total_s[1], [want[1][0], want[0][1]], rtol=1e-12)


def test_leading_axes_without_vmap(cost, plan, batch):
    stats = [batch(*MIXED), batch(*DECODE)]
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *stats)
    assert np.allclose(compiled(cost, plan, stacked).total_s, [total(cost, plan, one) for one in stats], rtol=1e-12)


def test_every_gradient_is_finite(cost, experts, device, batch):
    """In every leaf of cost, plan and batch, in float32: mixed, decodes only, a lone chunk, nothing; unused slots too.

    And the totals are those of float64."""
    batches = [batch(*MIXED), batch(*DECODE), batch([(64, 0)]), batch()]
    plan = lower(experts, device, 2)
    stats = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    gradient = jax.value_and_grad(lambda x, y, z: x(y, z).total_s, (0, 1, 2))
    slopes = jax.jit(jax.vmap(gradient, (None, None, 0)), compiler_options=QUICKLY)
    totals, found = slopes(*as_dtype((cost, plan, stats), jnp.float32))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(found))
    assert np.allclose(totals, [total(cost, plan, one) for one in batches], rtol=1e-5)


def test_slopes_match_finite_differences(cost, experts, device, batch):
    """Along every leaf of the constants, and of device and slots that are not counts of whole things."""
    plan, stats = lower(experts, device, 2), batch(*MIXED)
    slope = jax.jit(
        lambda at, along: jax.jvp(lambda both: both[0](both[1], stats).total_s, (at,), (along,))[1],
        compiler_options=QUICKLY,
    )
    both = as_dtype((cost, plan), jnp.float64)
    leaves, tree = jax.tree.flatten(both)
    still = [jnp.zeros_like(leaf) for leaf in leaves]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(both)]
    whole = (
        "tile_rows",
        "tile_columns",
        "max_split",
        "compute_units",
        ".n",
        ".k",
        "heads",
        "_experts",
        "wave",
        "packed",
        "query_ranks",
    )
    checked = 0
    for index, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        if path.endswith(whole):
            continue
        exact = float(slope(both, jax.tree.unflatten(tree, [*still[:index], leaf, *still[index + 1 :]])))
        up, down = (
            jax.tree.unflatten(tree, [*leaves[:index], leaf * f, *leaves[index + 1 :]]) for f in (1.00001, 0.99999)
        )
        ends = [float(compiled(*changed, stats).total_s) for changed in (up, down)]
        assert exact == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-10), path
        checked += exact != 0.0
    assert checked > 40


def test_monotone(cost, plan, batch):
    def rising(stats):
        times = [total(cost, plan, one) for one in stats]
        assert times == sorted(times)
        assert times[0] < times[-1]

    rising(batch(decodes=[1000] * n) for n in (1, 8, 64, 128, 256))
    rising(batch(decodes=[n] * 64) for n in (1, 100, 1000, 8000))
    rising(batch([(n, 0)]) for n in (1, 64, 512, 2048))
    rising(batch(decodes=[1000], mode=mode) for mode in (2.0, 1.0, 0.0))


def test_faster_devices_are_faster(cost, dense, device, batch):
    slow = total(cost, lower(dense, device), batch(*MIXED))
    for change in ({"memory_bytes_per_s": 2.5e12}, {"peak_flops_per_s": {"bf16": 500e12}}):
        assert total(cost, lower(dense, replace(device, **change)), batch(*MIXED)) < slow


def test_tensor_parallel_is_faster_but_not_twice(cost, dense, device, batch):
    stats = batch(decodes=[2000] * 64)
    one, two = (total(cost, lower(dense, device, ranks), stats) for ranks in (1, 2))
    assert one / 2 < two < one


def test_host_time_is_added(cost, dense, device, batch):
    stats = batch(*DECODE)
    more = total(cost, lower(dense, device, host_s=1e-3), stats) - total(cost, lower(dense, device), stats)
    assert more == pytest.approx(1e-3)


def test_dtype_of_the_constants():
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(analytic_cost(np.float32)))
