"""Preempted requests whose KV is swapped to the host: when it goes, what it costs, and that nothing is lost."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import DeploymentConf
from sim.deployment.settings import load_engine
from sim.deployment.tiers import TierConf
from sim.event.run import ExactRun, run_exact
from sim.event.swap import check_swap, swap_blocks
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED
from sim.report.swap import swap_fields
from sim.workload.trace import NEVER_ABORTS, Workload
from tests.event.conftest import make_settings, make_table


MS = 1_000_000


def run(prompts, outputs, arrivals_ms=None, *, swap_blocks=100, blocks=4, rate=1e9, token_s=0.0, **how) -> ExactRun:
    """Steps of 10 ms and `token_s` a token; blocks of 16 tokens and 1 MB, which take 1 ms over 1 GB/s."""
    work = Workload(
        "swap",
        np.array(arrivals_ms if arrivals_ms is not None else [0] * len(prompts)) * MS,
        np.array(prompts),
        np.array(outputs),
        token_ids=how.pop("token_ids", None),
        abort_after_ns=how.pop("abort_after_ns", None),
    )
    settings = make_settings(**{"max_num_batched_tokens": 256} | how.pop("changes", {}))
    prices = make_table(base_s=10e-3, token_s=token_s, row_s=0.0)
    return run_exact(
        work,
        settings,
        prices,
        num_gpu_blocks=blocks + 1,
        swap_blocks=swap_blocks,
        block_bytes=1e6,
        host_bytes_per_s=rate,
        **how,
    )


def test_a_swap_by_hand():
    """Two prompts of 31 tokens in 4 blocks: in the first steps each fills its second block (32 tokens); for the third
    the first takes the second's blocks.

    The second has computed 32 tokens: 2 blocks of 1 MB, 2 ms in front of the step. The first has 5 outputs, the last at
    52. Then the second comes back with 32 of 33 known tokens, 2 ms for its copy, and decodes 3 more times.
    """
    found = run([31, 31], [5, 5])
    assert found.requests.finish_ns.tolist() == [52 * MS, 84 * MS]
    assert found.steps.prefill_tokens.tolist() == [62, 0, 0, 0, 0, 0, 0, 0]
    assert found.steps.decodes.tolist() == [0, 2, 1, 1, 1, 1, 1, 1]
    assert found.requests.preemptions.tolist() == [0, 1]
    count = found.swap
    assert (count.swaps, count.refused, count.most_blocks) == (1, 0, 2)
    assert (count.out_blocks, count.in_blocks, count.dropped_blocks) == (2, 2, 0)
    assert (count.out_s, count.in_s, count.away_s) == (2e-3, 2e-3, [32e-3])
    said = swap_fields(count, 16)
    assert (said["out_tokens"], said["in_bytes"], said["most_used_share"], said["away_ms_mean"]) == (32, 2e6, 0.02, 32)


@pytest.mark.parametrize("how", [{"swap_blocks": 0}, {"swap_blocks": 1}])
def test_without_room_it_is_computed_again(how):
    """The same, but 33 tokens are computed again, and nothing waits for copies."""
    found = run([31, 31], [5, 5], **how)
    assert found.requests.finish_ns.tolist() == [50 * MS, 80 * MS]
    assert found.steps.prefill_tokens.tolist() == [62, 0, 0, 0, 0, 33, 0, 0]
    assert (found.swap is None) == (how["swap_blocks"] == 0)
    assert found.swap is None or (found.swap.refused, found.swap.out_blocks) == (1, 0)


def test_what_the_cache_still_has_is_not_copied_back():
    """Only one of the second's two blocks is taken from the cache, by the first: the other is found there."""
    ids = tuple(np.arange(31) + 1000 * k for k in range(2))
    found = run([31, 31], [2 + 1, 5], token_ids=ids, changes={"prefix_caching": True})
    count = found.swap
    assert (count.out_blocks, count.in_blocks, count.dropped_blocks) == (2, 1, 1)
    assert count.in_s == 1e-3


