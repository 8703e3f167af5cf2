"""Prefixes found again in the walk that policies share."""

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.find import make_scheduler
from sim.scheduler.iteration import IterationScheduler
from tests.event.conftest import make_settings
from tests.event.test_sessions import chat, run, same, sessions_drawn
from tests.scheduler.test_policies import STATISTICS, drive


@pytest.mark.parametrize(("caching", "level"), [(False, 2), (True, 0)])
def test_what_was_said_is_no_prefill_where_prefixes_are_found(caching, level):
    """100 tokens, 90 of them said: 7 units of prefill join the last queue of 1, 2, 4; where found again, one unit."""
    cache = CacheShape(40, True, (GroupShape("full", 16),))
    options = {"queues": 3, "prefill_tokens_per_iteration": 16}
    made = make_scheduler("mlfq", make_settings(scheduler_options=options, prefix_caching=caching), cache)
    made.know(chat([[(80, 10, 0), (10, 1, 5)]]))
    request = made.request_type(1, 100, 1)
    made.add(request)
    assert request.level == level


named_rows = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 150), st.integers(1, 50), st.integers(0, 3)), min_size=1, max_size=25
)


@hypothesis_settings(max_examples=120)
@given(rows=named_rows, blocks=st.integers(13, 40), seats=st.integers(1, 8), budget=st.integers(8, 96))
def test_prefixes_are_found_as_in_vllm(rows, blocks, seats, budget):
    """The walk without a policy decides as vLLM does, also where prompts of the same kind begin alike."""
    settings = make_settings(
        max_model_len=200, max_num_seqs=seats, max_num_batched_tokens=max(seats, budget), prefix_caching=True
    )
    cache = CacheShape(blocks, True, (GroupShape("full", 16),))
    vllm, plain = make_scheduler("vllm", settings, cache), IterationScheduler(settings, cache)
    texts = [np.arange(prompt) + 1000 * kind for _, prompt, _, kind in rows]
    found = []
    for scheduler in (vllm, plain):
        of_type = scheduler.request_type
        scheduler.request_type = lambda i, prompt, outputs, of_type=of_type: of_type(i, prompt, outputs, texts[i])
        found.append(drive(scheduler, [row[:3] for row in rows]))
    for ours, theirs in zip(found[1][1], found[0][1], strict=True):
        for name in (*STATISTICS, "emitting", "free_blocks"):
            assert getattr(ours, name) == getattr(theirs, name), name
        for name in ("admitted", "emitted", "finishing", "preempted", "interrupted"):
            assert {r.index for r in getattr(ours, name)} == {r.index for r in getattr(theirs, name)}, name
    assert [r.cached for r in found[0][0]] == [r.cached for r in found[1][0]]


@hypothesis_settings(max_examples=25, deadline=None)
@given(sessions=sessions_drawn, blocks=st.integers(34, 60), ahead=st.booleans())
def test_rounds_end_once_under_memory_pressure(sessions, blocks, ahead):
    """Every round ends, every block comes back, every token comes out: the checks of each run, with prefixes shared."""
    options = {"queues": 4, "prefill_tokens_per_iteration": 16, "carry_level": True}
    changes = {"scheduler_options": options, "max_num_seqs": 4, "async_scheduling": ahead}
    workload = chat(sessions, system=20)
    found = run(workload, blocks=blocks, changes=changes, scheduler="mlfq")
    assert all(found.checks.values()), [name for name, right in found.checks.items() if not right]
    again = run(workload, blocks=blocks, changes=changes, scheduler="mlfq")
    assert same(found.requests, again.requests)


def test_a_second_round_finds_the_first():
    """As with vLLM (`tests/event/test_sessions.py`): 3 whole blocks of 16 are found, 16 tokens computed."""
    found = run(chat([[(40, 9, 0), (15, 2, 25)]]), scheduler="mlfq")
    assert found.requests.cached_tokens.tolist() == [0, 48]
    assert found.steps.prefill_tokens.tolist() == [40, *[0] * 8, 16, 0]
