"""The engine's log: lines of a tiny run worked by hand, by version, and what must add up."""

import dataclasses
import re

import numpy as np
import pytest

from sim.report.engine_log import check_interval, engine_log, engine_series, hit_rates
from sim.report.outputs import outputs_of
from sim.report.result import FINISHED, RequestTable, SimulationResult, StepTable
from sim.workload.trace import Workload


V0_10 = {"format": "vllm", "whole_prompts": True, "joins_preempted": True, "tells_preemptions": False}
V0_19 = {"format": "vllm", "tells_preemptions": True}
V0_33 = {"format": "vllm", "tells_preemptions": True, "hit_rate_once_known": True}


def seconds(*values):
    return np.array([round(v * 1e9) for v in values], np.int64)


def numbers(*values):
    return np.array(values, np.int64)


def make_tiny(depth=1, **changes) -> SimulationResult:
    """Two requests, four steps of 4 s each from 3 s on; blocks of 16 tokens, 101 of them (one is the null block).

    | step | start | end | what                               | running | waiting | free | after: ended, freed |
    | 0    | 3     | 7   | prefill of 0: 60 tokens + 40 cached | 1      | 1       | 93   |                     |
    | 1    | 7     | 11  | decode of 0; 1 is blocked           | 1      | 1       | 93   |                     |
    | 2    | 11    | 15  | decode of 0, its last               | 1      | 1       | 90   | 1, 10               |
    | 3    | 15    | 19  | prefill of 1: 50 tokens, one output | 1      | 0       | 96   | 1, 4                |

    The second request is looked up in vain in steps 0, 1 and 2 (50 tokens asked for each time, none found), and
    admitted in step 3. With `depth` 2 each step is decided when the one before starts.
    """
    start = (3, 7, 11, 15)
    issued = start if depth == 1 else (3, 3, 7, 11)
    fields: dict = {
        "requests": RequestTable(
            arrival_ns=seconds(3, 3),
            queued_ns=seconds(3, 3),
            scheduled_ns=seconds(3, issued[3]),
            first_token_ns=seconds(7, 19),
            finish_ns=seconds(15, 19),
            prompt_tokens=numbers(100, 50),
            output_tokens=numbers(3, 1),
            cached_tokens=numbers(40, 0),
            preemptions=numbers(0, 0),
            replica=numbers(0, 0),
            status=numbers(FINISHED, FINISHED),
        ),
        "steps": StepTable(
            replica=numbers(0, 0, 0, 0),
            start_ns=seconds(*start),
            end_ns=seconds(7, 11, 15, 19),
            prefill_tokens=numbers(60, 0, 0, 50),
            prefill_chunks=numbers(1, 0, 0, 1),
            prefill_area=numbers(4230, 0, 0, 1275),
            prefill_kv_tokens=numbers(100, 0, 0, 50),
            prefill_max_tokens=numbers(100, 0, 0, 50),
            decodes=numbers(0, 1, 1, 0),
            decode_sum=numbers(0, 101, 102, 0),
            decode_max=numbers(0, 101, 102, 0),
            decode_sumsq=numbers(0, 10201, 10404, 0),
            emitting=numbers(1, 1, 1, 1),
            padded_tokens=numbers(60, 1, 1, 50),
            graph_mode=numbers(0, 2, 2, 0),
            draft_tokens=numbers(0, 0, 0, 0),
            accepted_tokens=numbers(0, 0, 0, 0),
            running=numbers(1, 1, 1, 1),
            waiting=numbers(1, 1, 1, 0),
            free_blocks=numbers(93, 93, 90, 96),
            preempted=numbers(0, 0, 0, 0),
            issued_ns=seconds(*issued),
            ended=numbers(0, 0, 1, 1),
            freed_blocks=numbers(0, 0, 10, 4),
            lookups=numbers(2, 3, 4, 5),
            queries=numbers(150, 200, 250, 300),
            hits=numbers(40, 40, 40, 40),
            preempted_lookups=numbers(0, 0, 0, 0),
            preempted_queries=numbers(0, 0, 0, 0),
            preempted_hits=numbers(0, 0, 0, 0),
        ),
        "itl_ns": seconds(4),
        "itl_count": numbers(2),
        "components_s": {},
        "engine": "exact",
        "model": "tiny",
        "device": "Toy 80GB",
        "engine_label": "toy 1.0",
        "gpus": 1,
        "num_gpu_blocks": 101,
        "block_size": 16,
        "usd_per_gpu_hour": 0.0,
        "memory": None,
        "workload": Workload("tiny", seconds(3, 3), numbers(100, 50), numbers(3, 1)),
        "seed": 0,
        "settings": {"prefix_caching": True},
        "log": V0_19,
    }
    return SimulationResult(**(fields | changes))


def change_steps(result, **columns):
    return dataclasses.replace(result, steps=dataclasses.replace(result.steps, **columns))


def texts(result):
    """Lines without their time."""
    return [line.split("] ", 1)[1] for line in engine_log(result).splitlines()]


