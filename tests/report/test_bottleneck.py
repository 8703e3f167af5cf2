"""Each bottleneck is recognised where it was built in."""

import pytest

from sim.report.bottleneck import step_shares, verdict
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
            "engine.enforce_eager",
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
    assert shares.seats + shares.budget + shares.kv == pytest.approx(shares.waiting)


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
