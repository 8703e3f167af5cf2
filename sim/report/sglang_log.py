"""SGLang's own log of a run: a line per prefill batch, and one per so many decode batches.

A line is written when the output of its batch is processed. `n/a` stands for what is not known: tokens found in the
cache where prefixes are reused but that was not simulated, and the tokens that wait once a request has lost its own.
"""

from collections.abc import Iterator

import numpy as np

from sim.report.hit_rate import looked_up
from sim.report.outputs import Outputs, clock, outputs_of
from sim.report.result import SimulationResult
from sim.units import NS_PER_S


def sglang_lines(result: SimulationResult) -> Iterator[str]:
    """The lines by time; with several replicas each line names its own."""
    t0_ns = result.requests.first_arrival_ns if len(result.requests) else 0
    replicas = np.unique(result.steps.replica).tolist()
    lines: list[tuple[int, int, str]] = []
    for replica in replicas:
        lines += [(at, replica, text) for at, text in _replica_lines(result, replica, t0_ns)]
    for at_ns, replica, text in sorted(lines, key=lambda line: line[:2]):
        name = f" DP{replica}" if len(replicas) > 1 else ""
        yield f"[{clock((at_ns - t0_ns) / NS_PER_S):%Y-%m-%d %H:%M:%S}{name}] {text}"


def _replica_lines(result: SimulationResult, replica: int, t0_ns: int) -> Iterator[tuple[int, str]]:
    outputs = outputs_of(result.steps, replica)
    steps, row, interval = result.steps, outputs.row, int(result.log.get("decode_interval", 40))
    usable = max(result.num_gpu_blocks - 1, 1)
    used = usable - outputs.free_blocks
    graph = np.asarray(steps.graph_mode)[row] > 0
    prefill_tokens, decodes = np.asarray(steps.prefill_tokens)[row], np.asarray(steps.decodes)[row]
    chunks, running = np.asarray(steps.prefill_chunks)[row], np.asarray(steps.running)[row]
    found = np.diff(np.concatenate([[0], (np.asarray(steps.hits) + np.asarray(steps.preempted_hits))[row]]))
    cached = found.tolist() if looked_up(steps) or not result.settings.get("prefix_caching", True) else None
    pending = pending_tokens(result, replica, outputs)
    prefill_ns = decode_ns = t0_ns
    decode_batches = generated = 0
    for i, end_ns in enumerate(outputs.end_ns.tolist()):
        usage = f"token usage: {used[i] / usable:.2f}"
        if prefill_tokens[i]:
            throughput = per_second(int(prefill_tokens[i]), end_ns - prefill_ns)
            prefill_ns = end_ns
            yield (
                end_ns,
                f"Prefill batch, #new-seq: {chunks[i]}, #new-token: {prefill_tokens[i]}, "
                f"#cached-token: {'n/a' if cached is None else cached[i]}, {usage}, "
                f"#running-req: {running[i]}, #queue-req: {outputs.waiting[i]}, "
                f"#pending-token: {'n/a' if pending[i] < 0 else pending[i]}, cuda graph: {bool(graph[i])}, "
                f"input throughput (token/s): {throughput:.2f}",
            )
            continue
        decode_batches += 1
        generated += int(decodes[i])
        if decode_batches % interval == 0:
            throughput = per_second(generated, end_ns - decode_ns)
            decode_ns, generated = end_ns, 0
            yield (
                end_ns,
                f"Decode batch, #running-req: {decodes[i]}, #token: {used[i] * result.block_size}, {usage}, "
                f"cuda graph: {bool(graph[i])}, gen throughput (token/s): {throughput:.2f}, "
                f"#queue-req: {outputs.waiting[i]}",
            )


def per_second(tokens: int, gap_ns: int) -> float:
    """Tokens per second over a gap; 0 where there is none."""
    return tokens * NS_PER_S / gap_ns if gap_ns > 0 else 0.0


def pending_tokens(result: SimulationResult, replica: int, outputs: Outputs) -> np.ndarray:
    """Prompt tokens that wait to be computed when each step is decided, in whole for requests not yet admitted.

    -1 from the replica's first preemption on: whose tokens are computed again is not in the tables.
    """
    requests, steps = result.requests, result.steps
    mine = np.flatnonzero(np.asarray(requests.replica) == replica)
    issued_ns = np.asarray(steps.issued_ns, np.int64)[outputs.row]

    def by_then(at_ns: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        at_ns, tokens = np.asarray(at_ns, np.int64)[mine], np.asarray(tokens, np.int64)[mine]
        order = np.argsort(at_ns, kind="stable")
        happened = order[at_ns[order] >= 0]
        total = np.concatenate([[0], np.cumsum(tokens[happened])])
        return total[np.searchsorted(at_ns[happened], issued_ns, side="right")]

    computed = np.cumsum(np.asarray(steps.prefill_tokens, np.int64)[outputs.row])
    arrived = by_then(requests.queued_ns, requests.prompt_tokens)
    waiting = arrived - by_then(requests.scheduled_ns, requests.cached_tokens) - computed
    return np.where(np.cumsum(np.asarray(steps.preempted)[outputs.row]) > 0, -1, waiting)
