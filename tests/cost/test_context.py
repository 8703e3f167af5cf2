"""What a context-parallel rank computes and sends: enumerated, worked by hand, and nothing where there is one rank."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from sim.cost.collective import collective_s, collective_terms
from sim.cost.context import ROWS, ContextTerms, MovedTerms, moved_s, pieces, stacked_context
from sim.cost.grid import Grid
from sim.cost.lengths import FLOATS, AttentionTerms, LengthTerms, lengths_s
from sim.cost.table import STATS, price_steps, price_table
from sim.deployment.domains import Domains
from sim.deployment.lower import lower_rank
from sim.deployment.plan import trimmed
from tests.cost.test_lengths import DECODE, PREFILL


KIND = AttentionTerms(10.0, DECODE, PREFILL)
COUNTS = st.integers(1, 5000).map(float)


@pytest.fixture
def full(dense):
    """The small model without its window."""
    return replace(dense, layers=(dense.layers[0],) * 2)


def steps(rows):
    return {name: np.array([getattr(row, name) for row in rows], float) for name in STATS}


def ranks(model, device, prefill=1, decode=1, tensor=1):
    experts = tensor * prefill
    return lower_rank(model, device, Domains(tensor, 1, experts, 1, False, 0, prefill, decode)).own


@given(st.integers(2, 8), st.integers(1, 100), st.integers(0, 1000))
def test_pieces_are_those_of_every_rank(count, size, prior):
    # A chunk of 2 c s tokens: rank r has the pieces r and 2 c - 1 - r, each of s tokens after all that come before.
    tokens = 2 * count * size
    pairs = sum(prior + position + 1 for position in range(tokens))
    got = pieces(FLOATS, float(count), float(tokens), 1.0, float(prior + tokens), float(prior))
    for rank in range(count):
        starts = [prior + piece * size for piece in (rank, 2 * count - 1 - rank)]
        assert got == pytest.approx((2 * size, 2, sum(starts) + 2 * size, sum(starts)))
        own = sum(start + position + 1 for start in starts for position in range(size))
        assert own == pytest.approx(pairs / count)


def test_one_rank_has_the_whole_chunk():
    assert pieces(FLOATS, 1.0, 7.0, 3.0, 11.0, 4.0) == (7.0, 3.0, 11.0, 4.0)


@given(st.lists(COUNTS, min_size=4, max_size=4), st.integers(0, 64), COUNTS)
def test_one_rank_is_as_none_to_the_bit(chunk, decodes, longest):
    tokens, prior, *_ = chunk
    area, keys = tokens * prior + tokens * (tokens + 1) / 2, prior + tokens
    batch = tokens, 1.0, area, keys, keys, float(decodes), decodes * longest, longest, decodes * longest * longest
    for stats in (batch, (0.0,) * 5 + batch[5:]):
        alone = lengths_s(FLOATS, LengthTerms((KIND,)), *stats)
        assert lengths_s(FLOATS, LengthTerms((KIND,), (), ContextTerms(1.0, 1.0)), *stats) == alone


def test_a_plan_without_context_parallelism_carries_none(full, device):
    assert trimmed(ranks(full, device)).context is None
    assert trimmed(ranks(full, device, prefill=2)).context is not None


def test_a_decoding_rank_reads_its_share_of_the_keys(full, device, cost, batch):
    # 16 query heads of 4 KV heads on 8 ranks: 2 heads and a copy of one KV head; two ranks divide its tokens, each
    # with the 4 heads of both. As many FLOPs, half the bytes of keys.
    rows = steps([batch(decodes=[4000] * 8), batch(decodes=[2000] * 8)])
    whole, divided = (ranks(full, device, decode=decode, tensor=8) for decode in (1, 2))
    one, two = price_steps(cost, whole, rows), price_steps(cost, divided, rows)
    assert two["flops"] == pytest.approx(one["flops"])
    keys = 8 * 2000 * float((divided.attention.count * divided.attention.kv_bytes_per_token).sum())
    assert one["memory_bytes"][0] - two["memory_bytes"][0] == pytest.approx(keys)
    # the kernel with 4 heads over 2,000 keys, and the collectives of 8 rows
    wide = replace(divided, attention=replace(whole.attention, q_heads=2 * whole.attention.q_heads))
    bare = price_steps(cost, replace(wide, context=ranks(full, device, tensor=8).context), rows)["attention_s"][1]
    moved = divided.context.moved
    sent_s = float(np.sum(collective_s(collective_terms(moved), jnp.float64(8.0), jnp.float64(0.0))))
    assert two["attention_s"][0] == pytest.approx(bare + sent_s)
    # eight short rows gain nothing by it
    short = steps([batch(decodes=[16] * 8)])
    assert price_steps(cost, divided, short)["total_s"] > price_steps(cost, whole, short)["total_s"]


def test_a_prefilling_rank_has_its_share_of_the_work(full, device, cost, batch):
    # A first chunk of 32,768 tokens on 4 ranks: 8,192 rows of products and a quarter of the query-key pairs.
    whole, quarter = ranks(full, device), ranks(full, device, prefill=4)
    chunk = batch(prefills=[(32768, 0)])
    share = replace(chunk, padded_tokens=jnp.float64(8192.0), emitting=jnp.float64(0.0))
    one = price_steps(cost, whole, steps([replace(chunk, emitting=jnp.float64(0.0))]))
    four = price_steps(cost, quarter, steps([share]))
    assert four["flops"] == pytest.approx(one["flops"] / 4)
    gathered = collective_s(collective_terms(quarter.context.moved), jnp.float64(32768.0), jnp.float64(0.0))
    work_s = four["attention_s"][0] - float(np.sum(gathered))
    assert work_s == pytest.approx(one["attention_s"][0] / 4, rel=0.05)


def test_experts_see_the_tokens_of_all_ranks(experts, device, cost, batch):
    # Two ranks of 100 tokens each, experts of half the units: as two tensor-parallel ranks with 200 tokens.
    two, tensor = ranks(experts, device, prefill=2), ranks(experts, device, tensor=2)
    got = price_steps(cost, two, steps([batch(decodes=[10] * 100)]))["moe_s"]
    assert got == price_steps(cost, tensor, steps([batch(decodes=[10] * 200)]))["moe_s"]


def test_collectives_are_read_as_the_model_has_them(full, device, cost):
    table = price_table(cost, ranks(full, device, decode=2, tensor=8), 16, 16).lengths.context
    slots = collective_terms(ranks(full, device, decode=2, tensor=8).context.moved)
    for rows, close in ((1.0, 1e-12), (16.0, 1e-12), (77.0, 2e-3), (5000.0, 2e-3), (1e6, 2e-3)):
        want = float(np.sum(collective_s(slots, jnp.float64(rows), jnp.float64(0.0))))
        assert sum(moved_s(FLOATS, kind, rows, 0.0, 0.0) for kind in table.moved) == pytest.approx(want, rel=close)
    assert sum(moved_s(FLOATS, kind, 0.0, 0.0, 0.0) for kind in table.moved) == 0.0


def test_plans_side_by_side():
    nodes = Grid((2.0 + ROWS.nodes()).tolist())
    one = ContextTerms(2.0, 0.25, (MovedTerms(1.0, 0.0, 3.0, nodes),))
    both = stacked_context([None, one])
    assert both.query_ranks.tolist() == [1.0, 2.0] and both.key_share.tolist() == [1.0, 0.25]
    tokens = np.array([4.0, 4.0])
    # 4 rows of tokens and 3 x 2 of what was there before: 2 + 10; a plan without any has none
    assert moved_s(np, both.moved[0], tokens, tokens, tokens - 2.0).tolist() == [0.0, 12.0]
    assert stacked_context([None, None]) is None
