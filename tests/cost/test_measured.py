"""Without calibration: the kernels against the published in-engine profile of one card.

Published fits that the constants are taken from saw this profile in two places: the time of an empty block, and the
stream rate of one unit of this card.
"""

import csv
from functools import partial

import jax
import numpy as np
import pytest

from sim.cost.gemm import gemm_s, gemm_terms
from sim.cost.lengths import FLOATS, LengthTerms, lengths_s
from sim.cost.table import length_terms, price_steps
from sim.deployment.lower import lower
from sim.hardware.read import load_device
from sim.model.read import load_model


PROFILE = "data/llmservingsim/profiler/perf/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1"


@pytest.fixture(scope="module")
def measured():
    return lower(load_model("llama-3.1-8b"), load_device("rtx-pro-6000"))


def read(shared, name):
    with (shared / PROFILE / name).open() as stream:
        return list(csv.DictReader(stream))


def test_attention(shared, measured, cost):
    """19,364 kernels: prefill, decode and mixed. The median error of held-out physics fits is 3 to 12 %."""
    kind = length_terms(cost, measured).attention[0]._replace(layers=1.0)
    errors = []
    for row in read(shared, "attention.csv"):
        new, prior, rows, context = (
            int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
        )
        seen, length = (prior + new if new else 0), context + 1
        chunk = (new, int(new > 0), new * prior + new * (new + 1) / 2, seen, seen)
        decodes = (rows, rows * length, length if rows else 0, rows * length**2)
        errors.append(1e6 * lengths_s(FLOATS, LengthTerms((kind,)), *chunk, *decodes) / float(row["time_us"]) - 1)
    assert np.median(np.abs(errors)) < 0.06
    assert abs(np.median(errors)) < 0.03


def test_products_of_a_layer(shared, measured, cost):
    """The four products together, 1 to 2048 tokens."""
    shapes = {"qkv_proj": 6144, "o_proj": 4096, "gate_up_proj": 28672, "down_proj": 4096}
    times = {name: {} for name in shapes}
    for row in read(shared, "dense.csv"):
        if row["layer"] in shapes:
            times[row["layer"]][int(row["tokens"])] = float(row["time_us"]) * 1e-6
    tokens = np.array(sorted(times["o_proj"]), np.float64)
    price = jax.vmap(partial(gemm_s, gemm_terms(measured.gemm, measured.device, cost.gemm)))
    found = np.asarray(price(tokens))
    inside = (measured.gemm.count > 0) & (measured.gemm.emitting == 0)
    want = sum(np.array([times[name][int(t)] for t in tokens]) for name in shapes)
    errors = found[:, inside].sum(-1) / want - 1
    assert np.median(np.abs(errors)) < 0.07
    assert np.max(np.abs(errors)) < 0.2


def test_a_step_of_one_decode(measured, cost, batch):
    # measured in the real server: 11.529 ms per step at batch 1 to 2, contexts of some hundred tokens
    stats = batch(decodes=[700])
    names = ("prefill_tokens", "prefill_chunks", "prefill_area", "prefill_kv_tokens", "prefill_max_tokens", "decodes")
    names += ("decode_sum", "decode_max", "decode_sumsq", "emitting", "padded_tokens", "graph_mode")
    columns = {name: np.array([getattr(stats, name)]) for name in names}
    assert price_steps(cost, measured, columns)["total_s"][0] == pytest.approx(11.529e-3, rel=0.06)
