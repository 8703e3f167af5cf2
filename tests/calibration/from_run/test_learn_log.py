"""Known constants are found again from the log of a server, and the command that does it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibration.from_run import engine_log, sglang_log, vllm_log
from calibration.from_run.priced import priced
from calibration.from_run.steady import LearnedLog, held_out_errors, learn_windows, worse_decodes
from calibration.from_run.windows import windows_of
from conf.compose import compose
from predictors.run_fit import load
from predictors.served import own_fit
from scripts import calibrate, calibrate_from_log
from scripts.arguments import Arguments
from sim import api
from sim.event.padding import Padding


SERVER = ["model=llama-3.1-8b", "hardware=h100-sxm", "predictor=analytic"]
KNOBS = ["memory", "compute", "host_s"]


def line(*, prompt=0.0, output=100.0, running=10, usage=10.0):
    """As vLLM 0.11 writes it."""
    return (
        f"INFO 12-11 13:08:30 [loggers.py:236] Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {output:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
        f"GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 0.0%"
    )


@pytest.fixture(scope="module")
def job():
    return api.build(compose([*SERVER, "engine=vllm-0.19.0", "engine.max_num_seqs=64"]))


def steps_of(settings, phases, rng):
    """Batches of closed loops, one after the other, each until all is served: rows, and what a log would say then."""
    padding, rows, states, running = Padding(settings), [], [], []
    for concurrency, left, shortest, longest in phases:
        while running or left:
            new = min(concurrency - len(running), left)
            left -= max(new, 0)
            running += [[rng.integers(shortest, longest), rng.integers(200, 900), 0, 0] for _ in range(new)]
            context = np.array([prompt + made for prompt, _, _, made in running if made], np.float64)
            room, chunks, first = settings.max_num_batched_tokens - len(context), [], 0
            for request in running:
                done, tokens = request[2], min(request[0] - request[2], room)
                if tokens > 0:
                    room, request[2] = room - tokens, done + tokens
                    chunks.append((tokens, done))
            for request in running:
                if request[2] == request[0]:
                    first += request[0] * (request[3] == 0)
                    request[3] += 1
            c, p = np.array(chunks, np.float64).reshape(-1, 2).T
            emitted = sum(made > 0 for *_, made in running)
            total = int(c.sum()) + len(context)
            mode = (padding.decodes if not len(c) else padding.mixed)[total] if total <= padding.largest else (total, 0)
            ends = c + p
            prefill = [c.sum(), len(c), (c * p + c * (c + 1) / 2).sum(), ends.sum(), ends.max(initial=0)]
            rows.append(
                [*prefill, len(context), context.sum(), context.max(initial=0), (context**2).sum(), emitted, *mode, 0]
            )
            running = [request for request in running if request[3] < request[1]]
            blocks = sum(-(-(prompt + made - 1) // 16) for prompt, _, _, made in running)
            states.append((emitted, first, len(running), blocks))
    return np.array(rows, np.float64), np.array(states, np.float64)


def written_log(seconds, states, blocks, interval_s=1.0):
    """The lines of vLLM for steps of these times."""
    ends = np.cumsum(seconds)
    edges = np.searchsorted(ends, np.arange(1, int(ends[-1] / interval_s)) * interval_s)
    lines, before = [f"GPU KV cache size: {16 * blocks:,} tokens"], 0
    for at in edges:
        tokens, prompts = states[before:at, :2].sum(0) / interval_s
        running, used = states[max(at - 1, 0), 2:]
        lines.append(line(prompt=prompts, output=tokens, running=int(running), usage=100 * used / blocks))
        before = at
    return "\n".join(lines) + "\n"


TRUTH = {"memory": 0.9, "compute": 0.8, "host_s": 2e-3}
PHASES = [(64, 64, 2000, 6000), (16, 48, 100, 500), (4, 8, 50, 100)]
"""Requests at a time, in all, and the range of their prompts: long contexts part memory from host."""


@pytest.fixture(scope="module")
def server_log(job, tmp_path_factory):
    rows, states = steps_of(job.plan.engine, PHASES, np.random.default_rng(1))
    truth = np.array([np.log(TRUTH["memory"]), np.log(TRUTH["compute"]), TRUTH["host_s"]])
    seconds, _, _ = priced(job.cost, job.plan.arrays, rows, KNOBS, truth)
    path = tmp_path_factory.mktemp("log") / "notes.txt"  # the content decides, not the name
    path.write_text(written_log(seconds, states, 20_000))
    return path


def test_known_constants_are_found_again(job, server_log):
    """Memory within 0.03, host within 0.3 ms, compute (of prefill alone) within 0.1; held-out decode within 1.5 %."""
    log = engine_log.read(server_log, engine_log.engine_of(server_log))
    windows = windows_of(log, job.plan.engine, 1)
    found = learn_windows(windows, job.cost, job.plan.arrays)
    assert abs(found.values["memory"] - TRUTH["memory"]) < 0.03
    assert abs(found.values["host_s"] - TRUTH["host_s"]) < 3e-4
    judged = windows.held_out & found.decode
    assert judged.sum() >= 5 and np.median(found.before[judged]) < -0.15
    assert np.median(np.abs(found.after[judged])) < 0.015
    assert abs(found.values["compute"] - TRUTH["compute"]) < 0.1
    assert set(found.values) == set(KNOBS)  # one GPU has no links, and no log tells of the API server


def test_one_steady_state_does_not_part_memory_from_host(job):
    """Steps of one kind that take 20 % longer: they are explained, but not by which constant."""
    steady = line(running=32, usage=10.0, output=3200.0)
    log = vllm_log.read("\n".join(["GPU KV cache size: 320,000 tokens", *[steady] * 12]), "server.log", "0" * 64)
    windows = windows_of(log, job.plan.engine, 1)
    found = learn_windows(windows, job.cost, job.plan.arrays)
    assert np.abs(found.after).max() < 0.03 < np.abs(found.before).min()
    assert "host_s" in found.together
    assert found.untold == ["compute"]  # decode steps are bound by memory


def test_a_log_of_sglang_is_priced_batch_by_batch(job):
    """40 decode batches of 32 rows and one prefill batch of two prompts a line, at prices the log was written with."""
    lines, settings, point = [], job.plan.engine, np.array([np.log(0.8), np.log(0.7), 1e-3])
    padding = Padding(settings)
    assert padding.largest < 600  # so that it runs unpadded
    shape = [600.0, 2, 2 * 300 * 301 / 2, 600, 300, 0, 0, 0, 0, 2, 600, 0, 0]
    for at in range(8):
        context = 600.0 + 40 * (at - 0.5)
        decode = [0.0] * 5 + [32, 32 * context, context, 32 * context**2, 32, *padding.decodes[32], 0]
        decode_s, prefill_s = priced(job.cost, job.plan.arrays, np.array([decode, shape]), KNOBS, point)[0]
        rate = 40 * 32 / (40 * decode_s + prefill_s)
        tokens = 32 * (600 + 40 * at) + 32 * (settings.block_size - 1) // 2
        lines += ["Prefill batch, #new-seq: 2, #new-token: 600, #cached-token: 0, #running-req: 30"] if at else []
        lines.append(f"Decode batch, #running-req: 32, #token: {tokens}, gen throughput (token/s): {rate:.2f}")
    log = sglang_log.read("\n".join(lines), "server.log", "0" * 64)
    # straight lines 32-30 and 32-32 are 31.5 on average
    assert log.decodes[0] == 31.5
    batches = windows_of(log, settings, 1).batches
    seconds = priced(job.cost, job.plan.arrays, batches.rows, KNOBS, point)[0]
    share = np.bincount(batches.window, batches.steps * seconds)
    np.testing.assert_allclose(share, 32 / 31.5, rtol=0.01)


def test_a_recorded_log(shared, tmp_path):
    """vLLM 0.11.1, Llama-3.1-8B on an RTX A6000: ten requests a minute; the log tells model, version and settings."""
    folder = shared / "data" / "llmservingsim" / "ispass26" / "evaluation" / "artifacts"
    path = folder / "figure_6" / "raw_data" / "vllm_pulse_power_tp1.txt"
    found = calibrated(path, tmp_path / "fit.json", "hardware=rtx-a6000", "predictor=analytic").fields
    assert {"model=llama-3.1-8b", "engine.enforce_eager=true", "engine.max_model_len=131072"} <= set(found["overrides"])
    name = "decode_held_out_step_time_median_error"
    assert found["errors"]["after"][name] < 0.03 < found["errors"]["before"][name]
    # its neighbour's blocks are kept by a connector after their requests have ended
    kept = folder / "figure_7" / "raw_data" / "SD+PC" / "SD_pulse_vllm.txt"
    with pytest.raises(ValueError, match="more KV is in use than the running requests can hold"):
        calibrated(kept, tmp_path / "other.json", "hardware=rtx-a6000", "predictor=analytic")


def calibrated(path, out, *words):
    return calibrate.run(Arguments({"--from": str(path)}, [*words, f"out={out}"]))


def test_the_command(job, server_log, tmp_path):
    out = tmp_path / "fit.json"
    found = calibrated(server_log, out, *SERVER, "engine=vllm-0.19.0", "engine.max_num_seqs=64")
    fit = load(out)
    assert fit.values == found.fields["values"] and fit.device == "NVIDIA H100 SXM 80GB" and fit.engine == "vllm 0.19.0"
    assert fit.apply(job.plan).arrays.device.host_s > job.plan.arrays.device.host_s + 1.5e-3
    errors = found.fields["errors"]
    assert (
        errors["after"]["decode_held_out_step_time_median_error"]
        < errors["before"]["decode_held_out_step_time_median_error"]
    )
    assert "not told by a log: time to first token" in found.text and "Unexplained in held-out windows" in found.text
    assert own_fit(out).model == "llama-3.1-8b" and found.fields["server"]["origin"]["engine"] == "as given"
    assert (
        "taken as measured on: model llama-3.1-8b (as given), vllm 0.19.0 (as given), tensor parallel 1" in found.text
    )
    json.dumps(found.fields, allow_nan=False)


def test_what_held_out_windows_do_not_bear_out_is_not_taken(job, tmp_path):
    """Steps take what they are priced at in every third window, the held-out ones, and 10 % longer in the others."""

    def written(rates):
        return "\n".join(["GPU KV cache size: 320,000 tokens", *(line(running=32, output=rate) for rate in rates)])

    windows = windows_of(vllm_log.read(written([3200.0] * 13), "server.log", "0" * 64), job.plan.engine, 1)
    priced_rate = 3200.0 / (1.0 + learn_windows(windows, job.cost, job.plan.arrays).before[0])
    path = tmp_path / "server.log"
    path.write_text(written([priced_rate, *(priced_rate / (1.0 if at % 3 == 2 else 1.1) for at in range(12))]))
    message = (
        "teaches nothing that holds: in windows held out .* is 0.0[0-9] % off before the fit and [5-9].* % after it, so"
    )
    with pytest.raises(ValueError, match=message):
        calibrated(path, tmp_path / "fit.json", *SERVER, "engine=vllm-0.19.0", "engine.max_num_seqs=64")
    assert not (tmp_path / "fit.json").exists()


def test_decodes_are_not_given_up_for_prefills():
    """Windows 2 and 5 are held out: 2 of decode, whose error goes from 5 to 9 %, 5 of prefill, from 40 to 10 %."""
    still, near = np.zeros(6), np.zeros(6)
    still[[2, 5]], near[[2, 5]] = (0.05, 0.4), (0.09, 0.1)
    windows = type("Held", (), {"held_out": np.arange(6) % 3 == 2})
    decode = np.arange(6) < 4

    def learned(before, after):
        return LearnedLog({"memory": 0.9}, {}, [], [], before, after, decode, 1)

    before, after = held_out_errors(learned(still, near), windows)
    assert before == pytest.approx((np.log(1.05) + np.log(1.4)) / 2) and after < before
    assert worse_decodes(learned(still, near), windows) == pytest.approx((0.05, 0.09))
    # within the noise that single windows are granted (3 %), and where none is of decode, nothing is given up
    assert worse_decodes(learned(0.1 * still, 0.3 * near), windows) is None
    decode[:] = False
    assert worse_decodes(learned(still, near), windows) is None


def test_a_log_that_tells_nothing(job, tmp_path, server_log, monkeypatch):
    def nothing(windows, *_):
        zero = np.zeros(len(windows.noise))
        return LearnedLog({}, {}, list(KNOBS), [], zero, zero, zero == 0, 0)

    monkeypatch.setattr("calibration.from_run.steady.learn_windows", nothing)
    with pytest.raises(ValueError, match="notes.txt teaches nothing: it tells less of every constant than was known"):
        calibrated(server_log, tmp_path / "fit.json", *SERVER, "engine=vllm-0.19.0", "engine.max_num_seqs=64")


def test_the_model_of_a_log(job):
    log = vllm_log.read("\n".join([line()] * 9), "server.log", "0" * 64)
    told_of = replace(log, settings={"model": "acme/secret-9b"})
    with pytest.raises(
        ValueError, match="server.log is of the model acme/secret-9b, which the catalogue does not have"
    ):
        calibrate_from_log.told(told_of, set())


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("listening on port 8000\n", (), "or a log of vLLM, SGLang or TensorRT-LLM .* got .*server.log"),
        (
            f"{line()}\n" * 9,
            ("engine=sglang-0.5.23",),
            "is a log of vllm, but the configuration names engine sglang; set eng",
        ),
        (f"{line()}\n", (), "6 steady windows are wanted at least, got 0 .no two lines of one engine"),
        (
            line().replace("GPU KV", "CPU KV") + "\n" + line().replace("GPU KV", "CPU KV"),
            (),
            "no KV cache usage in its lines",
        ),
        (f"{line()}\niter = 1, states = {{}}\n", (), "holds lines of vllm and trtllm; give the log of one engine"),
        (f"{line()}\n" * 9, ("deployment.pipeline_parallel=2",), "cannot be learned from yet; set deployment.pipeline"),
    ],
)
def test_mistakes(content, words, message, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        calibrated(path, tmp_path / "fit.json", *SERVER, *words)
    assert not (tmp_path / "fit.json").exists()
