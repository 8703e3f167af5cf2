"""What is told of retrieval, by hand."""

import dataclasses

import numpy as np
import pytest

from sim.report.console import console
from sim.report.metrics import latencies, measure
from sim.report.page.build import page
from sim.report.result import FINISHED, REJECTED
from sim.report.retrieval import retrieval_figures
from sim.report.summary import summary
from sim.report.tables import request_columns
from sim.report.timeline.trace import timeline
from sim.workload.retrieval.columns import Retrieval
from sim.workload.trace import Workload
from tests.report.conftest import run_toy


S = 1_000_000_000


@pytest.fixture
def looked_up():
    """Three requests, sent at 1, 2 and 3 s, ready at 5, 3 and 4 s with chunks of 8 tokens behind 4 common ones.

    So the order is 1, 2, 0, and the last of them is rejected: chunks (7 5) are new, and of (7 6), the only ones after
    them, the first stands in order. 10 tokens found are 6 of chunks.
    """
    toy = run_toy(requests=3, rate=5.0)
    prompts, outputs = np.full(3, 30), np.full(3, 5)
    retrieval = Retrieval(np.array([4, 1, 1]) * S, np.array([[5, 7], [7, 5], [7, 6]]), 8, 4)
    work = Workload("looked up", np.array([1, 2, 3]) * S, prompts, outputs, retrieval=retrieval)
    requests = dataclasses.replace(
        toy.requests,
        arrival_ns=np.array([1, 2, 3]) * S,
        queued_ns=np.array([-1, 3 * S, 4 * S]),
        scheduled_ns=np.array([-1, 3 * S, 6 * S]),
        first_token_ns=np.array([-1, 5 * S, 7 * S]),
        finish_ns=np.array([-1, 8 * S, 9 * S]),
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=np.array([0, 3, 10]),
        status=np.array([REJECTED, FINISHED, FINISHED]),
        retrieval_ns=retrieval.latency_ns,
    )
    return dataclasses.replace(toy, workload=work, requests=requests)


def test_figures_by_hand(looked_up):
    found = retrieval_figures(looked_up)
    assert found.latency.mean_s == 1.0 and found.after.mean_s == (2.0 + 3.0) / 2
    assert (found.distinct, found.retrieved_tokens, found.repeated_tokens) == (3, 32, 8)
    assert (found.in_order_tokens, found.found_tokens) == (8, 6)
    parts = latencies(looked_up.requests)
    assert parts.ttft_s.tolist() == [3.0, 4.0] and parts.queue_s.tolist() == [0.0, 2.0]
    assert (parts.retrieval_s + parts.queue_s + parts.prefill_s + parts.decode_s).tolist() == parts.e2el_s.tolist()


def test_every_report_tells_it(looked_up):
    fields = summary(looked_up)["retrieval"]
    assert fields["mean_retrieval_ms"] == 1000.0 and fields["mean_ttft_after_retrieval_ms"] == 2500.0
    assert fields["in_order_tokens"] == 8
    metrics = measure(looked_up)
    assert "- in the same order (%):                 25.00" in console(looked_up, metrics, None)
    assert "TTFT after it" in page(looked_up, metrics, None)
    assert request_columns(looked_up)["retrieval_ms"][1:].tolist() == [1000.0, 1000.0]
    spans = [e for e in timeline(looked_up)["traceEvents"] if e.get("name") == "retrieval"]
    assert [(e["ts"], e["dur"]) for e in spans] == [(2e6, 1e6), (3e6, 1e6)]


def test_without_retrieval_nothing_is_told(result):
    assert summary(result)["retrieval"] is None and "retrieval_ms" not in request_columns(result)
    assert "Retrieval" not in console(result, measure(result), None)
