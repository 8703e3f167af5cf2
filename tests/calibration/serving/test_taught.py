"""What measured rows teach: known constants are found again, silence leaves the prior, one wild row moves little."""

import dataclasses

import numpy as np
import pytest

from calibration.serving.responses import SUBMITTED, Response, respond
from calibration.serving.taught import HOST, KERNELS, taught
from conf.compose import compose
from predictors.run_fit import adjusted
from sim import api


PARTS = ("products", "prefill_attention", "decode_attention", "experts", "elementwise", "links", "host_s")


def response(rng):
    """A row whose TTFT is 100 ms and TPOT 10 ms, in drawn parts; submitting adds 5 ms to TTFT as often as it takes."""
    first, between = (rng.dirichlet(np.ones(len(PARTS) - 1)) for _ in range(2))
    ttft = dict(zip(PARTS, [*(0.1 * first), 3.0], strict=True)) | {"request_s": 1.0}
    tpot = dict(zip(PARTS, [*(0.01 * between), 1.0], strict=True)) | {"request_s": 0.0}
    eager = tuple((5e-3 * (factor - 1.0), 0.0) for factor in SUBMITTED)
    return Response("vllm", "H", True, 0.1, 0.01, 5e-3, ttft, tpot, eager)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return [response(rng) for _ in range(60)]


def measured(rows, products=1.0, experts=1.0, eager=1.0, request_s=0.0):
    return np.array(
        [
            [
                row.ttft_s
                + (products - 1.0) * row.ttft["products"]
                + (experts - 1.0) * row.ttft["experts"]
                + 5e-3 * (eager - 1.0)
                + request_s,
                row.tpot_s + (products - 1.0) * row.tpot["products"] + (experts - 1.0) * row.tpot["experts"],
            ]
            for row in rows
        ]
    )


def test_known_constants_are_found_again(rows):
    found = taught(rows, measured(rows, products=1.2, experts=0.8), np.full(60, 30.0))
    assert found.values["products"] == pytest.approx(1.2, rel=0.02)
    assert found.values["experts"] == pytest.approx(0.8, rel=0.03)
    assert found.values["prefill_attention"] == pytest.approx(1.0, abs=0.02)
    assert np.median(np.abs(found.after["tpot"])) < 0.1 * np.median(np.abs(found.before["tpot"]))


def test_submitting_is_no_linear_matter(rows):
    # The curve bends at the factors that were priced; 3 lies between two of them.
    alone = [dataclasses.replace(row, ttft=row.ttft | {"request_s": 0.0}) for row in rows]
    found = taught(alone, measured(alone, eager=3.0), np.full(60, 1e3))
    assert found.values["eager"] == pytest.approx(3.0, rel=0.15)


def test_silence_leaves_the_prior(rows):
    same = [dataclasses.replace(row, ttft=row.ttft | {"links": 0.0}, tpot=row.tpot | {"links": 0.0}) for row in rows]
    found = taught(same, measured(same, products=1.1), np.full(60, 30.0))
    assert found.values["links"] == pytest.approx(1.0) and found.spread["links"] == pytest.approx(0.3)
    assert found.spread["products"] < 0.05
    assert set(found.values) == {*KERNELS, *HOST}


def test_kernels_that_were_measured_are_not_asked(rows):
    known = [dataclasses.replace(row, estimated=False) for row in rows]
    found = taught(known, measured(rows, products=1.3, request_s=0.02), np.full(60, 30.0))
    assert set(found.values) == set(HOST) and found.values["request_s"] > 0.015


def test_the_host_takes_no_time_back(rows):
    truth = measured(rows)
    truth[:, 1] -= 2e-3
    assert taught(rows, truth, np.full(60, 30.0)).values["host_s"] == 0.0


def test_a_server_gives_back_no_more_than_it_takes(rows):
    truth = measured(rows)
    truth[:, 0] -= 0.05
    assert taught(rows, truth, np.full(60, 30.0)).values["request_s"] == -5e-3


def test_one_wild_row_moves_little(rows):
    truth = measured(rows)
    truth[0] *= 8.0
    found = taught(rows, truth, np.full(60, 30.0))
    assert all(abs(np.log(found.values[name])) < 0.03 for name in PARTS if name != "host_s")


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("products", 1.1),
        ("prefill_attention", 1.2),
        ("decode_attention", 1.2),
        ("host_s", 2e-4),
        ("eager", 2.0),
        ("request_s", 1e-3),
    ],
)
def test_a_response_is_what_a_simulation_with_the_constant_shows(knob, value):
    job = _job()
    before = responded(job)
    after = responded(dataclasses.replace(job, plan=adjusted(job.plan, {knob: value})))
    if knob == "eager":
        ttft, tpot = before.eager[SUBMITTED.index(value)]
    else:
        more = value if knob.endswith("_s") else value - 1.0
        ttft, tpot = more * before.ttft[knob], more * before.tpot[knob]
    assert after.tpot_s - before.tpot_s == pytest.approx(tpot, rel=0.05, abs=2e-6)
    assert after.ttft_s - before.ttft_s == pytest.approx(ttft, rel=0.25, abs=2e-4)


def responded(job):
    return respond(api.run(job), job.cost, job.plan, estimated=True, statistic="mean")


def _job():
    keys = ("model=llama-3.2-1b", "hardware=h100-sxm", "predictor=analytic", "engine.max_num_seqs=16")
    load = ("workload=closed-loop", "workload.concurrency=8", "workload.rounds=4")
    return api.build(compose([*keys, *load, "workload.input_tokens=700", "workload.output_tokens=40"]))
