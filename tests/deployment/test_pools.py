"""Pools of a deployment: what each resolves to, and one sentence for each that cannot be."""

import dataclasses

import pytest

from sim.deployment.conf import DeploymentConf, PoolConf, TransferConf
from sim.deployment.pools import pools_of
from sim.deployment.settings import load_engine
from sim.deployment.topology import lay_out
from sim.hardware.read import load_device


H100, H20 = load_device("h100-sxm"), load_device("h20")
ENGINE = load_engine("vllm", "0.33.0")


def pd(**changes):
    pools = {"p": PoolConf(role="prefill"), "d": PoolConf(role="decode")}
    pools |= {key: PoolConf(**value) for key, value in changes.pop("pools", {}).items()}
    return DeploymentConf(pools=pools, **changes)


def test_without_pools_it_is_itself():
    flat = DeploymentConf(tensor_parallel=2)
    (only,) = pools_of(flat, H100, ENGINE)
    assert (only.name, only.role, only.deployment, only.device, only.engine) == ("", "both", flat, H100, ENGINE)


def test_each_pool_has_its_own_device_engine_and_settings():
    pools = {
        "p": {"role": "prefill", "replicas": 2, "tensor_parallel": 4, "settings": {"max_num_seqs": 64}},
        "d": {"role": "decode", "hardware": "h20", "engine": "vllm-0.19.0"},
    }
    prefill, decode = pools_of(pd(pools=pools), H100, ENGINE)
    assert (prefill.deployment.replicas, prefill.deployment.tensor_parallel) == (2, 4)
    assert (prefill.engine.max_num_seqs, prefill.engine.version, prefill.device) == (64, "0.33.0", H100)
    assert (decode.device.name, decode.engine.version, decode.engine.max_num_seqs) == (H20.name, "0.19.0", None)
    assert ENGINE.max_num_seqs is None


@pytest.mark.parametrize(
    ("deployment", "words"),
    [
        (
            pd(pools={"d": {"role": "decoder"}}),
            r"deployment.pools.d.role must be one of both, prefill, decode, .*did you",
        ),
        (pd(pools={"d": {"role": "decode", "replicas": 0}}), r"deployment.pools.d.replicas must be at least 1, got 0"),
        (pd(pools={"d": {"role": "both"}}), "a pool of role prefill and none of role decode"),
        (pd(pools={"d": {"role": "decode", "hardware": "h2000"}}), "hardware=h2000 is not a known device"),
        (
            pd(pools={"d": {"role": "decode", "engine": "vllm-9"}}),
            "deployment.pools.d.engine=vllm-9 is not a known engine",
        ),
        (pd(pools={"d": {"role": "decode", "settings": {"seqs": 1}}}), r"pools.d.settings.seqs is not a setting"),
        (
            pd(pools={"d": {"role": "decode", "settings": {"max_num_seqs": "many"}}}),
            "max_num_seqs must be a whole number",
        ),
        (
            pd(tensor_parallel=2),
            r"deployment.tensor_parallel does nothing here: where pools are listed .*pools.p.tensor_par",
        ),
        (pd(pairing="never"), "deployment.pairing must be one of after_prefill, at_arrival, got 'never'"),
        (pd(transfer=TransferConf(placement="apart")), "deployment.transfer.placement must be one of packed, separate"),
        (
            pd(transfer=TransferConf(efficiency=2.0)),
            "deployment.transfer.efficiency must be between 1e-4 and 1, got 2",
        ),
        (pd(transfer=TransferConf(latency_s=-1.0)), "deployment.transfer.latency_s must be between 0 and 100 seconds"),
        (pd(transfer=TransferConf(oversubscription=0.5)), "deployment.transfer.oversubscription must be between 1 and"),
        (DeploymentConf(pairing="at_arrival"), "deployment.pairing does nothing here: it wants a pool of role prefill"),
        (
            DeploymentConf(decode_router="random"),
            "deployment.decode_router does nothing here: it wants a pool of role prefill",
        ),
        (pd(pools={"d": {"role": "decode", "engine": "sglang-0.5"}}), "KV is handed over between instances of one"),
    ],
)
def test_what_cannot_be(deployment, words):
    with pytest.raises(ValueError, match=words):
        pools_of(deployment, H100, ENGINE)


def test_replicas_fill_nodes_and_never_cross_one_that_could_hold_them():
    # Nodes of 8: three replicas of 3 devices: two in node 0 (ranks 0-2, 3-5), the third does not fit in 6-7.
    three = lay_out([("a", H100, 3, 3)], TransferConf(), 1.0)
    assert [end.nodes for end in three.endpoints] == [((H100.name, n),) for n in (0, 0, 1)]
    # packed: the next pool goes on in the same node; separate: it begins another
    packed = lay_out([("a", H100, 1, 3), ("b", H100, 1, 4)], TransferConf(), 1.0)
    apart = lay_out([("a", H100, 1, 3), ("b", H100, 1, 4)], TransferConf(placement="separate"), 1.0)
    assert [end.nodes[0][1] for end in packed.endpoints] == [0, 0]
    assert [end.nodes[0][1] for end in apart.endpoints] == [0, 1]
    # one of 16 devices has two nodes; another kind of device has nodes of its own
    mixed = lay_out([("a", H100, 1, 16), ("b", H20, 1, 8)], TransferConf(), 1.0)
    assert [end.nodes for end in mixed.endpoints] == [((H100.name, 0), (H100.name, 1)), ((H20.name, 0),)]


def test_the_way_of_kv():
    layout = lay_out([("p", H100, 1, 2), ("d", H20, 1, 4)], TransferConf(), 0.5)
    out, into = layout.path(0, 1)
    assert (layout.names[out], layout.names[into]) == ("p out", "d in")
    assert layout.bytes_per_s[out] == 0.5 * 2 * H100.nic.bytes_per_s
    assert layout.bytes_per_s[into] == 0.5 * 4 * H20.nic.bytes_per_s
    assert layout.path(0, 1) == (out, into)
    lonely = dataclasses.replace(H100, nic=dataclasses.replace(H100.nic, kind="none"))
    with pytest.raises(ValueError, match=r"KV of p cannot reach d: .* has no network; give hardware.nic.kind"):
        lay_out([("p", lonely, 1, 8), ("d", H20, 1, 1)], TransferConf(), 1.0).path(0, 1)
