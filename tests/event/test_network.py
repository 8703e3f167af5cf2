"""Links shared by flows: hand-worked times, and that max-min fairness is what it says."""

import pytest
from hypothesis import given, strategies as st

from sim.event.agenda import NEVER, Agenda
from sim.event.network import Network, fair_rates


GB = 1e9


def run(agenda):
    """All events, and nothing else."""
    while agenda.next_ns != NEVER:
        _, action = agenda.pop()
        action(agenda.now_ns)


def ended(capacities, flows):
    """When each of the flows (start in ns, links, bytes) ends."""
    agenda = Agenda()
    network = Network(agenda, capacities)
    ends = {}

    def begin(number, links, size):
        def at(now_ns):
            network.start(links, size, lambda then: ends.setdefault(number, then))

        return at

    for number, (start, links, size) in enumerate(flows):
        agenda.at(start, begin(number, links, size))
    run(agenda)
    return [ends[number] for number in range(len(flows))], network


def test_two_flows_on_one_link_take_twice_as_long():
    (alone,), _ = ended([GB], [(0, (0,), 1e6)])
    both, network = ended([GB], [(0, (0,), 1e6), (0, (0,), 1e6)])
    assert (alone, both) == (1_000_000, [2_000_000, 2_000_000])
    assert (network.bytes, network.busy_ns, network.most_flows) == ([2e6], [2_000_000], [2])


def test_a_late_flow_slows_an_early_one():
    # 1 MB at 1 GB/s; after 0.5 ms a second one of 1 MB: both at half. The first has 0.5 MB left: ends at 1.5 ms. The
    # second has moved 0.5 MB by then, and has the link alone for the rest: 2 ms.
    assert ended([GB], [(0, (0,), 1e6), (500_000, (0,), 1e6)])[0] == [1_500_000, 2_000_000]


def test_forty_transfers_end_when_the_capacity_says():
    ends, network = ended([GB], [(0, (0,), 1e6)] * 40)
    assert ends == [40_000_000] * 40
    assert network.busy_ns == [40_000_000]


def test_what_one_link_leaves_over_goes_to_others():
    # Flow 0 over links 0 and 1, flow 1 over 0, flow 2 over 1; capacities 1 and 3: link 0 gives both 0.5, flow 2 has 2.5
    rates = fair_rates({0: 1.0, 1: 3.0}, {0: (0, 1), 1: (0,), 2: (1,)})
    assert rates == {0: 0.5, 1: 0.5, 2: 2.5}


@given(st.data())
def test_rates_are_max_min_fair(data):
    """No link carries more than it can, and every flow has a full link on which nobody is faster: max-min fairness."""
    links = data.draw(st.integers(1, 5))
    capacity = {link: data.draw(st.floats(0.5, 10.0)) for link in range(links)}
    paths = {
        number: tuple(sorted(data.draw(st.sets(st.integers(0, links - 1), min_size=1, max_size=3))))
        for number in range(data.draw(st.integers(1, 12)))
    }
    rates = fair_rates(capacity, paths)
    for number, path in paths.items():
        tight = []
        for link in path:
            here = [rates[other] for other, way in paths.items() if link in way]
            assert sum(here) <= capacity[link] * (1 + 1e-9)
            tight.append(sum(here) >= capacity[link] * (1 - 1e-9) and rates[number] >= max(here) * (1 - 1e-9))
        assert any(tight)


@given(st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 2), st.integers(1, 4_000_000)), max_size=15))
def test_no_byte_is_lost_and_no_link_is_faster_than_it_can(flows):
    """Each link is busy at least for its bytes, and each flow takes at least its bytes over the narrowest link."""
    rates = [GB, 2 * GB, 0.5 * GB]
    paths = [(0,), (0, 1), (1, 2)]
    ends, network = ended(rates, [(start, paths[way], float(size)) for start, way, size in flows])
    for link, rate in enumerate(rates):
        sent = sum(size for _, way, size in flows if link in paths[way])
        assert network.bytes[link] == sent
        assert network.busy_ns[link] >= sent / rate * 1e9 - 1
    for end, (start, way, size) in zip(ends, flows, strict=True):
        assert end - start >= size / min(rates[link] for link in paths[way]) * 1e9 - 1
    if not flows:
        assert network.busy_ns == pytest.approx([0, 0, 0])
