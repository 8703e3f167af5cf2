"""Small vLLM engines for tests: settings, requests by token content, and the core's loop around a scheduler."""

from collections import Counter

import numpy as np

from sim.deployment.engine import EngineSettings
from sim.deployment.settings import load_engine
from sim.event.batch_queue import BatchQueue
from sim.memory.shape import CacheShape, GroupShape


VERSIONS = ("0.10.2", "0.19.0", "0.33.0")


def settings(version="0.33.0", *, asynchronous=False, stages=1, **changes):
    """A resolved engine of a version: 4 seats, 64 tokens a batch, 128 tokens long, blocks of 4."""
    profile = load_engine("vllm", version).profile
    depth = stages
    if asynchronous:
        depth = stages + 1 if profile.async_adds_depth else max(stages, 2)
    fields = {
        "name": "vllm",
        "version": version,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        "block_size": 4,
        "gpu_memory_utilization": 0.9,
        "prefix_caching": True,
        "chunked_prefill": True,
        "async_scheduling": asynchronous,
        "reserve_full_input": profile.reserve_full_input,
        "graph_mode": "NONE",
        "graph_sizes": (),
        "kv_bytes_per_element": 2.0,
        "profile": profile,
        "batches_in_flight": depth,
        "pipeline_parallel": stages,
    }
    return EngineSettings(**(fields | changes))


def full(blocks, *, named=False, size=4):
    """A cache of one full-attention group."""
    return CacheShape(blocks, named, (GroupShape("full", size),))


def make_request(scheduler, index, prompt, outputs, priority=0, family=None):
    """A request whose prompt repeats that of its `family`, or is unlike any other."""
    start = (index if family is None else -1 - family) * 4096
    return scheduler.request_type(index, prompt, outputs, np.arange(start, start + prompt), priority)


def loop(scheduler, config, arrivals, aborts=(), watch=None, calls=20_000):
    """Run the core's loop to the end; `arrivals` and `aborts` are (call, request); `watch(batch)` sees each decision.

    Returns the batches in order of completion, and how often each request ended.
    """
    queue = BatchQueue(scheduler, config.batches_in_flight, not config.profile.nonempty_batch_returns)
    pending, dying = sorted(arrivals, key=lambda a: a[0]), sorted(aborts, key=lambda a: a[0])
    completed, ends = [], Counter()
    for call in range(calls):
        while pending and pending[0][0] <= call:
            scheduler.add(pending.pop(0)[1])
        while dying and dying[0][0] <= call:
            request = dying.pop(0)[1]
            if not ends[request.index]:
                queue.abort(request)
                ends[request.index] += 1
        issued = queue.issue()
        if issued is not None and watch:
            watch(issued)
        if queue.waits(issued):
            batch, ended = queue.complete()
            completed.append(batch)
            ends.update(request.index for request in ended)
        elif issued is None and not pending:
            return completed, ends
    raise AssertionError(f"{scheduler.unfinished} requests unfinished after {calls} calls")
