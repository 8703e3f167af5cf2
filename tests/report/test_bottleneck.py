"""Each bottleneck is recognised where it was built in."""

import dataclasses

import numpy as np
import pytest

from sim.report.blocked import limits
from sim.report.bottleneck import step_shares, verdict
from sim.report.measures import capture_more, fewer_bytes, larger_batch, less_launching
from sim.report.metrics import measure


def judge(run):
    return verdict(run, measure(run))


def costs(**parts):
    names = ("gemm_s", "attention_s", "moe_s", "elementwise_s", "head_s", "collective_s", "launch_s", "host_s")
    return lambda *_: tuple(parts.get(name, 0.0) for name in names)


@pytest.mark.parametrize(
    ("parameters", "kind", "key"),
    [
        ({"seats": 8, "rate": 40.0, "blocks": 60000}, "admission-bound", "engine.max_num_seqs"),
        ({"blocks": 700, "rate": 20.0}, "kv-bound", "engine.gpu_memory_utilization"),
        ({"budget": 96, "rate": 40.0, "blocks": 60000, "seats": 256}, "prefill-bound", "engine.max_num_batched_tokens"),
        ({"rate": 12.0, "blocks": 60000, "seats": 256}, "bandwidth-bound", "workload.rate"),
        (
            {"price": costs(gemm_s=4e-3, launch_s=3e-3), "seats": 999, "blocks": 60000},
            "launch-bound",
            "engine.async_scheduling=true",
        ),
        (
            {"price": costs(gemm_s=4e-3, collective_s=4e-3), "seats": 999, "blocks": 60000},
            "communication-bound",
            "deployment.tensor_parallel",
        ),
        ({"price": costs(gemm_s=1e-4), "rate": 1.0, "blocks": 60000}, "under-loaded", "workload.rate"),
    ],
)
def test_verdicts(toy, parameters, kind, key):
    found = judge(toy(requests=120, **parameters))
    assert found.kind == kind
    assert key in found.change
    assert all(0 <= share <= 1 + 1e-9 for share in found.evidence.values())


def test_requests_that_wait_for_the_api_server_wait_for_no_rule_of_the_scheduler(toy):
    """Every request is sent 60 s before the engine has it; the queue in the engine stays what it was."""
    run = toy(requests=60, rate=12.0, blocks=60000, seats=256)
    early = dataclasses.replace(run.requests, arrival_ns=run.requests.arrival_ns - 60 * 10**9)
    found = judge(dataclasses.replace(run, requests=early))
    assert found.kind == "server-bound" and found.change.startswith("deployment.replicas")
    assert judge(run).kind == "bandwidth-bound"


def test_graphs_that_a_mode_leaves_out_are_not_asked_of_enforce_eager(toy):
    run = dataclasses.replace(toy(requests=10), config={"engine": {"enforce_eager": False}})
    run.settings["graph_sizes"] = ()
    assert less_launching(run).startswith("engine.cudagraph_mode")
    forced = dataclasses.replace(run, config={"engine": {"enforce_eager": True}})
    assert less_launching(forced).startswith("engine.enforce_eager=false")


def test_more_seats_are_not_advised_where_blocks_run_out_too(toy):
    found = judge(toy(requests=150, seats=16, rate=40.0, blocks=1000))
    assert found.kind == "admission-bound"
    assert "deployment.replicas" in found.change
    assert "max_num_seqs" not in found.change


def test_preemptions_without_a_queue_are_still_kv_bound(toy):
    run = toy(requests=120, rate=10.0, blocks=900)
    assert step_shares(run).waiting < 0.1
    assert measure(run).recomputed_tokens > 0.05 * (run.steps.prefill_tokens.sum() + run.steps.decodes.sum())
    assert judge(run).kind == "kv-bound"


def test_waiting_is_split_without_remainder(toy):
    shares = step_shares(toy(requests=150, seats=16, rate=40.0, blocks=900))
    assert shares.waiting > 0.1
    assert shares.seats + shares.budget + shares.kv + shares.rule == pytest.approx(shares.waiting)


def test_decode_batches_beyond_the_captured_graphs_are_named(toy):
    run = toy(requests=60, blocks=60000)
    run.steps.graph_mode[run.steps.prefill_tokens == 0] = 0
    assert judge(run).kind == "graph-miss"
    run.settings["graph_sizes"] = []
    assert judge(run).kind != "graph-miss"


