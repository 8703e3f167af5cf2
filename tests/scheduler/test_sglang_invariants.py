"""SGLang's scheduler on drawn workloads: tokens are conserved, everybody ends once, closed forms equal recounts."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.deployment.rules import SglangRules
from sim.deployment.settings import load_engine
from sim.scheduler.sglang import POLICIES
from tests.scheduler.sglang_drive import Drive, request, scheduler


OLD = load_engine("sglang", "0.5.4").profile.sglang


@st.composite
def arrivals(draw):
    """Up to 14 requests of at most 40 + 30 tokens; some share the start of their prompts, one per group."""
    found = []
    for index in range(draw(st.integers(1, 14))):
        prompt, outputs = draw(st.integers(1, 40)), draw(st.integers(1, 30))
        group, shared = draw(st.integers(0, 2)), draw(st.integers(0, 36))
        ids = np.arange(prompt) + 1000 * (index + 10)
        ids[: min(shared, prompt)] = np.arange(min(shared, prompt)) + 100 * group
        known = draw(st.sampled_from([ids, None]))
        priority = draw(st.sampled_from([0, 1, 20]))
        found.append((draw(st.integers(0, 25)), (index, prompt, outputs, priority, known)))
    return found


@st.composite
def configurations(draw):
    """Any loop, policy and page size; a pool that one request fits in, and hardly more."""
    page = draw(st.sampled_from([1, 1, 4, 16]))
    priority = draw(st.booleans())
    policy = draw(st.sampled_from(["fcfs", "lof"] if priority else POLICIES))
    chunk = draw(st.sampled_from([None, 16, 48, 64]))
    reuse = policy == "shortest-prefill-first" or draw(st.booleans())
    found = {
        "page_size": page,
        "pool_tokens": draw(st.integers(84 // page + 3, 400 // page)) * page,
        "max_running": draw(st.integers(1, 10)),
        "context_len": 80,
        "chunk": chunk,
        "policy": policy,
        "reuse": reuse,
        "overlap": draw(st.booleans()),
        "schedule_conservativeness": draw(st.sampled_from([0.0, 0.05, 0.3, 1.0, 2.0])),
        "max_prefill_tokens": draw(st.sampled_from([50, 16384])),
        "enable_mixed_chunk": draw(st.booleans()),
        "enable_priority_scheduling": priority,
        "retraction_policy": draw(st.sampled_from(["length", "priority"])),
        "rules": OLD if page == 1 and draw(st.integers(0, 2)) == 2 else SglangRules(),
    }
    if draw(st.booleans()):
        found |= {"ignore_eos": False, "max_new_tokens": draw(st.sampled_from([0, 20, 60]))}
    return found


def made(configuration):
    pool = configuration["pool_tokens"]
    return scheduler(pool, **{key: value for key, value in configuration.items() if key != "pool_tokens"})


def drive(configuration, given_arrivals, repeat=False, aborts=()):
    run = Drive(made(configuration), [(at, request(*row)) for at, row in given_arrivals], repeat, aborts)
    run.run()
    return run


@settings(max_examples=200, deadline=None)
@given(configurations(), arrivals())
def test_everybody_gets_their_tokens_and_all_are_free_again(configuration, given_arrivals):
    run = drive(configuration, given_arrivals)
    assert sorted(run.ended) == sorted(r.index for r in run.requests)
    assert run.tokens == {r.index: r.outputs for r in run.requests}
    assert run.made.free_blocks == run.made.usable_blocks
    assert run.made.unfinished == 0
    if not configuration["reuse"]:
        assert run.made.hit_stats.hits == 0


@settings(max_examples=100, deadline=None)
@given(configurations(), arrivals())
def test_repeating_decides_the_same(configuration, given_arrivals):
    plain, repeated = drive(configuration, given_arrivals), drive(configuration, given_arrivals, repeat=True)
    assert repeated.launched == plain.launched
    assert repeated.ended == plain.ended
    assert repeated.made.ratio.value == plain.made.ratio.value


@settings(max_examples=60, deadline=None)
@given(configurations(), arrivals())
def test_both_loops_give_the_same_tokens(configuration, given_arrivals):
    normal = drive(configuration | {"overlap": False}, given_arrivals)
    overlap = drive(configuration | {"overlap": True}, given_arrivals)
    assert normal.tokens == overlap.tokens
    assert sorted(normal.ended) == sorted(overlap.ended)


@settings(max_examples=100, deadline=None)
@given(configurations(), arrivals(), st.dictionaries(st.integers(0, 13), st.integers(1, 40), max_size=6))
def test_aborts_leave_nothing_behind(configuration, given_arrivals, aborts):
    run = drive(configuration, given_arrivals, aborts=aborts.items())
    assert sorted(run.ended + run.aborted) == sorted(r.index for r in run.requests)
    assert run.made.free_blocks == run.made.usable_blocks
    assert run.made.unfinished == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page", [1, 16])
def test_ten_thousand_requests_under_pressure(overlap, page):
    """Bursts into a pool of about three requests, many retractions; none is lost."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, [60, 60], (2_500, 2)).tolist()
    configuration = {
        "pool_tokens": 400,
        "page_size": page,
        "max_running": 16,
        "context_len": 200,
        "chunk": 64,
        "overlap": overlap,
        "schedule_conservativeness": 0.05,
        "ignore_eos": False,
        "max_new_tokens": 60,
    }
    engine = made(configuration)
    pending, done, tokens, index = [], [], 0, 0
    while len(done) < len(sizes):
        if engine.unfinished < 30:
            for prompt, outputs in sizes[index : index + 10]:
                engine.add(request(index, prompt, outputs))
                index += 1
        pending.append(engine.schedule())
        if len(pending) > overlap:
            batch = pending.pop(0)
            done += [r.index for r in engine.complete(batch)]
            tokens += batch.emitting - len(batch.dropped)
    assert sorted(done) == list(range(len(sizes)))
    assert tokens == sum(outputs for _, outputs in sizes)
    assert engine.free_blocks == engine.usable_blocks == 400 // page
