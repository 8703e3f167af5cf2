"""Requests that nobody served: no replica was in service, or clients would not wait. Neither is a matter of steps."""

from sim.report.metrics import Metrics, latencies
from sim.report.result import SimulationResult
from sim.report.verdict import Verdict
from sim.units import NS_PER_S


OUTAGE_SHARE = 0.3
"""Of the time to the first token: where more passes with nobody in service, that is the verdict."""

ABANDONED_SHARE = 0.1
"""From this share of all requests on, that clients give up is the verdict: the figures are those of the others."""


def unserved_verdict(result: SimulationResult, metrics: Metrics) -> Verdict | None:
    """Of a run whose requests found nobody in service, or whose clients left; None of any other."""
    return _outage(result) or _abandoned(metrics)


def _outage(result: SimulationResult) -> Verdict | None:
    waits_s = {i: wait_ns / NS_PER_S for i, wait_ns in result.unserved_ns.items()}
    found = latencies(result.requests)
    ended = set(found.request.tolist())
    nobody_s = sum(waits_s.values())
    whole_s = float(found.ttft_s.sum()) + sum(wait_s for i, wait_s in waits_s.items() if i not in ended)
    if not waits_s or nobody_s < OUTAGE_SHARE * whole_s:
        return None
    share, each_s = nobody_s / whole_s, nobody_s / len(waits_s)
    number = f"{len(waits_s):,} request{'s' if len(waits_s) > 1 else ''}"
    return Verdict(
        "out-of-service",
        f"Out of service: {share:.0%} of the time to the first token passes while no replica that could take the "
        f"request is in service ({number}, {each_s:.1f} s each on average).",
        "deployment.elastic: a shorter load_s, or more replicas, of each role, so that one stays in service.",
        {"out_of_service": share},
    )


def _abandoned(metrics: Metrics) -> Verdict | None:
    number = metrics.completed + metrics.aborted + metrics.failed
    if not metrics.aborted or metrics.aborted < ABANDONED_SHARE * number:
        return None
    rest = (
        f"the figures are of the {metrics.completed:,} that were served" if metrics.completed else "nobody was served"
    )
    return Verdict(
        "abandoned",
        f"Abandoned: clients gave {metrics.aborted:,} of {number:,} requests up before they had their answer; {rest}.",
        "deployment.replicas, or a lower load; workload.abort_after_s is how long clients wait.",
        {"aborted": metrics.aborted / number},
    )