def test_nothing_ran_nothing_to_blame(toy):
    assert judge(toy(requests=5, blocks=0)) is None


def test_without_the_limits_blocks_are_not_blamed_by_elimination(toy):
    run = toy(requests=120, seats=8, rate=40.0, blocks=60000)
    run.settings.clear()
    assert step_shares(run).waiting > 0.5
    assert judge(run).kind != "kv-bound"


def held_back(three, **changes):
    """The three requests with a wide budget and seats, 100 blocks; the third one waits from 300 to 500 ms."""
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 1000, "chunked_prefill": True}
    return three(settings=settings | changes.pop("settings", {}), **changes)


def with_steps(run, **columns):
    steps = dataclasses.replace(run.steps, **{name: np.array(values) for name, values in columns.items()})
    return dataclasses.replace(run, steps=steps)


def test_a_static_batch_is_the_schedulers_rule_and_not_the_budget(three):
    """Steps of 10 to 45 tokens against a budget of 1,000, 50 blocks free or more, and one waits in each step."""
    for chunked in (True, False):
        run = held_back(three, settings={"chunked_prefill": chunked}, config={"engine": {"scheduler": "static"}})
        run = with_steps(run, waiting=[1, 1, 1], preempted=[0, 0, 0])
        assert limits(run).rule.all()
        metrics = dataclasses.replace(measure(run), recomputed_tokens=0, preemptions=0)
        found = verdict(run, metrics)
        assert found.kind == "scheduler-bound"
        assert "a rule of the scheduler (static)" in found.sentence and "100%" in found.sentence
        assert "max_num_batched_tokens" not in found.change


def test_the_budget_is_blamed_where_the_next_prompt_exceeds_what_is_left(three):
    """Without chunks the third prompt, 30 tokens, has to fit beside 21 in the second step; with chunks one token."""
    whole = held_back(three, settings={"chunked_prefill": False, "max_num_batched_tokens": 50})
    whole.requests.queued_ns[2] = whole.steps.issued_ns[1]
    assert limits(whole).budget.tolist() == [False, True, False]
    chunks = dataclasses.replace(whole, settings=whole.settings | {"chunked_prefill": True})
    assert limits(chunks).budget.tolist() == [False, False, False]
    chunks.settings["max_num_batched_tokens"] = 21
    assert limits(chunks).budget.tolist() == [False, True, True]


def test_blocks_are_blamed_where_fewer_are_free_than_the_next_prompt_needs(three):
    """The third request waits while the second step is decided: 30 tokens are 2 blocks, of 16 in 30 only 1 is free."""
    run = held_back(three)
    run.requests.queued_ns[2] = run.steps.issued_ns[1]
    run = dataclasses.replace(with_steps(run, preempted=[0, 0, 0], free_blocks=[28, 2, 28]), num_gpu_blocks=30)
    assert limits(run).blocks.tolist() == [False, False, False]
    assert limits(with_steps(run, free_blocks=[28, 1, 28])).blocks.tolist() == [False, True, False]


def test_blocks_promised_to_the_running_are_not_free(three):
    """At full length 15, 21 and 33 tokens are 1 + 2 + 3 blocks: the third has no place beside the others in 5."""
    run = held_back(three)
    run.requests.queued_ns[2] = run.steps.issued_ns[1]
    run = with_steps(run, preempted=[0, 0, 0], free_blocks=[5, 5, 5])
    assert limits(dataclasses.replace(run, num_gpu_blocks=5)).blocks.tolist() == [False, True, False]
    assert limits(dataclasses.replace(run, num_gpu_blocks=6)).blocks.tolist() == [False, False, False]


def test_waiting_for_the_batch_in_flight_is_no_bottleneck(three):
    """Blocks and seats are free and requests start within 4 ms of 500: a count of the waiting alone proves nothing."""
    run = held_back(three)
    run.requests.arrival_ns[:] = [0, 96_000_000, 496_000_000]
    run.requests.queued_ns[:] = run.requests.arrival_ns
    run = with_steps(run, waiting=[1, 1, 1], preempted=[0, 0, 0])
    found = verdict(run, dataclasses.replace(measure(run), recomputed_tokens=0, preemptions=0))
    assert step_shares(run).waiting == 1
    assert found.kind not in ("kv-bound", "scheduler-bound", "admission-bound")


