"""Measured against predicted: the error of every metric that matters, by statistic."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sim.report.measured import LONGEST_S, Recorded, joined
from sim.report.metrics import latencies
from sim.report.percentile import Distribution, distribution
from sim.report.plain import plain
from sim.report.result import REJECTED, RequestTable, SimulationResult
from sim.report.series import emitted_per_second, running_and_waiting
from sim.units import NS_PER_S


WARMUP_REQUESTS = 25
"""Requests dropped from the start before TTFT of not-queued requests is scored: the engine is still filling."""

STATISTICS = ("mean", "median", "p90", "p99")


@dataclass(frozen=True)
class ErrorRow:
    """One number on both sides. `error` = predicted / measured - 1, or None where that means nothing.

    For a series `statistic` is "nmae": both sides hold the series' mean and `error` is mean |predicted - measured| /
    mean measured.
    """

    metric: str
    statistic: str
    unit: str
    measured: float | None
    predicted: float | None
    error: float | None


@dataclass(frozen=True)
class Comparison:
    """Rows of a validation, and what a reader should know of it."""

    rows: list[ErrorRow]
    notes: list[str] = field(default_factory=list)

    def error(self, metric: str, statistic: str = "mean") -> float | None:
        """The error of one row. Raises `ValueError` if there is no such row."""
        for row in self.rows:
            if (row.metric, row.statistic) == (metric, statistic):
                return row.error
        raise ValueError(
            f"wanted a row {metric}/{statistic}, got {sorted({row.metric for row in self.rows})} x {STATISTICS}"
        )


def compare(recorded: Recorded, predicted: SimulationResult, warmup_requests: int = WARMUP_REQUESTS) -> Comparison:
    """Errors of latency, throughput and the 1 Hz series of `predicted` against a recorded run of the same workload.

    Both count from arrivals joined to the engine's clock by the same rule (`sim.report.measured.joined`).
    """
    rows: list[ErrorRow] = []
    predicted = replace(predicted, requests=joined(predicted.requests))
    ours, theirs = _samples(predicted.requests, warmup_requests), _samples(recorded.requests, warmup_requests)
    for name, sample in theirs.items():
        measured, found = (distribution(values, percentiles=(90.0, 99.0)) for values in (sample, ours[name]))
        rows += [_row(name, s, "ms", _ms(measured, s), _ms(found, s)) for s in STATISTICS]
    truth, guess = _throughput(recorded.requests), _throughput(predicted.requests)
    rows += [_row(name, "mean", unit, truth[name], guess[name]) for name, unit in THROUGHPUTS.items()]
    rows += _series_rows(recorded, predicted)
    notes = [
        "ttft counts from arrival, on both sides such that the quickest pick-up by the engine took no time; "
        "ttft_queued from when the engine took the request up; "
        f"ttft_not_queued is of requests scheduled at once ({len(theirs['ttft_not_queued'])} measured, "
        f"{len(ours['ttft_not_queued'])} predicted), the first {warmup_requests} dropped."
    ]
    same = len(recorded.requests) == len(predicted.requests) and np.array_equal(
        recorded.requests.prompt_tokens, predicted.requests.prompt_tokens
    )
    if same and len(theirs["ttft"]) == len(ours["ttft"]):
        gap_ms = np.median(np.abs(theirs["ttft"] - ours["ttft"])) * 1e3
        notes.append(f"Request by request, the median absolute error of TTFT is {gap_ms:.1f} ms.")
    if not same:
        notes.append("The two runs do not serve the same prompts in the same order, so errors mix workload and model.")
    for side, requests in (("measured", recorded.requests), ("predicted", predicted.requests)):
        refused = int((np.asarray(requests.status) == REJECTED).sum())
        if refused:
            notes.append(
                f"{refused} of {len(requests)} {side} requests were rejected: they exceed engine.max_model_len "
                "or need more KV blocks than exist."
            )
    return Comparison(rows, notes)


THROUGHPUTS = {
    "request_throughput": "req/s",
    "output_throughput": "tok/s",
    "total_token_throughput": "tok/s",
    "duration": "s",
}


def _samples(requests: RequestTable, warmup: int) -> dict[str, np.ndarray]:
    found = latencies(requests)
    warm = found.request >= warmup
    return {
        "ttft": found.ttft_s,
        "ttft_queued": found.ttft_queued_s,
        "ttft_not_queued": found.ttft_s[found.not_queued & warm],
        "tpot": found.tpot_s[found.has_tpot],
        "e2el": found.e2el_s,
    }


def _ms(found: Distribution, statistic: str) -> float | None:
    values = {
        "mean": found.mean_s,
        "median": found.median_s,
        "p90": found.percentile_s(90.0),
        "p99": found.percentile_s(99.0),
    }
    seconds = values[statistic]
    return None if seconds is None else seconds * 1e3


def _row(metric: str, statistic: str, unit: str, measured: float | None, predicted: float | None) -> ErrorRow:
    error = predicted / measured - 1 if measured and predicted is not None else None
    return ErrorRow(metric, statistic, unit, measured, predicted, error)


def _throughput(requests: RequestTable) -> dict[str, float | None]:
    found = latencies(requests)
    if not len(found.request):
        return dict.fromkeys(THROUGHPUTS)
    span_s = (int(np.max(np.asarray(requests.finish_ns)[found.request])) - requests.first_arrival_ns) / NS_PER_S
    prompt = int(np.asarray(requests.prompt_tokens)[found.request].sum())
    output = int(np.asarray(requests.output_tokens)[found.request].sum())
    counts = {
        "request_throughput": len(found.request),
        "output_throughput": output,
        "total_token_throughput": prompt + output,
    }
    found_rates: dict[str, float | None] = {
        name: count / span_s if span_s > 0 else None for name, count in counts.items()
    }
    return found_rates | {"duration": span_s}


def _series_rows(recorded: Recorded, predicted: SimulationResult) -> list[ErrorRow]:
    """Running, waiting and generated tokens/s at each second of the longer run; the shorter one ends with zeros.

    No rows for a run under a second or over `LONGEST_S`.
    """
    starts = [requests.first_arrival_ns for requests in (recorded.requests, predicted.requests)]
    ends = [int(np.max(requests.finish_ns)) for requests in (recorded.requests, predicted.requests)]
    seconds = int(np.ceil(max(end - start for start, end in zip(starts, ends, strict=True)) / NS_PER_S))
    if not 1 <= seconds <= LONGEST_S:
        return []
    grid_s = np.arange(1, seconds + 1, dtype=float)
    truth = _sampled(recorded.requests, None, starts[0], grid_s)
    guess = _sampled(predicted.requests, predicted, starts[1], grid_s)
    if recorded.series is not None and len(recorded.series["t_s"]):
        for name in truth:
            truth[name] = np.interp(grid_s, recorded.series["t_s"], recorded.series[name], left=0.0, right=0.0)
    rows = []
    for name, unit in (("running", "requests"), ("waiting", "requests"), ("gen_throughput", "tok/s")):
        mean = float(truth[name].mean())
        error = float(np.abs(guess[name] - truth[name]).mean() / mean) if mean else None
        rows.append(ErrorRow(name, "nmae", unit, mean, float(guess[name].mean()), error))
    return rows


def _sampled(
    requests: RequestTable, result: SimulationResult | None, start_ns: int, grid_s: np.ndarray
) -> dict[str, np.ndarray]:
    at_ns = start_ns + (grid_s * NS_PER_S).astype(np.int64)
    running, waiting = running_and_waiting(requests, at_ns)
    edges_ns = np.concatenate([[start_ns], at_ns]).astype(float)
    emitted = emitted_per_second(requests, result.steps if result else None, edges_ns)
    return {"running": running.astype(float), "waiting": waiting.astype(float), "gen_throughput": emitted}


def comparison_text(found: Comparison) -> str:
    """The error table for a terminal."""
    lines = [f"{'metric':<24}{'':<8}{'measured':>12}{'predicted':>12}  {'unit':<9}{'error':>8}"]
    previous = None
    for row in found.rows:
        name = row.metric if row.metric != previous else ""
        previous = row.metric
        measured, predicted = ("n/a" if value is None else f"{value:,.2f}" for value in (row.measured, row.predicted))
        sign = "" if row.statistic == "nmae" else "+"
        error = "n/a" if row.error is None else f"{100 * row.error:{sign}.1f} %"
        lines.append(f"{name:<24}{row.statistic:<8}{measured:>12}{predicted:>12}  {row.unit:<9}{error:>8}")
    return "\n".join([*lines, "", *found.notes])


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The error table as plain data: `rows` with the fields of `ErrorRow`, and `notes`."""
    return plain({"schema": "headway.comparison/1", "rows": found.rows, "notes": found.notes})
