"""The page stands alone, parses, and says what the run says."""

import dataclasses
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from sim.report.bottleneck import verdict
from sim.report.collect import COLUMNS
from sim.report.metrics import measure
from sim.report.page.build import asset, fill, latency_table, page
from sim.report.page.data import QUANTILES, chart_data, rounded
from sim.report.page.parts import quantity
from sim.report.page.sweep import pareto_front, sweep_page
from sim.report.result import REJECTED, StepTable


VOID = {"meta", "br", "link", "img", "hr", "input"}
ADDRESSES = {"src", "href", "action", "srcset", "poster", "data", "xlink:href"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects addresses, ids, text and the embedded data."""

    def __init__(self, text: str):
        super().__init__()
        self.stack, self.addresses, self.ids, self.words, self.data = [], [], [], [], None
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.stack.append((tag, dict(attrs)))
        self.addresses += [value for name, value in attrs if name in ADDRESSES]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self.stack[-1] if self.stack else ("", {})
        if attributes.get("id") == "data":
            self.data = json.loads(data)
        elif tag not in ("script", "style"):
            self.words.append(data)


def build(run):
    metrics = measure(run)
    return page(run, metrics, verdict(run, metrics))


def test_page_asks_nothing_of_the_network(result):
    text = build(result)
    found = Reader(text)
    assert found.addresses == []
    for word in ("http:", "https:", "@import", "url(", "//cdn"):
        assert word not in text.replace("http://www.w3.org/2000/svg", ""), word


def test_every_chart_has_its_place_and_its_data(result):
    found = Reader(build(result))
    assert len(found.ids) == len(set(found.ids))
    script = asset("page.js")
    for name in found.ids:
        if name.startswith(("cdf-", "hist-")):
            continue
        assert name in (
            "data",
            "tip",
            "latency",
            "load",
            "steps",
            "memory",
            "workload",
            "assumptions",
            "not-modelled",
            "run",
        ) or (f'"{name}"' in script), name
    assert set(found.data) == {"cdf", "parts", "time", "batch", "workload", "memory"}


def test_numbers_on_the_page_are_the_runs(result):
    metrics = measure(result)
    words = " ".join(Reader(build(result)).words)
    assert quantity(metrics.output_throughput) in words
    assert f"{metrics.preemptions:,} preemptions" in words
    assert result.workload.digest in words
    assert "memory bandwidth" in words
    assert "Prefix reuse." in words


def test_hit_rates_are_on_the_page_of_a_run_that_looked_up(result):
    """20 tokens asked for and 10 found per step of the first half; then nothing is looked up."""
    assert "Prefix cache hits" not in " ".join(Reader(build(result)).words)
    count = np.minimum(np.arange(1, len(result.steps) + 1), len(result.steps) // 2)
    columns = {"lookups": count, "queries": 20 * count, "hits": 10 * count, "preempted_lookups": count}
    columns |= {"preempted_queries": 20 * count, "preempted_hits": 18 * count}
    looked_up = dataclasses.replace(result, steps=dataclasses.replace(result.steps, **columns), log={"format": "vllm"})
    words = " ".join(Reader(build(looked_up)).words)
    assert "50.0% of the tokens looked up, 70.0% with preempted requests" in words
    hits = chart_data(looked_up, measure(looked_up))["time"]["hits"]
    assert {rate for rate in hits["bin"] if rate is not None} == {0.5} and hits["bin"][-1] is None
    assert hits["logged"][-1] == 0.5
    other = dataclasses.replace(looked_up, log={})
    assert chart_data(other, measure(other))["time"]["hits"]["logged"] is None


def test_text_of_the_run_is_not_taken_for_markup(result):
    evil = "</script><script>alert(1)</script><!--title-->"
    run = dataclasses.replace(
        result,
        model=evil,
        not_modelled=[evil],
        assumptions=[(evil, evil, evil)],
        config={"model": evil},
        memory=dataclasses.replace(
            result.memory, terms=(dataclasses.replace(result.memory.terms[0], name=evil), *result.memory.terms[1:])
        ),
    )
    found = Reader(build(run))
    assert "alert(1)" not in json.dumps([attributes for _, attributes in found.stack])
    assert found.data["memory"]["terms"][0]["name"] == evil
    assert build(run).count("<script") == build(result).count("<script")


def test_page_does_not_grow_with_the_run(toy):
    small, large = toy(requests=40), toy(requests=500, rate=5.0, blocks=20000)
    assert len(large.steps) > 8 * len(small.steps)
    sizes = [len(build(run)) for run in (small, large)]
    assert max(sizes) < 200_000


def test_page_of_a_run_where_nothing_finished(three):
    base = three()
    requests = dataclasses.replace(base.requests, status=np.full(3, REJECTED))
    steps = StepTable(*(np.array([], np.int64) for _ in dataclasses.fields(StepTable)))
    none = np.array([], np.int64)
    found = Reader(build(three(requests=requests, steps=steps, itl_ns=none, itl_count=none, components_s={})))
    assert found.data["time"] is None
    assert found.data["cdf"] == {"ttft": None, "tpot": None, "itl": None, "e2el": None}
    assert "No request finished" in " ".join(found.words)


def test_page_without_steps_still_has_latencies(three):
    steps = StepTable(*(np.array([], np.int64) for _ in dataclasses.fields(StepTable)))
    found = Reader(build(three(steps=steps, components_s={})))
    assert found.data["batch"] is None
    assert found.data["cdf"]["ttft"]["p50"] == pytest.approx(250)
    assert "Steps were not recorded" in " ".join(found.words)


def test_cdf_is_the_weighted_quantile_function(result):
    data = chart_data(result, measure(result))
    expanded = np.repeat(result.itl_ns, result.itl_count) / 1e6
    assert data["cdf"]["itl"]["ms"] == pytest.approx(np.percentile(expanded, QUANTILES).tolist(), rel=1e-4)
    assert data["cdf"]["itl"]["p99"] == pytest.approx(np.percentile(expanded, 99))
    assert data["cdf"]["itl"]["count"] == len(expanded)


def test_components_in_the_chart_sum_to_the_step_times(result):
    batch = chart_data(result, measure(result))["batch"]
    seconds = sum(
        steps * part / 1e3
        for group in batch["groups"].values()
        for parts in group["components"].values()
        for steps, part in zip(group["steps"], parts, strict=True)
    )
    assert seconds == pytest.approx(sum(values.sum() for values in result.components_s.values()), rel=1e-4)
    assert sum(sum(counts) for counts in batch["steps"].values()) == len(result.steps)
    assert sum(group["share"] for group in batch["groups"].values()) == pytest.approx(1)


def test_length_histograms_count_every_request(result):
    workload = chart_data(result, measure(result))["workload"]
    for name in ("prompt", "output"):
        assert sum(workload[name]["counts"]) + workload[name]["beyond"] == len(result.requests)
    arrivals = workload["arrivals"]
    assert sum(arrivals["rate"]) * arrivals["width_s"] == pytest.approx(len(result.requests))


def test_rounding_keeps_what_a_chart_shows():
    assert rounded(np.array([0, 123456.7, -0.000123456, np.nan, np.inf])) == [0, 123460, -0.00012346, None, None]


def test_quantities_for_people():
    assert [quantity(value) for value in (None, 0, 0.012345, 1.2345, 123.45, 123456.7)] == [
        "–",
        "0",
        "0.0123",
        "1.23",
        "123",
        "123,457",
    ]


def test_an_unfilled_slot_is_an_error():
    with pytest.raises(KeyError):
        fill("page.html", {})


def test_pareto_front_by_hand():
    x, y = np.array([1, 2, 3, 2, 3, 0.5]), np.array([5, 4, 1, 3, 1, 5])
    # (1, 5), (2, 4), (3, 1); (2, 3) and (0.5, 5) are beaten, the second (3, 1) is equal to the first.
    assert pareto_front(x, y).tolist() == [0, 1, 2]


def test_sweep_page_stands_alone():
    base = {"status": "ok", "reason": "", "bottleneck": "kv-bound", "preemptions": 0, "kv_usage_max": 0.5}
    names = (
        "output_throughput",
        "median_ttft_ms",
        "p99_ttft_ms",
        "median_tpot_ms",
        "p99_tpot_ms",
        "usd_per_1m_output_tokens",
    )
    rows = [
        base
        | dict.fromkeys(names, 1.0)
        | {"run": str(i), "seats": str(i), "output_throughput_per_gpu": gpu, "output_throughput_per_user": user}
        for i, (gpu, user) in enumerate([(10.0, 1.0), (5.0, 2.0), (4.0, 1.5)])
    ]
    rows.append({"run": "3", "seats": "<9>", "status": "infeasible", "reason": "It does not fit."})
    text = sweep_page(rows, "a <sweep>", pages={"0", "2"})
    found = Reader(text)
    assert found.addresses == ["0/report.html", "2/report.html"]
    assert found.data["front"] == [1, 0] or found.data["front"] == [0, 1]
    assert "It does not fit." in found.words
    assert "<9>" not in text
    assert "https:" not in text


def test_ttft_by_priority_is_on_the_page(three):
    assert "TTFT by priority" not in " ".join(Reader(build(three())).words)
    base = three()
    ranked = dataclasses.replace(base, workload=dataclasses.replace(base.workload, priority=np.array([5, 0, 5])))
    words = Reader(build(ranked)).words
    at = words.index("priority 0")
    assert words[at : at + 5] == ["priority 0", "1", "250.0", "250.0", "250.0"]
    assert words[at + 5 : at + 8] == ["priority 5", "2", "300.0"]


def test_small_numbers_are_short():
    assert quantity(1.388e-14) == "1.39e-14" and quantity(0.00001234) == "0.0000123"


def test_sweep_page_says_what_runs_share_and_names_them():
    row = dict.fromkeys((*COLUMNS,), 1.0) | {"status": "ok", "reason": "", "bottleneck": "kv-bound"}
    row |= {"model_name": "m-8b", "device_name": "H<1>", "model": "m", "workload_name": "chat", "workload.rate": "3"}
    rows = [row | {"run": str(i), "engine": name, "seats": str(i)} for i, name in enumerate(("a", "b"))]
    text = sweep_page(rows, "s")
    words = Reader(text).words
    assert (
        words.index("m-8b")
        < words.index("H<1>")
        < words.index("workload chat")
        < words.index("workload.rate=3")
        < words.index("2 configurations")
    )
    assert "model=m" not in words and "engine=a" not in words
    assert [point["run"] for point in Reader(text).data["points"]] == ["0", "1"]
    assert '<th scope="col" class="word">engine</th><th scope="col">seats</th>' in text
    assert '<td class="word">kv-bound</td>' in text


def test_ttft_stands_once_where_no_request_queued(three, result):
    """All of a run's requests scheduled at once would have the same row twice."""
    assert "TTFT, at once" in latency_table(measure(result))
    base = three()
    requests = dataclasses.replace(base.requests, scheduled_ns=np.array(base.requests.queued_ns))
    assert "TTFT, at once" not in latency_table(measure(dataclasses.replace(base, requests=requests)))