def test_lines_of_a_tiny_run():
    """Lines at 13, 23 and 33 s (10 s apart from the first arrival at 3 s).

    At 13 s the outputs of 7 and 11 s are processed: 60 computed prompt tokens and 2 output tokens in 10 s. The last
    decision before the output at 11 s was step 1: one running, one waiting, 7 of 100 blocks used, 40 of 200 found.
    At 23 s: the second prompt (50) and 2 outputs; all is over; 40 of 300. At 33 s: nothing any more, told once.
    """
    assert engine_log(make_tiny()).splitlines() == [
        "INFO 01-01 00:00:10 [headway] Engine 000: Avg prompt throughput: 6.0 tokens/s, Avg generation throughput: 0.2 "
        "tokens/s, Running: 1 reqs, Waiting: 1 reqs, GPU KV cache usage: 7.0%, Prefix cache hit rate: 20.0%",
        "INFO 01-01 00:00:20 [headway] Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 0.2 "
        "tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 13.3%",
        "INFO 01-01 00:00:30 [headway] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 "
        "tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 13.3%",
    ]


def test_statistics_are_taken_when_an_output_is_processed():
    """Scheduled ahead, step k + 1 has been decided when the output of step k is processed.

    Output 0 sees step 1; output 1 step 2 (90 free); output 2 step 3 (96 free, nobody waits) less the request that ended
    with it, whose 10 blocks are back... but those of step 3's row were counted with them still taken.
    """
    ahead = change_steps(make_tiny(depth=2), free_blocks=numbers(93, 93, 90, 86), running=numbers(1, 1, 1, 2))
    outputs = outputs_of(ahead.steps, 0)
    assert outputs.running.tolist() == [1, 1, 1, 0]
    assert outputs.waiting.tolist() == [1, 1, 0, 0]
    assert outputs.free_blocks.tolist() == [93, 90, 96, 100]
    assert outputs.lookups[0].tolist() == [3, 4, 5, 5]
    now = outputs_of(make_tiny().steps, 0)
    assert now.running.tolist() == [1, 1, 0, 0]
    assert now.waiting.tolist() == [1, 1, 1, 0]
    assert now.free_blocks.tolist() == [93, 93, 100, 100]
    assert now.lookups[0].tolist() == [2, 3, 4, 5]


def test_whole_prompts_count_what_the_cache_held():
    assert ["Avg prompt throughput: 10.0 tokens/s" in line for line in texts(make_tiny(log=V0_10))] == [
        True,
        False,
        False,
    ]


def test_preemptions_are_told_where_the_version_does_and_there_are_any():
    preempted = numbers(0, 2, 0, 0)
    told = texts(change_steps(make_tiny(), preempted=preempted))
    assert "Waiting: 1 reqs, Preemptions: 2, GPU KV cache usage" in told[0] and "Preemptions" not in told[1]
    assert "Preemptions" not in "".join(texts(change_steps(make_tiny(log=V0_10), preempted=preempted)))


def test_the_hit_rate_joins_preempted_look_ups_where_the_version_does():
    """40 of 200 without, (40 + 60) / (200 + 100) with."""
    columns = {"preempted_lookups": numbers(0, 1, 1, 1), "preempted_queries": numbers(0, 100, 100, 100)}
    columns["preempted_hits"] = numbers(0, 60, 60, 60)
    assert texts(change_steps(make_tiny(log=V0_19), **columns))[0].endswith("hit rate: 20.0%")
    assert texts(change_steps(make_tiny(log=V0_10), **columns))[0].endswith("hit rate: 33.3%")


@pytest.mark.parametrize(
    ("rules", "caching", "end"),
    [
        (V0_19, True, "usage: 7.0%, Prefix cache hit rate: n/a"),
        (V0_19, False, "usage: 7.0%, Prefix cache hit rate: 0.0%"),
        (V0_33, True, "usage: 7.0%, Prefix cache hit rate: n/a"),
        (V0_33, False, "usage: 7.0%"),
    ],
)
def test_a_hit_rate_that_was_not_simulated(rules, caching, end):
    """Nothing looked up in the run: n/a; with the cache off, what the version prints then."""
    nothing = dict.fromkeys(("lookups", "queries", "hits"), numbers(0, 0, 0, 0))
    result = change_steps(make_tiny(log=rules, settings={"prefix_caching": caching}), **nothing)
    assert texts(result)[0].endswith(end)


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_interval_that_is_none(interval_s):
    with pytest.raises(ValueError, match="log_interval_s wants seconds, 0.001 at least, got"):
        check_interval(interval_s)


def test_an_unknown_format_has_no_log():
    assert engine_log(make_tiny(log={"format": ""})) == ""
    assert engine_log(make_tiny(log={})) == ""


def test_silence_after_one_line_and_again_when_it_goes_on():
    """A second run of the same steps 100 s later: one quiet line in between, then lines again."""
    tiny = make_tiny()
    later = {}
    for name in ("start_ns", "end_ns", "issued_ns"):
        column = getattr(tiny.steps, name)
        later[name] = np.concatenate([column, column + seconds(100)[0]])
    steps = {f.name: np.tile(getattr(tiny.steps, f.name), 2) for f in dataclasses.fields(StepTable)} | later
    lines = engine_log(dataclasses.replace(tiny, steps=StepTable(**steps))).splitlines()
    assert [line.split()[2] for line in lines] == [
        "00:00:10",
        "00:00:20",
        "00:00:30",
        "00:01:50",
        "00:02:00",
        "00:02:10",
    ]


