"""The exact engine: one heap of events over all replicas, in integer nanoseconds.

An event is `(time, replica, counter)`: a replica's loop acts. Arrivals are merged in by the client's own order. At
equal times outputs come before arrivals, and arrivals before the next batch: what ends at t frees a
place at t, and what arrives at t is in the batch decided at t.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from sim.event.client import NEVER, Client
from sim.event.replica import Replica
from sim.event.router import Router
from sim.units import NS_PER_S


MAX_EMPTY_TURNS = 10_000
MAX_FRUITLESS_PREEMPTIONS = 10_000


class Stuck(ValueError):
    """A replica will never finish: its scheduler decides nothing any more, or preempts without a token in between."""


def check_progress(replica: Replica, now_ns: int) -> None:
    """Raise `Stuck`, with a sentence that says which setting to change, for a replica that gets nowhere."""
    left = f"at {now_ns / NS_PER_S:.3f} s, with {replica.scheduler.unfinished} requests unfinished"
    if replica.empty_turns > MAX_EMPTY_TURNS:
        raise Stuck(
            f"the scheduler of replica {replica.index} decided {replica.empty_turns} empty batches in a row, {left}: "
            f"with {replica.scheduler.free_blocks:,} of {replica.scheduler.usable_blocks:,} KV blocks free it may wait "
            "for blocks that never come; raise engine.num_gpu_blocks_override, or correct the scheduler or choose "
            "another with engine.scheduler"
        )
    if replica.fruitless_preemptions > MAX_FRUITLESS_PREEMPTIONS:
        raise Stuck(
            f"replica {replica.index} preempted {replica.fruitless_preemptions:,} times without a token in between, "
            f"{left}: its {replica.scheduler.usable_blocks:,} KV blocks are too few for one request, which the engine "
            "would preempt and start again for ever; raise engine.num_gpu_blocks_override, or leave it out"
        )


def run_cluster(
    client: Client,
    replicas: Sequence[Replica],
    router: Router,
    admit: Callable[[int, int], int | None],
    content: Sequence[np.ndarray] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Run the client's workload to the end; returns the number of events.

    `admit(prompt, outputs)` gives the tokens the engine will emit, or None if it can never serve the request;
    `content` are the requests' token ids; `on_progress(sent)` is called now and then with the number sent.
    """
    prompts = client.workload.prompt_tokens.tolist()
    outputs = client.workload.output_tokens.tolist()
    levels = client.workload.priority
    priorities = [0] * len(prompts) if levels is None else levels.tolist()
    heap: list[tuple[int, int, int]] = []
    events = 0

    def take_arrivals(now_ns: int) -> None:
        while (at := client.next_ns) <= now_ns:
            i = client.sent
            allowed = admit(prompts[i], outputs[i])
            if allowed is None:
                client.send(-1, outputs[i])
                client.rejected(at)
                continue
            target = router(i, replicas) if len(replicas) > 1 else 0
            client.send(target, allowed)
            replica = replicas[target]
            make = replica.scheduler.request_type
            replica.send(make(i, prompts[i], allowed, None if content is None else content[i], priorities[i]))
            if replica.blocked:
                replica.blocked = False
                heappush(heap, (now_ns, target, events))

    while True:
        at = client.next_ns
        if heap and heap[0][0] <= at:
            now_ns, index, _ = heappop(heap)
        elif at != NEVER:
            now_ns, index = at, -1
        else:
            return events
        events += 1
        if index >= 0:
            replica = replicas[index]
            replica.complete(now_ns)
            if client.next_ns <= now_ns:
                take_arrivals(now_ns)
            horizon_ns = min(heap[0][0], client.next_ns) if heap else client.next_ns
            following = replica.call(now_ns, horizon_ns)
            if following is not None:
                if replica.empty_turns > MAX_EMPTY_TURNS or replica.fruitless_preemptions > MAX_FRUITLESS_PREEMPTIONS:
                    check_progress(replica, now_ns)
                heappush(heap, (following, index, events))
        else:
            take_arrivals(now_ns)
        if on_progress is not None and events & 4095 == 0:
            on_progress(client.sent)
