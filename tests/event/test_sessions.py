"""Sessions in the exact engine: who is sent when, what is found again, and what becomes of the rest."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.deployment.conf import DeploymentConf, ElasticConf
from sim.event.content import request_content
from sim.event.holds import check_holds
from sim.event.run import ExactRun, run_exact
from sim.memory.shape import GroupShape
from sim.report.result import ABORTED, FINISHED, REJECTED, UNSENT
from sim.scheduler.vllm import ContinuousBatching
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import NEVER_ABORTS, Workload
from tests.event.conftest import make_settings, make_table


MS = 1_000_000


def chat(sessions, arrivals_ms=None, dropped=0, system=0, **more) -> Workload:
    """Sessions of rounds (new tokens, output, latency in ms); of each output the first `dropped` are left out later."""
    sizes = [len(rounds) for rounds in sessions]
    first = np.cumsum([0, *sizes])
    prompts, outputs, history, latency = [], [], [], []
    for rounds in sessions:
        have = system
        for number, (new, output, pause_ms) in enumerate(rounds):
            history.append(have if number else 0)
            latency.append(pause_ms * MS if number else 0)
            prompts.append(have + new)
            outputs.append(output)
            have += new + output - min(dropped, output)
    columns = Sessions(
        first=first,
        latency_ns=np.array(latency),
        history_tokens=np.array(history),
        dropped_tokens=np.minimum(dropped, outputs),
        system=np.zeros(len(sizes), np.int64),
        system_tokens=system,
    )
    starts = np.zeros(len(sizes), np.int64) if arrivals_ms is None else np.array(arrivals_ms) * MS
    return Workload("chat", np.repeat(starts, sizes), np.array(prompts), np.array(outputs), sessions=columns, **more)


def run(workload, blocks=100, step_s=10e-3, table=None, changes=None, **how) -> ExactRun:
    settings = make_settings(**{"prefix_caching": True} | (changes or {}))
    prices = table or make_table(base_s=step_s, token_s=0.0, row_s=0.0)
    return run_exact(workload, settings, prices, num_gpu_blocks=blocks, **how)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))


def test_a_second_round_by_hand():
    """Steps of 10 ms, blocks of 16. Round 0: prompt 40, 9 outputs at 10 to 90 ms; it computes 40 + 8 = 48 tokens.

    Round 1 is sent 25 ms later with 40 + 9 + 15 = 64 tokens: 3 whole blocks are found, 16 tokens are computed, and its
    two tokens come at 125 and 135 ms.
    """
    found = run(chat([[(40, 9, 0), (15, 2, 25)]]))
    r = found.requests
    assert r.arrival_ns.tolist() == [0, 115 * MS]
    assert r.finish_ns.tolist() == [90 * MS, 135 * MS]
    assert r.cached_tokens.tolist() == [0, 48]
    assert found.steps.prefill_tokens.tolist() == [40, *[0] * 8, 16, 0]


def test_what_reasoning_leaves_out_is_not_found_behind_it():
    """Without the first 4 of 9 outputs the second prompt is like the first for 40 tokens only: 2 blocks."""
    r = run(chat([[(40, 9, 0), (15, 2, 25)]], dropped=4)).requests
    assert r.prompt_tokens.tolist() == [40, 60]
    assert r.cached_tokens.tolist() == [0, 32]


@pytest.mark.parametrize(("router", "cached"), [("round_robin", 0), ("sticky", 48), ("prefix_aware", 48)])
def test_another_replica_has_nothing(router, cached):
    r = run(chat([[(40, 9, 0), (15, 2, 25)]]), replicas=2, router=router).requests
    assert r.cached_tokens.tolist() == [0, cached]
    assert (r.replica[0] == r.replica[1]) == (cached > 0)


def test_system_prompts_are_found_by_other_sessions():
    """40 tokens of system prompt: the second session finds 2 blocks of it, of its own 20 none."""
    r = run(chat([[(20, 2, 0)], [(20, 2, 0)]], [0, 50], system=40)).requests
    assert r.cached_tokens.tolist() == [0, 32]


def test_a_round_that_does_not_fit_ends_its_session():
    """The second prompt leaves no room to emit within 512 tokens: rejected, and the third is never sent."""
    r = run(chat([[(40, 9, 0), (480, 2, 1), (5, 2, 1)], [(9, 1, 0)]])).requests
    assert r.status.tolist() == [FINISHED, REJECTED, UNSENT, FINISHED]
    assert r.arrival_ns.tolist() == [0, 91 * MS, -1, 0]


def test_a_client_that_leaves_ends_its_session():
    patience = np.array([NEVER_ABORTS, 15 * MS, NEVER_ABORTS])
    r = run(chat([[(40, 2, 0), (40, 9, 1), (5, 2, 1)]], abort_after_ns=patience)).requests
    assert r.status.tolist() == [FINISHED, ABORTED, UNSENT]


def test_a_closed_loop_is_of_sessions():
    """One at a time: the second begins when the last round of the first has ended."""
    r = run(chat([[(10, 1, 0), (10, 1, 30)], [(10, 1, 0)]], concurrency=1)).requests
    assert r.arrival_ns.tolist() == [0, 40 * MS, 50 * MS]


sessions_drawn = st.lists(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=5),
    min_size=1,
    max_size=8,
)


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    rounds=sessions_drawn,
    gap=st.integers(0, 40),
    blocks=st.integers(8, 60),
    asynchronous=st.booleans(),
    replicas=st.integers(1, 2),
    router=st.sampled_from(["round_robin", "sticky", "prefix_aware"]),
    concurrency=st.one_of(st.none(), st.integers(1, 3)),
    scheduler=st.sampled_from(["vllm", "sglang"]),
)
def test_rounds_are_never_reordered(rounds, gap, blocks, asynchronous, replicas, router, concurrency, scheduler):
    """Every round ends once, in order (checked in the run too), and runs repeat exactly."""
    work = chat(rounds, [gap * k for k in range(len(rounds))], concurrency=concurrency)
    changes = {"async_scheduling": asynchronous, "max_model_len": 300}
    if scheduler == "sglang":
        changes |= {"async_scheduling": False, "batches_in_flight": 1}
    how = {"replicas": replicas, "router": router, "scheduler": scheduler, "changes": changes}
    r, again = (run(work, blocks, table=make_table(), **how).requests for _ in range(2))
    assert same(r, again)
    for begin, end in zip(work.sessions.first[:-1], work.sessions.first[1:], strict=True):
        status = r.status[begin:end].tolist()
        done = next((k for k, one in enumerate(status) if one != FINISHED), len(status))
        assert status[done + 1 :] == [UNSENT] * (len(status) - done - 1)
        times = np.stack([r.arrival_ns, r.finish_ns], 1)[begin : begin + done].ravel()
        assert (np.diff(times) >= 0).all()
        assert (r.cached_tokens[begin:end] <= r.prompt_tokens[begin:end] - 1).all()


def test_sessions_of_one_round_without_latency_change_nothing():
    """Bit for bit the run of the same requests without sessions."""
    rng = np.random.default_rng(2)
    times, prompts, outputs = np.sort(rng.integers(0, 500, 60)), rng.integers(1, 200, 60), rng.integers(1, 60, 60)
    alone = Workload("x", times * MS, prompts, outputs, concurrency=20)
    one = chat([[(int(p), int(o), 0)] for p, o in zip(prompts, outputs, strict=True)], times, concurrency=20)
    a, b = (run(work, blocks=60, table=make_table()) for work in (alone, one))
    assert same(a.requests, b.requests) and same(a.steps, b.steps)
    assert a.events == b.events


def test_littles_law_of_sessions():
    """Sessions under way, counted at their starts and ends, average to rate x mean duration."""
    work = chat([[(20, 5, 0), (9, 4, 35), (7, 3, 10)]] * 20, [13 * k for k in range(20)])
    r = run(work, table=make_table()).requests
    start, end = r.arrival_ns[work.sessions.first[:-1]], r.finish_ns[work.sessions.last]
    order = np.argsort(np.concatenate([start, end]), kind="stable")
    at, change = np.concatenate([start, end])[order], np.repeat([1, -1], len(start))[order]
    area = (np.cumsum(change)[:-1] * np.diff(at)).sum()
    assert area == (end - start).sum()


def test_content_is_put_together_as_the_columns_say():
    work = chat([[(3, 2, 0), (2, 2, 0), (1, 1, 0)], [(2, 1, 0)]], system=4, dropped=1)
    content = request_content(work)
    prompts = [content[i] for i in range(4)]
    assert [len(ids) for ids in prompts] == work.prompt_tokens.tolist()
    assert np.array_equal(prompts[1][:7], prompts[0]) and np.array_equal(prompts[2][:10], prompts[1])
    assert prompts[1][7] == (1 << 32) + 1  # the second output of request 0
    assert np.array_equal(prompts[3][:4], prompts[0][:4])
    assert not set(prompts[3][4:]) & set(prompts[0][4:])


def test_a_prompt_may_repeat_the_beginning_only():
    """30 + 20 tokens were said: the second prompt has the first 10 of them, and 15 new ones."""
    work = chat([[(30, 20, 0), (20, 20, 0)]])
    sessions = dataclasses.replace(work.sessions, history_tokens=np.array([0, 10]))
    work = dataclasses.replace(work, prompt_tokens=np.array([30, 25]), sessions=sessions, digest="")
    first, second = request_content(work)
    assert np.array_equal(second[:10], first[:10])
    assert len(second) == 25 and not set(second[10:]) & set(first)


@pytest.mark.parametrize(("hold_ms", "cached"), [(0, 0), (50, 0), (300, 48), (2000, 48)])
def test_held_blocks_are_there_for_the_next_round(hold_ms, cached):
    """9 usable blocks: the chat takes 3, each other request 6 unlike ones; whoever was freed first is taken first.

    The second request takes the 6 that nobody had and gives them back at 220 ms. The third, at 400 ms, takes the chat's
    first if these were free by then; if they became so at 390 ms they come last, and are found at 990 ms.
    """
    work = chat([[(40, 9, 0), (15, 2, 900)], [(80, 2, 0)], [(80, 2, 0)]], [0, 200, 400])
    found = run(work, blocks=10, hold_ns=hold_ms * MS)
    assert found.requests.cached_tokens.tolist() == [0, cached, 0, 0]
    assert (found.requests.status == FINISHED).all()


def test_a_hold_gives_way_to_a_request_that_finds_no_other_place():
    """9 usable blocks, 3 held; a request of 130 tokens needs all 9, and nothing else runs: it gets them at once."""
    work = chat([[(40, 9, 0), (15, 2, 900)], [(130, 2, 0)]], [0, 200])
    found = run(work, blocks=10, hold_ns=10**12)
    assert found.requests.scheduled_ns[2] == 200 * MS
    assert found.requests.cached_tokens.tolist() == [0, 0, 0]


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    rounds=sessions_drawn,
    gap=st.integers(0, 40),
    blocks=st.integers(9, 40),
    asynchronous=st.booleans(),
    replicas=st.integers(1, 2),
    hold_ms=st.integers(1, 80),
    patience=st.sampled_from([NEVER_ABORTS, 50 * MS]),
)
def test_nothing_is_held_for_ever(rounds, gap, blocks, asynchronous, replicas, hold_ms, patience):
    """All blocks are free at the end and every round ends (checked inside), with `repeat` or without."""
    count = sum(map(len, rounds))
    work = chat(rounds, [gap * k for k in range(len(rounds))], abort_after_ns=np.full(count, patience))
    changes = {"async_scheduling": asynchronous, "max_model_len": 300}
    how = {"replicas": replicas, "hold_ns": hold_ms * MS, "changes": changes}
    repeated = run(work, blocks, table=make_table(), **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ContinuousBatching, "repeat", lambda self, batch: False)
        assert same(repeated.requests, run(work, blocks, table=make_table(), **how).requests)


@pytest.mark.parametrize(
    ("deployment", "engine", "scheduler", "words"),
    [
        (
            {},
            {"prefix_caching": False},
            "vllm",
            "session_hold_s=5 does nothing here: it wants engine.enable_prefix_cac",
        ),
        ({}, {"scheduling_policy": "priority"}, "vllm", "is simulated with vLLM's scheduler, first come first served"),
        ({}, {}, "orca", "is simulated with vLLM's scheduler, first come first served"),
        ({"elastic": ElasticConf(mtbf_s=9.0)}, {}, "vllm", "is not simulated with deployment.elastic"),
        ({"data_parallel": 2}, {}, "vllm", "is not simulated with data-parallel ranks"),
        ({"session_hold_s": -1.0}, {}, "vllm", "wants seconds from 0 .*, got -1"),
    ],
)
def test_holds_that_cannot_be(deployment, engine, scheduler, words):
    work, groups = chat([[(9, 1, 0), (9, 1, 0)]]), (GroupShape("full", 16),)
    conf = DeploymentConf(**{"session_hold_s": 5.0} | deployment)
    settings = make_settings(**{"prefix_caching": True} | engine)
    with pytest.raises(ValueError, match=words):
        check_holds(conf, settings, scheduler, groups, work)


def test_without_sessions_nothing_is_held():
    alone = Workload("x", np.zeros(1), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="session_hold_s=5 does nothing here: it wants a workload with sessions"):
        check_holds(
            DeploymentConf(session_hold_s=5.0),
            make_settings(prefix_caching=True),
            "vllm",
            (GroupShape("full", 16),),
            alone,
        )
