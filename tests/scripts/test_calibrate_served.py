"""`headway calibrate --from TABLE.csv`: what a table teaches is printed, written, and taken up again."""

import numpy as np
import pytest

from calibration.serving.responses import SUBMITTED, Response
from calibration.serving.taught import Taught
from predictors import served
from scripts import calibrate_served
from tests.scripts.test_validate_serving import points as points


DEVICE = "NVIDIA H100 SXM 80GB"


@pytest.fixture
def responses(monkeypatch):
    """Simulations by formula: TTFT 50 ms and TPOT 10 ms, whatever the load; rows of 7 clients have no price."""
    asked = []

    def fake(rows, predictor, jobs, shown):
        asked.append((len(rows), predictor, jobs))
        parts = dict.fromkeys(("products", "attention", "experts", "elementwise", "links"), 1e-3)
        one = Response(
            "vllm",
            DEVICE,
            False,
            0.05,
            0.01,
            parts | {"request_s": 1.0},
            parts | {"request_s": 0.0},
            tuple((1e-3 * (factor - 1.0), 0.0) for factor in SUBMITTED),
        )
        found = {row.line: one for row in rows if row.concurrency != 7}
        return found, len(rows) - len(found)

    monkeypatch.setattr(calibrate_served, "_responses", fake)
    return asked


def test_a_table_teaches(headway, points, responses, tmp_path):
    path = points(*({"tp": tp, "concurrency_or_qps": str(c)} for tp in ("1", "2", "4") for c in (2, 4, 7, 8)))
    found = headway("calibrate", "--from", str(path), "out=mine/served.json", "jobs=3", "--json").json()
    assert (found["rows"], found["failed"], responses) == (12, 3, [(12, "kernels", 3)])
    [fit] = found["fits"]
    # measured TTFT is 100 ms: what is missing is the server's, as far as the prior lets it
    assert 0.04 < fit["values"]["request_s"] < 0.05 and set(fit["values"]) == {"eager", "request_s"}
    assert fit["before"]["ttft"] == pytest.approx(0.5) and fit["after"]["ttft"] < 0.1
    assert served.load(tmp_path / "mine/served.json")["fits"] == found["fits"]
    shown = headway("calibrate", "--from", str(path), "out=mine/served.json").out
    assert DEVICE in shown and "3 of 12 rows had no price" in shown and "predictor=mine/served.json" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("until=yesterday",), "until must be a day as 2026-04-01, got 'yesterday'"),
        (("until=2020-01-01",), "has no co-located row with latencies before 2020-01-01"),
        (("limit=3",), "has no key limit"),
        ((), "no engine has 8 rows on a device that can be priced within 25% of TPOT"),
    ],
)
def test_what_it_refuses(headway, points, responses, words, message):
    path = points({"notes": "NVIDIA-internal measurement; date=2026-01-02"})
    found = headway("calibrate", "--from", str(path), *words)
    assert found.code == 2 and message in found.err and found.err.count("\n") == 1


def test_medians_are_stored():
    errors = {"ttft": np.array([-0.5, 0.1, 0.2])}
    found = Taught("vllm", DEVICE, {}, {}, errors, errors)
    assert calibrate_served._fit(found, 3)["after"] == {"ttft": 0.2}
