"""Tiers behind the cache: what is found there, what a recall costs, and that nothing is lost."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings as run_settings, strategies as st

from sim.deployment.conf import DeploymentConf, ElasticConf, FfnConf
from sim.deployment.tiers import Tier, TierConf, tiers_of
from sim.event.run import ExactRun, run_exact
from sim.event.tier_checks import check_tiers
from sim.memory.chunks import Chunks
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED
from sim.workload.conf import WorkloadConf
from sim.workload.reader import read_trace
from sim.workload.trace import NEVER_ABORTS, Workload
from tests.event.conftest import make_settings, make_table


MS = 1_000_000
BLOCK = 16
HOST = Tier("host", 1000, 1, 1e6, 0.0, 0.0, 0.0, True, False, False)
"""A block has 1 MB; over a host link of 1 GB/s it takes 1 ms."""


def run(prompts, outputs, arrivals_ms, tiers=(HOST,), blocks=20, rate=1e9, step_s=10e-3, **how) -> ExactRun:
    """Prompts as lists of token ids; steps of 10 ms."""
    ids = tuple(np.array(one) for one in prompts)
    work = Workload(
        "tiers",
        np.array(arrivals_ms) * MS,
        np.array([len(one) for one in ids]),
        np.array(outputs),
        token_ids=ids,
        abort_after_ns=how.pop("abort_after_ns", None),
    )
    settings = make_settings(**{"prefix_caching": True, "max_num_batched_tokens": 256} | how.pop("changes", {}))
    prices = make_table(base_s=step_s, token_s=0.0, row_s=0.0)
    return run_exact(work, settings, prices, num_gpu_blocks=blocks + 1, tiers=tiers, host_bytes_per_s=rate, **how)


A, B = list(range(64)), list(range(1000, 1144))  # 4 blocks; 9 blocks
C = list(range(5000, 5144))  # 9 blocks


def test_a_recall_by_hand():
    """A (4 blocks, one output) at 0; B (9 of the 9 blocks) at 50 takes A's away; A again at 100, its output at 113.

    Of 64 tokens 48 may be found (one has to be computed): 3 MB over 1 GB/s are 3 ms, then one step of 16 tokens.
    """
    found = run([A, B, A], [1, 1, 1], [0, 50, 100], blocks=9)
    r = found.requests
    assert r.finish_ns.tolist() == [10 * MS, 60 * MS, 113 * MS]
    assert r.cached_tokens.tolist() == [0, 0, 48]
    assert found.steps.prefill_tokens.tolist() == [64, 144, 16]
    (host,) = found.cache_tiers
    assert (host.recalls, host.recalled_blocks, host.recalled_bytes, host.recall_s) == (1, 3, 3e6, [3e-3])
    assert (host.written_chunks, host.most_chunks) == (4 + 9, 13)


def test_without_tiers_it_is_computed_again():
    found = run([A, B, A], [1, 1, 1], [0, 50, 100], tiers=(), blocks=9)
    assert found.requests.finish_ns.tolist() == [10 * MS, 60 * MS, 110 * MS]
    assert found.requests.cached_tokens.tolist() == [0, 0, 0]
    assert found.cache_tiers == ()


@pytest.mark.parametrize(("delays_batch", "gap_ms"), [(False, 10), (True, 13)])
def test_whom_a_recall_delays(delays_batch, gap_ms):
    """Another request decodes meanwhile. With `request` its steps go on every 10 ms; with `batch` one takes 3 more."""
    tier = dataclasses.replace(HOST, delays_batch=delays_batch)
    found = run([A, B, [7], A], [1, 1, 30, 1], [0, 50, 62, 100], (tier,), blocks=10)
    assert found.requests.cached_tokens.tolist() == [0, 0, 0, 48]
    assert found.itl_ns.max() == gap_ms * MS


def test_latency_and_rates_of_a_tier():
    """2 ms before the first byte, then 3 MB at the tier's 0.5 GB/s: 8 ms."""
    slow = dataclasses.replace(HOST, latency_s=2e-3, read_bytes_per_s=0.5e9)
    found = run([A, B, A], [1, 1, 1], [0, 50, 100], (slow,), blocks=9)
    assert found.requests.finish_ns[2] == (100 + 8 + 10) * MS


