"""A run that is stopped when few sessions are left: when, what they still have to do, and every token once."""

import numpy as np
import pytest
from hypothesis import assume, given, settings as hypothesis_settings, strategies as st

from sim.event.survivors import stopped, switch_ns
from sim.workload.trace import Workload
from tests.event.test_sessions import MS, chat, run


def halted(workload, share, **how):
    found = run(workload, **how)
    at_ns = switch_ns(workload, found.requests, share)
    return found, at_ns, None if at_ns is None else stopped(workload, found.requests, found.steps, at_ns)


def test_a_stop_by_hand():
    """Steps of 10 ms, first tokens at 10 ms. Session 0 ends with 3 tokens at 30 ms: of three two are live, below 0.7.

    Session 1 has 3 of 9 tokens then, and goes on with 20 + 3 tokens of prompt and 6 of output. Session 2 ended its
    first round of 2 tokens at 20 ms; its environment takes 25 ms, 15 of them after the stop. 20 + 3 - 1 tokens had KV.
    """
    workload = chat([[(10, 3, 0)], [(20, 9, 0)], [(15, 2, 0), (7, 4, 25)]])
    _, at_ns, stop = halted(workload, 0.7)
    assert at_ns == stop.stop_ns == 30 * MS
    rest = stop.rest
    assert stop.live == len(rest.sessions) == 2
    assert rest.arrival_ns.tolist() == [0, 15 * MS]
    assert rest.prompt_tokens.tolist() == [23, 24]
    assert rest.output_tokens.tolist() == [6, 4]
    assert (stop.done_tokens, stop.again_tokens) == (8, 22)
    found = run(workload)
    later = stopped(workload, found.requests, found.steps, at_ns, 10 * MS)
    assert later.rest.arrival_ns.tolist() == [0, 5 * MS]  # its environment was at work in the pause


def test_other_replicas_end_their_step():
    """Two replicas; the second began its first step at 4 ms and is in its third when session 0 ends at 20 ms.

    It stops at 24 ms with its second token (of 9); of the other replica nothing is left.
    """
    workload = chat([[(10, 2, 0)], [(20, 9, 0)]], [0, 4])
    _, at_ns, stop = halted(workload, 0.6, replicas=2)
    assert (at_ns, stop.stop_ns) == (20 * MS, 24 * MS)
    assert (stop.done_tokens, stop.rest.output_tokens.tolist()) == (4, [7])


@pytest.mark.parametrize(("share", "at_ms"), [(0.76, 10), (0.75, 20), (0.26, 30), (0.25, None)])
def test_the_share_must_be_below(share, at_ms):
    """Four sessions end at 10, 20, 30 and 40 ms: 3/4, 1/2 and 1/4 are live after the first three."""
    workload = chat([[(5, n, 0)] for n in (1, 2, 3, 4)])
    found = run(workload)
    assert switch_ns(workload, found.requests, share) == (None if at_ms is None else at_ms * MS)


drawn = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=4),
    min_size=2,
    max_size=8,
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(sessions=drawn, share=st.floats(0.05, 0.95), replicas=st.integers(1, 3))
def test_each_trajectory_and_token_once(sessions, share, replicas):
    """What was done and what is left add up, session by session; a prompt grows by what was said, no more."""
    workload = chat(sessions)
    found, at_ns, stop = halted(workload, share, replicas=replicas, blocks=400)
    assume(at_ns is not None)
    assert stop.stop_ns >= at_ns and stop.live < share * len(sessions)
    rest = stop.rest
    asked, left = int(workload.output_tokens.sum()), 0 if rest is None else int(rest.output_tokens.sum())
    assert stop.done_tokens + left == asked
    ends = np.asarray(found.requests.finish_ns)[workload.sessions.last]
    # a step under way on another replica may end one more, so those that end by the last stop bound it from below
    assert (ends > stop.stop_ns).sum() <= stop.live <= (ends > at_ns).sum()
    if rest is not None:
        tail = run(rest, blocks=400)
        assert all(tail.checks.values())
        total = workload.prompt_tokens + workload.output_tokens
        assert set((rest.prompt_tokens + rest.output_tokens).tolist()) <= set(total.tolist())


def test_what_cannot_be_stopped_is_refused():
    plain = Workload("plain", np.zeros(2), np.array([5, 5]), np.array([2, 4]))
    with pytest.raises(ValueError, match="a rollout wants trajectories"):
        switch_ns(plain, run(plain).requests, 0.9)
    tight = chat([[(60, 40, 0)], [(60, 50, 0)]])
    with pytest.raises(ValueError, match="without a preemption"):
        halted(tight, 0.9, blocks=9)
