"""Speculative decoding in the exact engine: steps by acceptance, conservation under preemption, determinism."""

import math

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from conf.compose import compose
from sim.api import prepare
from sim.cost.drafting import DraftedPrices, DraftTables
from sim.deployment.graphs import EAGER, FULL, PIECEWISE
from sim.deployment.settings import load_engine
from sim.deployment.speculation import Speculation
from sim.event.padding import DraftPadding
from sim.event.pricer import DraftingPricer
from sim.event.run import run_exact
from sim.memory.shape import GroupShape
from sim.report.speculation import speculation_fields
from sim.scheduler.base import Batch
from sim.workload.acceptance import AcceptanceConf
from sim.workload.trace import Workload

from .conftest import make_settings, make_table


def workload(arrivals_ms, prompts, outputs) -> Workload:
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs))


MS = 1_000_000
VERSIONS = ("0.10.2", "0.19.0", "0.33.0")


def drafted(drafts: int, acceptance: AcceptanceConf, method: str = "eagle", version: str = "0.10.2", **changes):
    speculation = Speculation(method, drafts, acceptance, match_rate=changes.pop("match_rate", 1.0))
    profile = load_engine("vllm", version).profile
    return make_settings(speculation=speculation, profile=profile, **changes)


def prices(rows: int = 1024) -> DraftedPrices:
    return DraftedPrices(make_table(tokens=16384, rows=8 * rows), None)


def run(work, settings, blocks=4096, seed=0):
    tables = make_table() if settings.speculation is None else prices()
    return run_exact(work, settings, tables, num_gpu_blocks=blocks, seed=seed)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("outputs", [1, 2, 7, 24])
def test_steps_follow_from_acceptance(outputs, version, asynchronous):
    """The prompt's step gives one token, each after it 1 + k; with none right as many as without drafts."""
    work = workload([0], [40], [outputs])
    plain = run(work, make_settings(profile=load_engine("vllm", version).profile, async_scheduling=asynchronous))
    none, all_of_them = (
        run(work, drafted(3, AcceptanceConf(rate=rate), version=version, async_scheduling=asynchronous))
        for rate in (0.0, 1.0)
    )
    assert len(none.steps) == len(plain.steps) or asynchronous  # scheduled ahead, the end is not foreseen
    assert (none.steps.emitting > 0).sum() - (none.steps.end_ns > none.requests.finish_ns[0]).sum() == outputs
    emits = all_of_them.steps.end_ns <= all_of_them.requests.finish_ns[0]
    assert emits.sum() == 1 + math.ceil((outputs - 1) / 4)
    assert none.checks["tokens committed = tokens emitted"] and all_of_them.checks["tokens committed = tokens emitted"]


def test_a_request_without_luck_takes_as_many_steps_as_without_drafts():
    work = workload([0, 0, 5], [40, 30, 20], [24, 9, 13])
    even = make_table(1e-2, 0.0, 0.0)
    plain = run_exact(work, make_settings(), even, num_gpu_blocks=4096)
    none = run_exact(work, drafted(4, AcceptanceConf(pattern=[0])), DraftedPrices(even, None), num_gpu_blocks=4096)
    assert len(none.steps) == len(plain.steps)
    assert none.steps.emitting.tolist() == plain.steps.emitting.tolist()
    assert none.steps.draft_tokens.sum() > 0
    assert none.speculation.committed == 24 + 9 + 13


@pytest.mark.parametrize("method", ["eagle", "ngram"])
def test_the_same_seed_gives_the_same_run(method):
    work = workload([0, 1, 2, 3], [30] * 4, [40] * 4)
    conf = (
        drafted(3, AcceptanceConf(rate=0.6), method, match_rate=0.5)
        if method == "ngram"
        else drafted(3, AcceptanceConf(rate=0.6), method)
    )
    one, again, other = run(work, conf), run(work, conf), run(work, conf, seed=1)
    assert one.requests.finish_ns.tolist() == again.requests.finish_ns.tolist()
    assert one.requests.finish_ns.tolist() != other.requests.finish_ns.tolist()


def test_who_else_runs_changes_nobodys_luck():
    """A request's verifications have the same outcomes alone and in a batch: as many rows bring its tokens."""
    conf = drafted(3, AcceptanceConf(rate=0.6))
    alone, beside = run(workload([0], [30], [60]), conf), run(workload([0, 0, 0], [30] * 3, [60] * 3), conf)
    of_first = beside.steps.end_ns <= beside.requests.finish_ns[0]
    assert of_first.sum() == len(alone.steps)