def test_chunks_come_whole():
    """Chunks of 2 blocks: of the 3 blocks that may be found one chunk; the fourth block is the chunk's that is cut."""
    found = run([A, B, A], [1, 1, 1], [0, 50, 100], (dataclasses.replace(HOST, chunk_blocks=2),), blocks=9)
    assert found.requests.cached_tokens[2] == 32
    assert found.cache_tiers[0].written_chunks == 2 + 4


def test_what_is_lost_goes_into_the_tier():
    """Nothing is written until B takes A's 4 blocks; B's stay in the cache."""
    evict = dataclasses.replace(HOST, through=False)
    found = run([A, B, A], [1, 1, 1], [0, 50, 100], (evict,), blocks=9)
    assert found.requests.cached_tokens.tolist() == [0, 0, 48]
    (host,) = found.cache_tiers
    assert host.written_chunks == 4 + 4  # A's four, and of B's as many for the second A


def test_what_a_full_tier_gives_up_goes_into_the_next():
    """Host memory for 4 blocks: B's push A's out, to a disk, where 3 of A's 4 are found last."""
    host = dataclasses.replace(HOST, chunks=4, through=False)
    disk = dataclasses.replace(HOST, name="disk", chunks=50, read_bytes_per_s=1e9, write_bytes_per_s=1e9, through=False)
    found = run([A, B, C, A], [1, 1, 1, 1], [0, 50, 100, 200], (host, disk), blocks=9)
    assert found.requests.cached_tokens.tolist() == [0, 0, 0, 48]
    assert [count.recalled_blocks for count in found.cache_tiers] == [0, 3]
    assert found.cache_tiers[0].dropped_chunks == 0


@pytest.mark.parametrize(("shared", "cached"), [(True, 48), (False, 0)])
def test_a_shared_tier_serves_other_replicas(shared, cached):
    """The second request goes to the other replica."""
    found = run([A, A], [1, 1], [0, 50], (dataclasses.replace(HOST, shared=shared),), replicas=2)
    assert found.requests.replica.tolist() == [0, 1]
    assert found.requests.cached_tokens.tolist() == [0, cached]


@pytest.mark.parametrize(("prefetches", "end_ms"), [(True, 173), (False, 176)])
def test_a_prefetch_by_hand(prefetches, end_ms):
    """Host memory for 9 blocks, behind it a disk that has all: B and C push A's four blocks out of the host.

    A comes again while D has the only seat, from 140 to 160, and is taken up at 150. From the disk its 3 blocks
    take 6 ms at 0.5 GB/s: they are in the host at 156, and from there on the devices 3 ms after its turn at 160. Not
    prefetched they come from the disk at 166. Either way the host gets A's 4 blocks again: 3 prefetched and 1
    computed, or all from the devices.
    """
    host = dataclasses.replace(HOST, chunks=9)
    disk = dataclasses.replace(HOST, name="disk", read_bytes_per_s=0.5e9, prefetches=prefetches)
    prompts, arrivals = [A, B, C, [7], A], [0, 50, 100, 140, 142]
    found = run(prompts, [1, 1, 1, 2, 1], arrivals, (host, disk), blocks=9, changes={"max_num_seqs": 1})
    assert found.requests.cached_tokens[4] == 48
    assert found.requests.finish_ns[4] == end_ms * MS
    near, far = found.cache_tiers
    assert (near.recalled_blocks, far.recalled_blocks) == ((3, 0) if prefetches else (0, 3))
    assert far.prefetched_chunks == (3 if prefetches else 0)
    assert near.written_chunks == 4 + 9 + 9 + 4


def test_recalls_share_their_link():
    """Two of 3 MB at once over 1 GB/s: both take 6 ms."""
    C = list(range(200, 264))
    found = run([A, C, B, A, C], [1] * 5, [0, 20, 50, 100, 100], blocks=9)
    assert found.cache_tiers[0].recall_s == [6e-3, 6e-3]


def test_blocks_are_kept_until_they_are_copied():
    """A's 4 MB at 10 MB/s take 400 ms: B, which needs all 9 blocks, starts at 410."""
    found = run([A, B], [1, 1], [0, 50], blocks=9, rate=1e7)
    assert found.requests.scheduled_ns[1] == 410 * MS


