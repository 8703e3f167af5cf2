"""Drives SGLang's scheduler turn by turn and recounts, row by row, what it counts in closed form."""

from collections import Counter

import numpy as np

from sim.event.batch_queue import BatchQueue
from sim.scheduler.sglang import Options, SglangRequest, SglangScheduler


def scheduler(pool_tokens, page_size=1, *, max_running=64, context_len=8192, chunk=8192, overlap=False, **given):
    """A scheduler in the normal loop; options of the user by their names."""
    arguments = {key: given.pop(key) for key in ("policy", "reuse", "rules") if key in given}
    return SglangScheduler(
        pool_tokens,
        page_size,
        max_running=max_running,
        context_len=context_len,
        chunk=chunk,
        overlap=overlap,
        options=Options(**given),
        **arguments,
    )


def request(index, prompt, outputs, priority=0, content=None):
    """A request; `content` are its token ids, otherwise they are like nobody else's."""
    return SglangRequest(index, prompt, outputs, None if content is None else np.asarray(content), priority)


def turn(made):
    """One turn of the normal loop: the batch, and the requests that ended with it."""
    batch = made.schedule()
    return batch, list(made.complete(batch))


class Drive:
    """A scheduler, driven through `arrivals` (turn, request) to the end; every launch is in `launched`.

    After each turn all its counts are compared with a recount. `repeat`: use `repeat` wherever the engine would.
    """

    def __init__(self, made, arrivals, repeat=False, aborts=()):
        self.made = made
        self.queue = BatchQueue(made, 2 if made.overlap else 1)
        self.arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
        self.requests = [r for _, r in self.arrivals]
        self.aborts = dict(aborts)
        self.launched = []
        self.ended = []
        self.aborted = []
        self.tokens = Counter()
        self._open = []
        self._last = {}
        self._sent = 0
        self._turn = 0
        self._repeat = repeat

    def run(self, most=2_000):
        """All of it; the numbers of all launches."""
        while self._sent < len(self.arrivals) or self.made.unfinished or self._open:
            self._turn += 1
            assert self._turn < most, "no end"
            while self._sent < len(self.arrivals) and self.arrivals[self._sent][0] <= self._turn:
                self.made.add(self.requests[self._sent])
                self._sent += 1
            for index in [i for i, at in self.aborts.items() if at <= self._turn]:
                del self.aborts[index]
                self._abort(index)
            batch = self.queue.issue()
            if batch is not None:
                self._launch(batch, fresh=True)
            if self.queue.waits(batch):
                following = self.arrivals[self._sent][0] if self._sent < len(self.arrivals) else most
                plain = batch is not None and batch.plain and self.queue.in_flight[0].plain
                while self._repeat and plain and not self.aborts and self._turn < following - 1:
                    if not self.queue.repeat(batch):
                        break
                    self._turn += 1
                    self._launch(batch, fresh=False)
                    self._deliver()
                done, ended = self.queue.complete()
                self.ended += [r.index for r in ended]
                self._deliver(done)
            self._recount()
        return self.launched

    def _abort(self, index):
        for victim in self.requests[: self._sent]:
            if victim.index == index and index not in self.ended:
                self.queue.abort(victim)
                self.aborted.append(index)

    def _launch(self, batch, fresh):
        running = self.made.running
        rows = list(batch.decoding.values())
        contexts = [running.kv(r) for r in rows]
        assert batch.decodes == len(rows)
        assert (batch.decode_sum, batch.decode_max) == (sum(contexts), max(contexts, default=0))
        assert batch.decode_sumsq == sum(n * n for n in contexts)
        emitting = [] if not fresh else list(batch.emitted)
        assert batch.emitting == len(emitting) + len(rows)
        self._open.append((batch.number, batch.follows, emitting + rows, batch))
        if batch.tokens:
            prefill = [(row.request.index, row.tokens, row.computed, row.kind) for row in batch.rows] if fresh else []
            stats = (
                batch.decodes,
                batch.decode_sum,
                batch.decode_sumsq,
                batch.decode_max,
                batch.running,
                batch.waiting,
            )
            self.launched.append((prefill, [r.index for r in rows], stats, batch.free_blocks, dict(batch.follows)))

    def _deliver(self, completed=None):
        """Count the tokens of the oldest batch, and who had the one before from where."""
        number, follows, rows, batch = self._open.pop(0)
        dropped = [r.index for r in batch.dropped] if completed is not None else []
        counted = Counter()
        for r in rows:
            if r.index in dropped:
                dropped.remove(r.index)
                continue
            self.tokens[r.index] += 1
            if r.index in self._last:
                counted[self._last[r.index]] += 1
            self._last[r.index] = number
        assert not dropped
        assert dict(counted) == follows

    def _recount(self):
        made, pool = self.made, self.made.pool
        held = 0
        for r in self.requests[: self._sent]:
            if r.index in self.ended or r.index in self.aborted or r in made.waiting:
                continue
            kv = made.running.kv(r) if r.place >= 0 else r.computed
            held += pool.ceil(kv) - r.protected
        nodes = list(pool.tree)
        assert pool.free >= 0
        assert pool.free + pool.tree.tokens + held == pool.tokens
        assert pool.tree.tokens == sum(node.tokens for node in nodes)
        assert pool.tree.evictable == sum(node.tokens for node in nodes if not node.locks)
        assert pool.tree.nodes == len(nodes)
        for pending in (None, made.last):
            total = made.running.wanted_in_full(pending)
            assert total is None or total == sum(made.running.outputs_left(pending))
        page = pool.page_size
        for node in nodes:
            assert node.tokens and node.tokens % page == 0
            assert node.parent is pool.tree.root or node.parent.locks >= node.locks
        if page > 1:
            assert made.running.need_of(list(made.running.rows.values())) == made.running.need or not made.running.rows
