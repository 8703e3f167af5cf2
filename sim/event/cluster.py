"""The exact engine: the events of a whole fleet in order, in integer nanoseconds.

Arrivals are merged in by the client's own order. At equal times outputs come before arrivals, and arrivals before the
next batch: what ends at t frees a place at t, and what arrives at t is in the batch decided at t.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.event.agenda import NEVER, Agenda
from sim.event.client import Client
from sim.event.replica import Replica
from sim.report.result import SHED
from sim.scheduler.base import Request
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


@dataclass
class Entry:
    """Where requests of the client go: one pool, or several.

    - `serves[k](prompt, outputs)`: the tokens that pool k will emit, or None if it can never serve such a request.
    - `choose(i, pools)`: the rank for request i among these pools, which can, or None to turn it away; `pool_of`: the
      pool of each rank.
    - `make(rank, i, outputs)`: the request for it.
    """

    serves: Sequence[Callable[[int, int], int | None]]
    choose: Callable[[int, tuple[int, ...]], int | None]
    pool_of: Sequence[int]
    make: Callable[[int, int, int], Request]


def run_cluster(
    agenda: Agenda,
    client: Client,
    replicas: Sequence[Replica],
    entry: Entry,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Run the client's workload to the end.

    `on_progress(sent)` is called now and then with the number of requests sent.
    """
    prompts = client.workload.prompt_tokens.tolist()
    outputs = client.workload.output_tokens.tolist()

    def take_arrivals(now_ns: int) -> None:
        while (at := client.next_ns) <= now_ns:
            i = client.sent
            allowed = [serves(prompts[i], outputs[i]) for serves in entry.serves]
            able = tuple(k for k, tokens in enumerate(allowed) if tokens is not None)
            if not able:
                client.send(-1, outputs[i])
                client.rejected(at)
                continue
            target = entry.choose(i, able)
            if target is None:
                client.send(-1, outputs[i])
                client.rejected(at, SHED)
                continue
            tokens = allowed[entry.pool_of[target]]
            assert tokens is not None
            client.send(target, tokens)
            replica = replicas[target]
            replica.send(entry.make(target, i, tokens))
            if replica.blocked:
                replica.blocked = False
                agenda.wake(target, now_ns)

    def horizon() -> int:
        return min(agenda.next_ns, client.next_ns)

    while True:
        at = client.next_ns
        if agenda.next_ns <= at:
            if at == NEVER and agenda.next_ns == NEVER:
                return
            index, action = agenda.pop()
            now_ns = agenda.now_ns
            if action is not None:
                action(now_ns)
            else:
                replica = replicas[index]
                replica.complete(now_ns)
                if client.next_ns <= now_ns:
                    take_arrivals(now_ns)
                following = replica.call(now_ns, horizon)
                if following is not None:
                    if (
                        replica.empty_turns > MAX_EMPTY_TURNS
                        or replica.fruitless_preemptions > MAX_FRUITLESS_PREEMPTIONS
                    ):
                        check_progress(replica, now_ns)
                    agenda.wake(index, following)
        else:
            agenda.now_ns = at
            agenda.events += 1
            take_arrivals(at)
        if on_progress is not None and agenda.events & 4095 == 0:
            on_progress(client.sent)