drawn = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(1, 60), st.integers(1, 12), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)


def workload(rows):
    """Of four documents a first part, then own tokens; (prompts, outputs, arrivals)."""
    prompts = [
        [*range(1000 * doc, 1000 * doc + shared), *range(50_000 + 100 * k, 50_000 + 100 * k + own)]
        for k, (doc, shared, own, _, _) in enumerate(rows)
    ]
    return prompts, [row[3] for row in rows], np.cumsum([row[4] for row in rows])


@run_settings(max_examples=60)
@given(
    rows=drawn,
    blocks=st.integers(12, 30),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    through=st.booleans(),
    shared=st.booleans(),
    batch=st.booleans(),
    chunk=st.sampled_from([1, 1, 2, 3]),
    rate=st.sampled_from([1e7, 1e9]),
    asynchronous=st.booleans(),
    replicas=st.integers(1, 2),
    patience=st.sampled_from([NEVER_ABORTS, 60 * MS]),
    prefetch=st.booleans(),
)
def test_nothing_is_lost(
    rows, blocks, sizes, through, shared, batch, chunk, rate, asynchronous, replicas, patience, prefetch
):
    """Conservation of requests, tokens, blocks and bytes is checked in the run; the same again, bit for bit."""
    chunk = chunk if through else 1
    tiers = tuple(
        Tier(f"t{k}", size, chunk, 1e6, 2e9 * k, 1e9 * k, 1e-3 * k, through, shared, batch, prefetch and k > 0)
        for k, size in enumerate(sizes)
    )
    prompts, outputs, arrivals = workload(rows)
    how = {
        "changes": {"async_scheduling": asynchronous, "max_num_batched_tokens": 64},
        "replicas": replicas,
        "abort_after_ns": np.full(len(rows), patience),
    }
    first, again = (run(prompts, outputs, arrivals, tiers, blocks, rate, **how) for _ in range(2))
    assert all(first.checks.values()), first.checks
    assert patience < NEVER_ABORTS or (first.requests.status == FINISHED).all()
    for field in dataclasses.fields(first.requests):
        assert np.array_equal(getattr(first.requests, field.name), getattr(again.requests, field.name))
    for count in first.cache_tiers:
        assert len(count.recall_s) == count.recalls


@run_settings(max_examples=40)
@given(rows=drawn)
def test_a_large_tier_finds_what_a_large_cache_finds(rows):
    """One after the other: whatever a cache without end has, block by block, is in the cache or the tier."""
    prompts, outputs, _ = workload(rows)
    arrivals = 1000 * np.arange(len(rows))
    small = run(prompts, outputs, arrivals, blocks=14)
    large = run(prompts, outputs, arrivals, tiers=(), blocks=1000)
    assert small.requests.cached_tokens.tolist() == large.requests.cached_tokens.tolist()


@pytest.mark.parametrize("instances", [1, 2])
def test_two_servers_that_share_lmcache(shared, instances):
    """As measured on RTX A6000 (LLMServingSim's ispass26, figure 7; vLLM 0.13, LMCache's server, chunks of 256 tokens).

    The tokens that each server's own cache, and the store behind it, were asked for and had, and the bytes stored.
    """
    figure = shared / "data/llmservingsim/ispass26/evaluation/artifacts/figure_7/raw_data"
    name = "sharegpt_pulse_req50_n6_delay15_pc.jsonl"
    trace = read_trace(WorkloadConf(), str(shared / "data/llmservingsim/ispass26/dataset" / name))
    work = Workload(
        name,
        trace.arrival_ns,
        trace.prompt_tokens,
        trace.output_tokens,
        token_ids=trace.token_ids,
        output_token_ids=trace.output_token_ids,
    )
    block_bytes = 2 * 32 * 8 * 128 * 2 * BLOCK
    store = Tier("store", 4000, 16, block_bytes, 0.0, 0.0, 0.0, True, True, True)
    settings = make_settings(
        prefix_caching=True, max_num_batched_tokens=2048, max_num_seqs=128, max_model_len=2048, version="0.11.0"
    )
    found = run_exact(
        work,
        settings,
        make_table(base_s=27e-3, token_s=1e-4, row_s=0.0),
        num_gpu_blocks=13844,
        replicas=instances,
        tiers=(store,) if instances > 1 else (),
        host_bytes_per_s=25e9,
    )
    files = ["SD+PC/kv_metrics_sd.csv", *(f"MD+PC+PS/kv_metrics_md_inst{k}_no_SFC.csv" for k in (1, 2))]
    steps, requests = found.steps, found.requests
    for replica, file in enumerate(files[:1] if instances == 1 else files[1:]):
        *_, last = (figure / file).read_text().split()
        _, queries, hits, external_queries, external = map(float, last.split(",")[1:])
        mine = requests.replica == replica
        assert requests.prompt_tokens[mine].sum() == queries
        own = steps.hits[steps.replica == replica][-1]
        assert own == hits
        assert requests.cached_tokens[mine].sum() - own == external
    if instances > 1:
        (count,) = found.cache_tiers
        said = (figure / "MD+PC+PS/lmcache_server_no_SFC.txt").read_text()
        assert f"stored_bytes={int(count.written_bytes)} " in said.splitlines()[-1]


