"""The oracle itself: hand-worked, and against recorded schedules of the real engine."""

import pytest

from calibration.conformance.scenario import prompt_tokens, read_scenario
from calibration.conformance.sets import find_sets
from calibration.conformance.trace import read_steps
from tests.scan.conftest import make_job
from tests.scan.oracle import Asked, Rules, simulate


def is_covered(scenario) -> bool:
    """First come first served, chunked prefill, no prefix reuse, drafts, threshold or aborts."""
    config = scenario.config
    return (
        not config["enable_prefix_caching"]
        and not config["spec"]
        and config["policy"] == "fcfs"
        and not config["long_prefill_token_threshold"]
        and config["enable_chunked_prefill"]
        and not any("abort_step" in request for request in scenario.requests)
    )


@pytest.mark.parametrize(
    ("version", "scenarios", "calls"), [("0.10.2", 11, 5626), ("0.19.0", 7, 3757), ("0.33.0", 11, 5626)]
)
def test_recorded_schedules(shared, version, scenarios, calls):
    """Rows, victims, queues, free blocks, who emits and who ends, in every recorded call."""
    folder = shared / "data" / "schedules" / f"vllm-{version}-sync"
    if not folder.is_dir():
        pytest.skip(f"no recorded schedules of {version}")
    (recorded,) = find_sets(folder)
    covered = replayed = 0
    for pair in recorded.pairs:
        scenario = read_scenario(pair.scenario)
        if not is_covered(scenario):
            continue
        covered += 1
        replayed += replay(scenario, read_steps(pair.trace), reserve=version != "0.10.2")
    assert (covered, replayed) == (scenarios, calls)


def replay(scenario, lines, reserve: bool) -> int:
    config = scenario.config
    rules = Rules(
        seats=config["max_num_seqs"],
        budget=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        block_size=config["block_size"],
        usable_blocks=config["num_gpu_blocks"] - 1,
        reserve=reserve,
    )
    names = [request["id"] for request in scenario.requests]
    asked = {
        request["id"]: Asked(i, prompt_tokens(request), request["max_tokens"])
        for i, request in enumerate(scenario.requests)
    }
    calls = 0
    for line in lines:
        if "sched" not in line:
            continue
        calls += 1
        rules.waiting.extend(asked[name] for name in line["added"])
        rows, victims = rules.schedule()
        assert [[names[r.request.index], r.tokens, r.prior] for r in rows] == [row[:3] for row in line["sched"]]
        assert [names[v.index] for v in victims] == line.get("pre", [])
        assert (len(rules.running), len(rules.waiting), rules.free) == (line["run"], line["wait"], line["free"])
        emitted, ended = rules.update(rows)
        assert [names[r.index] for r in emitted] == [row[0] for row in line["out"]]
        assert ([names[r.index] for r in ended], rules.free) == (line.get("fin", []), line["free_end"])
    return calls


def test_hand_worked_run():
    """Budget 30, blocks of 16, a step lasts 10 ns per token.

    Prompts 20, 5, 33 with outputs 2, 2, 1. Step 1: 20 + 5 + 5 of 33 = 30 tokens; step 2: two decodes and the other 28
    = 30 tokens. The first two end with step 2 as does the third, whose only token is that of its prefill.
    """
    job = make_job(output_tokens=[2, 2, 1], max_num_batched_tokens=30)
    requests, steps = simulate(job, lambda record: 10 * (record["prefill_tokens"] + record["decodes"]))
    assert [step["end_ns"] for step in steps] == [300, 600]
    assert [request.token_ns for request in requests] == [[300, 600], [300, 600], [600]]
    # blocks after step 1: 2 + 1 + 1 of 100; after step 2: the third needs 3
    assert [step["free_blocks"] for step in steps] == [96, 94]
    # chunk of 28 on 5: 28 * 5 + 28 * 29 / 2
    assert steps[1]["prefill_area"] == 140 + 406
    assert (steps[1]["decode_sum"], steps[1]["decode_max"], steps[1]["decode_sumsq"]) == (27, 21, 441 + 36)
