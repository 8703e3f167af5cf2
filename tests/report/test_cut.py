"""Outputs that end before the workload's length are counted and said."""

import dataclasses

import numpy as np

from sim.report.collect import cut_runs_note
from sim.report.console import console
from sim.report.cut import cut_note, cut_outputs
from sim.report.metrics import measure
from sim.report.result import REJECTED
from sim.report.summary import summary


def asking(three, more, **changes):
    """The hand-worked run as if request i had asked for `more[i]` tokens beyond those it got."""
    base = three()
    asked = np.asarray(base.requests.output_tokens) + more
    return dataclasses.replace(base, workload=dataclasses.replace(base.workload, output_tokens=asked), **changes)


def test_a_run_that_gives_all_that_is_asked_says_nothing(three):
    assert cut_note(three()) == []
    assert summary(three())["cut_requests"] == summary(three())["cut_tokens"] == 0


def test_cut_outputs_are_counted_by_request_and_token(three):
    base = three()
    longest = int((base.requests.prompt_tokens + base.requests.output_tokens)[0])
    found = asking(three, [7, 0, 0], settings={"max_model_len": longest})
    assert (summary(found)["cut_requests"], summary(found)["cut_tokens"]) == (1, 7)
    wanted = int(base.requests.output_tokens.sum()) + 7
    said = " ".join(cut_note(found))
    assert f"1 of 3 outputs end at engine.max_model_len={longest:,}: 7 of the {wanted} tokens asked for are not" in said
    assert (
        f"Raise engine.max_model_len, leave such requests out with workload.max_total_tokens={longest}, or ask" in said
    )
    assert console(found, measure(found), None).startswith("Note: 1 of 3 outputs end at")


def test_refused_requests_are_not_cut(three):
    found = asking(three, [7, 0, 0])
    status = np.array(found.requests.status)
    status[0] = REJECTED
    refused = dataclasses.replace(found, requests=dataclasses.replace(found.requests, status=status))
    assert cut_outputs(refused).requests == 0


def test_where_the_cache_and_not_the_length_is_the_limit(three):
    said = " ".join(cut_note(asking(three, [7, 7, 7], settings={"max_model_len": 1_000_000})))
    assert "3 of 3 outputs end at what the KV cache can hold for one request" in said
    assert said.endswith("Ask for fewer tokens.")


def test_a_sweep_names_the_runs():
    rows = [{"run": f"{i}", "status": "ok", "cut_requests": cut} for i, cut in enumerate([0, 3, None, 1])]
    assert "in 2 of 4 runs (1, 3; column cut_requests)" in cut_runs_note(rows)
    assert cut_runs_note(rows[:1]) == ""
