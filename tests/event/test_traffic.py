"""KV between many replicas in closed form: worked by hand, and how far it is from max-min fair flows as events."""

import random

import pytest

from sim.deployment.conf import TransferConf
from sim.deployment.topology import lay_out
from sim.deployment.traffic import traffic
from sim.event.agenda import NEVER, Agenda
from sim.event.network import Network
from sim.hardware.spec import DeviceConf, LinkConf


DEVICE = DeviceConf("chip", devices_per_node=8, nic=LinkConf("RoCE", 50e9, 5e-6))


def fabric(pairs, devices, oversubscription):
    transfer = TransferConf(oversubscription=oversubscription, placement="separate")
    topology = lay_out([("p", DEVICE, pairs, devices), ("d", DEVICE, pairs, devices)], transfer, 1.0)
    return topology, traffic(topology, range(pairs), range(pairs, 2 * pairs))


def simulated(topology, found, load, flows=4000, seed=0):
    """Mean seconds per byte of flows between drawn pairs at drawn times, the first tenth left out."""
    draw, agenda, size = random.Random(seed), Agenda(), 1e9
    network = Network(agenda, topology.bytes_per_s)
    ends, at_ns = [], 0.0
    for _ in range(flows):
        at_ns += draw.expovariate(load * found.most_bytes_per_s / size * 1e-9)

        path = draw.choice(found.paths)

        def begin(now_ns, path=path):
            network.start(path, size, lambda then: ends.append((now_ns, then - now_ns)))

        agenda.at(int(at_ns), begin)
    while agenda.next_ns != NEVER:
        _, action = agenda.pop()
        action(agenda.now_ns)
    late = sorted(ends)[flows // 10 :]
    return sum(took_ns for _, took_ns in late) * 1e-9 / size / len(late)


def test_what_a_fabric_carries():
    """4 sources of 8 devices at 50 GB/s: 400 GB/s each. Oversubscribed by 4, 100 GB/s leave a node; two share one."""
    assert fabric(4, 8, 1.0)[1].most_bytes_per_s == pytest.approx(1600e9)
    assert fabric(4, 8, 4.0)[1].most_bytes_per_s == pytest.approx(400e9)
    assert fabric(4, 4, 4.0)[1].most_bytes_per_s == pytest.approx(200e9)


def test_alone_a_transfer_takes_its_bytes_over_the_narrowest_link():
    """The event form agrees to the nanosecond, on every pair of a large domain."""
    topology, found = fabric(32, 4, 2.0)
    assert found.transfer_s(1e9) == pytest.approx(1e9 / 200e9)
    for path in found.paths[::37]:
        agenda, ends = Agenda(), []
        Network(agenda, topology.bytes_per_s).start(path, 1e9, ends.append)
        while agenda.next_ns != NEVER:
            _, action = agenda.pop()
            action(agenda.now_ns)
        assert ends == [5_000_000]


@pytest.mark.parametrize(
    ("pairs", "devices", "over", "load", "within", "flows"),
    [
        (32, 8, 1.0, 0.1, 0.02, 4000),
        (32, 8, 4.0, 0.3, 0.03, 4000),
        (8, 8, 1.0, 0.5, 0.05, 4000),
        (8, 4, 4.0, 0.5, 0.10, 12000),
        (2, 8, 1.0, 0.5, 0.15, 30000),
    ],
)
def test_error_under_load(pairs, devices, over, load, within, flows):
    """Queues on few links go together: there the closed form is up to a seventh too long."""
    topology, found = fabric(pairs, devices, over)
    events_s = simulated(topology, found, load, flows)
    assert found.transfer_s(1.0, load * found.most_bytes_per_s) == pytest.approx(events_s, rel=within)


def test_more_than_the_links_carry_takes_for_ever():
    _, found = fabric(2, 8, 1.0)
    assert found.transfer_s(1.0, found.most_bytes_per_s) == float("inf")


def test_some_pairs_stand_for_many():
    topology, some = fabric(200, 8, 1.0)
    assert len(some.paths) <= 20_000
    assert some.most_bytes_per_s == pytest.approx(200 * 400e9, rel=0.02)
    assert len(topology.names) == 400
