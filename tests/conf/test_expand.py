"""Multirun: Hydra's order and values, each job the configuration that composing it alone would give."""

import pytest

from conf.compose import compose
from conf.expand import expand


def test_every_combination_in_hydras_order():
    jobs = expand(["workload.rate=1,2", "deployment=single,tp2", "seed=7"])
    assert [job.swept for job in jobs] == [
        ("workload.rate=1", "deployment=single"),
        ("workload.rate=1", "deployment=tp2"),
        ("workload.rate=2", "deployment=single"),
        ("workload.rate=2", "deployment=tp2"),
    ]
    assert [(job.conf.workload.rate, job.conf.deployment.tensor_parallel) for job in jobs] == [
        (1.0, 1),
        (1.0, 2),
        (2.0, 1),
        (2.0, 2),
    ]


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload.rate=range(1,3)", "model=qwen3-8b,llama-3.1-8b"],
        ["seed=1,2", "engine.kv_cache_dtype=auto,fp8"],
        ["engine.cudagraph_capture_sizes=[1,2],[4,8]", "workload.num_requests=null,5"],
        ["hardware.peak_flops_per_s.bf16=1e14,1e15", "slo.ttft_ms=100,200"],
        ["+model.config.rope_theta=1.0,2.0", "engine.enforce_eager=true,false"],
    ],
)
def test_a_job_is_what_composing_it_gives(overrides):
    jobs = expand(overrides)
    assert jobs[-1].conf == compose(jobs[-1].overrides)
    assert all(job.conf != jobs[-1].conf for job in jobs[:-1])


def test_a_glob_chooses_shipped_names():
    assert [job.conf.deployment.tensor_parallel for job in expand(["deployment=glob(tp*)"])] == [2, 4, 8]


def test_files_can_be_swept(tmp_path):
    traces = []
    for name in ("a", "b"):
        traces.append(tmp_path / f"{name}.csv")
        traces[-1].write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    jobs = expand([f"workload={traces[0]},{traces[1]}"])
    assert [job.conf.workload.path for job in jobs] == [str(path) for path in traces]
    assert [job.swept for job in jobs] == [(f"workload={path}",) for path in traces]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workload.rate=1,fast", "workload.rate wants a number, got 'fast'"),
        ("workload.rat=1,2", "did you mean workload.rate"),
        ("workload.rate=1,-2", "workload.rate wants a number > 0, got -2"),
        ("workload.num_requests=1,0", "workload.num_requests wants an integer >= 1, got 0"),
        ("slo.tpot_ms=50,-1", "slo.tpot_ms wants a positive number of milliseconds, got -1"),
        ("model=qwen3-8b,qwen3-9b", "model=qwen3-9b is not one of"),
        ("workload.rate=interval(1,2)", "not an interval"),
        ("workload.rate=range(5,1,1)", "holds no value: range"),
        ("workload.rate=range(1,5,-1)", "holds no value: range"),
        ("workload.rate=range(1,5,0)", "a step that is not 0"),
        ("workload.rate=range(1.0,5,0)", "a step that is not 0"),
        ("workload.rate=range(1,inf)", "wants finite numbers"),
        ("workload.rate=range(nan,3)", "wants finite numbers"),
        ("seed=range(0,1e9)", "at most 1,000,000 jobs"),
        ("workload.rate=range(0,1,1e-9)", "at most 1,000,000 jobs"),
        ("seed=range(0,600000)", "at most 1,000,000 jobs, these values give 1,200,000"),
        ("deployment=glob(zz*)", "fits none of"),
        ("hydra/launcher=nowhere", "unknown choice hydra/launcher=nowhere"),
    ],
)
def test_a_mistake_in_any_value_is_found_before_the_first_job(override, said):
    with pytest.raises(ValueError, match=said):
        expand([override, "slo.ttft_ms=1,2"])


def test_a_key_that_none_of_the_workloads_reads_is_refused():
    assert len(expand(["workload=fixed-128-128,sharegpt", "workload.input_tokens=64"])) == 2
    with pytest.raises(ValueError, match="workload.input_tokens does nothing here"):
        expand(["workload=sharegpt", "workload.input_tokens=64", "seed=1,2"])
