"""Prefix hits equal the exact count from token ids or a trace's own hashes: nothing evicted, nobody side by side.

A request finds the longest run of whole blocks from its start that some request before it has computed, and leaves at
least one token to compute.
"""

import dataclasses
import json

import numpy as np
import pytest

from sim.event.content import request_content
from sim.event.run import run_exact
from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.sessions.conf import LawConf, SessionsConf
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table


BLOCK = 16


def from_ids(contents: list[np.ndarray], prompts: list[int], computed: list[int]) -> list[int]:
    """Tokens found, request by request, in a tree of blocks: (parent, the block's tokens) -> child."""
    tree: dict[tuple[int, bytes], int] = {}
    found = []
    for ids, prompt, done in zip(contents, prompts, computed, strict=True):
        node, hits = 0, 0
        for start in range(0, min(done, len(ids)) // BLOCK * BLOCK, BLOCK):
            key = node, ids[start : start + BLOCK].tobytes()
            if key in tree and hits == start and start + BLOCK < prompt:
                hits += BLOCK
            node = tree.setdefault(key, len(tree) + 1)
        found.append(hits)
    return found


def from_hashes(hashes: list[np.ndarray], prompts: list[int], size: int) -> list[int]:
    """The same from hashes alone: a hash stands for `size` tokens; the last of a prompt may be partly filled."""
    filled: dict[tuple[int, ...], int] = {}
    found = []
    for row, prompt in zip(hashes, prompts, strict=True):
        hits, path = 0, ()
        for number, key in enumerate(row.tolist()):
            path = (hash(path), key)
            there = min(size, prompt - number * size)
            if hits == number * size:
                hits += min(filled.get(path, 0), there)
            filled[path] = max(filled.get(path, 0), there)
        found.append(min(hits, prompt - 1) // BLOCK * BLOCK)
    return found


def alone(work: Workload, requests: int, outputs: int | None = None, gap_s: int = 10_000) -> Workload:
    """The first requests, one long after the other, with at most so many outputs."""
    pick = {key: getattr(work, key)[:requests] for key in ("prompt_tokens", "output_tokens")}
    pick |= {key: getattr(work, key) and getattr(work, key)[:requests] for key in ("token_ids", "block_hashes")}
    said = work.output_token_ids and work.output_token_ids[:requests]
    if outputs is not None:
        pick["output_tokens"] = np.minimum(pick["output_tokens"], outputs)
        said = said and tuple(ids[:outputs] for ids in said)
    times = np.arange(len(pick["prompt_tokens"])) * gap_s * 10**9
    return Workload("alone", times, **pick, hash_block_tokens=work.hash_block_tokens, output_token_ids=said)


def cached(work: Workload) -> list[int]:
    total = int((work.prompt_tokens + work.output_tokens).sum())
    settings = make_settings(prefix_caching=True, max_num_batched_tokens=8192, max_model_len=1 << 20, block_size=BLOCK)
    run = run_exact(work, settings, make_table(tokens=8192), num_gpu_blocks=total // BLOCK + 2 * len(work) + 2)
    assert not run.requests.preemptions.any()
    return run.requests.cached_tokens.tolist()


def exact(work: Workload) -> list[int]:
    content = request_content(work)
    prompts = work.prompt_tokens
    return from_ids(
        [content[i] for i in range(len(work))], prompts.tolist(), (prompts + work.output_tokens - 1).tolist()
    )


@pytest.mark.parametrize(
    "path",
    [
        "workloads/example_trace.jsonl",
        "workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl",
        "ispass26/dataset/prefix_pool_stress.jsonl",
        "ispass26/dataset/sharegpt_pulse_req50_n6_delay15_pc.jsonl",
    ],
)
def test_recorded_token_ids(shared, path):
    file = shared / "data" / "llmservingsim" / path
    work = build_workload(WorkloadConf(path=str(file), arrival="trace", lengths="trace", sort=True), 0)
    work = alone(work, 150, outputs=40)
    found = cached(work)
    assert found == exact(work)
    assert sum(found) > 0 or "pulse" not in path  # the others have nothing alike


def test_recorded_token_ids_as_sessions(shared, tmp_path):
    """Requests of the recorded file, chained: a prompt of a session is the one before, its output, and new ids."""
    file = shared / "data" / "llmservingsim" / "workloads" / "sharegpt-llama-3.1-8b-300-sps10.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()[:60]]
    lines = []
    for number in range(0, 60, 3):
        said: list[int] = []
        rounds = []
        for row in rows[number : number + 3]:
            said = said + row["input_tok_ids"][:200]
            out = row["output_tok_ids"][:50]
            rounds.append({"input_toks": len(said), "output_toks": len(out), "tool_duration_ns": 10**9})
            rounds[-1]["input_tok_ids"] = said
            said = said + out
        lines.append(json.dumps({"arrival_time_ns": number * 10**13, "sub_requests": rounds}))
    (tmp_path / "sessions.jsonl").write_text("\n".join(lines))
    conf = WorkloadConf(path=str(tmp_path / "sessions.jsonl"), arrival="trace", lengths="trace")
    work = build_workload(conf, 0)
    assert work.sessions is not None and work.sessions.rounds.tolist() == [3] * 20
    found = cached(work)
    assert found == exact(work)
    lengths = work.prompt_tokens + work.output_tokens - 1  # computed of a round, all found again by the next
    assert [found[i + 1] for i in range(59) if i % 3 < 2] == [
        int(lengths[i]) // BLOCK * BLOCK for i in range(59) if i % 3 < 2
    ]


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_mooncakes_hashes(shared, name):
    """From the hashes, and from the ids that stand for them."""
    file = shared / "data" / "traces" / f"mooncake_{name}_trace.jsonl.gz"
    conf = WorkloadConf(path=str(file), arrival="trace", lengths="trace", limit=150)
    work = alone(build_workload(conf, 0), 150, outputs=1)
    found = cached(work)
    assert found == from_hashes(list(work.block_hashes), work.prompt_tokens.tolist(), 512)
    assert found == exact(work)
    assert sum(found) > 0


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_drawn_sessions(share):
    """One session at a time; what is left out of outputs is not found behind the place where it was."""
    sessions = SessionsConf(
        rounds=LawConf("geometric", 4.0), latency_s=LawConf("fixed", 1.0), reasoning_share=share, system_prompts=3
    )
    lengths = {"lengths": "lognormal", "input_tokens": 60, "output_tokens": 40}
    conf = WorkloadConf(
        num_requests=60, arrival="closed_loop", concurrency=1, prefix_tokens=50, sessions=sessions, **lengths
    )
    work = build_workload(conf, 1)
    found = cached(work)
    content = request_content(work)
    whole = [
        np.concatenate([content[i], np.arange(output) + ((i + 1) << 32)])
        for i, output in enumerate(work.output_tokens.tolist())
    ]
    prompts = work.prompt_tokens
    assert found == from_ids(whole, prompts.tolist(), (prompts + work.output_tokens - 1).tolist())
    assert sum(found) <= 48 * len(work.sessions) + work.sessions.history_tokens.sum()
    assert share or sum(found) >= 0.8 * work.sessions.history_tokens.sum()
    assert dataclasses.replace(work, digest="").digest == work.digest
