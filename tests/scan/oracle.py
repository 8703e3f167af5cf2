"""The rules again, as literally as possible: lists of requests, one row at a time, no aggregates.

vLLM V1, first come first served, chunked prefill, no prefix reuse, one batch in flight. Slow and obvious.
"""

import math
from collections import deque
from dataclasses import dataclass, field


@dataclass(eq=False)
class Asked:
    """One request. `known` tokens are its prompt and what it emitted; `computed` of them are in its blocks."""

    index: int
    prompt: int
    outputs: int
    emitted: int = 0
    computed: int = 0
    held: int = 0
    target: int = 0
    preemptions: int = 0
    scheduled_ns: int = -1
    first_ns: int = -1
    token_ns: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.emitted


@dataclass(eq=False)
class Row:
    """Tokens of one request in a step, on top of `prior` computed ones; a prefill's were known at admission."""

    request: Asked
    prior: int
    tokens: int
    is_prefill: bool

    @property
    def context(self) -> int:
        return self.prior + self.tokens


class Rules:
    """One replica's scheduler."""

    def __init__(self, *, seats, budget, max_model_len, block_size, usable_blocks, reserve):
        self.seats, self.budget, self.max_model_len = seats, budget, max_model_len
        self.block_size, self.free, self.reserve = block_size, usable_blocks, reserve
        self.running: list[Asked] = []
        self.waiting: deque[Asked] = deque()

    def blocks(self, tokens: int) -> int:
        return math.ceil(tokens / self.block_size)

    def allocate(self, request: Asked, tokens: int) -> bool:
        new = self.blocks(request.computed + tokens) - request.held
        if new > self.free:
            return False
        self.free -= new
        request.held += new
        return True

    def release(self, request: Asked) -> None:
        self.free += request.held
        request.held = 0

    def preempt_last(self) -> Asked:
        victim = self.running.pop()
        self.release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.waiting.appendleft(victim)
        return victim

    def schedule(self) -> tuple[list[Row], list[Asked]]:
        """Running requests first, then, if nobody was preempted, waiting ones."""
        left = self.budget
        rows: list[Row] = []
        victims: list[Asked] = []
        i = 0
        while i < len(self.running) and left > 0:
            request = self.running[i]
            want = min(request.known - request.computed, left, self.max_model_len - 1 - request.computed)
            while not (fits := self.allocate(request, want)):
                victims.append(self.preempt_last())
                if victims[-1] is request:
                    break
            if not fits:
                break
            rows.append(Row(request, request.computed, want, request.computed < request.target))
            left -= want
            i += 1
        while not victims and self.waiting and left > 0 and len(self.running) < self.seats:
            request = self.waiting[0]
            want = min(request.known, left)
            if self.reserve and self.blocks(min(request.known, self.max_model_len)) > self.free:
                break
            if not self.allocate(request, want):
                break
            self.running.append(self.waiting.popleft())
            request.target = request.known
            rows.append(Row(request, 0, want, True))
            left -= want
        for row in rows:
            row.request.computed += row.tokens
        return rows, victims

    def update(self, rows: list[Row]) -> tuple[list[Asked], list[Asked]]:
        """Every row whose request is computed up to its last known token emits one; returns who emitted, who ended."""
        emitted, ended = [], []
        for row in rows:
            request = row.request
            if row.context == request.known:
                request.emitted += 1
                emitted.append(request)
                if request.emitted == request.outputs or request.known >= self.max_model_len:
                    self.release(request)
                    ended.append(request)
        self.running = [request for request in self.running if request not in ended]
        return emitted, ended


def statistics(rows: list[Row]) -> dict[str, int]:
    """The batch as `sim.cost.stats.BatchStats` defines it, from its rows."""
    prefills = [row for row in rows if row.is_prefill]
    contexts = [row.context for row in rows if not row.is_prefill]
    return {
        "prefill_tokens": sum(row.tokens for row in prefills),
        "prefill_chunks": len(prefills),
        "prefill_area": sum(row.tokens * row.prior + row.tokens * (row.tokens + 1) // 2 for row in prefills),
        "prefill_kv_tokens": sum(row.context for row in prefills),
        "prefill_max_tokens": max((row.context for row in prefills), default=0),
        "decodes": len(contexts),
        "decode_sum": sum(contexts),
        "decode_max": max(contexts, default=0),
        "decode_sumsq": sum(context * context for context in contexts),
        "emitting": sum(row.context == row.request.known for row in rows),
    }


def simulate(job, price_ns) -> tuple[list[Asked], list[dict[str, int]]]:
    """Run a `LaneJob` of one replica: its requests, and a record per step. `price_ns(record)` is a step's duration."""
    rules = Rules(
        seats=job.max_num_seqs,
        budget=job.max_num_batched_tokens,
        max_model_len=job.max_model_len,
        block_size=job.block_size,
        usable_blocks=job.usable_blocks,
        reserve=job.reserve_full_input,
    )
    todo = deque(
        (int(at), Asked(i, int(prompt), int(outputs)))
        for i, (at, prompt, outputs) in enumerate(
            zip(job.arrival_ns, job.prompt_tokens, job.output_tokens, strict=True)
        )
    )
    requests = [request for _, request in todo]
    outstanding, now, freed_ns, steps = 0, 0, [], []

    def arrival() -> float:
        """When the next request gets to the engine; infinite while too many are outstanding."""
        sent = len(requests) - len(todo)
        if not todo or (job.concurrency and sent >= job.concurrency + len(freed_ns)):
            return math.inf
        released = freed_ns[sent - job.concurrency] if job.concurrency and sent >= job.concurrency else 0
        return max(todo[0][0], released) + job.pickup_ns

    while todo or outstanding:
        if not outstanding:
            now = max(now, int(arrival()))
        while arrival() <= now:
            request = todo.popleft()[1]
            if request.prompt >= job.max_model_len or not fits_at_all(job, request):
                freed_ns.append(now)
                continue
            rules.waiting.append(request)
            outstanding += 1
        if not outstanding:
            continue
        rows, victims = rules.schedule()
        record = statistics(rows) | {
            "start_ns": now,
            "running": len(rules.running),
            "waiting": len(rules.waiting),
            "free_blocks": rules.free,
            "preempted": len(victims),
        }
        for row in rows:
            if row.request.scheduled_ns < 0:
                row.request.scheduled_ns = now
        now += price_ns(record)
        emitted, ended = rules.update(rows)
        for request in emitted:
            request.token_ns.append(now)
        freed_ns += [now] * len(ended)
        outstanding -= len(ended)
        steps.append(record | {"end_ns": now})
    return requests, steps


def fits_at_all(job, request: Asked) -> bool:
    """Whether the cache can hold the request's longest context."""
    longest = min(request.prompt + request.outputs - 1, job.max_model_len - 1)
    return math.ceil(longest / job.block_size) <= job.usable_blocks
