"""A recorded run as observed latencies: what its clocks do not tell is taken from the simulation that is to meet it."""

from pathlib import Path

import numpy as np
import pytest

from calibration.from_run.folder import observed_run, picked_up
from sim.report.measured import Recorded
from sim.report.result import RequestTable
from sim.workload.trace import Workload


def test_the_quickest_pick_up_is_added_to_every_request():
    # TTFT 20 and 40 ms, 10 ms a token; 1.5 ms before the engine add to both and leave the time between tokens alone.
    arrival, first, outputs = np.array([0, 10**9]), np.array([20, 1040]) * 10**6, np.array([3, 5])
    zeros = np.zeros(2, np.int64)
    requests = RequestTable(
        arrival, arrival, arrival, first, first + 10**7 * (outputs - 1), zeros + 8, outputs, zeros, zeros, zeros, zeros
    )
    found = observed_run(Path("run"), Recorded(requests), Workload("made", arrival, zeros + 8, outputs))
    later = picked_up(found, 1.5e-3)
    np.testing.assert_allclose(later.ttft_s, [21.5e-3, 41.5e-3])
    np.testing.assert_allclose(later.e2el_s - found.e2el_s, 1.5e-3)
    assert later.statistics["ttft", "mean"] == pytest.approx(31.5e-3)
    assert later.statistics["tpot", "mean"] == pytest.approx(found.statistics["tpot", "mean"]) == pytest.approx(10e-3)
    assert later.sha256 == found.sha256
