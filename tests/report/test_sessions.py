"""What is told of sessions, by hand."""

import dataclasses

import numpy as np
import pytest

from sim.report.console import console
from sim.report.metrics import measure
from sim.report.page.build import page
from sim.report.result import FINISHED, REJECTED, UNSENT
from sim.report.sessions import session_figures
from sim.report.summary import summary
from sim.report.tables import request_columns
from sim.report.timeline.trace import timeline
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload
from tests.report.conftest import run_toy


S = 1_000_000_000


@pytest.fixture
def chats():
    """Two sessions of two rounds and three: the second round of the latter is rejected, its third never sent.

    The first is sent at 1 s, ends at 3 s, goes on at 5 s, has a token at 6 s and ends at 7 s.
    """
    toy = run_toy(requests=5, rate=5.0)
    prompts, outputs = np.array([30, 60, 40, 80, 90]), np.array([10, 5, 7, 5, 5])
    sessions = Sessions(
        first=np.array([0, 2, 5]),
        latency_ns=np.array([0, 2 * S, 0, S, S]),
        history_tokens=np.array([0, 40, 0, 47, 85]),
        dropped_tokens=np.zeros(5, np.int64),
        system=np.zeros(2, np.int64),
    )
    work = Workload("chats", np.array([1, 1, 2, 2, 2]) * S, prompts, outputs, sessions=sessions)
    requests = dataclasses.replace(
        toy.requests,
        arrival_ns=np.array([1 * S, 5 * S, 2 * S, 5 * S, -1]),
        queued_ns=np.array([1 * S, 5 * S, 2 * S, -1, -1]),
        scheduled_ns=np.array([1 * S, 5 * S, 2 * S, -1, -1]),
        first_token_ns=np.array([2 * S, 6 * S, 3 * S, -1, -1]),
        finish_ns=np.array([3 * S, 7 * S, 4 * S, -1, -1]),
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=np.array([0, 32, 0, 0, 0]),
        status=np.array([FINISHED, FINISHED, FINISHED, REJECTED, UNSENT]),
        replica=np.array([0, 1, 0, -1, -1]),
    )
    return dataclasses.replace(toy, requests=requests, workload=work)


def test_figures_by_hand(chats):
    """Hidden and finished are rounds 0 (10 tokens) and 2 (7), within 1 to 7 s; of the 6 s of the first session 2 s pass
    between its rounds."""
    found = session_figures(chats)
    assert (found.sessions, found.completed, found.rounds, found.unsent) == (2, 1, 5, 1)
    assert found.answer_ttft.mean_s == 1.0
    assert found.answer_from_start.mean_s == 5.0
    assert found.duration.mean_s == 6.0
    assert found.latency_share == pytest.approx(2 / 6)
    assert found.hidden_rounds_per_s == pytest.approx(2 / 6)
    assert found.hidden_tokens_per_s == pytest.approx(17 / 6)
    assert (found.further_prompt_tokens, found.repeated_tokens, found.found_tokens) == (60, 40, 32)
    assert found.same_replica_share == 0.0
    assert found.live_mean is None


def test_everybody_tells_it(chats):
    metrics = measure(chats)
    fields = summary(chats, metrics)
    assert fields["sessions"]["found_share"] == 0.8
    assert fields["sessions"]["p99_answer_ttft_ms"] == 1000.0
    assert fields["failed_by_status"] == {"rejected": 1, "unsent": 1}
    assert fields["cut_requests"] == 0
    assert fields["duration"] == 6.0
    text = console(chats, metrics, None)
    assert "Sessions completed:                      1 of 2" in text
    assert "Rounds never sent:                       1" in text
    assert "1 of 2 sessions completed, 5 rounds, 1 never sent" in page(chats, metrics, None)
    columns = request_columns(chats)
    assert columns["session"].tolist() == [0, 0, 1, 1, 1]
    assert columns["round"].tolist() == [0, 1, 0, 1, 2]
    names = {event["args"].get("name") for event in timeline(chats)["traceEvents"] if event["name"] == "thread_name"}
    assert {"session 0, round 1", "session 1, round 0"} <= names


def test_without_sessions_there_is_nothing_to_tell():
    toy = run_toy(requests=5)
    assert session_figures(toy) is None
    assert summary(toy)["sessions"] is None
    assert "Sessions" not in console(toy, measure(toy), None)
    assert "session" not in request_columns(toy)
