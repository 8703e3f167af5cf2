"""The workload as a whole: invariants over drawn settings, bytes that repeat, digests that tell, and bad settings."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf

from sim.workload import Workload, WorkloadConf, arrival, build_workload, length


CONF = Path(__file__).resolve().parents[2] / "conf" / "workload"


@st.composite
def confs(draw):
    """Settings that make sense, over all processes and laws that need no file."""
    process = draw(st.sampled_from([name for name in arrival.names()]))
    law = draw(st.sampled_from([name for name in length.names() if name != "empirical"]))
    conf = WorkloadConf(
        num_requests=draw(st.integers(1, 60)),
        arrival=process,
        rate=draw(st.floats(0.01, 1000)),
        rate_end=draw(st.floats(0.01, 1000)) if process == "ramp" else None,
        burstiness=draw(st.floats(0.05, 50)) if process in ("gamma", "ramp") else 1.0,
        concurrency=draw(st.integers(1, 8)) if process == "closed_loop" else draw(st.none() | st.integers(1, 8)),
        lengths=law,
        input_tokens=draw(st.integers(1, 3000)),
        output_tokens=draw(st.integers(1, 1000)),
        range_ratio=draw(st.floats(0, 0.99)),
        input_cv=draw(st.floats(0.01, 3)),
        output_cv=draw(st.floats(0.01, 3)),
        zipf_exponent=draw(st.floats(0.1, 3)),
        profile=draw(st.sampled_from(["sharegpt", "azure-code"])) if law == "profile" else None,
        prefix_tokens=draw(st.sampled_from([0, 0, 5])),
        max_input_tokens=draw(st.none() | st.integers(100, 2000)),
        max_total_tokens=draw(st.none() | st.integers(100, 2000)),
        over_limit="truncate",
    )
    return conf, draw(st.integers(0, 2**64))


@settings(max_examples=150, deadline=None)
@given(confs())
def test_drawn_workloads_are_in_order_positive_within_limits_and_repeat(case):
    conf, seed = case
    workload = build_workload(conf, seed)
    assert len(workload) == conf.num_requests
    assert workload.arrival_ns[0] >= 0 and np.all(np.diff(workload.arrival_ns) >= 0)
    assert workload.prompt_tokens.min() >= 1 and workload.output_tokens.min() >= 1
    assert workload.prompt_tokens.max() <= (conf.max_input_tokens or math.inf)
    assert (workload.prompt_tokens + workload.output_tokens).max() <= (conf.max_total_tokens or math.inf)
    assert workload.concurrency == conf.concurrency
    assert all(
        array.dtype == np.int64 for array in (workload.arrival_ns, workload.prompt_tokens, workload.output_tokens)
    )
    if conf.prefix_tokens:
        assert [len(row) for row in workload.token_ids] == workload.prompt_tokens.tolist()
    again = build_workload(conf, seed)
    assert again.digest == workload.digest and again.provenance == workload.provenance


@settings(max_examples=50, deadline=None)
@given(confs(), st.integers(1, 40))
def test_more_requests_append(case, more):
    conf, seed = case
    if conf.arrival == "ramp":
        conf = dataclasses.replace(conf, arrival="gamma", rate_end=None)
    short = build_workload(conf, seed)
    long = build_workload(dataclasses.replace(conf, num_requests=conf.num_requests + more), seed)
    for key in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(long, key)[: len(short)], getattr(short, key))


BASE = dict(
    name="a",
    arrival_ns=np.array([0, 5]),
    prompt_tokens=np.array([3, 4]),
    output_tokens=np.array([1, 2]),
)


@pytest.mark.parametrize(
    "change",
    [
        dict(arrival_ns=np.array([0, 6])),
        dict(prompt_tokens=np.array([3, 5])),
        dict(output_tokens=np.array([2, 2])),
        dict(prompt_tokens=np.array([1, 2]), output_tokens=np.array([3, 4])),
        dict(concurrency=2),
        dict(token_ids=(np.array([1, 2, 3]), np.array([1, 2, 3, 4]))),
        dict(output_token_ids=(np.array([1]), np.array([1, 2]))),
        dict(block_hashes=(np.array([1]), np.array([2])), hash_block_tokens=16),
        dict(block_hashes=(np.array([1]), np.array([2])), hash_block_tokens=32),
        dict(block_hashes=(np.array([1, 2]), np.array([], dtype=int)), hash_block_tokens=16),
    ],
)
def test_digest_changes_with_every_field(change):
    digests = {Workload(**{**BASE, **other}).digest for other in ({}, change)}
    assert len(digests) == 2


def test_digests_of_all_these_fields_differ_and_words_do_not_count():
    rows = [
        dict(block_hashes=(np.array([1]), np.array([2])), hash_block_tokens=16),
        dict(block_hashes=(np.array([1, 2]), np.array([], dtype=int)), hash_block_tokens=16),
        dict(token_ids=(np.array([1]), np.array([2]))),
        dict(output_token_ids=(np.array([1]), np.array([2]))),
    ]
    assert len({Workload(**{**BASE, **row}).digest for row in rows}) == 4
    renamed = Workload(**{**BASE, "name": "b", "provenance": ("elsewhere",), "notes": ("changed",)})
    assert renamed.digest == Workload(**BASE).digest
    narrow = Workload(**{**BASE, "prompt_tokens": np.array([3, 4], dtype=np.int32)})
    assert narrow.digest == renamed.digest and narrow.prompt_tokens.dtype == np.int64


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(arrival_ns=np.array([5, 0])), "non-decreasing arrival_ns"),
        (dict(arrival_ns=np.array([-1, 0])), "non-negative, non-decreasing arrival_ns"),
        (dict(prompt_tokens=np.array([0, 4])), "at least one prompt token"),
        (dict(output_tokens=np.array([1, 0])), "one output token"),
        (dict(output_tokens=np.array([1])), "one entry of output_tokens per request: 2 requests, 1 entries"),
        (dict(token_ids=(np.array([1]),)), "one entry of token_ids per request"),
        (dict(concurrency=0), "concurrency >= 1 or none, got 0"),
        (dict(block_hashes=(np.array([1]), np.array([2]))), "hash_block_tokens >= 1"),
        ({key: np.array([]) for key in ("arrival_ns", "prompt_tokens", "output_tokens")}, "at least one request"),
    ],
)
def test_contradictory_workloads_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Workload(**{**BASE, **change})


# Pinned, so that another machine, Python or numpy that draws other bytes is noticed.
GOLDEN = {
    ("poisson", "fixed"): "502eb7ea2bed3cb4a70d79c2cf332fed7d43401934c5a6eaec95023b275aba6a",
    ("gamma", "lognormal"): "37162cc84ce3cfbcdfd4f93edc412fdb10cdbb775aa67e8139ccae6395ea89e2",
    ("ramp", "zipf"): "adb8d5b6497b5c7fd23efc369aaf00788d7210455a8abb60e2ac8b688b1cdcf3",
    ("constant", "uniform"): "725eb4f6b35fd178717824cfd6282bf7df59d2044f13c6fef55bd62757d2015a",
}


def golden_conf(process, law):
    return WorkloadConf(
        num_requests=2000,
        arrival=process,
        rate=7.0,
        rate_end=11.0 if process == "ramp" else None,
        burstiness=0.3 if process in ("gamma", "ramp") else 1.0,
        lengths=law,
        input_tokens=900,
        output_tokens=90,
        range_ratio=0.4,
    )


@pytest.mark.parametrize("process, law", GOLDEN)
def test_golden_digest(process, law):
    assert build_workload(golden_conf(process, law), 12345).digest == GOLDEN[process, law]


def test_another_process_makes_the_same_bytes_and_loads_no_jax():
    conf = golden_conf("gamma", "lognormal")
    code = (
        "import sys; from sim.workload import WorkloadConf, build_workload; "
        "from sim.workload.retrieval.conf import RetrievalConf; "
        "from sim.workload.sessions.conf import LawConf, SessionsConf; "
        f"print(build_workload({conf!r}, 12345).digest, 'jax' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CONF.parents[1])
    assert ran.stdout.split() == [build_workload(conf, 12345).digest, "False"]


def test_other_seeds_are_other_workloads():
    conf = WorkloadConf(lengths="uniform", range_ratio=0.5)
    assert len({build_workload(conf, seed).digest for seed in (0, 1, 2, 2**64)}) == 4


NEEDS_FILE = {"trace": "workload.path", "sharegpt-file": "workload.path", "empirical": "workload.lengths_path"}


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_settings_fit_the_schema_and_build(path):
    conf = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(WorkloadConf), OmegaConf.load(path)))
    assert conf.name == path.stem
    if path.stem in NEEDS_FILE:
        with pytest.raises(ValueError, match=f"wants {NEEDS_FILE[path.stem]}"):
            build_workload(conf, 0)
    else:
        workload = build_workload(conf, 0)
        assert len(workload) >= 256 and workload.name == path.stem
        assert workload.provenance[0].startswith("arrivals: ") and workload.provenance[1].startswith("lengths: ")


def test_every_profile_has_its_setting():
    profiles = {yaml.profile for yaml in map(OmegaConf.load, CONF.glob("*.yaml")) if "profile" in yaml}
    assert profiles == set(length.profile.names())


def test_alpaca_says_that_its_shape_is_assumed():
    conf = OmegaConf.merge(OmegaConf.structured(WorkloadConf), OmegaConf.load(CONF / "alpaca.yaml"))
    workload = build_workload(OmegaConf.to_object(conf), 0)
    assert any("assumed" in line and "58.45" in line for line in workload.provenance)


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(rate=0.0), "workload.rate wants a number > 0, got 0.0"),
        (dict(rate=-1.0), "workload.rate wants a number > 0, got -1.0"),
        (dict(rate=math.nan), "workload.rate wants a number > 0, got nan"),
        (dict(num_requests=0), "workload.num_requests wants an integer >= 1, got 0"),
        (dict(num_requests=2.5), "workload.num_requests wants an integer >= 1, got 2.5"),
        (dict(concurrency=0), "workload.concurrency wants an integer >= 1, got 0"),
        (dict(burstiness=0.0, arrival="gamma"), "workload.burstiness wants a number > 0"),
        (dict(burstiness=2.0), "workload.burstiness=2.0 wants workload.arrival=gamma or ramp, got poisson"),
        (dict(rate=1e-30), r"workload.rate wants a number from 1e-08 to 1e\+12 \(or inf\), got 1e-30"),
        (dict(rate=1e300), "workload.rate wants a number from 1e-08"),
        (dict(arrival="ramp", rate_end=1e-30), "workload.rate_end wants a number from 1e-08"),
        (dict(rate=1e-8), r"workload.rate=1e-08 wants to bring 1,000 requests within 3.2e\+08 s"),
        (dict(num_requests=10**12), "workload.num_requests wants at most 10,000,000, got 1000000000000"),
        (dict(num_requests=10**20), "workload.num_requests wants at most 10,000,000"),
        (dict(num_requests=math.inf), "workload.num_requests wants an integer >= 1, got inf"),
        (dict(concurrency=10**30), "workload.concurrency wants at most 10,000,000"),
        (dict(rounds=10**6, concurrency=10**6), "workload.rounds x workload.concurrency wants at most 10,000,000 req"),
        (dict(rounds=10**30, concurrency=1), "workload.rounds wants at most"),
        (dict(input_tokens=10**20), "workload.input_tokens wants at most 16,777,216"),
        (dict(output_tokens=10**20), "workload.output_tokens wants at most 16,777,216"),
        (dict(prefix_tokens=10**20), "workload.prefix_tokens wants at most 16,777,216"),
        (dict(prefix_tokens=1 << 24), "workload.prefix_tokens=16777216 wants prompts of at most 16,777,216 tokens"),
        (dict(prefix_tokens=1 << 20), "workload.prefix_tokens wants at most 268,435,456 prompt tokens in all"),
        (dict(max_input_tokens=10**30), "workload.max_input_tokens wants at most"),
        (dict(max_total_tokens=10**30), "workload.max_total_tokens wants at most"),
        (dict(hash_block_tokens=10**30), "workload.hash_block_tokens wants at most"),
        (dict(limit=10**30), "workload.limit wants at most"),
        (dict(duration_s=1e30), r"workload.duration_s wants a number from 1e-09 to 3.2e\+08, got 1e\+30"),
        (dict(duration_s=3e8), "workload.duration_s x workload.rate wants at most 10,000,000 requests"),
        (dict(time_scale=1e30), r"workload.time_scale wants a number from 1e-12 to 1e\+12"),
        (dict(arrival="gamma", burstiness=1e-300), "workload.burstiness wants a number from 1e-06"),
        (dict(lengths="lognormal", input_cv=1e300), "workload.input_cv wants a number from 1e-06 to 1000"),
        (dict(lengths="zipf", zipf_exponent=1e300), "workload.zipf_exponent wants a number from 1e-06 to 100"),
        (
            dict(lengths="zipf", input_tokens=10**7),
            "workload.lengths=zipf wants .* of at most 1,048,576, got 10,000,000",
        ),
        (
            dict(lengths="uniform", range_ratio=0.9, input_tokens=1 << 24),
            "workload.lengths=uniform wants at most 16,777",
        ),
        (dict(lengths="lognormal", input_cv=999.0, input_tokens=1 << 24), "workload.lengths=lognormal wants at most"),
        (dict(duration_s=math.inf), "workload.duration_s wants a finite number > 0, got inf"),
        (dict(duration_s=-1.0), "workload.duration_s wants a number > 0"),
        (dict(duration_s=1e-9), "workload.duration_s wants to hold at least one arrival"),
        (dict(input_tokens=0), "workload.input_tokens wants an integer >= 1"),
        (dict(output_tokens=-5), "workload.output_tokens wants an integer >= 1"),
        (dict(range_ratio=1.5, lengths="uniform"), "workload.range_ratio wants a number from 0 to 1, got 1.5"),
        (dict(range_ratio=1.0, lengths="uniform"), "workload.range_ratio wants a number from 0 to below 1"),
        (dict(output_range_ratio=math.nan), "workload.output_range_ratio wants a number from 0 to 1, got nan"),
        (dict(input_cv=0.0), "workload.input_cv wants a number > 0"),
        (dict(zipf_exponent=-1.0), "workload.zipf_exponent wants a number > 0"),
        (dict(prefix_tokens=-1), "workload.prefix_tokens wants an integer >= 0"),
        (dict(max_total_tokens=1), "workload.max_total_tokens wants an integer >= 2"),
        (dict(over_limit="clip"), "workload.over_limit wants drop, truncate or error, got 'clip'"),
        (
            dict(arrival="poison"),
            "workload.arrival wants one of all_at_once, .*poisson.*, trace, got 'poison' .did you mean poisson",
        ),
        (dict(lengths="gauss"), "workload.lengths wants one of .*lognormal.*, trace, got 'gauss'"),
        (dict(lengths="empirical"), "workload.lengths=empirical wants workload.lengths_path"),
        (dict(arrival="closed_loop"), "workload.arrival=closed_loop wants workload.concurrency"),
        (dict(rounds=3), "workload.rounds wants workload.concurrency"),
        (dict(arrival="ramp"), "workload.arrival=ramp wants workload.rate_end"),
        (dict(arrival="ramp", rate=math.inf, rate_end=1.0), "workload.arrival=ramp wants a finite workload.rate"),
        (dict(rate_end=5.0), "workload.rate_end wants workload.arrival=ramp, got poisson"),
        (dict(arrival="all_at_once", duration_s=5.0), "workload.duration_s wants arrivals spread over time"),
        (dict(rate=math.inf, duration_s=5.0), "workload.duration_s wants arrivals spread over time"),
        (dict(arrival="trace"), "workload.arrival=trace or lengths=trace wants workload.path"),
        (dict(path="x.csv"), "workload.path wants workload.arrival=trace or workload.lengths=trace"),
        (dict(limit=5), "workload.limit wants a trace"),
        (dict(sort=True), "workload.sort want workload.arrival=trace, got poisson"),
        (dict(time_scale=0.5), "workload.time_scale and workload.sort want workload.arrival=trace"),
        (dict(time_scale=0.0), "workload.time_scale wants a number > 0"),
        (dict(shuffle=True), "workload.shuffle wants workload.lengths=trace with drawn arrivals"),
        (
            dict(normalize_rate=True, arrival="constant"),
            "workload.normalize_rate wants workload.arrival=poisson or gamma",
        ),
        (dict(normalize_rate=True, duration_s=5.0), "workload.normalize_rate wants a run without workload.duration_s"),
        (dict(prefix_tokens=9, lengths="trace", path="x"), "workload.prefix_tokens wants drawn lengths"),
        (
            dict(prefix_tokens=9, max_input_tokens=9),
            "workload.max_input_tokens=9 wants to exceed workload.prefix_tokens=9",
        ),
        (dict(prefix_tokens=9, max_total_tokens=10), "workload.max_total_tokens=10 wants to exceed"),
    ],
)
def test_bad_settings_say_what_was_wanted_and_which_key(fields, message):
    with pytest.raises(ValueError, match=message):
        build_workload(WorkloadConf(**fields), 0)


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed wants an integer >= 0, got -3"):
        build_workload(WorkloadConf(), -3)


@pytest.mark.parametrize(
    "fields",
    [
        dict(arrival="ramp", rate=1e-8, rate_end=1e12, num_requests=3),
        dict(arrival="ramp", rate=1.0, rate_end=1e-8),
        dict(arrival="gamma", burstiness=1e-6, num_requests=5),
        dict(arrival="gamma", burstiness=1e12, num_requests=5),
        dict(arrival="gamma", burstiness=1e-6, normalize_rate=True, num_requests=2),
        dict(rate=1e-8, duration_s=3e8),
        dict(rate=1e-7, duration_s=3e8, arrival="gamma", burstiness=1e-6),
        dict(rate=1e12, num_requests=3),
        dict(lengths="zipf", input_tokens=1 << 16, zipf_exponent=100.0),
        dict(lengths="lognormal", input_cv=1e-6),
        dict(lengths="lognormal", input_cv=999.0, input_tokens=1 << 24, max_total_tokens=99, over_limit="truncate"),
    ],
)
def test_the_ends_of_the_ranges_stay_on_the_clock_without_a_warning(fields):
    """Warnings are errors here: no overflow, no invalid value."""
    workload = build_workload(WorkloadConf(**fields), 0)
    assert 0 <= workload.arrival_ns[0] <= workload.arrival_ns[-1] <= 3.2e17
    assert workload.prompt_tokens.max() <= 1 << 24


def test_a_workload_made_elsewhere_stays_in_the_ranges_too():
    for fields, said in (
        (dict(arrival_ns=[4 * 10**17], prompt_tokens=[1], output_tokens=[1]), "within 3.2e\\+08 s"),
        (dict(arrival_ns=[0], prompt_tokens=[1 << 25], output_tokens=[1]), "at most 16,777,216 prompt tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            Workload("made", **fields)
