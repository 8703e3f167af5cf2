"""From slots to the constants of the closed form, and what a step reads and computes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.attention import attention_terms
from sim.cost.table import length_terms
from sim.cost.work import attention_work, attention_work_terms
from sim.deployment.lower import lower
from sim.model.spec import MLA, Attention, Dense, Layer, Mamba2, ModelSpec


def model(*mixers):
    return ModelSpec("m", "llama", 1024, 32000, 8192, tuple(Layer(mixer, Dense(4096)) for mixer in mixers))


def terms(device, cost, *mixers):
    return length_terms(cost, lower(model(*mixers), device))


def test_grouped_heads_by_hand(device, cost):
    # 16 query heads on 4 KV heads of 64: 4 blocks a row. Attention reaches 0.75 of 200 = 150 TFLOP/s, 1.5 a unit.
    kind = terms(device, cost, Attention(16, 4, 64)).attention[0]
    # 2 x 64 rows x 128 dims = 16,384 FLOPs a key in one block: 10.92 ns; loading 256 B at 50 GB/s takes 5.12 ns
    assert kind.decode.chain_s == pytest.approx(16384 / 1.5e12)
    # Streaming 4 x 2 x 64 x 2 B = 1024 B at 1 TB/s: 1.024 ns; computing 4 blocks at 150 TFLOP/s: 0.4369 ns
    assert kind.decode.token_s == pytest.approx((1.024e-9**4 + 0.43690667e-9**4) ** 0.25, rel=1e-6)
    # rows are split while fewer than 1.6 x 100 / 4 = 40
    assert 1 / kind.decode.split_share == pytest.approx(40.0)
    # No family names this device: tiles of 128 rows hold 4 heads x 32 positions, 4 blocks each, 21.85 ns a key
    assert (kind.prefill.heads, 1 / kind.prefill.tiles_per_token, kind.prefill.wave) == (4.0, 32.0, 0.0)
    assert kind.prefill.key_s == pytest.approx(2 * 128 * 128 / 1.5e12)
    assert kind.prefill.rereads == 0.0
    assert kind.window is None


def test_loading_bounds_a_block_of_a_slow_unit(device, cost):
    slow = replace(device, unit_stream_bytes_per_s=10e9)
    assert terms(slow, cost, Attention(16, 4, 64)).attention[0].decode.chain_s == pytest.approx(256 / 10e9)


def test_latent_attention_by_hand(device, cost):
    latent = MLA(heads=16, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    kind = terms(device, cost, latent).attention[0]
    # decode: one KV head of 576 x 2 B; all 16 heads in one block of 64 rows x (576 + 512) dims
    assert kind.prefill.kv_token_s == pytest.approx(1152 / 1e12)
    assert kind.decode.chain_s == pytest.approx(2 * 64 * 1088 / 1.5e12)
    # prefill: every head its own keys of 192 + 128; a prior token is expanded (2 x 512 x 16 x 256 FLOPs), written, read
    assert (kind.prefill.heads, kind.prefill.joint) == (16.0, 0.0)
    assert kind.prefill.key_s == pytest.approx(2 * 128 * 320 / 1.5e12)
    want = 2 * 512 * 16 * 256 / 150e12 + 2 * 2 * 16 * 320 / 1e12
    assert kind.prefill.context_token_s == pytest.approx(want)


def test_waves_where_the_kernel_has_them(device, cost):
    kind = terms(replace(device, attention="fa2"), cost, Attention(16, 4, 64)).attention[0].prefill
    # 64 query rows of one head per block, one wave after the other, keys of a group read four times apart
    assert (kind.heads, 1 / kind.tiles_per_token, kind.wave, kind.rereads) == (16.0, 64.0, 1.0, 3.0)
    assert (kind.empty_s, kind.stepped) == (pytest.approx(0.37e-6), 1.0)


def test_kinds_are_counted_and_unused_slots_dropped(device, cost):
    full, sliding = Attention(16, 4, 64), Attention(16, 4, 64, window=512)
    state = Mamba2(4, 2.0, 4.0, True, heads=16, head_dim=64, groups=1, state=64)
    found = terms(device, cost, full, sliding, sliding, state)
    assert [(kind.layers, kind.window) for kind in found.attention] == [(1.0, None), (2.0, 512.0)]
    assert [kind.layers for kind in found.recurrent] == [1.0]
    # read and write the state of 16 x 64 x 64 elements of 4 B and the last 3 inputs of 1152 channels of 2 B
    assert found.recurrent[0].sequence_s == pytest.approx(2 * (16 * 64 * 64 * 4 + 3 * 1152 * 2) / 1e12)


def test_numpy_and_jax_agree(device, cost, plan):
    one = attention_terms(np, plan.attention, plan.device, cost.decode, cost.prefill)
    two = attention_terms(jnp, plan.attention, plan.device, cost.decode, cost.prefill)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_work_by_hand(plan, batch):
    # Layer 1 reads everything, layer 2 at most 512 keys. Decodes of 1000 twice: 2000 + 1024 keys of 1024 B; a chunk
    # of 100 on 900: 1000 and min(1000, 100 + 512) keys loaded. FLOPs: 2 x 16 heads x 128 dims per pair; its rows
    # see 901 to 1000 keys, or 512.
    read, flops = attention_work(
        attention_work_terms(plan.attention, plan.recurrent), batch([(100, 900)], [1000, 1000])
    )
    assert read == pytest.approx(1024 * (2000 + 1000 + 1024 + 612), rel=1e-6)
    pairs = 2000 + 1024 + 100 * 950.5 + 100 * 512
    assert flops == pytest.approx(2 * 16 * 128 * pairs, rel=1e-6)
