"""What keeps waiting requests out of a step: seats, the token budget, KV blocks, or none of the three."""

from dataclasses import dataclass

import numpy as np

from sim.report.result import FINISHED, SimulationResult


FEW_BLOCKS = 0.05
"""Fewer free blocks than this share of all are few for any request."""


@dataclass(frozen=True)
class Limits:
    """Which limit each step is at, axis `step`: at most one is true, `rule` where none of the others explains it."""

    seats: np.ndarray
    budget: np.ndarray
    blocks: np.ndarray
    rule: np.ndarray


def limits(result: SimulationResult) -> Limits:
    """The limit of each step, to be read where requests wait.

    - Seats: `max_num_seqs` requests run.
    - Budget: the step has `max_num_batched_tokens` tokens, or without chunked prefill no room for the next prompt.
    - Blocks: a request was preempted, or fewer blocks are free than the next request's prompt needs or `FEW_BLOCKS`, or
      the requests that run and the next one need more than all at their full length (engines may reserve those).
    - Rule: none of them. Not told apart where the settings lack the limits.
    """
    steps, settings = result.steps, result.settings
    tokens = steps.tokens
    prompt, whole, promised = _next_request(result)
    free, total = np.asarray(steps.free_blocks), max(result.num_gpu_blocks, 1)
    seats = np.asarray(steps.running) >= settings.get("max_num_seqs", np.inf)
    room = settings.get("max_num_batched_tokens", np.inf) - tokens
    spent = room < (1 if settings.get("chunked_prefill", True) else np.maximum(prompt, 1))
    few = (free < -(-prompt // result.block_size)) | (free < FEW_BLOCKS * total)
    few |= (np.asarray(steps.preempted) > 0) | (promised + -(-whole // result.block_size) > total)
    budget = ~seats & spent
    blocks = ~seats & ~spent & few
    known = {"max_num_seqs", "max_num_batched_tokens"} <= settings.keys()
    return Limits(seats, budget, blocks, ~(seats | budget | blocks) & known)


def _next_request(result: SimulationResult) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each step, after it was decided: tokens of the oldest request not yet started, its prompt and with its output,
    0 where only preempted ones wait; and the blocks that the started ones need at their full length.
    """
    requests, steps = result.requests, result.steps
    prompts = np.asarray(requests.prompt_tokens, np.int64)
    wholes = prompts + np.asarray(requests.output_tokens, np.int64)
    issued_ns = np.asarray(steps.issued_ns)
    prompt, whole, promised = (np.zeros(len(steps), np.int64) for _ in range(3))
    for replica in np.unique(steps.replica):
        here = np.flatnonzero(np.asarray(steps.replica) == replica)
        mine = np.flatnonzero((np.asarray(requests.replica) == replica) & (np.asarray(requests.status) == FINISHED))
        if not len(mine):
            continue
        now_ns = issued_ns[here]
        queue = mine[np.argsort(np.asarray(requests.queued_ns)[mine], kind="stable")]
        # The first in the queue whose start is still to come.
        started_ns = np.maximum.accumulate(np.asarray(requests.scheduled_ns)[queue])
        first = np.searchsorted(started_ns, now_ns, side="right")
        head = queue[np.minimum(first, len(queue) - 1)]
        waits = (first < len(queue)) & (np.asarray(requests.queued_ns)[head] <= now_ns)
        prompt[here], whole[here] = np.where(waits, prompts[head], 0), np.where(waits, wholes[head], 0)
        need = -(-wholes[mine] // result.block_size)
        promised[here] = _up_to(np.asarray(requests.scheduled_ns)[mine], need, now_ns) - _up_to(
            np.asarray(requests.finish_ns)[mine], need, now_ns
        )
    return prompt, whole, promised


def _up_to(at_ns: np.ndarray, amount: np.ndarray, now_ns: np.ndarray) -> np.ndarray:
    """The sum of the amounts up to and at each instant."""
    order = np.argsort(at_ns, kind="stable")
    return np.concatenate([[0], np.cumsum(amount[order])])[np.searchsorted(at_ns[order], now_ns, side="right")]
