"""Schedulers against recorded schedules of the real engines: every decision and every block id must be equal."""

from pathlib import Path

import pytest

from calibration.conformance.replay import check_headers, replay_set
from calibration.conformance.report import verdict
from calibration.conformance.scenario import output_base, prompt_tokens, read_scenario, token_ids
from calibration.conformance.sets import find_sets
from calibration.conformance.trace import read_steps
from calibration.conformance.vllm import profile_of, settings_of
from sim.memory.blocks import CountedBlocks
from sim.memory.prefix import PrefixBlocks
from sim.scheduler.vllm import ContinuousBatching, DecodingRequest


RECORDED = Path(__file__).parent / "recorded"
SETS = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())


def differences(path):
    """What is not identical at or below a path, and how much was compared."""
    sets = find_sets(path)
    headers = check_headers(sets)
    outcomes = [outcome for recorded in sets for outcome in replay_set(recorded, headers)]
    return {f"{o.set_name}/{o.trace}": verdict(o) for o in outcomes if not o.blocks_identical}, len(outcomes)


def test_compact_sets_are_of_every_kind():
    kinds = {name.rpartition("-")[2] for name in SETS if name.startswith("vllm")}
    assert kinds == {"sync", "async", "pp", "hybrid", "pd"}
    assert any(name.startswith("sglang") for name in SETS)
    assert sum(path.stat().st_size for path in RECORDED.rglob("*.gz")) <= 2_000_000


@pytest.mark.parametrize("name", SETS)
def test_decisions_equal_recorded_engine(name):
    different, compared = differences(RECORDED / name)
    assert different == {}
    assert compared >= 5


@pytest.mark.parametrize("kind", ["sync", "async", "pp", "hybrid", "pd", "sglang"])
def test_decisions_equal_the_whole_record(shared, kind):
    """Measured data beside the project; where it holds more of a kind, more is replayed."""
    schedules = shared / "data" / "schedules"
    folders = sorted(schedules.glob("sglang-*" if kind == "sglang" else f"vllm-*-{kind}"))
    if not folders:
        pytest.skip(f"no recorded schedules of kind {kind}")
    for folder in folders:
        different, compared = differences(folder)
        assert different == {}, folder.name
        assert compared >= 10


def covered(config, requests) -> bool:
    """No drafts, priorities, threshold, aborts, stop tokens or pipeline: what the fast path covers."""
    return (
        not config.get("spec")
        and config.get("policy", "fcfs") == "fcfs"
        and not config.get("long_prefill_token_threshold")
        and config.get("pp", 1) == 1
        and not any(r.get("abort_step") or r.get("abort_mid") or r.get("stop_after") for r in requests)
    )


FAST_SETS = [name for name in SETS if name.startswith("vllm") and name.endswith(("sync", "async"))]


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("name", FAST_SETS)
def test_fast_path_equals_recorded_engine(name, named):
    """The fast path gives statistics instead of rows: they must be those of the recorded rows."""
    assert replay_covered(RECORDED / name, named) >= 2


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("name", FAST_SETS)
def test_fast_path_equals_the_whole_record(shared, name, named):
    assert replay_covered(shared / "data" / "schedules" / name, named) >= 15


def replay_covered(folder, named) -> int:
    """Replay what the fast path covers of a set; returns how many traces."""
    (recorded,) = find_sets(folder)
    replayed = 0
    for pair in recorded.pairs:
        scenario = read_scenario(pair.scenario)
        if covered(scenario.config, scenario.requests):
            replay_fast(scenario, read_steps(pair.trace), folder.name.split("-")[1], named)
            replayed += 1
    return replayed


def replay_fast(scenario, steps, version, named):
    """Drive the fast path by the recorded calls; with `named`, compare block ids too."""
    config = scenario.config
    settings = settings_of(config, profile_of(config, version))
    usable, size, cached = config["num_gpu_blocks"] - 1, config["block_size"], config["enable_prefix_caching"]
    if named or cached:
        unhashed_first = settings.profile.cache.unhashed_blocks_first
        blocks = PrefixBlocks(usable, size, unhashed_first=unhashed_first, reuse=cached)
    else:
        blocks = CountedBlocks(usable, size)
    scheduler = ContinuousBatching(
        blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        reserve_full_input=settings.reserve_full_input,
        chunked_prefill=settings.chunked_prefill,
        skip_oversized=settings.profile.scheduling.skip_oversized,
        register_on_output=settings.async_scheduling,
    )
    names = {request["id"]: number for number, request in enumerate(scenario.requests)}
    requests, held, open_batches = {}, {}, []
    for step in steps:
        if "summary" in step:
            break
        for name in step["added"]:
            given = scenario.requests[names[name]]
            prompt = prompt_tokens(given)
            outputs = min(given["max_tokens"], config["max_model_len"] - prompt)
            request = DecodingRequest(names[name], prompt, outputs, token_ids(given))
            request.output_base = output_base(given)
            requests[name], held[name] = request, 0
            scheduler.add(request)
        if "sched" in step:
            batch = scheduler.schedule()
            open_batches.append(batch)
            rows = step["sched"]
            assert batch.tokens == step["tok"], step["step"]
            assert [r.index for r in batch.preempted] == [names[n] for n in step["pre"]], step["step"]
            assert (batch.running, batch.waiting, batch.free_blocks) == (step["run"], step["wait"], step["free"])
            assert batch.decodes + batch.prefill_chunks == len(rows), step["step"]
            assert [r.index for r in batch.admitted] == [names[row[0]] for row in rows if row[3] in "nr"]
            contexts = [row[2] + row[1] for row in rows]
            assert batch.decode_sum + batch.prefill_kv_tokens == sum(contexts), step["step"]
            assert max(batch.decode_max, batch.prefill_max_tokens) == max(contexts, default=0), step["step"]
            if named:
                for row, ids in zip(rows, step["nb"], strict=True):
                    table = requests[row[0]].blocks
                    assert ids == (table if row[3] in "nr" else table[held[row[0]] :]), (step["step"], row[0])
                    held[row[0]] = len(table)
        if step.get("completed", 0) is not None and open_batches:
            ended = scheduler.complete(open_batches.pop(0))
            assert sorted(r.index for r in ended) == sorted(names[n] for n in step["fin"]), step["step"]
            assert scheduler.free_blocks == step["free_end"], step["step"]
    assert scheduler.unfinished == 0
    assert scheduler.free_blocks == scheduler.usable_blocks
