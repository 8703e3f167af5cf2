"""A small honest queue to report on: continuous batching, chunked prefill, KV blocks, preemption by recompute."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest

from sim.report.result import (
    FINISHED,
    LOOKUPS,
    REJECTED,
    MemoryReport,
    MemoryTerm,
    RequestTable,
    SimulationResult,
    StepTable,
)
from sim.workload.trace import Workload


GIB = 2**30
COMPONENTS = ("gemm_s", "attention_s", "moe_s", "elementwise_s", "head_s", "collective_s", "launch_s", "host_s")


class Sequence:
    def __init__(self, index: int, prompt: int, outputs: int):
        self.index, self.prompt, self.outputs = index, prompt, outputs
        self.computed, self.target, self.emitted, self.last_ns = 0, prompt, 0, -1


def price_s(prefill: int, area: float, decodes: int, context: int, emitting: int) -> tuple[float, ...]:
    """Seconds by component of one step of a dense 8B-like model: weights read once, two FLOPs per weight and token."""
    tokens = prefill + decodes
    gemm = max(15e9 / 2.9e12, tokens * 14e9 / 650e12)
    attention = decodes * 3e-6 + context * 131072 / 2.6e12 + area * 4 * 4096 * 32 / 400e12
    head = 1e9 / 2.9e12 + emitting * 1e9 / 650e12
    return (gemm, attention, 0.0, tokens * 0.45e-6 + 2e-4, head, 0.0, 2.5e-4, 1.5e-4)


def run_toy(
    requests: int = 200,
    rate: float = 12.0,
    seed: int = 0,
    seats: int = 64,
    budget: int = 2048,
    blocks: int = 6000,
    replicas: int = 1,
    block: int = 16,
    slo_ms: dict[str, float] | None = None,
    price: Callable[..., tuple[float, ...]] = price_s,
    lengths: tuple[np.ndarray, np.ndarray] | None = None,
    arrival_s: np.ndarray | None = None,
) -> SimulationResult:
    """A run of Poisson arrivals over round-robin replicas; requests that never fit are rejected."""
    draw = np.random.default_rng(seed)
    if arrival_s is None:
        arrival_s = np.concatenate([[0.0], np.cumsum(draw.exponential(1 / rate, requests - 1))])
    if lengths is None:
        prompt = np.clip(draw.lognormal(5.6, 1.0, requests), 4, 3000).astype(int)
        output = np.clip(draw.lognormal(5.2, 0.8, requests), 1, 1500).astype(int)
    else:
        prompt, output = (np.asarray(x) for x in lengths)
    arrival = np.floor(np.asarray(arrival_s) * 1e9 + 0.5).astype(np.int64)
    columns = {name: np.full(requests, -1, np.int64) for name in ("queued", "scheduled", "first", "finish")}
    preemptions = np.zeros(requests, np.int64)
    status = np.full(requests, FINISHED)
    gaps: Counter[int] = Counter()
    rows: list[tuple] = []
    parts: list[tuple[float, ...]] = []
    for replica in range(replicas):
        mine = deque()
        for i in range(replica, requests, replicas):
            if -(-(prompt[i] + output[i]) // block) > blocks:
                status[i] = REJECTED
            else:
                mine.append(Sequence(i, int(prompt[i]), int(output[i])))
        now, free = 0, blocks
        waiting: deque[Sequence] = deque()
        running: list[Sequence] = []
        held: dict[int, int] = {}
        while mine or waiting or running:
            if not waiting and not running:
                now = max(now, int(arrival[mine[0].index]))
            while mine and arrival[mine[0].index] <= now:
                waiting.append(mine.popleft())
                columns["queued"][waiting[-1].index] = now
            left, batch, thrown = budget, [], 0
            position = 0
            while position < len(running) and left:
                sequence = running[position]
                chunk = min(sequence.target - sequence.computed, left)
                need = -(-(sequence.computed + chunk) // block) - held[sequence.index]
                while need > free and running[-1] is not sequence:
                    victim = running.pop()
                    free += held.pop(victim.index)
                    victim.computed, victim.target = 0, victim.prompt + victim.emitted
                    preemptions[victim.index] += 1
                    thrown += 1
                    waiting.appendleft(victim)
                if need > free:
                    victim = running.pop()
                    free += held.pop(victim.index)
                    victim.computed, victim.target = 0, victim.prompt + victim.emitted
                    preemptions[victim.index] += 1
                    thrown += 1
                    waiting.appendleft(victim)
                    break
                free -= need
                held[sequence.index] += need
                batch.append((sequence, chunk))
                left -= chunk
                position += 1
            while waiting and left and len(running) < seats and not thrown:
                sequence = waiting[0]
                chunk = min(sequence.target, left)
                need = -(-chunk // block)
                if need > free:
                    break
                waiting.popleft()
                running.append(sequence)
                held[sequence.index] = need
                free -= need
                left -= chunk
                batch.append((sequence, chunk))
                if columns["scheduled"][sequence.index] < 0:
                    columns["scheduled"][sequence.index] = now
            prefills = [(s, c) for s, c in batch if s.emitted == 0 or c > 1 or s.computed + c < s.target]
            decodes = [s.computed + 1 for s, c in batch if not (s.emitted == 0 or c > 1 or s.computed + c < s.target)]
            emitters = [s for s, c in batch if s.computed + c == s.target]
            area = sum(c * s.computed + c * (c + 1) / 2 for s, c in prefills)
            cost = price(sum(c for _, c in prefills), area, len(decodes), sum(decodes), len(emitters))
            end = now + int(sum(cost) * 1e9 + 0.5)
            padded = sum(c for _, c in batch)
            mode = 1 if prefills else (2 if len(decodes) <= 256 else 0)
            if mode == 2:
                padded = -(-padded // 8) * 8
            rows.append(
                (
                    replica,
                    now,
                    end,
                    sum(c for _, c in prefills),
                    len(prefills),
                    area,
                    sum(s.computed + c for s, c in prefills),
                    max((s.computed + c for s, c in prefills), default=0),
                    len(decodes),
                    sum(decodes),
                    max(decodes, default=0),
                    sum(x * x for x in decodes),
                    len(emitters),
                    padded,
                    mode,
                    0,
                    0,
                    len(running),
                    len(waiting),
                    free,
                    thrown,
                )
            )
            parts.append(cost)
            ended = freed = 0
            for sequence, chunk in batch:
                sequence.computed += chunk
                if sequence.computed < sequence.target:
                    continue
                sequence.emitted += 1
                sequence.target += 1
                if sequence.emitted == 1:
                    columns["first"][sequence.index] = end
                else:
                    gaps[end - sequence.last_ns] += 1
                sequence.last_ns = end
                if sequence.emitted == sequence.outputs:
                    columns["finish"][sequence.index] = end
                    running.remove(sequence)
                    ended, freed = ended + 1, freed + held[sequence.index]
                    free += held.pop(sequence.index)
            rows[-1] += (now, ended, freed, *(0 for _ in LOOKUPS))
            now = end
    by_component = np.array(parts).reshape(len(parts), len(COMPONENTS)).T
    return SimulationResult(
        requests=RequestTable(
            arrival_ns=arrival,
            queued_ns=columns["queued"],
            scheduled_ns=columns["scheduled"],
            first_token_ns=columns["first"],
            finish_ns=columns["finish"],
            prompt_tokens=np.asarray(prompt),
            output_tokens=np.where(status == FINISHED, output, 0),
            cached_tokens=np.zeros(requests, np.int64),
            preemptions=preemptions,
            replica=np.arange(requests) % replicas,
            status=status,
        ),
        steps=StepTable(*np.array(rows, float).reshape(-1, len(fields(StepTable))).T.astype(np.int64)),
        itl_ns=np.array(sorted(gaps), np.int64),
        itl_count=np.array([gaps[key] for key in sorted(gaps)], np.int64),
        components_s=dict(zip(COMPONENTS, by_component, strict=True)),
        engine="exact",
        model="toy-8b",
        device="Toy 80GB",
        engine_label="toy 1.0",
        gpus=replicas,
        num_gpu_blocks=blocks,
        block_size=block,
        usd_per_gpu_hour=2.5,
        memory=MemoryReport(
            terms=(
                MemoryTerm("Weights", 15.0 * GIB, "8.03 B parameters x 2 bytes", "config.json"),
                MemoryTerm("Peak activation", 5.6 * GIB, "sampler dummy run", "engine profile"),
                MemoryTerm("Non-torch", 0.25 * GIB, "context and libraries", "engine profile"),
                MemoryTerm(
                    "KV cache", blocks * block * 131072, f"{blocks} blocks of {block} tokens x 128 KiB", "the rest"
                ),
                MemoryTerm(
                    "Left free", 79.19 * GIB - 20.85 * GIB - blocks * block * 131072, "outside the budget", "setting"
                ),
            ),
            device_bytes=79.19 * GIB,
            verdict=f"fits: {blocks} blocks of {block} tokens",
        ),
        workload=Workload(
            name="toy-lognormal",
            arrival_ns=arrival,
            prompt_tokens=np.asarray(prompt),
            output_tokens=np.asarray(output),
            digest="0123456789abcdef" * 4,
            provenance=("Poisson arrivals", "log-normal lengths"),
        ),
        seed=seed,
        assumptions=[
            ("memory bandwidth", "2.9 TB/s", "toy"),
            ("matrix products", "650 TFLOP/s", "toy"),
            ("USD per GPU hour", "2.50", "toy"),
        ],
        not_modelled=["Tokenisation and the network between client and server.", "Prefix reuse."],
        config={"workload": {"rate": rate, "requests": requests}, "engine": {"max_num_seqs": seats}},
        checks={"every request ends once": True, "blocks returned": True},
        timing={"run_s": 0.5},
        settings={
            "max_num_seqs": seats,
            "max_num_batched_tokens": budget,
            "chunked_prefill": True,
            "graph_sizes": list(range(8, 257, 8)),
        },
        slo_ms=slo_ms or {},
        versions={"headway": "0.1.0"},
        replicas=replicas,
    )


@pytest.fixture(scope="session")
def toy() -> Callable[..., SimulationResult]:
    """The queue itself, to run with other parameters."""
    return run_toy


def make_three(**changes: object) -> SimulationResult:
    """Three requests worked out by hand (ms).

    |   | arrival | queued | scheduled | first | finish | prompt | output | TTFT | queued | TPOT | E2EL |
    | 0 |       0 |      0 |         0 |   100 |    500 |     10 |      5 |  100 |    100 |  100 |  500 |
    | 1 |      50 |    100 |       100 |   300 |    300 |     20 |      1 |  250 |    200 |    - |  250 |
    | 2 |     200 |    300 |       500 |   700 |   1000 |     30 |      3 |  500 |    400 |  150 |  800 |

    Gaps between tokens: 4 x 100 of request 0, then 100 and 200 of request 2.
    """

    def ms(*values: float) -> np.ndarray:
        return np.array(values, np.int64) * 1_000_000

    def numbers(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    fields: dict = {
        "requests": RequestTable(
            arrival_ns=ms(0, 50, 200),
            queued_ns=ms(0, 100, 300),
            scheduled_ns=ms(0, 100, 500),
            first_token_ns=ms(100, 300, 700),
            finish_ns=ms(500, 300, 1000),
            prompt_tokens=numbers(10, 20, 30),
            output_tokens=numbers(5, 1, 3),
            cached_tokens=numbers(0, 0, 0),
            preemptions=numbers(0, 0, 2),
            replica=numbers(0, 0, 0),
            status=numbers(FINISHED, FINISHED, FINISHED),
        ),
        "steps": StepTable(
            replica=numbers(0, 0, 0),
            start_ns=ms(0, 100, 500),
            end_ns=ms(100, 300, 1000),
            prefill_tokens=numbers(10, 20, 40),
            prefill_chunks=numbers(1, 1, 1),
            prefill_area=numbers(55, 210, 820),
            prefill_kv_tokens=numbers(10, 20, 40),
            prefill_max_tokens=numbers(10, 20, 40),
            decodes=numbers(0, 1, 5),
            decode_sum=numbers(0, 11, 60),
            decode_max=numbers(0, 11, 15),
            decode_sumsq=numbers(0, 121, 750),
            emitting=numbers(1, 2, 6),
            padded_tokens=numbers(16, 24, 48),
            graph_mode=numbers(1, 1, 0),
            draft_tokens=numbers(0, 0, 0),
            accepted_tokens=numbers(0, 0, 0),
            running=numbers(1, 2, 2),
            waiting=numbers(0, 1, 0),
            free_blocks=numbers(90, 70, 50),
            preempted=numbers(0, 0, 2),
            issued_ns=ms(0, 100, 500),
            ended=numbers(0, 1, 2),
            freed_blocks=numbers(0, 2, 48),
            **{name: numbers(0, 0, 0) for name in LOOKUPS},
        ),
        "itl_ns": ms(100, 200),
        "itl_count": numbers(5, 1),
        "components_s": {"gemm_s": np.array([0.06, 0.15, 0.4]), "host_s": np.array([0.04, 0.05, 0.1])},
        "engine": "exact",
        "model": "three",
        "device": "Toy 80GB",
        "engine_label": "toy 1.0",
        "gpus": 2,
        "num_gpu_blocks": 100,
        "block_size": 16,
        "usd_per_gpu_hour": 3.6,
        "memory": None,
        "workload": Workload("three", ms(0, 50, 200), numbers(10, 20, 30), numbers(5, 1, 3), digest="d" * 64),
        "seed": 7,
    }
    return SimulationResult(**(fields | changes))


@pytest.fixture
def three() -> Callable[..., SimulationResult]:
    """The hand-worked run; keyword arguments replace fields of the result."""
    return make_three


@pytest.fixture(scope="session")
def result() -> SimulationResult:
    """One run with waiting and preemptions."""
    return run_toy(blocks=1200)
