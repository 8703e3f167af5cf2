"""What data-parallel ranks run together: its tables, its parts, and that both tell the same price."""

import numpy as np
import pytest

from sim.cost.lockstep import exchanged, lockstep_prices, lockstep_steps
from sim.deployment.domains import Domains
from sim.deployment.engine import EngineProfile
from sim.deployment.exchange import collective_slots
from sim.deployment.lower import lower_rank
from sim.deployment.plan import FEWEST, GATHERS, MOST, ExchangeRule
from sim.event.lockstep import LockstepPricer
from sim.report.result import StepTable
from sim.scheduler.base import Batch
from tests.event.conftest import make_settings


RANKS = 2
COLUMNS = ("prefill_tokens", "prefill_chunks", "prefill_area", "prefill_kv_tokens", "prefill_max_tokens", "decodes",
           "decode_sum", "decode_max", "decode_sumsq", "emitting", "padded_tokens", "graph_mode")  # fmt: skip


@pytest.fixture(scope="module")
def both(experts, device):
    return lower_rank(experts, device, Domains(1, RANKS, 1, RANKS))


def table(rows: list[dict[str, float]]) -> StepTable:
    """Steps of which only the batch columns matter."""
    columns = {name: np.array([row.get(name, 0.0) for row in rows]) for name in COLUMNS}
    rest = dict.fromkeys(StepTable.__dataclass_fields__, np.zeros(len(rows)))
    return StepTable(**(rest | columns))


def made(prefill: int, decodes: tuple[int, ...]) -> Batch:
    batch: Batch = Batch()
    if prefill:
        batch.add_chunk(16, prefill)
    for context in decodes:
        batch.add_decode(context)
    batch.emitting = len(decodes) + bool(prefill)
    return batch


@pytest.mark.parametrize("rule", ["fewest", "most", "another in prefills"])
def test_the_table_and_the_components_tell_the_same_price(both, cost, rule):
    nothing = collective_slots([])
    exchange = {"fewest": GATHERS, "most": ExchangeRule(MOST)}.get(rule, ExchangeRule(MOST, nothing))
    prices = lockstep_prices(cost, both.own, both.shared, RANKS, 64, 8, exchange)
    settings = make_settings(graph_mode="FULL_AND_PIECEWISE", graph_sizes=(1, 2, 4, 8), profile=EngineProfile())
    pricer = LockstepPricer(prices, settings)
    steps = [
        [made(0, (30, 500, 90)), made(0, (7,))],
        [made(40, (30,)), made(0, (2000, 90))],
        [made(6, ()), None],
    ]
    rows, number, wanted_s = [], [], []
    for index, batches in enumerate(steps):
        duration_ns, padded, mode = pricer(batches)
        wanted_s += [1e-9 * duration_ns] * RANKS
        number += [index] * RANKS
        for batch, tokens in zip(batches, padded, strict=True):
            one = {} if batch is None else {name: getattr(batch, name, 0.0) for name in COLUMNS}
            rows.append(one | {"padded_tokens": tokens, "graph_mode": mode})
    found = lockstep_steps(cost, both.own, both.shared, table(rows), np.array(number), exchange)
    assert found["total_s"] == pytest.approx(wanted_s, abs=0.51e-9)
    parts = [name for name in found if name.endswith("_s") and name not in ("total_s", "error_s", "outside_s")]
    assert np.sum([found[name] for name in parts], axis=0) == pytest.approx(found["total_s"], rel=1e-12)
    # one rank of every step waits for nobody, unless another has more rows to emit
    waits = found["wait_s"].reshape(-1, RANKS)
    assert (waits > -1e-15).all()
    assert waits[2, 0] == pytest.approx(0.0, abs=1e-15)
    assert waits[2, 1] > 1e-6
    # the second and third step have a prefill, the first has none
    collective_s = found["collective_s"].reshape(-1, RANKS)
    assert (collective_s[0] > 0).all()
    assert (collective_s[1:] == 0).all() == (exchange.prefill is nothing)


def test_whose_tokens_the_exchange_waits_for():
    # 10, 2, 3 and 1 tokens: the last rank gathers 15, as among 20 evenly spread, of which each gathers 20 x 3 / 4
    assert exchanged(FEWEST, 16, 1, 10, 4) == 20
    # the first rank sends 10, as among 40 evenly spread
    assert exchanged(MOST, 16, 1, 10, 4) == 40
    assert exchanged(FEWEST, 7, 7, 7, 1) == exchanged(MOST, 7, 7, 7, 1) == 7
