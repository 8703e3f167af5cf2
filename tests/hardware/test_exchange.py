"""Dispatch and combine of experts: copies and times by hand, measured samples, other devices, invariants."""

from dataclasses import replace
from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.collective import collective_s, collective_terms
from sim.deployment.exchange import collective, collective_slots
from sim.hardware.exchange import exchange_constants
from sim.hardware.exchange_form import (
    HIGH_THROUGHPUT,
    LOW_LATENCY,
    MODES,
    ONE_SIDED,
    OPS,
    Constants,
    Shape,
    copies,
    exchange_s,
    group_copies,
    holders,
    token_s,
)
from sim.hardware.exchange_table import NUMBER_BYTES, shipped_points, shipped_rows
from sim.hardware.read import load_device


# Mean times in us, aiconfigurator-core 0.12.0 tables (Apache-2.0), SGLang 0.5.12 inside a node and 0.5.6.post2 across
# nodes, TensorRT-LLM 1.3.0rc10 one-sided: device, mode, op, ranks, hidden, top_k, experts, tokens of a rank.
MEASURED = [
    ("h200-sxm", LOW_LATENCY, "dispatch", 8, 7168, 8, 256, 128, 35.1),
    ("h200-sxm", LOW_LATENCY, "combine", 8, 7168, 8, 256, 128, 67.7),
    ("h200-sxm", LOW_LATENCY, "dispatch", 8, 4096, 2, 8, 1024, 303.7),
    ("h200-sxm", LOW_LATENCY, "combine", 8, 6144, 8, 160, 8, 13.7),
    ("h200-sxm", LOW_LATENCY, "dispatch", 32, 7168, 8, 288, 64, 85.8),
    ("h200-sxm", LOW_LATENCY, "combine", 64, 7168, 8, 256, 256, 579.5),
    ("h200-sxm", HIGH_THROUGHPUT, "dispatch", 8, 2048, 8, 256, 4096, 259.5),
    ("h200-sxm", HIGH_THROUGHPUT, "combine", 8, 5120, 1, 128, 131072, 10752.9),
    ("h200-sxm", HIGH_THROUGHPUT, "dispatch", 16, 7168, 8, 256, 1024, 295.1),
    ("b200-sxm", LOW_LATENCY, "dispatch", 8, 2048, 8, 128, 1024, 53.085),
    ("gb200", ONE_SIDED, "combine", 32, 7168, 8, 256, 1, 32.4),
    ("gb200", ONE_SIDED, "dispatch", 8, 7168, 8, 256, 20480, 884.1),
]
# DeepEP's own documentation (2025-02), H800 with 400 Gb/s, 128 tokens, 7168, top 8, us; inside a node over RDMA then.
PUBLISHED = [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314)]


def times_us(device, mode, op, ranks, hidden, top_k, experts, tokens, number_bytes=None):
    """What a plan's slot says of `tokens` tokens of each rank."""
    device = load_device(device) if isinstance(device, str) else device
    number = NUMBER_BYTES[mode, op] if number_bytes is None else number_bytes
    found = exchange_constants(device, mode, op, hidden, number, top_k, experts, ranks)
    sent = group_copies(mode, top_k, experts, ranks) * hidden * number
    terms = collective_terms(collective_slots([collective(found, 1.0, sent, 0.0)]))
    return [1e6 * float(collective_s(terms, jnp.array(float(n)), jnp.array(0.0))[0]) for n in tokens]


