"""Attention instances that share FFN devices, in the exact engine: timings by hand, invariants under pressure."""

import numpy as np
import pytest

from sim.cost.attention_ffn import AttentionFfnPrices, WayPrices
from sim.cost.lengths import LengthTerms
from sim.event.run import run_exact
from sim.report.result import FINISHED
from sim.workload.trace import Workload

from .conftest import make_settings


MS = 1_000_000
TOKENS = 256


def way(latency_s=0.0, token_s=0.0) -> WayPrices:
    """An instance sends a token in `token_s`; the FFN devices take no time for it."""
    return WayPrices(latency_s, token_s * np.arange(TOKENS + 1), np.zeros(8 * TOKENS + 1))


def prices(layers=2, micro_batches=2, there=None, back=None, feed_token_s=2e-5) -> AttentionFfnPrices:
    """A layer of attention is 0.1 ms + 10 us a token of the instance, of FFN 20 us a token of all."""
    return AttentionFfnPrices(
        ends_s=np.zeros(TOKENS + 1),
        mixers_s=1e-4 + 1e-5 * np.arange(TOKENS + 1)[None],
        lengths=(LengthTerms(),),
        feeds_s=feed_token_s * np.arange(8 * TOKENS + 1)[None],
        row_s=np.zeros(129),
        layers=((0, 0),) * layers,
        there=there or way(),
        back=back or way(),
        micro_batches=micro_batches,
        launch_s=np.zeros(3),
        gap_s=np.zeros(3),
        host_s=0.0,
    )


def run(table, arrivals_ms, prompts, outputs, instances=2, **more):
    work = Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs))
    settings = more.pop("settings", make_settings())
    return run_exact(work, settings, table, num_gpu_blocks=100, data_parallel=instances, **more)


def ends_ms(found, rank=0):
    return (found.steps.end_ns[found.steps.replica == rank] / MS).tolist()


def test_two_instances_by_hand():
    """Prompts of 10 and 30 tokens in halves: 0.25 ms of attention where 15 are, 20 tokens x 20 us of FFN. Two layers of
    two: 0.25 + 4 x 0.4. Then a decode each, and a dummy micro-batch: 4 x 0.11 of attention, and one FFN of 0.04."""
    found = run(prices(), [0, 0], [10, 30], [2, 2])
    assert ends_ms(found, 0) == ends_ms(found, 1) == pytest.approx([1.85, 1.85 + 0.48])
    assert found.steps.padded_tokens.tolist() == [10, 2, 30, 2]
    assert all(found.checks.values())


def test_one_micro_batch_in_turn():
    """Two layers of 0.1 + 10 us x 10, 10 tokens x 20 us, and 0.05 ms and 10 x 5 us on both ways."""
    table = prices(micro_batches=1, there=way(5e-5, 5e-6), back=way(5e-5, 5e-6))
    found = run(table, [0], [10], [1], instances=1)
    assert ends_ms(found) == pytest.approx([2 * (0.2 + 0.2 + 2 * (0.05 + 0.05))])


def test_links_bound_the_step():
    """16 tokens in halves, 8 x 100 us there: 0.18 ms, four times 0.8 ms, and an FFN of 0.16 ms at the end."""
    found = run(prices(there=way(0.0, 1e-4)), [0], [16], [1], instances=1)
    assert ends_ms(found) == pytest.approx([0.18 + 4 * 0.8 + 0.16])


def test_without_ffn_time_it_is_attention_alone():
    found = run(prices(feed_token_s=0.0), [0], [16], [1], instances=1)
    assert ends_ms(found) == pytest.approx([4 * 0.18])


@pytest.mark.parametrize("graph_mode", ["NONE", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_every_request_ends_under_memory_pressure(graph_mode, ahead, micro_batches):
    """Three instances with 24 blocks each, preemptions included; the same again, bit for bit."""
    sizes = (1, 2, 4, 8) if graph_mode != "NONE" else ()
    settings = make_settings(graph_mode=graph_mode, graph_sizes=sizes, async_scheduling=ahead)
    draws = np.random.default_rng(5)
    work = Workload(
        "drawn", np.sort(draws.integers(0, 40 * MS, 60)), draws.integers(1, 120, 60), draws.integers(1, 90, 60)
    )
    table = replace_layers(prices(micro_batches=micro_batches, there=way(1e-5, 1e-6)))
    found, again = (run_exact(work, settings, table, num_gpu_blocks=25, data_parallel=3) for _ in range(2))
    assert (found.requests.status == FINISHED).all()
    assert found.requests.preemptions.sum() > 0
    assert all(found.checks.values())
    assert (found.steps.end_ns == again.steps.end_ns).all()


def replace_layers(table: AttentionFfnPrices) -> AttentionFfnPrices:
    """Layers with and without a feed-forward part."""
    return table._replace(layers=((0, 0), (0, None)) * 3)
