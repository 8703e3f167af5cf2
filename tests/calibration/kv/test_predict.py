"""Predictions of one case: by hand from first principles and from printed terms."""

import pytest

from calibration.kv.case import DIED, REFUSED, STARTED, KVCase, Reported
from calibration.kv.predict import Prediction, Range, predict
from calibration.kv.score import by, scores
from sim.units import GIB


def gib(value, half=0.005):
    return Reported(value, half, "GiB/GPU")


def blocks(value):
    return Reported(value, 0.0, "blocks")


def case(**fields):
    known = {
        "name": "A", "source": "s", "model": "meta-llama/Llama-3.1-8B", "hardware": "H100-80GB (79.19 GiB)",
        "engine_version": "0.19.0", "utilization": "0.95", "max_model_len": "8192", "max_num_seqs": "1024",
        "outcome": STARTED,
    }  # fmt: skip
    return KVCase(**(known | fields))


def test_from_first_principles_nothing_measured_is_read():
    bare = predict(case(), {})
    told = predict(case(reported={"weights": gib(3.0), "num_gpu_blocks": blocks(1000.0)}), {})
    assert bare.blocks == told.blocks
    # 0.95 x 79.19 GiB - (14.989 weights + 1.885 activation + 0.250 libraries), in blocks of 2 MiB
    assert bare.blocks == pytest.approx((0.95 * 79.19 - 14.989 - 1.885 - 0.250) * 512, abs=2)
    assert told.error == pytest.approx(told.blocks / 1000 - 1)
    assert bare.measured_blocks is None and bare.error == float("inf")


def test_tokens_are_compared_where_no_blocks_are_logged():
    found = predict(case(reported={"kv_tokens": Reported(160_000, 0, "tokens")}), {})
    assert found.measured_blocks == 10_000 and found.predicted_blocks == found.blocks


def test_printed_terms_and_what_their_digits_leave_open():
    terms = {"weights": gib(15.0), "peak_activation": gib(2.0), "non_torch": gib(0.5)}
    found = predict(case(reported=terms), {}).given_blocks
    # 0.95 x 79.19 - 17.5 GiB +- 3 x 0.005 in blocks of 2 MiB; ours of each term is below the printed one
    left = (0.95 * 79.19 - 17.5) * 512
    assert found.low == int(left - 0.015 * 512) and found.high == int(left + 0.015 * 512)
    # ours of each term: 14.989, 1.885 and 0.250, so the guess takes the least that the digits allow
    assert found.best == found.high
    # a printed rest narrows it: 57.74 +- 0.005 GiB
    narrow = predict(case(reported=terms | {"available_kv": gib(57.735)}), {}).given_blocks
    assert narrow.low == int(57.73 * 512 + 1e-6) and narrow.high == int(min(left + 0.015 * 512, 57.74 * 512))
    # terms that do not add up to the rest: the rest alone
    apart = predict(case(reported=terms | {"available_kv": gib(30.0)}), {}).given_blocks
    assert (apart.low, apart.high) == (int(29.995 * 512), int(30.005 * 512))


def test_graphs_that_are_not_printed_are_ours_where_the_version_counts_them():
    terms = {"weights": gib(15.0), "peak_activation": gib(2.0), "non_torch": gib(0.5)}
    plain = predict(case(engine_version="0.21.0", reported=terms), {})
    graphs = plain.budget.stage.value("cuda_graphs") / GIB
    before = predict(case(reported=terms), {}).given_blocks
    assert before.low - plain.given_blocks.low == pytest.approx(graphs * 512, abs=1)
    printed = predict(case(engine_version="0.21.0", reported=terms | {"cudagraph_estimated": gib(1.5)}), {})
    assert before.low - printed.given_blocks.low == pytest.approx(1.505 * 512, abs=1)


