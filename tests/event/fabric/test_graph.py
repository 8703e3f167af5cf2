"""Graphs of work over ranks: recorded ones of ASTRA-sim, and worked by hand."""

from pathlib import Path

import pytest

from calibration.astra_sim import GRAPH_RULES, read_graphs
from sim.event.fabric.graph import COLLECTIVE, COMPUTE, LOAD, RECEIVE, SEND, Graph, Node
from sim.hardware.collective_rules import Dimension, Rules


WAY = (Dimension("Ring", 3, 100, 10),)
RULES = Rules(1, 1, 0, 1e12, queued=True)


@pytest.mark.parametrize("graph", read_graphs(Path(__file__).with_name("graphs.json")), ids=lambda one: one.name)
def test_recorded_graphs(graph):
    assert Graph(graph.dimensions, GRAPH_RULES, graph.graphs, graph.memory_of).run() == graph.finish_ns


def test_all_graphs(shared):
    graphs = read_graphs(shared / "data" / "astra-sim" / "astra_sim_dag_golden.json")
    assert len(graphs) == 13
    for one in graphs:
        assert Graph(one.dimensions, GRAPH_RULES, one.graphs, one.memory_of).run() == one.finish_ns, one.name


def run(*graphs, memory=(0, 1, 2)):
    return Graph(
        WAY, RULES, {rank: dict(enumerate(own)) for rank, own in enumerate(graphs)}, dict(enumerate(memory))
    ).run()


def test_computing_hides_communication_and_sends_take_turns():
    """Two sends of 1,000 bytes: 200 ns each, one after the other; 300 ns of computing beside them."""
    sends = [Node(SEND, size_bytes=1000, channel=(0, 1, tag)) for tag in range(2)]
    takes = [Node(RECEIVE, channel=(0, 1, tag)) for tag in range(2)]
    found = run([*sends, Node(COMPUTE, (), 300)], [*takes, Node(COMPUTE, (0,), 50)], [])
    assert found == {0: 400, 1: 400}


def test_a_collective_waits_for_the_last_rank():
    """All-gather of 1,000 bytes each: 100 ns on a link and 100 ns of latency a message; rank 2 joins at 1,000."""
    gather = Node(COLLECTIVE, (0,), op="all_gather", size_bytes=1000)
    found = run(*([Node(COMPUTE, (), wait), gather] for wait in (0, 0, 1000)))
    # What rank 2 wants lies there already: it has all at once, and sends both its messages one after the other, at
    # 1,000 and 1,100. Rank 0 has the second at 1,300; the first it passed on to rank 1 at 1,200.
    assert found == {0: 1300, 1: 1400, 2: 1000}


def test_loads_of_one_memory_take_turns():
    loads = [[Node(LOAD, (), 70)]] * 3
    assert run(*loads) == {0: 70, 1: 70, 2: 70}
    assert run(*loads, memory=(0, 0, 1)) == {0: 70, 1: 140, 2: 70}


def test_what_never_ends_is_said():
    with pytest.raises(ValueError, match=r"ranks \[1\] never end"):
        run([], [Node(RECEIVE, channel=(0, 1, 0))], [])