def test_chunks_are_the_least_recently_used_first():
    held = Chunks(2)
    assert (held.add(1), held.add(2), held.add(3)) == ([], [], [1])
    held.use(2)
    held.pin(3)
    assert held.add(4) == [2]
    held.pin(4)
    assert held.add(5) is None and 5 not in held and len(held) == held.most == 2
    held.unpin(3)
    assert held.add(5) == [3]


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"size_gb": 0.001}, r"tiers.x.size_gb wants room for a chunk of 16 tokens, 0.002 GB, got 0.001"),
        ({"size_gb": -1}, "tiers.x.size_gb wants a number from 0 on, got -1"),
        ({"size_gb": 9, "chunk_tokens": 24}, "wants a multiple of engine.block_size=16, got 24"),
        ({"size_gb": 9, "write": "back"}, "tiers.x.write wants one of through, evict, got 'back'"),
        ({"size_gb": 9, "prefetch": True}, "tiers.x.prefetch brings chunks into the tier before: it wants one with"),
        ({"size_gb": 9, "recall": "all"}, "tiers.x.recall wants one of request, batch, got 'all'"),
        ({"size_gb": 9, "write": "evict", "chunk_tokens": 32}, "set chunk_tokens=16, or write=through; got 32"),
    ],
)
def test_tiers_that_cannot_be(conf, words):
    with pytest.raises(ValueError, match=words):
        tiers_of({"x": TierConf(**conf)}, 16, 2e6)


@pytest.mark.parametrize(
    ("deployment", "engine", "scheduler", "groups", "words"),
    [
        ({}, {"prefix_caching": False}, "vllm", ("full",), "do nothing here: they want engine.enable_prefix_caching"),
        ({}, {}, "orca", ("full",), "are simulated with vLLM's scheduler, got orca"),
        ({}, {}, "vllm", ("full", "swa"), "whose layers all have full attention"),
        ({"data_parallel": 2}, {}, "vllm", ("full",), "not simulated with data-parallel ranks"),
        ({"pipeline_parallel": 2}, {}, "vllm", ("full",), "not simulated with pipeline stages"),
        ({"ffn": FfnConf(devices=2)}, {}, "vllm", ("full",), "not simulated with deployment.ffn"),
        ({"elastic": ElasticConf(mtbf_s=9.0)}, {}, "vllm", ("full",), "not simulated with deployment.elastic"),
        ({"session_hold_s": 1.0}, {}, "vllm", ("full",), "not simulated with deployment.session_hold_s"),
    ],
)
def test_where_tiers_are_not_simulated(deployment, engine, scheduler, groups, words):
    work = Workload("x", np.zeros(1), np.ones(1), np.ones(1), token_ids=(np.zeros(1, np.int64),))
    conf = DeploymentConf(cache_tiers={"host": TierConf(size_gb=9)}, **deployment)
    settings = make_settings(**{"prefix_caching": True} | engine)
    with pytest.raises(ValueError, match=words):
        check_tiers(conf, settings, scheduler, tuple(GroupShape(kind, 16) for kind in groups), work)
    bare = Workload("x", np.zeros(1), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="they want a workload whose prompts have content"):
        check_tiers(conf, settings, scheduler, (GroupShape("full", 16),), bare)
