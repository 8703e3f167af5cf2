"""Small jobs, and prices in which every statistic of a batch counts."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase

from sim.cost.lengths import LengthTerms, RecurrentTerms
from sim.cost.table import PriceTable
from sim.scan import LaneJob
from sim.scan.pack import graph_table


# A trial runs a dozen simulations: smaller failing ones are not worth the search.
DRAWN = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.reuse, Phase.generate),
}
FLOATS = SimpleNamespace(sqrt=math.sqrt)
SIZES = (1, 2, 4, 8, 16, 24, 32)
STATISTICS = (
    "prefill_tokens",
    "prefill_chunks",
    "prefill_area",
    "prefill_kv_tokens",
    "prefill_max_tokens",
    "decodes",
    "decode_sum",
    "decode_max",
    "decode_sumsq",
)


def every_statistic_s(xp, terms, tokens, chunks, area, kv_tokens, max_tokens, decodes, total, longest, squares):
    """A stand-in for the closed form of the lengths that no wrong statistic leaves unchanged."""
    count, floor_s, sequence_s, _, _, token_s, *_ = terms.recurrent[0]
    prefill_s = token_s * (area + 3.0 * kv_tokens + 7.0 * max_tokens + 11.0 * chunks + 0.1 * tokens)
    return floor_s * decodes + sequence_s * total + prefill_s + count * (longest + xp.sqrt(squares))


def make_table(base_s: float) -> PriceTable:
    tokens = np.arange(1025.0)
    return PriceTable(
        token_s=np.stack([base_s + 1e-5 * tokens, base_s / 2 + 1.3e-5 * tokens, base_s / 4 + 0.7e-5 * tokens]),
        row_s=1e-6 * np.arange(65.0),
        lengths=LengthTerms((), (RecurrentTerms(1e-7 * base_s, 1e-6, 1e-8, 0.0, 0.0, 3e-9, 0.0, 0.0),)),
    )


TABLES = (make_table(1e-3), make_table(2.7e-3))


def price_of(job: LaneJob):
    """The same price for the oracle: ns of a step from its record."""
    graphs = graph_table(job.graph_mode, job.graph_sizes, job.full_graph_top, job.max_num_batched_tokens)
    table = TABLES[job.table]

    def price_ns(record) -> int:
        tokens, pure = record["prefill_tokens"] + record["decodes"], int(record["prefill_chunks"] == 0)
        token_s = float(table.token_s[graphs.mode[pure, tokens], graphs.padded[pure, tokens]])
        row_s = float(table.row_s[record["emitting"]])
        lengths = every_statistic_s(FLOATS, table.lengths, *(float(record[name]) for name in STATISTICS))
        return int(1e9 * (token_s + row_s + lengths) + 0.5)

    return price_ns


def make_job(**changes) -> LaneJob:
    values = {
        "arrival_ns": np.zeros(3, np.int64),
        "prompt_tokens": np.array([20, 5, 33]),
        "output_tokens": np.array([4, 9, 2]),
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 512,
        "usable_blocks": 100,
    }
    return LaneJob(**(values | changes))


def draw_job(draw, integers, sampled) -> LaneJob:
    """One small job: short or long lengths, tight or ample cache, any block size, open or closed loop."""
    rng = np.random.default_rng(draw(integers(0, 2**32 - 1)))
    count, seats, block_size = draw(integers(1, 60)), draw(integers(1, 32)), draw(sampled([1, 2, 3, 7, 16]))
    gap_ns = draw(sampled([0.0, 1e5, 3e6, 3e7]))
    return LaneJob(
        arrival_ns=np.cumsum(rng.exponential(gap_ns, count)).astype(np.int64),
        prompt_tokens=rng.integers(1, draw(sampled([5, 40, 200])), count),
        output_tokens=rng.integers(1, draw(sampled([2, 10, 60])), count),
        max_num_seqs=seats,
        max_num_batched_tokens=seats + draw(sampled([0, 5, 100, 800])),
        max_model_len=draw(sampled([120, 300])),
        usable_blocks=draw(integers(1, draw(sampled([300, 1000, 3000])) // block_size + 1)),
        block_size=block_size,
        concurrency=draw(sampled([None, None, 1, 3, 10, 40])),
        reserve_full_input=draw(sampled([False, True])),
        graph_mode=draw(sampled(["NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL"])),
        graph_sizes=SIZES,
        table=draw(integers(0, 1)),
    )


@pytest.fixture
def job():
    return make_job
