"""The scheduler against recorded schedules of the real engine.

Each trace holds, per call: rows scheduled, tokens, victims, queue lengths, free blocks. All must be equal.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sim.memory.blocks import CountedBlocks
from sim.memory.prefix import PrefixBlocks
from sim.scheduler.vllm import ContinuousBatching, DecodingRequest


SETS = [
    f"vllm-{version}-{mode}"
    for version in ("0.10.2", "0.19.0", "0.33.0")
    for mode in ("sync", "async")
    if (version, mode) != ("0.10.2", "async")
]


def read_scenario(path):
    with gzip.open(path) as file:
        return json.load(file)


def is_covered(scenario) -> bool:
    """No drafts, priorities, threshold, aborts or stop tokens: what this scheduler covers."""
    config = scenario["config"]
    return (
        not config["spec"]
        and config["policy"] == "fcfs"
        and not config["long_prefill_token_threshold"]
        and not any(r.get("abort_step") is not None or r.get("stop_after") for r in scenario["requests"])
    )


def token_ids(prompt):
    """The integer form of a recorded prompt: equal content, equal numbers."""
    kinds = {"p": 0, "o": 1 << 40}
    return np.concatenate([kinds[kind] + seed * 65536 + np.arange(length) for kind, seed, length in prompt])


def replay(scenario, steps, version, named):
    """Drive the scheduler by the recorded calls and compare every decision; with `named`, block ids too."""
    config = scenario["config"]
    usable, size, cached = config["num_gpu_blocks"] - 1, config["block_size"], config["enable_prefix_caching"]
    if named or cached:
        blocks = PrefixBlocks(usable, size, unhashed_first=version == "0.33.0", reuse=cached)
    else:
        blocks = CountedBlocks(usable, size)
    scheduler = ContinuousBatching(
        blocks,
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        reserve_full_input=version != "0.10.2",
        chunked_prefill=config["enable_chunked_prefill"],
        skip_oversized=version == "0.10.2",
        register_on_output=config["async_scheduling"],
    )
    names = {r["id"]: i for i, r in enumerate(scenario["requests"])}
    requests, held = {}, {}
    open_batches = []
    for step in steps:
        for name in step["added"]:
            spec = scenario["requests"][names[name]]
            prompt = sum(length for _, _, length in spec["prompt"])
            outputs = min(spec["max_tokens"], config["max_model_len"] - prompt)
            request = DecodingRequest(names[name], prompt, outputs, token_ids(spec["prompt"]))
            request.output_base = (1 << 40) + spec["out_seed"] * 65536
            requests[name] = request
            held[name] = 0
            scheduler.add(request)
        issued = "sched" in step
        if issued:
            batch = scheduler.schedule()
            open_batches.append(batch)
            assert batch.tokens == step["tok"], step["step"]
            assert [r.index for r in batch.preempted] == [names[n] for n in step.get("pre", [])], step["step"]
            assert (batch.running, batch.waiting, batch.free_blocks) == (step["run"], step["wait"], step["free"])
            rows = step["sched"]
            assert batch.decodes + batch.prefill_chunks == len(rows), step["step"]
            admitted = [names[row[0]] for row in rows if row[3] in "nr"]
            assert [r.index for r in batch.admitted] == admitted, step["step"]
            context = sum(row[2] + row[1] for row in rows)
            assert batch.decode_sum + batch.prefill_kv_tokens == context, step["step"]
            assert max([batch.decode_max, batch.prefill_max_tokens]) == max([0, *(row[2] + row[1] for row in rows)])
            if named:
                for row, recorded in zip(rows, step["nb"], strict=True):
                    name, fresh = row[0], row[3] in "nr"
                    blocks = requests[name].blocks
                    assert recorded == (blocks if fresh else blocks[held[name] :]), (step["step"], name)
                    held[name] = len(blocks)
        if step.get("completed", 0) is not None and open_batches:
            ended = scheduler.complete(open_batches.pop(0))
            assert sorted(r.index for r in ended) == sorted(names[n] for n in step.get("fin", [])), step["step"]
            assert scheduler.free_blocks == step["free_end"], step["step"]
    assert scheduler.unfinished == 0
    assert scheduler.free_blocks == scheduler.usable_blocks


def replay_set(folder, named) -> int:
    """Replay every covered scenario below a folder; returns how many."""
    version = folder.name.split("-")[1]
    replayed = 0
    for path in sorted((folder / "scenarios").rglob("*.json.gz")):
        scenario = read_scenario(path)
        if not is_covered(scenario):
            continue
        trace = next((folder / "traces").rglob(f"{scenario['name']}.jsonl.gz"))
        with gzip.open(trace, "rt") as file:
            lines = [json.loads(line) for line in file]
        replay(scenario, [line for line in lines if "step" in line], version, named)
        replayed += 1
    return replayed


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("name", SETS)
def test_decisions_equal_recorded_engine(name, named):
    assert replay_set(Path(__file__).parent / "recorded" / name, named) == 3


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
@pytest.mark.parametrize("name", SETS)
def test_decisions_equal_the_whole_record(shared, name, named):
    assert replay_set(shared / "data" / "schedules" / name, named) >= 15
