"""Which link joins two ranks, and how much of it a group gets."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from sim.hardware.collectives import collective_constants
from sim.hardware.node import Node, usable_bytes_per_s
from sim.hardware.read import list_devices, load_device
from sim.hardware.spec import LinkConf


DEVICES = {name: load_device(name) for name in list_devices()}


def kinds(name, pairs):
    node = Node(load_device(name))
    return [node.link_between(a, b).kind for a, b in pairs]


def test_links_of_a_node_with_a_switch():
    assert kinds("h100-sxm", [(0, 1), (0, 7), (7, 8), (8, 15), (0, 8)]) == [
        "NVLink",
        "NVLink",
        "InfiniBand",
        "NVLink",
        "InfiniBand",
    ]


def test_without_scale_up_a_node_meets_over_pcie():
    assert kinds("l40s", [(0, 7), (0, 8)]) == ["PCIe", "Ethernet"]


def test_bridged_pairs_are_smaller_than_a_node():
    assert kinds("rtx-3090", [(0, 1), (1, 2), (2, 3), (0, 7), (0, 8)]) == [
        "NVLink",
        "PCIe",
        "NVLink",
        "PCIe",
        "Ethernet",
    ]


def test_a_rack_of_nvlink_is_larger_than_a_node():
    node = Node(load_device("gb200"))
    assert node.devices == 4
    assert node.link_between(0, 71).kind == "NVLink"
    assert node.link_between(0, 72).kind == "InfiniBand"
    assert (node.nodes_for(72), node.nodes_for(73), node.nodes_for(145)) == (1, 2, 3)


def test_group_link_is_that_of_its_ends():
    node = Node(load_device("h100-sxm"))
    assert [node.link_for(g).kind for g in (1, 2, 8, 9)] == ["none", "NVLink", "NVLink", "InfiniBand"]


def test_unlimited_domain():
    device = load_device("tpu-v5e")
    node = Node(replace(device, scale_up=replace(device.scale_up, max_group=0)))
    assert node.link_between(0, 100_000).kind == "ICI"
    assert node.nodes_for(100_000) == 1


@pytest.mark.parametrize(("a", "b"), [(1, 1), (-1, 0)])
def test_ranks_must_differ_and_exist(a, b):
    with pytest.raises(ValueError, match="two different ranks"):
        Node(load_device("l40s")).link_between(a, b)


def test_group_must_have_a_rank():
    with pytest.raises(ValueError, match="at least 1 rank, got 0"):
        Node(load_device("l40s")).link_for(0)


def test_mesh_gives_one_share_per_peer():
    # MI300X: 448 GB/s over seven links of 64; two GPUs share one link, four use three.
    link = load_device("mi300x").scale_up
    assert [usable_bytes_per_s(link, g) / 1e9 for g in (1, 2, 4, 8)] == pytest.approx([448, 64, 192, 448])


def test_torus_opens_a_port_per_doubling():
    # TPU v5e: 4 ports of 50 GB/s: a pair has one, 2 x 2 two, 2 x 4 three, 16 and more all four.
    link = load_device("tpu-v5e").scale_up
    assert [usable_bytes_per_s(link, g) / 1e9 for g in (2, 4, 8, 16, 256)] == pytest.approx([50, 100, 150, 200, 200])


@settings(deadline=None)
@given(st.sampled_from(list_devices()), st.integers(0, 200), st.integers(0, 200))
def test_links_are_symmetric(name, a, b):
    node = Node(DEVICES[name])
    if a != b:
        assert node.link_between(a, b) == node.link_between(b, a)


@given(st.sampled_from(["switch", "mesh", "torus"]), st.integers(1, 8), st.integers(2, 64))
def test_a_larger_group_never_gets_less(topology, ports, group):
    link = LinkConf("X", 1e9, 1e-6, 64, topology, ports)
    assert usable_bytes_per_s(link, group) <= usable_bytes_per_s(link, group + 1) <= link.bytes_per_s


NONE = LinkConf()
CUT = LinkConf("NVLink", 0.0)
PAIRS = LinkConf("NVLink", 300e9, max_group=2)


@pytest.mark.parametrize(
    ("links", "group", "missing"),
    [
        ({}, 8, None),
        ({"scale_up": NONE}, 8, None),
        ({"scale_up": NONE, "pcie": NONE}, 1, None),
        ({"scale_up": PAIRS, "pcie": NONE}, 2, None),
        ({"scale_up": NONE, "pcie": NONE}, 2, "hardware.pcie.kind and hardware.pcie.bytes_per_s .or scale_up"),
        ({"scale_up": CUT, "pcie": LinkConf("none", 32e9)}, 2, "hardware.pcie.kind"),
        ({"scale_up": PAIRS, "pcie": NONE}, 4, "whose scale-up link joins 2, have no link that joins so many"),
        ({"nic": NONE}, 16, "more than the 8 of one node .* hardware.nic.kind and hardware.nic.bytes_per_s"),
    ],
)
def test_a_group_needs_a_link(links, group, missing):
    node = Node(replace(load_device("h100-sxm"), **links))
    if missing is None:
        node.check_link(group)
        return
    with pytest.raises(
        ValueError, match=f"^{group} ranks of NVIDIA H100 .*{missing}.*lower deployment.tensor_parallel"
    ):
        node.check_link(group)
    with pytest.raises(ValueError, match=missing):
        collective_constants(node.device, "all_reduce", group)