def test_groups_that_hold_an_expert_of_a_token():
    # 2 groups of 2 experts, 2 a token: of 6 pairs 2 lie in one group, 4 in both: (2 x 1 + 4 x 2) / 6
    assert holders(2, 4, 2) == pytest.approx(5 / 3)
    # one after the other, for 12 experts in 3 groups
    chosen = [len({expert // 4 for expert in some}) for some in combinations(range(12), 3)]
    assert holders(3, 12, 3) == pytest.approx(np.mean(chosen))
    assert holders(8, 256, 1) == pytest.approx(1.0)
    assert holders(1, 256, 8) == 1.0


def test_copies_that_leave_a_rank_and_a_node():
    shape = Shape(7168, 7168.0, 8, 256, 16, 2)
    # to each of 8 experts, of which a sixteenth lies on the same rank and half on the same node
    assert copies(LOW_LATENCY, shape) == (7.5, 4.0)
    there, out = copies(HIGH_THROUGHPUT, shape)
    assert there == pytest.approx(holders(16, 256, 8) * 15 / 16)
    assert out == pytest.approx(holders(2, 256, 8) / 2)
    assert copies(HIGH_THROUGHPUT, shape._replace(nodes=1))[1] == 0.0


def test_the_slowest_limit_decides():
    """4 copies of 1,000 bytes leave the rank: 400 ns at 10 GB/s; with a NIC of 1 GB/s 2 of them take 2 us."""
    constants = Constants(1e-6, 1e-9, 1e-10, 0.0, 1e10, np.inf, 0.0, 1e9)
    shape = Shape(500, 1000.0, 8, 64, 2)
    assert token_s(LOW_LATENCY, constants, shape) == pytest.approx(4e-7)
    across = shape._replace(nodes=2, top_k=4)
    # soft: (200^3 + 2,000^3)^(1/3) ns
    assert token_s(LOW_LATENCY, constants, across) == pytest.approx(1e-9 * (200**3 + 2000**3) ** (1 / 3))
    # two blocks of local experts at 0.5 GB/s each
    slow = constants._replace(unit_bytes_per_s=5e8, bytes_per_s=1e15)
    assert token_s(LOW_LATENCY, slow, shape._replace(experts=4)) == pytest.approx(4 * 1000 / (2 * 5e8), rel=1e-6)
    # 1 us + 64 x 1 ns + 500 x 0.1 ns, and 10 tokens of 400 ns + 3 copies... of which (t^1.5 + x^1.5)^(1 / 1.5)
    wanted = (1.114e-6**1.5 + 4e-6**1.5) ** (1 / 1.5)
    assert exchange_s(LOW_LATENCY, constants, shape, np.array([10.0])) == pytest.approx([wanted])


@pytest.mark.parametrize("row", MEASURED)
def test_measured_times_are_met(row):
    *what, tokens, wanted_us = row
    assert times_us(*what, [tokens])[0] == pytest.approx(wanted_us, rel=0.01)
    device, mode, op, ranks, hidden, top_k, experts = what
    found = exchange_constants(load_device(device), mode, op, hidden, NUMBER_BYTES[mode, op], top_k, experts, ranks)
    assert not found.estimated and found.rel_error < 0.05


def test_the_form_is_as_far_off_as_it_says():
    rows = {(row.family, row.mode, row.op, row.ranks, row.nodes): row for row in shipped_rows()}
    assert set(rows) == set(shipped_points())
    for key, several in shipped_points().items():
        errors = []
        for one in several:
            width = one.hidden * NUMBER_BYTES[one.mode, one.op]
            shape = Shape(one.hidden, width, one.top_k, one.experts, one.ranks, one.nodes)
            predicted = exchange_s(one.mode, rows[key].constants, shape, np.array(one.tokens))
            errors += list(np.abs(predicted / np.array(one.time_s) - 1.0))
        assert np.mean(errors) == pytest.approx(rows[key].fit_error, abs=0.002)
        assert rows[key].fit_error < 0.1


@pytest.mark.parametrize(("ranks", "dispatch_us", "combine_us"), PUBLISHED)
def test_what_deepep_itself_published(ranks, dispatch_us, combine_us):
    """Nothing of it is fitted to: another device, another build."""
    found = [times_us("h800", LOW_LATENCY, op, ranks, 7168, 8, 288, [128])[0] for op in OPS]
    assert found == pytest.approx([dispatch_us, combine_us], rel=0.3 if ranks == 8 else 0.1)


def test_one_rank_moves_nothing():
    for mode in MODES:
        assert times_us("h100-sxm", mode, "dispatch", 1, 4096, 8, 128, [1, 1000]) == [0.0, 0.0]


@settings(max_examples=30)
@given(
    st.sampled_from(["h100-sxm", "b200-sxm", "gb200", "h800", "mi300x", "rtx-pro-6000"]),
    st.sampled_from([mode for mode in MODES if mode != ONE_SIDED]),
    st.sampled_from(OPS),
    st.sampled_from([2, 3, 8, 24, 128]),
    st.sampled_from([(7168, 8, 256), (2880, 4, 128), (4096, 1, 128)]),
    st.floats(0.5, 2.0),
)
def test_more_tokens_take_longer(device, mode, op, ranks, shape, number_bytes):
    found = times_us(device, mode, op, ranks, *shape, [1, 2, 7, 60, 500, 4000, 300_000], number_bytes)
    assert found[0] > 5.0
    assert (np.diff(found) > 0).all()


def test_what_was_not_measured_is_said():
    h200 = load_device("h200-sxm")
    asked = (LOW_LATENCY, "dispatch", 7168, 1 + 4 / 128, 8, 256)
    assert not exchange_constants(h200, *asked, 8).estimated
    # another hidden size on the same device and ranks is what the form was fitted for
    other = exchange_constants(h200, LOW_LATENCY, "dispatch", 3072, 1 + 4 / 128, 8, 128, 8)
    assert not other.estimated and 0.02 < other.rel_error < 0.1
    wide = exchange_constants(h200, LOW_LATENCY, "dispatch", 7168, 2.0, 8, 256, 8)
    assert wide.estimated and "here 2" in wide.source and wide.rel_error == 0.12
    many = exchange_constants(h200, *asked, 128)
    assert many.estimated and "among 64 ranks" in many.source
    carried = exchange_constants(load_device("h800"), *asked, 8)
    assert carried.estimated and "link x 0.444" in carried.source
    foreign = exchange_constants(load_device("mi300x"), *asked, 8)
    assert foreign.estimated and foreign.rel_error == 0.25
    assert "network of h100_sxm" in exchange_constants(load_device("b200-sxm"), *asked, 16).source


def test_rates_follow_the_links():
    """Half the NIC takes twice as long for many tokens across nodes; H800's NVLink is slower than H100's."""
    h100, asked = load_device("h100-sxm"), (LOW_LATENCY, "combine", 64, 7168, 8, 256, [100_000])
    slow = replace(
        h100,
        nic=replace(h100.nic, bytes_per_s=h100.nic.bytes_per_s / 2),
    )
    assert times_us(slow, *asked)[0] / times_us(h100, *asked)[0] == pytest.approx(2.0, rel=0.1)
    assert "NIC x 0.5" in exchange_constants(slow, LOW_LATENCY, "combine", 7168, 2.0, 8, 256, 64).source
    asked = (LOW_LATENCY, "combine", 8, 7168, 8, 256, [100_000])
    assert times_us("h800", *asked)[0] / times_us(h100, *asked)[0] == pytest.approx(450 / 200, rel=0.1)


@pytest.mark.parametrize("change", [{"mode": "pplx"}, {"op": "prepare"}, {"ranks": 300}, {"ranks": 0}])
def test_what_is_refused(change):
    asked = {"mode": LOW_LATENCY, "op": "dispatch", "hidden": 7168, "number_bytes": 2.0, "top_k": 8, "experts": 256}
    with pytest.raises(ValueError, match="exchange_constants wants a mode of deepep_low_latency"):
        exchange_constants(load_device("h100-sxm"), **(asked | {"ranks": 8} | change))
