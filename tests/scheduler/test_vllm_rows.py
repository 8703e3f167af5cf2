"""The row-by-row scheduler on drawn workloads: nothing is lost in any mode or version, and the fast path agrees."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.hooks import Drafting, KnownLengths
from sim.scheduler.vllm import make_fast, make_rows, takes_fast_path
from tests.scheduler.vllm_setup import VERSIONS, loop, make_request, settings


GROUPS = {
    "full": [GroupShape("full", 4)],
    "mla": [GroupShape("mla", 4)],
    "sliding": [GroupShape("full", 4), GroupShape("swa", 4, 12)],
    "sliding only": [GroupShape("swa", 4, 10)],
    "chunked": [GroupShape("full", 4), GroupShape("chunk", 4, 16), GroupShape("chunk", 4, 16)],
    "recurrent": [GroupShape("full", 4), GroupShape("mamba", 96)],
}
LENGTH = 96
MODES = [(False, 1), (False, 2), (False, 4), (True, 1), (True, 2), (True, 4)]
DRAFTINGS = [None, Drafting(3), Drafting(1), Drafting(2, lookahead=False)]


@dataclass(frozen=True)
class Arrival:
    call: int
    prompt: int
    outputs: int
    priority: int
    family: int | None
    aborted: int | None
    stops: int | None


class Drawn(KnownLengths):
    """Acceptance and stops as a hash of the seed, the request and a count."""

    foreseen = False

    def __init__(self, seed, drafts, stops):
        self.seed, self.most, self.at = seed, drafts, stops
        self.asked = Counter()

    def drafts(self, request, known_tokens, emitted):
        return self._draw(request, "d") % (self.most + 1) if emitted else 0

    def accepted(self, request, drafts):
        return self._draw(request, "a") % (drafts + 1)

    def stops(self, request, emitted):
        return self.at[request.index] == emitted

    def _draw(self, request, kind):
        self.asked[request.index, kind] += 1
        return int(np.random.default_rng([self.seed, request.index, self.asked[request.index, kind]]).integers(1 << 30))


arrivals = st.lists(
    st.builds(
        Arrival,
        call=st.integers(0, 12),
        prompt=st.integers(1, 60),
        outputs=st.integers(1, 50),
        priority=st.integers(0, 2),
        family=st.sampled_from([None, None, 0, 1]),
        aborted=st.sampled_from([None, None, None, 0, 1, 2, 5, 12]),
        stops=st.sampled_from([None, None, 1, 4]),
    ),
    min_size=1,
    max_size=16,
)


def blocks_of_one(groups, requests, drafts=0):
    """Blocks that each of the requests can have alone: all of its length, and drafts with lookahead, in every group."""
    longest = max(min(a.prompt + a.outputs + 2 * drafts, LENGTH) for a in requests)
    return sum(-(-longest // group.block_size) for group in groups)


def held(scheduler):
    """Blocks in the tables of running requests, each once."""
    return {block for request in scheduler.running for table in request.tables for block in table if block}


def run_and_check(
    *, version, mode, kind, policy, reuse, chunked, threshold, budget, seats, spare, drafting, share, requests, seed
):
    """Run a workload to its end, check what must hold in every call and at the end; returns the preemptions."""
    asynchronous, stages = mode
    groups = GROUPS[kind]
    if stages > 1 or (kind == "chunked" and reuse):
        drafting = None  # no engine combines them
    drafts = drafting.tokens if drafting else 0
    config = settings(
        version,
        asynchronous=asynchronous,
        stages=stages,
        scheduling_policy=policy,
        prefix_caching=reuse,
        chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        max_num_batched_tokens=budget if chunked else LENGTH,
        max_num_seqs=min(seats, budget),
        max_model_len=LENGTH,
        scheduler_options={"watermark": share} if version == "0.33.0" else {},
    )
    shape = CacheShape(blocks_of_one(groups, requests, drafts) + spare, reuse, tuple(groups))
    progress = Drawn(seed, drafts, [arrival.stops for arrival in requests])
    scheduler = make_rows(config, shape, progress=progress, drafting=drafting)
    made = [make_request(scheduler, i, a.prompt, a.outputs, a.priority, a.family) for i, a in enumerate(requests)]
    aborts = [(a.call + a.aborted, made[i]) for i, a in enumerate(requests) if a.aborted is not None]

    def watch(batch):
        # a ghost's tokens stay in the budget, but it no longer has a seat
        assert sum(row.tokens for row in batch.rows) == batch.tokens <= config.max_num_batched_tokens
        assert all(row.tokens > 0 for row in batch.rows)
        assert batch.running == len(scheduler.running) <= config.max_num_seqs
        assert batch.free_blocks + len(held(scheduler)) == scheduler.usable_blocks
        assert len({row.request.index for row in batch.rows}) == len(batch.rows)
        assert batch.emitting == sum(row.emits for row in batch.rows)

    completed, ends = loop(scheduler, config, zip([a.call for a in requests], made, strict=True), aborts, watch)
    assert ends == {i: 1 for i in range(len(requests))}
    assert scheduler.unfinished == 0
    assert scheduler.free_blocks == scheduler.usable_blocks
    delivered = Counter()
    for batch in completed:
        assert len(batch.delivered) + len(batch.dropped) == batch.emitting
        first = sum(1 for request, _ in batch.delivered if not delivered[request.index])
        assert sum(batch.follows.values()) == len(batch.delivered) - first
        delivered.update({request.index: tokens for request, tokens in batch.delivered})
    finished = {request.index for batch in completed for request in batch.finishing}
    for i, (arrival, request) in enumerate(zip(requests, made, strict=True)):
        assert delivered[i] == request.emitted
        if i in finished:
            assert delivered[i] == min(arrival.outputs, LENGTH - arrival.prompt, arrival.stops or LENGTH)
    return sum(len(batch.preempted) for batch in completed)


@hypothesis_settings(deadline=None)
@given(
    version=st.sampled_from(VERSIONS),
    mode=st.sampled_from(MODES),
    kind=st.sampled_from(sorted(GROUPS)),
    policy=st.sampled_from(["fcfs", "priority"]),
    reuse=st.booleans(),
    chunked=st.booleans(),
    threshold=st.sampled_from([0, 0, 9]),
    budget=st.sampled_from([8, 24, 100]),
    seats=st.integers(1, 8),
    spare=st.sampled_from([0, 1, 5, 20]),
    drafting=st.sampled_from(DRAFTINGS),
    share=st.sampled_from([0.0, 0.2]),
    requests=arrivals,
    seed=st.integers(0, 99),
)
def test_nothing_is_lost(**drawn):
    run_and_check(**drawn)


def draw_pressed(seed):
    """A workload whose pool holds little more than its longest request while many want seats at once."""
    rng = np.random.default_rng(seed)

    def one(values):
        return values[int(rng.integers(len(values)))]

    requests = [
        Arrival(
            call=int(rng.integers(0, 6)),
            prompt=int(rng.integers(1, 50)),
            outputs=int(rng.integers(5, 46)),
            priority=int(rng.integers(0, 3)),
            family=one([None, 0, 1]),
            aborted=one([None, None, None, 3, 12]),
            stops=one([None, None, None, 8]),
        )
        for _ in range(int(rng.integers(6, 16)))
    ]
    return {
        "version": one(VERSIONS),
        "mode": one(MODES),
        "kind": one(sorted(GROUPS)),
        "policy": one(["fcfs", "priority"]),
        "reuse": one([True, False]),
        "chunked": one([True, False]),
        "threshold": one([0, 9]),
        "budget": one([24, 100]),
        "seats": one([4, 8, 16]),
        "spare": int(rng.integers(0, 6)),
        "drafting": one(DRAFTINGS),
        "share": 0.0,
        "requests": requests,
        "seed": seed,
    }


def test_nothing_is_lost_under_memory_pressure():
    assert sum(run_and_check(**draw_pressed(seed)) > 0 for seed in range(100)) > 50


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
    "emitting",
    "running",
    "waiting",
    "free_blocks",
    "tokens",
)
PLACES = ("admitted", "emitted", "preempted", "interrupted")


def decision(batch):
    """What a call decided, in comparable form."""
    places = {place: [request.index for request in getattr(batch, place)] for place in PLACES}
    return {name: getattr(batch, name) for name in STATISTICS} | places


def decide_twice(version, asynchronous, named, *, chunked, budget, seats, spare, requests, dying):
    """Run a workload with both schedulers and compare every call; returns the preemptions."""
    config = settings(
        version,
        asynchronous=asynchronous,
        chunked_prefill=chunked,
        max_num_batched_tokens=budget if chunked else LENGTH,
        max_num_seqs=min(seats, budget),
        max_model_len=LENGTH,
    )
    groups = (GroupShape("full", 4),)
    shape = CacheShape(blocks_of_one(groups, requests) + spare, named, groups)
    assert takes_fast_path(config, shape)
    runs = []
    for make in (make_fast, make_rows):
        scheduler = make(config, shape)
        made = [
            make_request(scheduler, i, a.prompt, min(a.outputs, LENGTH - a.prompt), 0, a.family if named else None)
            for i, a in enumerate(requests)
        ]
        aborts = [(a.call + a.aborted, made[i]) for i, a in enumerate(requests) if dying and a.aborted is not None]
        decided = []

        def watch(batch, scheduler=scheduler, made=made, decided=decided):
            tables = [list(r.tables[0]) if r.tables else [] for r in made] if hasattr(made[0], "tables") else None
            if tables is None:
                tables = [list(request.blocks) for request in made]
            decided.append((decision(batch), tables if named else None))

        completed, ends = loop(scheduler, config, zip([a.call for a in requests], made, strict=True), aborts, watch)
        finished = [sorted(request.index for request in batch.finishing) for batch in completed]
        counts = [(request.preemptions, request.cached) for request in made]
        runs.append((decided, finished, counts, ends, scheduler.hit_stats if named else None))
    fast, rows = runs
    for number, (left, right) in enumerate(zip(fast[0], rows[0], strict=False)):
        assert left == right, number
    assert fast == rows
    return sum(preemptions for preemptions, _ in rows[2])


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("version", VERSIONS)
@hypothesis_settings(deadline=None, max_examples=40)
@given(
    chunked=st.booleans(),
    budget=st.sampled_from([8, 24, 100]),
    seats=st.integers(1, 8),
    spare=st.sampled_from([0, 1, 5, 20]),
    requests=arrivals,
    dying=st.booleans(),
)
def test_fast_path_decides_the_same(version, asynchronous, named, **drawn):
    decide_twice(version, asynchronous, named, **drawn)


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("version", VERSIONS)
def test_fast_path_decides_the_same_under_memory_pressure(version, asynchronous, named):
    pressed = 0
    for seed in range(20):
        drawn = draw_pressed(seed)
        drawn = {key: drawn[key] for key in ("chunked", "budget", "seats", "spare", "requests")}
        pressed += decide_twice(version, asynchronous, named, **drawn, dying=seed % 4 == 0) > 0
    assert pressed > 10
