"""Steps of attention instances and FFN devices: that the table and the components tell one price, what each side holds
of it, and what changes where a side or a link costs nothing."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cost.attention_ffn import attention_ffn_prices, shares
from sim.cost.attention_ffn_steps import attention_ffn_steps
from sim.deployment.attention_ffn import compile_ffn
from sim.deployment.conf import DeploymentConf, FfnConf
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineProfile
from sim.deployment.lower import lower_rank
from sim.event.attention_ffn import AttentionFfnPricer
from sim.hardware.spec import LinkConf
from sim.model.sides import attention_side
from sim.model.spec import Dense, Layer
from tests.cost.test_lockstep import COLUMNS, made, table
from tests.event.conftest import make_settings


INSTANCES = 2
SETTINGS = make_settings(graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 4, 8), profile=EngineProfile())
NOTHING_HIDDEN = {"launch_s": np.zeros(3), "gap_s": np.zeros(3), "host_s": np.zeros(())}


@pytest.fixture(scope="module")
def model(experts):
    """Routed layers around a dense one."""
    routed = experts.layers[0]
    return replace(experts, layers=(routed, routed, Layer(routed.mixer, Dense(2048)), routed))


def sides(model, device, *, micro_batches=2, instances=INSTANCES, tensor=1, **ffn):
    """What a rank runs, and the FFN side."""
    deployment = DeploymentConf(
        data_parallel=instances,
        tensor_parallel=tensor,
        ffn=FfnConf(**{"devices": 4, "micro_batches": micro_batches} | ffn),
    )
    settings = replace(SETTINGS, kv_bytes_per_element=2.0)
    own = lower_rank(attention_side(model), device, Domains(tensor, 1, tensor, 1)).own
    return own, compile_ffn(model, device, device, settings, deployment)


def priced(cost, own, ffn, steps):
    """Duration in s of each step by the pricer, and rows, their step and the components."""
    pricer = AttentionFfnPricer(attention_ffn_prices(cost, cost, own, ffn, 64, 8), SETTINGS)
    rows, number, durations_s = [], [], []
    for index, batches in enumerate(steps):
        duration_ns, padded, mode = pricer(batches)
        durations_s.append(1e-9 * duration_ns)
        number += [index] * len(batches)
        for batch, tokens in zip(batches, padded, strict=True):
            one = {} if batch is None else {name: getattr(batch, name, 0.0) for name in COLUMNS}
            rows.append(one | {"padded_tokens": tokens, "graph_mode": mode})
    found, sides = attention_ffn_steps(cost, cost, own, ffn, table(rows), np.array(number))
    return np.array(durations_s), rows, found, sides


STEPS = [
    [made(0, (30, 500, 90)), made(0, (7,))],
    [made(40, (30,)), made(0, (2000, 90))],
    [made(6, ()), None],
    [made(0, (100,) * 8), made(0, (100,) * 8)],
]


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
def test_the_table_and_the_components_tell_the_same_price(model, device, cost, micro_batches):
    durations_s, _, found, both = priced(cost, *sides(model, device, micro_batches=micro_batches), STEPS)
    assert found["total_s"] == pytest.approx(np.repeat(durations_s, INSTANCES), abs=0.51e-9)
    assert both.total_s == pytest.approx(durations_s, abs=0.51e-9)
    parts = [name for name in found if name.endswith("_s") and name not in ("total_s", "error_s", "outside_s")]
    assert np.sum([found[name] for name in parts], axis=0) == pytest.approx(found["total_s"], rel=1e-12)
    assert (found["wait_s"] > -1e-15).all()
    assert (both.attention_s < both.total_s).all()
    assert (both.ffn_s < both.total_s).all()
    assert (both.shown_s <= both.moving_s + 1e-15).all()


def test_one_micro_batch_is_the_sum_of_everything(model, device, cost):
    """Of one instance: its own kernels, the FFN devices' and all transfers, one after the other."""
    own, ffn = sides(model, device, micro_batches=1, instances=1)
    own = replace(own, device=replace(own.device, **NOTHING_HIDDEN))
    ffn = replace(ffn, launch_s=np.zeros(3))
    durations_s, _, _, both = priced(cost, own, ffn, [[made(0, (30, 500, 90))], [made(24, (30,))]])
    assert durations_s == pytest.approx(both.attention_s + both.ffn_s + both.moving_s, abs=1e-9)
    assert both.shown_s == pytest.approx(both.moving_s, rel=1e-9)


def test_beside_a_long_side_the_other_and_the_links_hide(model, device, cost):
    """FFN devices with a thousandth of the memory rate: their time, and an attention at the beginning and the end."""
    own, ffn = sides(model, device)
    own = replace(own, device=replace(own.device, **NOTHING_HIDDEN))
    slow = [replace(x, device=replace(x.device, memory_bytes_per_s=np.array(1e9))) for x in ffn.feeds]
    ffn = replace(ffn, feeds=tuple(slow), launch_s=np.zeros(3))
    _, _, _, both = priced(cost, own, ffn, STEPS)
    assert (both.ffn_s > 0.95 * both.total_s).all()
    hidden = 1.0 - both.shown_s / both.moving_s
    assert (hidden > 0.7).all()


