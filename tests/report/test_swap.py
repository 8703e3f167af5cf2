"""Swapped KV of preempted requests in the summary, on the console and on the page."""

from dataclasses import replace

import pytest

from sim.report.console import console
from sim.report.metrics import measure
from sim.report.page.behind import swap_html
from sim.report.summary import summary
from sim.report.swap import SwapCount, swap_fields


COUNT = SwapCount(100, 2e6, 5, 1, 40, 30, 10, 25, 0.08, 0.06, [0.1, 0.3])


def test_the_fields_are_in_tokens_bytes_and_ms(three):
    """Blocks of 16 tokens and 2 MB; 25 of 100 at once; two that came back were away for 100 and 300 ms."""
    found = summary(replace(three(), swap=COUNT, block_size=16))["kv_swap"]
    assert found == swap_fields(COUNT, 16)
    assert (found["size_tokens"], found["out_tokens"], found["in_tokens"], found["dropped_tokens"]) == (
        1600, 640, 480, 160,
    )  # fmt: skip
    assert (found["out_bytes"], found["in_bytes"], found["most_used_share"]) == (80e6, 60e6, 0.25)
    assert (found["swaps"], found["back"], found["refused"]) == (5, 2, 1)
    assert found["away_ms_mean"] == pytest.approx(200)
    assert found["away_ms_p99"] == pytest.approx(298)
    assert summary(three())["kv_swap"] is None
    assert swap_fields(SwapCount(1, 1.0), 16)["away_ms_mean"] is None


def test_a_person_sees_them(three):
    result = replace(three(), swap=COUNT)
    said = console(result, measure(result), None)
    assert "Preemptions swapped / without room:      5 / 1" in said
    assert "Swapped, GB out / in:                    0.08 / 0.06" in said
    assert "away, mean / P99 (ms):  200.0 / 298.0" in said
    shown = swap_html(result)
    assert "1 preemptions found no room" in shown and "away for 200 ms" in shown
    assert swap_html(three()) == "" and "swapped" not in console(three(), measure(three()), None)
