"""No request is lost under memory pressure. `HEADWAY_PRESSURE=10000 pytest tests/event/test_pressure.py` draws many."""

import os

import pytest

from sim.report.result import FINISHED, REJECTED
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
                stopped += 1  # a mixed batch takes its decode pages without looking whether they are there
                continue
            error.add_note(f"draw({mode!r}, {seed})")
            raise
    assert stopped < max(2, DRAWN / len(MODES) / 10)


def test_memory_is_short():
    """The drawn pools make the preempting schedulers preempt, and are not so small that all is rejected."""
    for mode in ("vllm/0.19.0/sync/fcfs", "vllm/0.33.0/async/priority", "sglang/normal/fcfs", "trtllm/MAX_UTILIZATION"):
        runs = [draw(mode, seed).run().requests for seed in range(20)]
        assert sum(bool(run.preemptions.any()) for run in runs) >= 3
        assert sum(int((run.status == FINISHED).sum()) for run in runs) > 0.8 * sum(map(len, runs))