def test_the_ffn_devices_run_what_all_instances_send(model, device, cost):
    """Two halves of each in a graph of 2; eager, each its own 41 and 2; 3 of a prompt in a graph of 4, and dummies."""
    _, rows, _, both = priced(cost, *sides(model, device), STEPS)
    assert [row["padded_tokens"] for row in rows] == [4, 4, 41, 2, 8, 8, 8, 8]
    assert both.padded_tokens.tolist() == [8, 43, 16, 16]
    assert both.tokens.tolist() == [4, 43, 6, 16]


def test_the_slowest_instance_is_waited_for(model, device, cost):
    """One instance with long contexts makes the step as long as two of them do; the other waits for it."""
    own, ffn = sides(model, device)
    steps = [[made(0, (6000,) * 4), made(0, (10,) * 4)], [made(0, (6000,) * 4)] * 2, [made(0, (10,) * 4)] * 2]
    durations_s, _, found, both = priced(cost, own, ffn, steps)
    assert durations_s[0] == durations_s[1]
    assert durations_s[2] < durations_s[1]
    assert both.straggler_s[1] == pytest.approx(0.0, abs=1e-15)
    assert both.straggler_s[0] == pytest.approx((found["attention_s"][0] - found["attention_s"][1]) / 2)
    assert found["wait_s"][1] > found["wait_s"][0]


def test_activations_are_sent_in_shares(model, device):
    """hidden 1,024 in 16 bits; in fp8 there with a float per 128. Two attention devices of an instance send half each,
    four FFN devices receive a quarter each of all."""
    _, ffn = sides(model, device, tensor=2)
    assert ffn.there.bytes_per_token == ffn.back.bytes_per_token == 2048
    assert ffn.there.attention.bytes_per_token[0] == 1024
    assert ffn.there.ffn.bytes_per_token[0] == 512
    _, small = sides(model, device, dispatch_dtype="fp8")
    assert small.there.bytes_per_token == 1024 * (1 + 4 / 128)
    assert small.back.bytes_per_token == 2048


def test_the_two_sides_hold_all_kernels_but_the_exchange(model, device, cost):
    """On one device each, products and experts of both sides are those of the model on one device."""
    own, ffn = sides(model, device, instances=1, devices=1, micro_batches=1)
    whole = lower_rank(model, device, Domains()).own

    def work(*plans):
        products = sum(float(np.sum(p.gemm.count * p.gemm.n * p.gemm.k)) for p in plans)
        return (
            products,
            sum(float(p.moe.count.sum()) for p in plans),
            sum(float(p.attention.count.sum()) for p in plans),
        )

    layers = [plan for mixer, feed in ffn.layers for plan in (ffn.mixers[mixer], ffn.feeds[feed])]
    assert work(ffn.ends, *layers) == work(whole)
    assert [float(ffn.feeds[0].collective.count.sum()), float(ffn.mixers[0].collective.count.sum())] == [0, 0]
    assert float(own.moe.count.sum()) == 0


def test_links_are_those_of_one_node_or_the_network(model, device):
    network = replace(device, nic=LinkConf(kind="RoCE", bytes_per_s=25e9, latency_s=5e-6, max_group=0))
    assert sides(model, device, devices=4)[1].link == "NVLink of one node"
    far = sides(model, replace(network, devices_per_node=4, scale_up=replace(device.scale_up, max_group=4)), devices=4)
    assert far[1].link == "RoCE of Round"


def test_shares_are_whole_and_nearly_equal():
    assert shares(7, 3) == [3, 2, 2]
    assert shares(2, 4) == [1, 1, 0, 0]


def test_ffn_devices_of_several_nodes_gather_inside_theirs(model, device):
    """Eight in two nodes of four: each node gets all tokens, so twice the bytes, a quarter of them on each device."""
    network = LinkConf(kind="RoCE", bytes_per_s=25e9, latency_s=5e-6, max_group=0)
    small = replace(device, devices_per_node=4, scale_up=replace(device.scale_up, max_group=4), nic=network)
    _, ffn = sides(model, small, devices=8)
    assert ffn.there.bytes_per_token == 2 * 2048
    assert ffn.there.attention.bytes_per_token[0] == 2 * 2048
    assert ffn.there.ffn.bytes_per_token[0] == 2048 / 4
    _, one = sides(model, small, devices=4)
    for name in ("count", "bytes_per_token", "factor", "a_s", "bytes_per_s"):
        assert np.array_equal(getattr(ffn.feeds[0].collective, name), getattr(one.feeds[0].collective, name))
