"""The learned experts in a plan: which kernel, what it costs, what it claims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors import moe
from predictors.family import Fitted
from predictors.moe.kernel import chosen_kernels, learned_moe
from predictors.variants import age
from sim.deployment.formats import FORMATS
from sim.deployment.lower import lower
from sim.deployment.plan import trimmed
from sim.model.read import load_model


@pytest.fixture(scope="module")
def fitted(known_table, h100):
    return moe.fit(known_table, h100, 0, True)


@pytest.fixture(scope="module")
def plan(h100):
    return trimmed(lower(load_model("qwen3-30b-a3b"), h100))


@pytest.fixture(scope="module")
def priced(fitted, plan, h100):
    """Seconds, error and extrapolated seconds over token counts, all layers, for a factor on the memory's rate."""
    kernel = moe.kernel(fitted, h100, "vllm")

    def price(plan, factor, tokens):
        device = jax.tree.map(jnp.asarray, plan.device)
        device = device.__class__(**{**vars(device), "memory_bytes_per_s": device.memory_bytes_per_s * factor})
        terms = kernel.terms(jax.tree.map(jnp.asarray, plan.moe), device)
        return kernel.price(terms, tokens).total()

    prices = jax.jit(jax.vmap(price, (None, None, 0)))
    slopes = jax.jit(jax.grad(lambda plan, factor, tokens: price(plan, factor, tokens).seconds, argnums=1))
    return prices, slopes


def test_prices_of_a_plan(priced, plan, fitted, h100):
    with jax.enable_x64(True):
        found = priced[0](plan, 1.0, jnp.asarray([0.0, 1.0, 64.0, 512.0, 4000.0, 40_000.0]))
    seconds = np.asarray(found.seconds)
    assert seconds[0] == 0.0 and (np.diff(seconds) > 0.0).all()
    # 48 layers of what a table row with the plan's own loads would take: 512 tokens visit all experts.
    row = moe.predict(fitted, _row(512.0), h100).seconds[0]
    assert seconds[3] == pytest.approx(48 * row, rel=0.15)
    assert (np.asarray(found.error_s)[1:] > 0.0).all()
    outside_s = np.asarray(found.outside_s)
    assert outside_s[2] == 0.0 and outside_s[5] == pytest.approx(seconds[5])


def _row(tokens):
    from tests.predictors.moe.conftest import expert_table

    return expert_table(tokens=[tokens])


def test_faster_memory_helps_and_the_gradient_says_so(priced, plan):
    with jax.enable_x64(True):
        slope = float(priced[1](plan, jnp.asarray(1.0), jnp.asarray(64.0)))
        up, down = (
            float(priced[0](plan, factor, jnp.asarray([64.0])).seconds[0]) for factor in (1.0 + 1e-4, 1.0 - 1e-4)
        )
    assert slope < 0.0 and slope == pytest.approx((up - down) / 2e-4, rel=1e-2)


def test_the_kernel_follows_format_engine_and_version(fitted):
    choice, measured = chosen_kernels(fitted, "vllm")
    bf16, fp8 = FORMATS.index("bf16"), FORMATS.index("fp8")
    assert fitted.kernels[choice[bf16, 1, 0]] in ("vllm/0.24.0 bf16 k", "vllm/0.24.0 bf16 slow")
    assert measured[bf16, 1, 0] == 1.0 and measured[bf16, 0, 0] == 0.0 and measured[fp8, 1, 0] == 0.0
    assert not chosen_kernels(fitted, "sglang")[1].any()
    # 0.23 runs what 0.19 ran; older than all: the oldest; without a version the newest
    versions = ["0.19.0", "0.24.0"]
    assert [max(versions, key=lambda v: age(v, wanted)) for wanted in ("0.23.0", "0.9", "")] == [
        "0.19.0",
        "0.19.0",
        "0.24.0",
    ]


@pytest.mark.parametrize(
    ("kernels", "engine", "dtype", "wanted"),
    [
        # what the published recipes set, however few its rows
        (("trtllm/1.3.0 nvfp4 cutlass", "trtllm/1.3.0 nvfp4 moe_torch_flow_min_latency"), "trtllm", "nvfp4", 1),
        # of another engine's tables, if they hold what it runs
        (
            ("trtllm/1.3.0 fp8_block deepgemm", "sglang/0.5.14 fp8_block sglang_flashinfer_trtllm_moe"),
            "trtllm",
            "fp8_block",
            1,
        ),
        # the newer table, if the older was profiled without tuned tiles; else the newest up to the version that runs
        (("sglang/0.5.10 bf16 sglang_fused_moe_triton", "sglang/0.5.14 bf16 other"), "sglang/0.5.9", "bf16", 1),
        (("sglang/0.5.10 bf16 other", "sglang/0.5.14 bf16 other"), "sglang/0.5.9", "bf16", 0),
        (("sglang/0.5.10 bf16 other", "sglang/0.5.14 bf16 other"), "sglang/0.5.20", "bf16", 1),
        # its own before another's
        (("vllm/0.24.0 bf16 k", "trtllm/1.3.0 bf16 k"), "trtllm", "bf16", 1),
    ],
)
def test_what_servers_run(kernels, engine, dtype, wanted):
    arrays = {"signature": np.ones((2, 2, 2)), "rows": np.array([9.0, 1.0])}
    choice, measured = chosen_kernels(Fitted("moe", 2, arrays, kernels), engine)
    assert choice[FORMATS.index(dtype), 1, 0] == wanted and measured[FORMATS.index(dtype), 1, 0] == 1.0


def test_experts_over_more_than_a_node_run_another_kernel():
    """TensorRT-LLM's 8-bit experts: on one rank and over 8 what its recipes set, over more DeepGEMM."""
    kernels = ("trtllm/1.3.0 fp8_block deepgemm", "sglang/0.5.14 fp8_block sglang_flashinfer_trtllm_moe")
    arrays = {"signature": np.ones((2, 2, 2)), "rows": np.array([1.0, 9.0])}
    choice, measured = chosen_kernels(Fitted("moe", 2, arrays, kernels), "trtllm")
    assert choice[FORMATS.index("fp8_block"), 1].tolist() == [1, 1, 0]
    assert measured[FORMATS.index("fp8_block"), 1].tolist() == [1.0, 1.0, 1.0]


def test_skewed_popularity_costs_ranks(fitted, h100):
    shared = trimmed(lower(load_model("qwen3-30b-a3b"), h100, 4, 4))
    with jax.enable_x64(True):
        even, skewed = (
            float(
                kernel.price(
                    kernel.terms(jax.tree.map(jnp.asarray, shared.moe), shared.device), jnp.asarray(8000.0)
                ).seconds[0]
            )
            for kernel in (learned_moe(fitted, "vllm"), learned_moe(fitted, "vllm", 1.2))
        )
    assert skewed > 1.1 * even
