"""KV blocks of one data-parallel rank, beside a server that logged them."""

import pytest

from conf.compose import compose
from sim.memory.describe import describe
from sim.units import GIB


LIMITS = ["engine.max_num_seqs=128", "engine.max_num_batched_tokens=2048"]
PAIR = ["model=qwen3-30b-a3b", "hardware=rtx-pro-6000", "deployment=dp2ep2"]


def budget(*overrides: str):
    conf = compose([*overrides, *LIMITS])
    return describe(conf.model, conf.hardware, conf.engine, conf.deployment)


def test_a_rank_keeps_attention_and_holds_half_of_the_experts():
    """48 layers of 128 experts of 3 x 2048 x 768 in 2 bytes: 54 GiB, half of it saved; attention is not divided."""
    device = [*PAIR[:2], "engine=vllm-0.19.0"]
    pair, alone, tensor = (budget(*device, f"deployment={name}") for name in ("dp2ep2", "single", "tp2"))
    saved = alone.stage.value("weights") - pair.stage.value("weights")
    assert saved == pytest.approx(48 * 64 * 3 * 2048 * 768 * 2, rel=1e-9)
    assert pair.stage.value("weights") / GIB == pytest.approx(29.9, abs=0.05)
    assert tensor.stage.value("weights") < pair.stage.value("weights")
    # every rank has all four KV heads: 48 layers x 2 x 4 x 128 x 2 bytes x 16 tokens
    assert pair.bytes_per_block == alone.bytes_per_block == 2 * tensor.bytes_per_block == 1.5 * 2**20
    assert 36_900 <= pair.num_blocks <= 37_600


def test_blocks_of_a_measured_server():
    """vLLM 0.28, two ranks, 75,638 blocks in all: 37,819 each (LLMServingSim, 2026)."""
    found = budget(*PAIR, "engine=vllm-0.28.0", "engine.gpu_memory_utilization=0.92")
    assert found.num_blocks == pytest.approx(37_819, rel=0.01)


def test_workspaces_hold_the_tokens_of_all_ranks():
    two, four = (
        budget(*PAIR[:2], "engine=vllm-0.19.0", f"deployment.data_parallel={ranks}").stage.value("peak_activation")
        for ranks in (2, 4)
    )
    # 2 x 2048 tokens more, 8 experts each; buffers of max(I, 2048) and max(2 I, 2048) numbers of 2 bytes, I below 1024
    assert four - two == pytest.approx(2 * 2048 * 8 * (2048 + 2048) * 2)
