"""Pipeline stages in time: hand-worked timelines, and what holds whatever the workload."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.cost.stages import StagePrices
from sim.deployment.settings import load_engine
from sim.event.run import run_exact
from sim.report.result import FINISHED
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


MS = 1_000_000


def workload(arrivals_ms, prompts, outputs, **more) -> Workload:
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs), **more)


def pipeline(*stages_s, hop_s=1e-3, return_s=2e-3) -> StagePrices:
    """Stages of constant duration; equal ones share a table."""
    tables = {s: make_table(base_s=s, token_s=0.0, row_s=0.0) for s in stages_s}
    return StagePrices(tuple(tables[s] for s in stages_s), np.full(4097, hop_s), return_s)


def staged(stages, version=None, sleep_s=0.0, **changes):
    """Settings of `stages` stages; with a `version`, its rules, in async mode."""
    profile = dataclasses.replace(
        load_engine("vllm", version or "0.19.0").profile, idle_sleep_s=sleep_s, host_step_s=0.0, api_pickup_s=0.0
    )
    ahead = version is not None
    depth = stages + 1 if ahead and profile.async_adds_depth else max(stages, 2) if ahead else stages
    return make_settings(
        profile=profile, pipeline_parallel=stages, async_scheduling=ahead, batches_in_flight=depth, **changes
    )


def test_two_micro_batches_by_hand():
    """Two stages of 10 ms, 1 ms between them, synchronous. A and B fill the token budget of a batch each.

        ms        0    10   20 21   31 32   41 42   52 53   62 63   73
        stage 0   |A---|B---|  |A---|B---|  |  |A---|B---|
        stage 1      1 |A---|  |B---|1 |A---|  |B---|1 |A---|  |B---|

    A's token is there at 21; its decode is issued then and starts at once, as stage 0 is free since 20. B's prefill
    leaves stage 1 at 31, B's decode starts at 31 and finds stage 1 busy with A's until 42, and so on.
    """
    run = run_exact(workload([0, 0], [64, 64], [3, 3]), staged(2), pipeline(10e-3, 10e-3), num_gpu_blocks=100, seed=0)
    assert run.stages is not None
    assert (run.stages.start_ns // MS).tolist() == [[0, 11], [10, 21], [21, 32], [31, 42], [42, 53], [52, 63]]
    assert (run.stages.end_ns // MS).tolist() == [[10, 21], [20, 31], [31, 42], [41, 52], [52, 63], [62, 73]]
    assert (run.steps.start_ns // MS).tolist() == [0, 10, 21, 31, 42, 52]
    assert (run.steps.end_ns // MS).tolist() == [21, 31, 42, 52, 63, 73]
    assert (run.requests.first_token_ns // MS).tolist() == [21, 31]
    assert (run.requests.finish_ns // MS).tolist() == [63, 73]
    assert dict(zip(run.itl_ns.tolist(), run.itl_count.tolist(), strict=True)) == {21 * MS: 4}


def test_idle_sleep_between_output_and_next_decode():
    """One request alone, synchronous, two stages: the call that waits for the output issued an empty batch.

    So it sleeps 1 ms before the decode is issued: tokens 21 + 1 ms apart.
    """
    run = run_exact(workload([0], [64], [4]), staged(2, sleep_s=1e-3), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    assert (run.steps.end_ns // MS).tolist() == [21, 43, 65, 87]
    without = run_exact(workload([0], [64], [4]), staged(2), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    assert (without.steps.end_ns // MS).tolist() == [21, 42, 63, 84]


def test_staggered_decodes_by_hand():
    """vLLM 0.33, two stages, three batches in flight: the sleep hides behind the decode under way.

    Batch 0 [0, 10], [11, 21]. The next decode may be issued two calls later: call 1 is empty and sleeps to 1 ms, call 2
    issues it. It needs the token of batch 0, sampled at 21 and back on stage 0 at 23: [23, 33], [34, 44]. So tokens
    are 10 + 1 + 10 + 2 ms apart.
    """
    run = run_exact(workload([0], [64], [3]), staged(2, "0.33.0", 1e-3), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    assert run.stages is not None
    assert (run.stages.start_ns // MS).tolist() == [[0, 11], [23, 34], [46, 57]]
    assert (run.steps.end_ns // MS).tolist() == [21, 44, 67]
    assert (run.requests.finish_ns // MS).tolist() == [67]


def test_staggered_micro_batches_overlap():
    """A and B in batches of their own keep both stages busy: B's decodes run while A's tokens come back."""
    run = run_exact(workload([0, 0], [64, 64], [9, 9]), staged(2, "0.33.0"), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    one = run_exact(workload([0], [64], [9]), staged(2, "0.33.0"), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    # B is 10 ms behind A all along: twice the tokens in 10 ms more
    assert run.requests.finish_ns.tolist() == [one.requests.finish_ns[0], one.requests.finish_ns[0] + 10 * MS]


def test_one_batch_at_a_time_by_hand():
    """vLLM 0.19, asynchronous: the first stage waits for the sampled tokens of every batch, 2 ms after the last stage.

    A and B are in every batch from the second on; nothing overlaps: batches are 21 + 2 ms apart.
    """
    run = run_exact(workload([0, 0], [64, 64], [2, 2]), staged(2, "0.19.0"), pipeline(10e-3, 10e-3), num_gpu_blocks=100)
    assert run.stages is not None
    assert (run.stages.start_ns[:, 0] // MS).tolist()[:3] == [0, 23, 46]
    assert (run.stages.start_ns[1:, 0] >= run.stages.end_ns[:-1, 1] + 2 * MS).all()


def test_unequal_stages_wait_for_the_slower():
    """Stages of 4, 10 and 6 ms in steady state: chunks of one prompt leave every 10 ms."""
    run = run_exact(workload([0], [64 * 6], [1]), staged(3), pipeline(4e-3, 10e-3, 6e-3, hop_s=0.0), num_gpu_blocks=100)
    assert (run.steps.end_ns // MS).tolist() == [20, 30, 40, 50, 60, 70]
    assert (run.steps.prefill_tokens == 64).all()


def test_extra_rows_are_not_tokens():
    """vLLM 0.19, four stages: each request gets 2 rows after its last token; they run, and nobody gets a token."""
    run = run_exact(
        workload([0, 0, 40], [5, 9, 7], [6, 8, 7]), staged(4, "0.19.0"), pipeline(*[5e-3] * 4), num_gpu_blocks=100
    )
    assert run.requests.output_tokens.tolist() == [6, 8, 7]
    assert int(run.steps.emitting.sum()) == 6 + 8 + 7 + 2 * 3
    assert run.itl_count.sum() == 5 + 7 + 6


drawn = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 150), st.integers(1, 40)), min_size=1, max_size=20)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    rows=drawn,
    blocks=st.integers(13, 40),
    seats=st.integers(1, 8),
    stages=st.integers(2, 4),
    version=st.sampled_from([None, "0.19.0", "0.33.0"]),
    concurrency=st.one_of(st.none(), st.integers(1, 5)),
    replicas=st.integers(1, 2),
)
def test_drawn_workloads_conserve_in_stages(rows, blocks, seats, stages, version, concurrency, replicas):
    """Two to five batches in flight under pressure: tokens, blocks and clocks are conserved (checked inside)."""
    w = workload(*map(list, zip(*sorted(rows), strict=True)), concurrency=concurrency)
    settings = staged(stages, version, 1e-3, max_num_seqs=seats)
    prices = pipeline(*[3e-3 + 1e-3 * (s % 2) for s in range(stages)])
    run = run_exact(w, settings, prices, num_gpu_blocks=blocks, replicas=replicas)
    again = run_exact(w, settings, prices, num_gpu_blocks=blocks, replicas=replicas)
    for field in dataclasses.fields(run.requests):
        assert np.array_equal(getattr(run.requests, field.name), getattr(again.requests, field.name))
    done = run.requests.status == FINISHED
    assert done.all()
    assert run.itl_count.sum() == (run.requests.output_tokens[done] - 1).sum()
    spans = (run.requests.finish_ns - run.requests.first_token_ns)[done].sum()
    assert (run.itl_ns * run.itl_count).sum() == spans
    assert run.steps.running.max(initial=0) <= seats


def test_prefill_fills_the_stages():
    """Prompts that fill a batch each: one of two stages of 5 ms leaves every 5 ms, 10 ms after it entered."""
    w = workload(np.zeros(20, int), np.full(20, 64), np.ones(20, int))
    run = run_exact(w, staged(2), pipeline(5e-3, 5e-3, hop_s=0.0), num_gpu_blocks=200)
    assert (run.requests.finish_ns // MS).tolist() == [5 * (i + 2) for i in range(20)]


@pytest.mark.parametrize("version", [None, "0.33.0"])
def test_decodes_fill_the_stages_with_twice_the_seats(version):
    """Steps as long for 8 rows as for 16: two stages of half the time serve nearly twice as many tokens a second."""
    w = workload(np.zeros(64, int), np.full(64, 8), np.full(64, 60))
    table = make_table(base_s=10e-3, token_s=0.0, row_s=0.0)
    whole = run_exact(w, make_settings(max_num_seqs=8), table, num_gpu_blocks=400)
    settings = staged(2, version, max_num_seqs=16)
    halves = run_exact(w, settings, pipeline(5e-3, 5e-3, hop_s=0.0, return_s=0.0), num_gpu_blocks=400)
    assert 1.8 < int(whole.requests.finish_ns.max()) / int(halves.requests.finish_ns.max()) < 2.0