def test_recomputing_most_tokens_is_thrashing_whatever_the_budget(three):
    """76 tokens computed, 57 of them again: 75 %, though every step spends its budget of 10."""
    run = held_back(three, settings={"max_num_batched_tokens": 10})
    run = with_steps(run, waiting=[1, 1, 1])
    metrics = dataclasses.replace(measure(run), recomputed_tokens=57, preemptions=1022)
    assert step_shares(run).budget == 1
    found = verdict(run, metrics)
    assert found.kind == "kv-bound"
    assert "1,022 preemptions" in found.sentence and "57 tokens again, 75% of the 76" in found.sentence
    assert "max_num_batched_tokens" not in found.change
    assert found.evidence["recomputed"] == pytest.approx(0.75)
    few = dataclasses.replace(metrics, recomputed_tokens=1)
    assert verdict(run, few).kind == "prefill-bound"


@pytest.mark.parametrize("key", ["kv_cache_memory_bytes", "num_gpu_blocks_override"])
def test_more_blocks_come_from_the_setting_that_decides_their_number(toy, key):
    run = toy(requests=120, blocks=700, rate=20.0)
    assert "gpu_memory_utilization" in judge(run).change
    run.settings[key] = 1000
    assert f"engine.{key}" in judge(run).change and "gpu_memory_utilization" not in judge(run).change


def test_what_is_so_already_is_not_advised(toy):
    """Quantised weights, an fp8 cache, all of the memory, graphs and scheduling ahead are no advice where they are."""
    kv = toy(requests=120, blocks=700, rate=20.0)
    assert "kv_cache_dtype" in judge(kv).change
    kv.settings |= {"kv_bytes_per_element": 1.0, "gpu_memory_utilization": 0.99}
    assert judge(kv).change.endswith(
        "or deployment.tensor_parallel (--tensor-parallel-size): more KV blocks per replica."
    )
    assert "fp8" not in judge(kv).change and "gpu_memory_utilization" not in judge(kv).change
    launches = toy(requests=120, price=costs(gemm_s=4e-3, launch_s=3e-3), seats=999, blocks=60000)
    assert "enforce_eager" not in judge(launches).change
    launches.settings["async_scheduling"] = True
    assert judge(launches).change == "more load per replica (workload.rate (--request-rate))."


def test_fewer_bytes_only_where_there_are_more(toy):
    run = toy(requests=10)
    assert fewer_bytes(run).startswith("model.quantization=fp8 or engine.kv_cache_dtype=fp8 (fewer bytes")
    run = dataclasses.replace(run, quantisation="fp8")
    assert fewer_bytes(run).startswith("engine.kv_cache_dtype=fp8 (fewer bytes")
    run.settings["kv_bytes_per_element"] = 1.0
    assert fewer_bytes(run) == "deployment.tensor_parallel (more bandwidth per request)."


@pytest.mark.parametrize(
    ("workload", "key"),
    [
        ({"arrival": "poisson", "rate": 4.0, "concurrency": None}, "workload.rate (--request-rate)"),
        ({"arrival": "gamma", "rate": float("inf"), "concurrency": 8}, "workload.concurrency (--max-concurrency)"),
        ({"arrival": "closed_loop", "rate": 10.0, "concurrency": 8}, "workload.concurrency (--max-concurrency)"),
        ({"arrival": "all_at_once", "rate": 10.0, "concurrency": None}, "workload.num_requests (--num-prompts)"),
        (
            {"arrival": "closed_loop", "rate": 10.0, "concurrency": 8, "num_requests": 8},
            "workload.num_requests (--num-prompts)",
        ),
        ({"arrival": "trace", "rate": 10.0, "concurrency": None}, "workload.time_scale (lower it)"),
    ],
)
def test_more_load_is_asked_of_the_key_that_brings_it(toy, workload, key):
    run = dataclasses.replace(toy(requests=10), config={"workload": workload})
    assert larger_batch(run, 4.0).startswith(f"{key}: a larger batch")
    run.settings["max_num_seqs"] = 4
    assert larger_batch(run, 4.0).startswith("engine.max_num_seqs")


def test_graphs_that_hold_every_batch_are_not_to_be_larger(toy):
    run = toy(requests=60, blocks=60000)
    assert "max_cudagraph_capture_size" not in capture_more(run)
    run.settings["max_num_seqs"] = 999
    assert "max_cudagraph_capture_size" in capture_more(run)
