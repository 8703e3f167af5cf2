"""Collectives of a device by ASTRA-sim's rules: links as dimensions; constants give the closed form's times."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sim.cost.collective import collective_s, collective_terms
from sim.deployment.exchange import collective, collective_slots
from sim.hardware.collective_rules import Dimension, Rules, closed_form_ns
from sim.hardware.collectives import OPERATIONS, collective_constants
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf, LinkConf


def by_rule(name):
    return replace(load_device(name), collectives="astra-sim")


def priced(constants, size_bytes):
    """What a plan's slot of one row of so many bytes costs, seconds."""
    with jax.enable_x64(True):
        terms = collective_terms(jax.tree.map(jnp.asarray, collective_slots([collective(constants, 1.0, 1.0, 0.0)])))
        return float(collective_s(terms, jnp.asarray(float(size_bytes)), jnp.asarray(0.0))[0])


def test_one_node_by_hand():
    """8 ranks at a switch, 4 chunks: 14 hops of 2 x 0.3 us and 1/8 of a chunk each, 10 ns an end; 7 sums, 3 passes."""
    device = by_rule("h100-sxm")
    size = 1 << 26
    part = size / 4 / 8
    hop = 0.6e-6 + part / 450e9
    expected = 4 * (14 * (hop + 10e-9) + 7 * 3 * part / device.memory_bytes_per_s + 10e-9)
    assert priced(collective_constants(device, "all_reduce", 8), size) == pytest.approx(expected, rel=1e-9)


def test_a_mesh_sends_to_all_at_once():
    """Eight of a mesh: a seventh of the rate to each peer, of 8 ranks a chunk's eighth to each."""
    device = by_rule("mi300x")
    size = 1 << 26
    part, way = size / 4 / 8, 448e9 / 7
    expected = 4 * (1e-6 + part / way + 2 * 10e-9)
    assert priced(collective_constants(device, "all_to_all", 8), size) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize(("name", "group"), [("h100-sxm", 4), ("h100-sxm", 32), ("mi300x", 2), ("tpu-v5e", 4)])
def test_the_plan_prices_what_the_closed_form_says(op, name, group):
    """At every size the interpolation of a plan is within 1 % of the closed form, across nodes too."""
    from sim.hardware.collectives_ruled import ruled

    device = by_rule(name)
    constants = collective_constants(device, op, group)
    found = ruled(device, op, group)
    assert constants.estimated and "ASTRA-sim" in constants.source
    for log, time_s in zip(range(10, 33), found.time_s, strict=True):
        assert priced(constants, 1 << log) == pytest.approx(time_s, rel=1e-6)
    assert list(found.time_s) == sorted(found.time_s)


def test_nodes_are_a_second_dimension():
    device = by_rule("h100-sxm")
    rules = Rules(4, 1, 10, device.memory_bytes_per_s * 1e-9)
    inner = Dimension("Switch", 8, 300, 450)
    outer = Dimension("Switch", 4, device.nic.latency_s * 1e9 / 2, device.nic.bytes_per_s * 1e-9)
    expected = closed_form_ns("all_reduce", 1 << 26, [inner, outer], rules) * 1e-9
    assert priced(collective_constants(device, "all_reduce", 32), 1 << 26) == pytest.approx(expected, rel=1e-6)


def test_ranks_on_nodes_of_one():
    device = DeviceConf(
        "one",
        memory_bytes_per_s=1e12,
        devices_per_node=1,
        nic=LinkConf("RoCE", 50e9, 4e-6),
        collectives="astra-sim",
    )
    # an all-gather of m: every rank puts in m / 2; one hop of 4 us a chunk
    expected = 4 * (4e-6 + (1 << 20) / 2 / 4 / 50e9 + 2 * 10e-9)
    assert priced(collective_constants(device, "all_gather", 2), 1 << 20) == pytest.approx(expected, rel=1e-9)


def test_a_slower_link_takes_longer():
    device = by_rule("h100-sxm")
    slower = replace(device, scale_up=replace(device.scale_up, bytes_per_s=225e9))
    times = [priced(collective_constants(each, "all_reduce", 8), 1 << 30) for each in (device, slower)]
    assert 1.8 < times[1] / times[0] < 2.0
    assert all(math.isfinite(time) for time in times) and np.all(np.diff(times) > 0)
