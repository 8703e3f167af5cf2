"""The study that finds the greatest rate of each deployment within bounds on latency."""

import json

import pytest

from scripts.experiments.best_deployment import HALVINGS, Trials, run
from scripts.experiments.capacity import Bound, Point
from scripts.experiments.study import Case, Experiment, read_experiment


class Line(Trials):
    """TTFT grows by 100 ms for each request/s, TPOT is 10 ms, from `breaks` on a request fails."""

    def __init__(self, breaks: float = 1e9):
        super().__init__(Case("line", (), {}), [], [], {})
        self.tried: list[float] = []
        self.breaks = breaks

    def at(self, rate: float) -> Point:
        self.tried.append(rate)
        return Point(rate, 100.0 * rate, 10.0, rate, int(rate >= self.breaks))


@pytest.mark.parametrize("start", [0.25, 1.0, 5.3, 200.0])
def test_the_greatest_rate_is_found_from_any_start(start):
    """530 ms are kept up to 5.3 requests/s; what is found is at most the sixteenth root of two below."""
    found = Line().capacity(Bound(530.0, 20.0), start)
    assert found is not None
    assert 5.3 / 2 ** (1 / 2**HALVINGS) <= found.rate <= 5.3


def test_a_failed_request_or_a_slow_token_is_no_service():
    found = Line(breaks=3.0).capacity(Bound(530.0, 20.0), 1.0)
    assert found is not None and 2.8 < found.rate < 3.0
    assert Line().capacity(Bound(530.0, 9.0), 1.0) is None


def test_what_nothing_bounds_ends_at_the_highest_rate():
    found = Line().capacity(Bound(1e12, 20.0), 1.0)
    assert found is not None and found.rate > 2.0**14


TINY = (
    "model=llama-3.2-1b",
    "hardware=l4",
    "predictor=analytic",
    "workload=fixed-128-128",
    "engine.max_model_len=1024",
)


def quiet(done: int, besides: str = "") -> None:
    """Progress that nobody watches."""


def experiment(**settings) -> Experiment:
    cases = (
        Case("one", TINY, {"400": 1000.0}),
        Case("two", (*TINY, "deployment.replicas=2"), {"400": 1500.0, "tokens_per_usd_gain": 0.5}),
    )
    told = {"window_s": 4.0, "start_rate": 8.0, "bounds": [{"ttft_ms": 400.0, "tpot_ms": 40.0}]}
    return Experiment("x", "a study", "best_deployment", cases, told | settings)


def test_two_replicas_carry_twice_as_much():
    answer = run(experiment(scale=3, usd_per_hour={"L4": 0.8}), [], [], quiet)
    one, two = answer.fields["rows"]
    assert one["devices"] == {"NVIDIA L4": 3} and two["devices"] == {"NVIDIA L4": 6}
    assert two["point"]["rate"] == pytest.approx(2 * one["point"]["rate"], rel=0.25)
    assert one["point"]["ttft_ms"] <= 400.0 and one["point"]["tpot_ms"] <= 40.0
    assert one["point"]["output_throughput"] == pytest.approx(128 * one["point"]["rate"])
    assert one["tokens_per_usd"] == pytest.approx(3600 * one["point"]["output_throughput"] / (3 * 0.8))
    assert "One of 3 equal cells" in answer.text and "1,000" in answer.text and "two *" in answer.text
    charts = json.loads(answer.page.partition('id="data">')[2].partition("</script>")[0])["charts"]
    load, dollars, ttft, tpot = charts
    assert [case["published"] for case in load["cases"]] == [[1000.0], [1500.0]]
    assert load["cases"][0]["values"] == [one["point"]["output_throughput"]]
    assert dollars["cases"][1]["published"] == [0.5]
    assert dollars["cases"][1]["values"] == [pytest.approx(two["tokens_per_usd"] / one["tokens_per_usd"] - 1)]
    assert ttft["limits"] == [400.0] and tpot["limits"] == [40.0]
    tried = answer.fields["tried"]["one"]
    assert len(ttft["curves"][0]["x"]) == len(tried) and [point["rate"] for point in tried] == sorted(
        point["rate"] for point in tried
    )
    within = [point["ttft_ms"] <= 400.0 and point["tpot_ms"] <= 40.0 and not point["failed"] for point in tried]
    assert ttft["curves"][0]["inside"] == within and True in within and False in within
    assert "the better of them" in answer.page and "agrees" in answer.page
    assert [dict(zip(answer.head, row, strict=True))["case"] for row in answer.rows] == ["one", "two"]


def test_a_bound_that_nothing_meets_is_said():
    answer = run(experiment(bounds=[{"ttft_ms": 0.001, "tpot_ms": 40.0}], window_s=0.1, start_rate=0.02), [], [], quiet)
    assert [row["point"] for row in answer.fields["rows"]] == [None, None] and "none holds" in answer.text
    with pytest.raises(ValueError, match="x sets workload.rate itself"):
        run(experiment(), ["workload.rate=3"], [], quiet)


def test_the_shipped_studies_can_be_composed():
    from conf.compose import compose
    from sim.api import prepare

    for name in ("llama-70b-256-h800", "qwen-235b-h800-h20"):
        shipped = read_experiment(name)
        scale, devices = shipped.settings["scale"], set()
        for case in shipped.cases:
            job = prepare(compose([*case.overrides, "workload.num_requests=1", "workload.rate=1"]))
            parts = [pool.job for pool in job.pools] if hasattr(job, "pools") else [job]
            devices.add(scale * sum(part.plan.gpus for part in parts))
        assert devices == {256 if "256" in name else 1024}