def test_who_gives_up_while_away_leaves_nothing():
    """The second is preempted at 20 and gives up at 35."""
    found = run([31, 31], [5, 5], abort_after_ns=np.array([NEVER_ABORTS, 35 * MS]))
    count = found.swap
    assert (count.out_blocks, count.in_blocks, count.dropped_blocks) == (2, 0, 2)
    assert all(found.checks.values())


def test_swapping_is_worth_it_where_the_link_is_fast():
    """A token costs 1 ms: 33 of them are 33 ms, a copy of 2 blocks each way 4 ms, or at 10 MB/s 400 ms."""
    ends = [
        int(run([31, 31], [5, 5], token_s=1e-3, **how).requests.finish_ns[1])
        for how in ({}, {"swap_blocks": 0}, {"rate": 1e7})
    ]
    assert ends[1] - ends[0] == (32 - 4) * MS  # 33 tokens against the one that is computed in any case
    assert ends[2] - ends[1] == (400 - 32) * MS


drawn = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 60)), min_size=2, max_size=12)


@run_settings(max_examples=80)
@given(
    rows=drawn,
    blocks=st.integers(7, 16),
    room=st.integers(1, 20),
    reuse=st.booleans(),
    asynchronous=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    version=st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]),
    budget=st.sampled_from([32, 64, 256]),
    replicas=st.integers(1, 2),
    patience=st.sampled_from([NEVER_ABORTS, 90 * MS]),
)
def test_nothing_is_lost(rows, blocks, room, reuse, asynchronous, policy, version, budget, replicas, patience):
    """Requests, tokens and blocks are conserved on both sides; the same again, bit for bit; and a run in which nobody
    is preempted is the run without."""
    prompts, outputs, gaps = zip(*rows, strict=True)
    how = {
        "blocks": blocks,
        "changes": {
            "prefix_caching": reuse,
            "async_scheduling": asynchronous and version != "0.10.2",
            "scheduling_policy": policy,
            "max_num_batched_tokens": budget,
            "profile": load_engine("vllm", version).profile,
        },
        "replicas": replicas,
        "token_ids": tuple(np.arange(n) + 1000 * k for k, n in enumerate(prompts)),
        "abort_after_ns": np.full(len(rows), patience),
    }
    first, again, off = (run(prompts, outputs, np.cumsum(gaps), swap_blocks=size, **how) for size in (room, room, 0))
    assert all(first.checks.values()), first.checks
    assert patience < NEVER_ABORTS or (first.requests.status == FINISHED).all()
    same(first, again)
    if patience == NEVER_ABORTS and not off.requests.preemptions.any():
        same(first, off)
        assert first.swap.swaps == first.swap.refused == 0


def same(one, other):
    for field in dataclasses.fields(one.requests):
        assert np.array_equal(getattr(one.requests, field.name), getattr(other.requests, field.name)), field.name


@pytest.mark.parametrize(
    ("size", "words"),
    [(-1.0, "kv_swap_gb wants a number from 0 on, got -1"), (0.001, "wants room for a KV block, 0.002 GB, got 0.001")],
)
def test_sizes_that_cannot_be(size, words):
    with pytest.raises(ValueError, match=words):
        swap_blocks(DeploymentConf(kv_swap_gb=size), 2e6)


def test_sizes_in_blocks():
    assert [swap_blocks(DeploymentConf(kv_swap_gb=size), 2e6) for size in (0.0, 0.002, 0.0059)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("deployment", "scheduler", "words"),
    [
        ({}, "orca", "is simulated with vLLM's scheduler, got orca"),
        ({"cache_tiers": {"host": TierConf(size_gb=9)}}, "vllm", "is not simulated with deployment.cache_tiers"),
        ({"pipeline_parallel": 2}, "vllm", "is not simulated with pipeline stages; leave it out"),
    ],
)
def test_where_it_is_not_simulated(deployment, scheduler, words):
    conf = DeploymentConf(kv_swap_gb=9, **deployment)
    with pytest.raises(ValueError, match=f"kv_swap_gb=9 {words}"):
        check_swap(conf, make_settings(), scheduler, (GroupShape("full", 16),))