def test_series_add_up_to_the_tables(toy):
    """Whatever the interval: tokens of all intervals are those of the tables, and the end is empty."""
    result = toy(requests=300, replicas=2, blocks=800, rate=30.0)
    for interval_s in (0.7, 10.0):
        run = dataclasses.replace(result, log=V0_10, log_interval_s=interval_s, num_gpu_blocks=801)  # with a null block
        emitted = prompts = preempted = 0.0
        for replica in (0, 1):
            series = engine_series(run, replica)
            emitted += series.output_tokens_per_s.sum() * interval_s
            prompts += series.prompt_tokens_per_s.sum() * interval_s
            preempted += series.preemptions.sum()
            assert series.running[-1] == series.waiting[-1] == series.kv_usage[-1] == 0
            assert (series.running <= 64).all() and (series.kv_usage <= 1).all()
        done = result.requests.status == FINISHED
        assert emitted == pytest.approx(result.steps.emitting.sum())
        assert prompts == pytest.approx(result.requests.prompt_tokens[done].sum())
        assert preempted == result.steps.preempted.sum() > 0


def test_two_engines_share_the_log(toy):
    result = dataclasses.replace(toy(requests=100, replicas=2), log=V0_19)
    lines = engine_log(result).splitlines()
    names = [line.split("Engine ")[1][:3] for line in lines]
    assert set(names) == {"000", "001"}
    assert [line.split()[2] for line in lines] == sorted(line.split()[2] for line in lines)


def test_hit_rates_over_bins():
    """From 3 s, output 0 (40 of 150 tokens found); from 9 s, outputs 1 and 2 (0 of 100); from 17 s, the last one."""
    in_bin, reported = hit_rates(make_tiny(), seconds(1, 3, 9, 17, 25))
    assert np.isnan(in_bin[0]) and np.isnan(reported[0])
    assert in_bin[1:].tolist() == pytest.approx([40 / 150, 0.0, 0.0])
    assert reported[1:].tolist() == pytest.approx([40 / 150, 40 / 250, 40 / 300])


SGLANG = {"format": "sglang", "decode_interval": 2}


def test_sglang_lines():
    """A line per prefill batch and every second decode batch, when its output is processed.

    Prefill 0 ends at 4 s of the run: 60 tokens in 4 s; 40 found; 7 of 100 pages used; nobody decodes, one waits
    (50 tokens). Decode batches end at 8 and 12 s: 2 tokens in 12 s; the request has ended by then, so no token is
    in use. Prefill 1 ends at 16 s, 12 s after the one before.
    """
    tiny = change_steps(make_tiny(log=SGLANG), running=numbers(0, 1, 1, 0))  # SGLang's: without the prefill batch
    assert engine_log(tiny).splitlines() == [
        "[2000-01-01 00:00:04] Prefill batch, #new-seq: 1, #new-token: 60, #cached-token: 40, token usage: 0.07, "
        "#running-req: 0, #queue-req: 1, #pending-token: 50, cuda graph: False, input throughput (token/s): 15.00",
        "[2000-01-01 00:00:12] Decode batch, #running-req: 1, #token: 0, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 0.17, #queue-req: 1",
        "[2000-01-01 00:00:16] Prefill batch, #new-seq: 1, #new-token: 50, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 4.17",
    ]


def test_sglang_says_what_it_does_not_know():
    nothing = dict.fromkeys(("lookups", "queries", "hits"), numbers(0, 0, 0, 0))
    lines = texts(change_steps(make_tiny(log=SGLANG), preempted=numbers(0, 0, 1, 0), **nothing))
    assert "#cached-token: n/a" in lines[0] and "#pending-token: 50" in lines[0]
    assert "#pending-token: n/a" in lines[-1]
    off = change_steps(make_tiny(log=SGLANG, settings={"prefix_caching": False}), **nothing)
    assert "#cached-token: 0" in texts(off)[0]


def test_sglang_names_replicas_where_there_are_several(toy):
    lines = engine_log(dataclasses.replace(toy(requests=60, replicas=2), log=SGLANG)).splitlines()
    assert {line.split("]")[0].split()[-1] for line in lines} == {"DP0", "DP1"}


def test_lines_look_like_a_real_servers(shared):
    """Numbers aside, the text after the time is that of recorded vLLM 0.11.1 logs."""
    folder = shared / "data" / "llmservingsim" / "ispass26" / "evaluation" / "artifacts"
    real = set()
    for path in (folder / "figure_6" / "raw_data").glob("vllm_pulse_power_*.txt"):
        for line in path.read_text(errors="replace").splitlines():
            if "Avg prompt throughput" in line:
                real.add(re.sub(r"\d+(\.\d+)?", "#", line.split("] ", 1)[1]))
    assert {re.sub(r"\d+(\.\d+)?", "#", text) for text in texts(make_tiny(log=V0_10))} <= real