def test_stages_and_other_engines_print_the_rest_otherwise():
    staged = {"available_kv_stage0": gib(14.52), "available_kv_stage1": gib(14.26)}
    found = predict(case(pipeline_parallel=2, reported=staged), {}).given_blocks
    # half the layers: 1 MiB a block, the poorer stage
    assert (found.low, found.high) == (int(14.255 * 1024), int(14.265 * 1024))
    assert predict(case(reported={"weights": gib(15.0)}), {}).given_blocks is None


def test_how_a_start_ends():
    assert predict(case(), {}).outcome == STARTED
    assert predict(case(utilization="0.21", max_model_len="131072"), {}).outcome == REFUSED
    assert predict(case(model="openai/gpt-oss-20b", dtype="bf16;w=mxfp4"), {}).outcome == DIED
    # the engine refuses before it counts memory
    assert predict(case(max_model_len="999999"), {}).outcome == REFUSED
    assert predict(case(tensor_parallel=3), {}).outcome == REFUSED
    # another process holds what is asked for
    found = predict(case(reported={"free": Reported(60.87, 0.005, "GiB")}), {})
    assert found.outcome == REFUSED and "75.23 GiB are asked for, 60.87 GiB" in found.words


def test_a_length_that_is_not_told_is_the_longest_that_fits():
    found = predict(case(model="meta-llama/Llama-3.1-70B", utilization="0.9", max_model_len="", tensor_parallel=2), {})
    assert found.outcome == STARTED and "the log tells no length" in found.notes[0]
    assert predict(case(max_model_len=""), {}).notes == ()


def test_what_cannot_be_described_has_a_reason():
    found = predict(case(model="org/unheard-of", reported={"num_gpu_blocks": blocks(5)}), {})
    assert "the model 'org/unheard-of' is neither in the catalogue" in found.problem
    assert found.error == float("inf")


def measured(blocks_of_log, ours, given=None, outcome=STARTED, ended=STARTED, problem=""):
    log = case(reported={"num_gpu_blocks": blocks(blocks_of_log)}, outcome=ended)
    return Prediction(log, problem, outcome, blocks=ours, tokens=16 * ours, tokens_per_block=16, given_blocks=given)


def test_scores_by_hand():
    predictions = [
        measured(100, 101, Range(97, 99, 103)),  # one block, inside
        measured(100, 98, Range(102, 103, 105)),  # two blocks, two below the range
        measured(100, 110, Range(99, 101, 101)),  # one block from the guess
        measured(100, 0, problem="no such device"),
        Prediction(case(outcome=REFUSED), outcome=REFUSED),
        Prediction(case(outcome=DIED), outcome=REFUSED),
        Prediction(case(outcome=REFUSED), outcome=STARTED),
    ]
    found = scores(predictions)
    assert (found["cases"], found["failed"]) == (4, 1)
    assert found["within_one_block"] == 0.25
    # errors 1, 2, 10 % and infinite: half way between 2 and 10; beyond the third everything is infinite
    assert found["median_error"] == pytest.approx(0.06) and found["p90_error"] == float("inf")
    assert found["bias"] == pytest.approx(0.01)
    # four starts, of which the undescribed one is wrong, and two of three that failed
    assert found["refusals_right"] == pytest.approx(5 / 7)
    assert found["starts"] == {"told": 7, "failed_starts": 3, "failed_starts_right": 2, "started_right": 3}
    given = found["given_breakdown"]
    assert given["cases"] == 3 and given["within_one_block"] == pytest.approx(2 / 3)
    assert given["best_within_one_block"] == pytest.approx(2 / 3) and given["open_blocks"] == 1.5
    assert by(predictions)["tensor_parallel"]["tp1"]["failed"] == 1


def test_nothing_is_asked_of_a_log_that_names_no_device():
    unnamed = Prediction(case(hardware="unstated", outcome=REFUSED), problem="the device 'unstated' is not known.")
    assert scores([measured(10, 10), unnamed])["refusals_right"] == 1.0
