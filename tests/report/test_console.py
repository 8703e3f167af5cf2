"""The wording of the console block."""

import dataclasses

import numpy as np
import pytest

from sim.report.bottleneck import verdict
from sim.report.console import console
from sim.report.hit_rate import LookupTotals
from sim.report.metrics import measure
from sim.report.result import REJECTED


GOLDEN = """\
============ Serving Benchmark Result ============
Successful requests:                     3
Failed requests:                         0
Maximum request concurrency:             2
Request rate configured (RPS):           10.00
Benchmark duration (s):                  1.00
Total input tokens:                      60
Total generated tokens:                  9
Request throughput (req/s):              3.00
Request goodput (req/s):                 2.00
Output token throughput (tok/s):         9.00
Peak output token throughput (tok/s):    6.00
Peak concurrent requests:                3.00
Total Token throughput (tok/s):          69.00
---------------Time to First Token----------------
Mean TTFT (ms):                          283.33
Median TTFT (ms):                        250.00
P99 TTFT (ms):                           495.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          125.00
Median TPOT (ms):                        125.00
P99 TPOT (ms):                           149.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           116.67
Median ITL (ms):                         100.00
P99 ITL (ms):                            195.00
----------------End-to-end Latency----------------
Mean E2EL (ms):                          516.67
Median E2EL (ms):                        500.00
P99 E2EL (ms):                           794.00
----------------Inside the engine-----------------
Mean queue / prefill time (ms):          116.67 / 166.67
Mean TTFT, scheduled at once (ms):       175.00
KV cache usage, mean / max (%):          40.0 / 50.0
Preemptions:                             2
Tokens recomputed:                       10
Hit rate, without / with preempted (%):  n/a / n/a
Steps:                                   3
Mean batch, requests / tokens:           3.0 / 25.3
Step time / duration (%):                80.00
Output tok/s per GPU / per user:         4.5 / 8.0
USD per 1M tokens, input / output:       33.333 / 222.222
USD per 1M tokens, total:                28.986
"""


def test_console_block(three):
    run = three(slo_ms={"ttft": 300}, config={"workload": {"rate": 10, "arrival": "poisson"}})
    run = dataclasses.replace(run, workload=dataclasses.replace(run.workload, concurrency=2))
    text = console(run, measure(run), None)
    assert text == GOLDEN + "=" * 50


def test_percentiles_are_chosen(three):
    run = three()
    text = console(run, measure(run, (90, 99.9)), None, percentiles=(90, 99.9))
    assert "P90 TTFT (ms):                           450.00\nP99.9 TTFT (ms):" in text
    with pytest.raises(ValueError, match="got 75"):
        console(run, measure(run, (90,)), None, percentiles=(75,))


def test_what_did_not_happen_is_not_a_number(three):
    requests = dataclasses.replace(three().requests, status=np.full(3, REJECTED))
    run = three(requests=requests, config={"workload": {"rate": float("inf"), "arrival": "poisson"}})
    text = console(run, measure(run), None)
    assert "Request throughput (req/s):              n/a\n" in text
    assert "Request rate configured" not in text
    assert "nan" not in text


def test_verdict_and_assumptions_on_request(result):
    metrics = measure(result)
    text = console(result, metrics, verdict(result, metrics), assumptions=True)
    assert "--------------------Bottleneck--------------------\n" in text
    assert "\nTry " in text
    assert "memory bandwidth = 2.9 TB/s  [toy]" in text
    assert "- Prefix reuse." in text
    assert "Assumptions" not in console(result, metrics, None)


def test_repeated_look_ups_are_explained(three):
    """3 requests and 2 preemptions are 5 admissions: 10 look-ups are two each, 11 more."""
    metrics = measure(three())
    for lookups, said in ((10, False), (11, True)):
        found = LookupTotals(lookups, 100, 40, 0, 0, 0)
        text = console(three(), dataclasses.replace(metrics, prefix_cache=found), None)
        assert "Hit rate, without / with preempted (%):  40.0 / 40.0" in text
        assert ("11 look-ups for 5 admissions" in " ".join(text.split())) == said
    nothing = dataclasses.replace(metrics, prefix_cache=LookupTotals(2, 0, 0, 0, 0, 0))
    assert "preempted (%):  n/a / n/a" in console(three(), nothing, None)


@pytest.mark.parametrize(
    ("rate", "said"), [("inf", "arrivals: all at once"), ("3", "arrivals: poisson, 3.0 requests/s")]
)
def test_an_infinite_rate_is_all_at_once(rate, said):
    from sim import api

    run = api.simulate("workload=fixed-128-128", "workload.num_requests=2", f"workload.rate={rate}")
    assert ("workload", said, "workload configuration") in run.assumptions
    assert any(what == "KV blocks" for what, _, _ in run.assumptions)


def test_a_given_number_of_blocks_has_no_plausible_range():
    from sim import api

    given = api.simulate("workload=fixed-128-128", "workload.num_requests=2", "engine.kv_cache_memory_bytes=20e9")
    assert not any(what == "KV blocks" for what, _, _ in given.assumptions)