@given(
    version=st.sampled_from(VERSIONS),
    asynchronous=st.booleans(),
    drafts=st.integers(1, 5),
    rate=st.floats(0.0, 1.0),
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8),
    blocks=st.integers(9, 40),
    method=st.sampled_from(["eagle", "ngram", "medusa"]),
    seed=st.integers(0, 9),
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_nothing_is_lost_when_blocks_are_short(version, asynchronous, drafts, rate, lengths, blocks, method, seed):
    work = workload([0] * len(lengths), [p for p, _ in lengths], [o for _, o in lengths])
    conf = drafted(
        drafts,
        AcceptanceConf(rate=rate),
        method,
        version,
        match_rate=0.7,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        async_scheduling=asynchronous and method == "eagle",
    )
    found = run_exact(work, conf, prices(), num_gpu_blocks=blocks, groups=(GroupShape("full", 16),), seed=seed)
    assert all(found.checks.values())
    table = found.speculation
    wanted = int(found.requests.output_tokens[found.requests.status == 0].sum())
    assert table.committed == wanted
    told = speculation_fields(table)
    assert table.rows + told["accepted_tokens"] - table.cut == wanted
    assert told["accepted_tokens"] <= told["drafted_tokens"]


class Tokens(Batch):
    """A batch that counts its drafts as tokens, as the row-by-row scheduler's does."""

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decodes + self.draft_tokens


def tokens_of(decodes: int, drafts: int, prefill: int = 0) -> Tokens:
    made = Tokens()
    for _ in range(decodes):
        made.add_decode(500)
    if prefill:
        made.add_chunk(0, prefill)
    made.draft_tokens, made.emitting = drafts, decodes
    return made


def test_only_rows_with_all_their_drafts_run_in_a_full_graph():
    settings = drafted(3, AcceptanceConf(rate=0.5), graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 4, 8, 16))
    padding = DraftPadding(settings, 3)
    assert padding(tokens_of(3, 9)) == (16, FULL)  # 3 rows of 4 tokens, the next size above 12
    assert padding(tokens_of(3, 7)) == (16, PIECEWISE)
    assert padding(tokens_of(3, 0)) == (4, PIECEWISE)
    assert padding(tokens_of(1, 3, prefill=2)) == (8, PIECEWISE)
    assert padding(tokens_of(5, 15)) == (20, EAGER)


def test_a_step_is_the_verification_and_the_passes_of_the_drafter():
    """verify = 1 ms + 10 us a token + 1 us a logits row; first pass on all tokens, two later ones on one a row."""
    settings = drafted(3, AcceptanceConf(rate=0.5))
    verify = make_table(1e-3, 1e-5, 1e-6)
    first, later = make_table(1e-4, 1e-6, 1e-7), make_table(2e-4, 2e-6, 1e-7)
    tables = DraftTables(first, later, 2, False, [(tokens, 0) for tokens in range(100)])
    one = DraftingPricer(DraftedPrices(verify, tables), settings, 3)(tokens_of(5, 15))
    seconds = 1e-3 + 20e-5 + 20e-6 + (1e-4 + 20e-6 + 5e-7) + 2 * (2e-4 + 10e-6 + 5e-7)
    assert one == (round(1e9 * seconds), 20, 0)
    heads = DraftTables(first, first, 0, True, tables.runs_as)
    two = DraftingPricer(DraftedPrices(verify, heads), settings, 3)(tokens_of(5, 15))
    assert two[0] == round(1e9 * (1e-3 + 20e-5 + 20e-6 + 1e-4 + 5e-6 + 5e-7))


def test_drafts_of_n_grams_come_where_text_matches():
    work = workload([0], [20], [200])
    none, half, all_of_them = (
        run(work, drafted(2, AcceptanceConf(rate=1.0), "ngram", match_rate=rate), seed=4) for rate in (0.0, 0.5, 1.0)
    )
    assert none.steps.draft_tokens.sum() == 0 and len(none.steps) == 200
    assert len(all_of_them.steps) == 1 + math.ceil(199 / 3)
    # a row brings 1 token or 3, each as likely: 2 on average
    assert len(half.steps) == pytest.approx(100, rel=0.15)
    assert np.count_nonzero(half.steps.draft_tokens) == pytest.approx(50, rel=0.3)


def test_several_pools_are_refused():
    with pytest.raises(ValueError, match="not simulated in a deployment of several pools, got .*eagle in pool"):
        prepare(compose(["deployment=pd-1p1d", "speculation=eagle"]))
