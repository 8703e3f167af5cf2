"""Rows that verify drafts: never cheaper than rows without, and the same price by table as by component."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from sim.cost.drafting import draft_s, drafted_prices, with_drafts
from sim.cost.lengths import FLOATS, decodes_s, lengths_s
from sim.cost.table import STATS, length_terms, price_steps
from sim.deployment.lower import lower
from sim.deployment.plan import DraftPlan
from sim.report.result import StepTable
from tests.event.conftest import make_settings


DRAFTS = 3
STEPS = [
    # chunk, prior, decodes, context, drafts
    (0, 0, 1, 900, 3),
    (0, 0, 16, 700, 48),
    (0, 0, 16, 700, 20),
    (0, 0, 16, 700, 0),
    (300, 100, 0, 0, 0),
    (200, 0, 12, 1500, 36),
]


def step_table() -> StepTable:
    rows = []
    for chunk, prior, decodes, context, drafts in STEPS:
        row = dict.fromkeys(StepTable.__dataclass_fields__, 0)
        row |= {"decodes": decodes, "decode_sum": decodes * context, "decode_max": context if decodes else 0}
        row |= {"decode_sumsq": decodes * context**2, "draft_tokens": drafts, "emitting": decodes + (chunk > 0)}
        row |= {"prefill_tokens": chunk, "prefill_chunks": int(chunk > 0), "prefill_kv_tokens": chunk + prior}
        row |= {"prefill_area": chunk * prior + chunk * (chunk + 1) // 2, "prefill_max_tokens": chunk + prior}
        row |= {"padded_tokens": chunk + decodes + drafts, "graph_mode": 0}
        rows.append(row)
    return StepTable(**{name: np.array([row[name] for row in rows]) for name in StepTable.__dataclass_fields__})


@pytest.fixture(scope="module")
def verifying(dense, device):
    return replace(lower(dense, device), query_tokens=np.asarray(1.0 + DRAFTS))


@pytest.fixture(scope="module")
def drafted(dense, device, cost, verifying):
    small = lower(replace(dense, layers=dense.layers[:1]), device)
    first = replace(small, query_tokens=np.asarray(1.0 + DRAFTS))
    draft = DraftPlan(first, small, DRAFTS - 1, False, True)
    settings = make_settings(graph_mode="PIECEWISE", graph_sizes=(1, 2, 4, 8, 16, 32))
    return draft, settings, drafted_prices(cost, verifying, draft, settings, 600, 64, DRAFTS)


def test_a_step_by_table_is_a_step_by_component(cost, verifying, drafted):
    draft, settings, prices = drafted
    steps = step_table()
    found = price_steps(cost, verifying, steps)
    whole = with_drafts(found, cost, draft, settings, steps)
    for i in range(len(steps)):
        batch = SimpleNamespace(**{name: getattr(steps, name)[i].item() for name in STATS}, tokens=int(steps.tokens[i]))
        names = (*STATS[:9], "draft_tokens")
        verify_s = (
            prices.verify.token_s[0][batch.tokens]
            + prices.verify.row_s[batch.emitting + batch.draft_tokens]
            + lengths_s(FLOATS, prices.verify.lengths, *(getattr(batch, name) for name in names))
        )
        assert verify_s == pytest.approx(found["total_s"][i], rel=1e-9)
        assert draft_s(prices.draft, batch) == pytest.approx(whole["draft_s"][i], rel=1e-9)
    assert whole["total_s"] == pytest.approx(found["total_s"] + whole["draft_s"], rel=1e-12)
    assert (whole["draft_s"] > 0).all()
    without = with_drafts(found, cost, None, settings, steps)
    assert not without["draft_s"].any() and (without["total_s"] == found["total_s"]).all()


def test_verifying_is_never_cheaper_than_decoding(cost, verifying, dense, device):
    """Few drafts hide behind the keys that are streamed; many do not."""
    terms, plain = length_terms(cost, verifying), length_terms(cost, lower(dense, device))
    for rows, context in ((1, 100), (1, 30_000), (64, 2000), (512, 500)):
        sums = rows, rows * context, context, rows * context**2
        alone_s = decodes_s(plain, *sums)
        assert decodes_s(terms, *sums) == alone_s  # rows without drafts are as they were
        by_drafts = [decodes_s(terms, *sums, drafts) for drafts in (0, rows, 2 * rows, DRAFTS * rows)]
        assert by_drafts == sorted(by_drafts) and by_drafts[0] == alone_s
        assert by_drafts[-1] < 2 * alone_s  # the keys are read once


def test_a_row_with_drafts_is_a_row_with_as_many_times_the_query_heads(cost, verifying, dense, device):
    heads = replace(verifying.attention, q_heads=verifying.attention.q_heads * (1 + DRAFTS))
    wide = length_terms(cost, replace(lower(dense, device), attention=heads))
    sums = 32, 32 * 4000, 4000, 32 * 4000**2
    with jax.enable_x64(True):
        assert decodes_s(length_terms(cost, verifying), *sums, 32 * DRAFTS) == pytest.approx(decodes_s(wide, *sums))
