"""No request is lost under memory pressure. `HEADWAY_PRESSURE=10000 pytest tests/event/test_pressure.py` draws many."""

import os
from collections import Counter

import numpy as np
import pytest

from sim.report.result import FINISHED, REJECTED
from sim.scheduler.trtllm import TensorRTLLM
from sim.scheduler.vllm import ContinuousBatching
from tests.event.pressure import draw, mode_names


MODES = mode_names()
DRAWN = int(os.environ.get("HEADWAY_PRESSURE", "150"))


@pytest.mark.parametrize("mode", MODES)
def test_no_request_is_lost(mode):
    """Every request ends once: with its tokens, cut at the longest length, or rejected as one that never fits.

    That tokens, blocks and clocks are right is checked in every run.
    """
    stopped = 0
    for seed in range(-(-DRAWN // len(MODES))):
        case = draw(mode, seed)
        try:
            requests = case.run().requests
            servable = case.servable()
            assert requests.status.tolist() == [REJECTED if tokens is None else FINISHED for tokens in servable]
            assert all(tokens in (None, out) for tokens, out in zip(servable, requests.output_tokens, strict=True))
        except Exception as error:
            if mode.endswith("/mixed") and "at which SGLang stops with an error" in str(error):
                stopped += 1  # the next chunk of a cut prompt is never refused, though its pages may be gone
                continue
            error.add_note(f"draw({mode!r}, {seed})")
            raise
    assert stopped < max(2, DRAWN / len(MODES) / 10)


@pytest.mark.parametrize("mode", [f"vllm/{loop}/fcfs" for loop in ("0.10.2/sync", "0.19.0/async", "0.33.0/async")])
def test_calls_that_only_repeat_change_nothing(mode, monkeypatch):
    """The fast path makes calls in which rows only decode in a short way: the same steps, times and hits without it."""
    repeated = [draw(mode, seed).run() for seed in range(12)]
    counts = Counter()
    monkeypatch.setattr(ContinuousBatching, "repeat", lambda self, batch: counts.update(asked=1))
    for seed, fast in enumerate(repeated):
        slow = draw(mode, seed).run()
        for table in ("requests", "steps"):
            for name, column in vars(getattr(slow, table)).items():
                assert np.array_equal(column, getattr(getattr(fast, table), name)), (seed, table, name)
    assert counts["asked"] > 100


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("trtllm/")])
def test_rows_that_go_together_change_nothing(mode, monkeypatch):
    """The same requests, steps and latencies where every row is walked in every call."""
    together = [draw(mode, seed).run() for seed in range(12)]
    monkeypatch.setattr(TensorRTLLM, "steady", lambda self: False)
    for seed, fast in enumerate(together):
        slow = draw(mode, seed).run()
        for table in ("requests", "steps"):
            for name, column in vars(getattr(slow, table)).items():
                assert np.array_equal(column, getattr(getattr(fast, table), name)), (seed, table, name)
        assert np.array_equal(fast.itl_ns, slow.itl_ns) and np.array_equal(fast.itl_count, slow.itl_count)


def test_memory_is_short():
    """The drawn pools make the preempting schedulers preempt, and are not so small that all is rejected."""
    for mode in ("vllm/0.19.0/sync/fcfs", "vllm/0.33.0/async/priority", "sglang/normal/fcfs", "trtllm/MAX_UTILIZATION"):
        runs = [draw(mode, seed).run().requests for seed in range(20)]
        assert sum(bool(run.preemptions.any()) for run in runs) >= 3
        assert sum(int((run.status == FINISHED).sum()) for run in runs) > 0.8 * sum(map(len, runs))
