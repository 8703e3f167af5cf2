"""Prefix-cache look-ups of whole runs, and what a replica holds after each output."""

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

import sim.event.pool as pool_module
from sim.deployment.settings import load_engine
from sim.event.run import run_exact
from sim.report.hit_rate import lookup_totals
from sim.report.outputs import outputs_of
from sim.report.result import LOOKUPS
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


MS = 1_000_000


def run_counted(monkeypatch, w, settings, **options):
    """A run, and the schedulers that made it."""
    made = []
    make = pool_module.make_scheduler

    def remember(*arguments):
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(pool_module, "make_scheduler", remember)
    return run_exact(w, settings, make_table(), **options), made


def shared_prefixes(requests, prefix=64, own=64, outputs=40, every_ms=1, groups=3):
    """Prompts of a prefix that a third of them share, and tokens of their own."""
    ids = tuple(
        np.concatenate([np.arange(prefix) + 10_000 * (i % groups), np.arange(own) + 1_000_000 * (i + 1)])
        for i in range(requests)
    )
    lengths = np.full(requests, prefix + own)
    return Workload("test", np.arange(requests) * every_ms * MS, lengths, np.full(requests, outputs), token_ids=ids)


@pytest.mark.parametrize("version", ["0.19.0", "0.33.0"])
def test_the_table_has_what_the_schedulers_counted(monkeypatch, version):
    """Two replicas under pressure, with preemptions and blocked heads. 0.33.0 counts admissions only: one look-up per
    request, and one more per preemption."""
    settings = make_settings(
        async_scheduling=True, prefix_caching=True, max_num_seqs=16, profile=load_engine("vllm", version).profile
    )
    w = shared_prefixes(60)
    run, schedulers = run_counted(monkeypatch, w, settings, num_gpu_blocks=50, replicas=2)
    stats = [scheduler.hit_stats for scheduler in schedulers]
    total = lookup_totals(run.steps)
    assert (total.lookups, total.queries, total.hits) == tuple(
        sum(getattr(one, name) for one in stats) for name in ("requests", "queries", "hits")
    )
    assert (total.preempted_lookups, total.preempted_queries, total.preempted_hits) == tuple(
        sum(getattr(one, name) for one in stats)
        for name in ("preempted_requests", "preempted_queries", "preempted_hits")
    )
    preemptions = run.requests.preemptions.sum()
    assert preemptions > 0
    if version == "0.33.0":
        assert (total.lookups, total.preempted_lookups) == (60, preemptions)
        assert total.queries == w.prompt_tokens.sum() and total.hits == run.requests.cached_tokens.sum()
    else:
        assert total.lookups > 100 and total.hits > run.requests.cached_tokens.sum()
    assert all((np.diff(getattr(run.steps, name)[run.steps.replica == 0]) >= 0).all() for name in LOOKUPS)


def test_without_content_nothing_is_looked_up():
    w = Workload("test", np.zeros(5, np.int64), np.full(5, 40), np.full(5, 9))
    run = run_exact(w, make_settings(prefix_caching=True), make_table(), num_gpu_blocks=50)
    assert lookup_totals(run.steps) is None


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    requests=st.integers(1, 25),
    blocks=st.integers(20, 60),
    seats=st.integers(1, 8),
    asynchronous=st.booleans(),
    content=st.booleans(),
)
def test_after_each_output_the_replica_holds_what_has_not_ended(requests, blocks, seats, asynchronous, content):
    """As of the last output nobody is left and every block is back.

    Requests that run or wait never outnumber those that have arrived and not ended; synchronously, blocks are in use
    while a request runs, and only then.
    """
    settings = make_settings(async_scheduling=asynchronous, prefix_caching=content, max_num_seqs=seats)
    w = shared_prefixes(requests, every_ms=3)
    run = run_exact(w, settings, make_table(), num_gpu_blocks=blocks)
    outputs = outputs_of(run.steps, 0)
    assert (outputs.running[-1], outputs.waiting[-1], outputs.free_blocks[-1]) == (0, 0, blocks - 1)
    assert run.steps.ended.sum() == requests
    assert (outputs.free_blocks <= blocks - 1).all() and (outputs.free_blocks >= 0).all()
    arrived = np.searchsorted(np.sort(run.requests.queued_ns), outputs.end_ns, side="left")
    ended = np.searchsorted(np.sort(run.requests.finish_ns), outputs.end_ns, side="right")
    assert (outputs.running + outputs.waiting <= arrived - ended).all()
    if not asynchronous:
        assert ((outputs.running == 0) == (outputs.free_blocks == blocks - 1)).all()
