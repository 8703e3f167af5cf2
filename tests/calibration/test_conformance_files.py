"""What is wrong with the files of a recording is one sentence that names the file and the line or key."""

import json
import os

import pytest

from calibration.conformance.lines import Malformed
from calibration.conformance.replay import check_headers
from calibration.conformance.scenario import read_scenario, token_ids
from calibration.conformance.sets import find_sets
from calibration.conformance.trace import read_header, read_steps
from tests.calibration.test_conformance import CONFIG, HAND, REQUEST, outcomes_of, write_set


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: ["{", *lines[1:]], r"hand.jsonl, line 1: this is not JSON"),
        (lambda lines: lines[1:], r"hand.jsonl, line 1: the first line of a trace must be"),
        (lambda lines: [*lines[:2], "[1]", *lines[2:]], r"hand.jsonl, line 3: a line of a trace is a JSON object"),
        (lambda lines: [*lines[:3], '{"step": "x"}', lines[4]], r"hand.jsonl, line 4: a step must have its index"),
        (lambda lines: [lines[0], lines[3], lines[1], lines[4]], r"hand.jsonl, line 3: step 0 comes after step 2"),
        (lambda lines: lines[:-1], r"hand.jsonl, line 4: the trace ends without"),
        (lambda lines: [*lines, lines[1]], r"hand.jsonl, line 6: the summary, the line before, must be the last"),
        (lambda lines: [*lines[:2], '{"step": 1, "sched": [[', lines[4]], r"hand.jsonl, line 3: this is not JSON"),
        (lambda lines: [], r"hand.jsonl, line 1: the trace is empty"),
        (lambda lines: [*lines[:4], '{"summary": 5}'], r"hand.jsonl, line 5: the summary must be an object, got 5"),
        (
            lambda lines: ['{"header": {"engine": "vllm", "version": 0.19}}'],
            r"line 1: the header's version must be a text",
        ),
        (lambda lines: ["9" * 5000], r"hand.jsonl, line 1: this is not JSON \(a number has too many digits\)"),
    ],
)
def test_a_malformed_trace_names_the_line(tmp_path, change, said):
    path = write_set(tmp_path / "set", zipped=False) / "traces" / "hand.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(Malformed, match=said):
        outcomes_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a":' * 100_000, "line 1: this is nested too deeply"),
        ('{"name": "x", "config": {}, "requests": []}', "line 1: requests must be a list of at least one, got \\[\\]"),
    ],
)
def test_a_malformed_scenario_is_named(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(Malformed, match=said):
        read_scenario(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": [["p", 1, 1 << 25]]}, "must have a prompt of at most 16,777,216 tokens"),
        ({"prompt": [["p", 1 << 38, 1]]}, "seeds below 274,877,906,944"),
        ({"out_seed": 1 << 38}, "must have an out_seed below 274,877,906,944"),
        ({"id": ""}, "must have an id, a text, got ''"),
    ],
)
def test_a_request_of_impossible_content_is_named(tmp_path, change, said):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"name": "x", "config": CONFIG, "requests": [REQUEST | change]}))
    with pytest.raises(Malformed, match=said):
        read_scenario(path)


def test_long_segments_and_large_seeds_share_no_content():
    """70,000 tokens of seed 1 reach into no other seed, and no seed of a prompt into the outputs."""
    long = token_ids({"prompt": [["p", 1, 70_000], ["p", 2, 70_000], ["p", (1 << 38) - 1, 2], ["o", 0, 70_000]]})
    assert len(set(long.tolist())) == 210_002


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = write_set(tmp_path / "set", zipped=False) / "traces" / "hand.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert outcomes_of(tmp_path)[1][0].status == "identical"


def test_a_pipe_is_no_file(tmp_path):
    path = write_set(tmp_path / "set", zipped=False) / "traces" / "hand.jsonl"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Malformed, match=r"hand.jsonl: a file is wanted, this is none"):
        outcomes_of(tmp_path)


def test_a_damaged_archive_names_the_line(tmp_path):
    path = write_set(tmp_path / "set", steps=[*HAND, *HAND] * 40) / "traces" / "hand.jsonl.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(Malformed, match=r"hand.jsonl.gz, line \d+: the compressed data is damaged"):
        list(read_steps(path))


def test_a_trace_that_is_no_text_names_the_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"header": {"engine": "vllm", "version": "1", "scenario": "x"}}\n\xff\xfe\n')
    assert read_header(path).engine == "vllm"
    with pytest.raises(Malformed, match="line 2: this is not text in UTF-8"):
        list(read_steps(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n]", r"x.json, line 2: this is not JSON"),
        ("[]", r"x.json, line 1: a scenario is one JSON object"),
        ('{"name": "x",\n"config": 3, "requests": []}', r"x.json, line 2: config must be an object, got 3"),
        ('{"name": "x", "config": {},\n"requests": []}', r"x.json, line 2: requests must be a list"),
        (
            '{"name": "x", "config": {}, "requests": [\n{"id": "a", "out_seed": 1},\n{"id": "b"}]}',
            r"x.json, line 2: request 0 \(a\) must have arrival_step, a whole number from 0, got None",
        ),
        (
            '{"name": "x", "config": {}, "requests": [\n{"id": "a", "arrival_step": 0, "out_seed": 1, "prompt": []}]}',
            r"x.json, line 2: request 0 \(a\) must have a prompt of segments",
        ),
    ],
)
def test_a_malformed_scenario_names_the_line(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(Malformed, match=said):
        read_scenario(path)


def test_a_trace_of_another_scenario_is_refused(tmp_path):
    folder = write_set(tmp_path / "set", zipped=False)
    write_set(tmp_path / "else", name="other", zipped=False)
    (tmp_path / "else" / "traces" / "other.jsonl").replace(folder / "traces" / "hand.jsonl")
    with pytest.raises(Malformed, match="the trace is of scenario 'other', but .* holds 'hand'"):
        outcomes_of(folder)


def test_unknown_engines_and_versions_are_refused(tmp_path):
    write_set(tmp_path / "a", version="0.12.5")
    with pytest.raises(Malformed, match=r"line 1: version '0.12.5' of vllm is unknown, known are 0.10.2, .*0.33.0\."):
        check_headers(find_sets(tmp_path))
    write_set(tmp_path / "a", engine="lmdeploy")
    with pytest.raises(Malformed, match=r"line 1: the engine 'lmdeploy' is unknown, known are .*vllm\."):
        check_headers(find_sets(tmp_path))


def test_nothing_to_replay_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no recordings here; wanted are folders with scenarios/ and traces/"):
        find_sets(tmp_path)
    with pytest.raises(ValueError, match="there is no such file or folder"):
        find_sets(tmp_path / "none")
    (tmp_path / "traces").mkdir()
    with pytest.raises(ValueError, match="no recordings here"):
        find_sets(tmp_path)
