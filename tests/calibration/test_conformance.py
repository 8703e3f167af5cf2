"""Readers, comparer and players of recorded schedules: hand-made files, whose every decision is worked out."""

import gzip
import json
import os
from itertools import count

import pytest

from calibration.conformance import sglang
from calibration.conformance.compare import ABSENT, compare
from calibration.conformance.keys import check_keys
from calibration.conformance.lines import Malformed
from calibration.conformance.replay import check_headers, player, replay_set
from calibration.conformance.report import (
    fields,
    last_line,
    set_lines,
    shown,
    trace_lines,
    unsupported_lines,
    verdict,
)
from calibration.conformance.scenario import Scenario, Unsupported, output_base, read_scenario, token_ids
from calibration.conformance.sets import find_sets
from calibration.conformance.trace import read_header
from calibration.conformance.vllm import KEYS, play


CONFIG = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 64,
    "block_size": 4,
    "num_gpu_blocks": 9,
    "enable_prefix_caching": True,
}
REQUEST = {"id": "a", "arrival_step": 0, "prompt": [["p", 1, 10]], "max_tokens": 2, "out_seed": 7}


def scenario(config=None, *requests):
    config = CONFIG | (config or {})
    return Scenario("hand", config, list(requests or [REQUEST]), "hand.json", {"config": config})


def steps_of(scenario, version="0.10.2"):
    *steps, last = play(scenario, version)
    return steps, last["summary"]


# One request of 10 + 2 tokens, budget 8, blocks of 4, 8 usable. Step 0: 8 tokens, 2 blocks; all running requests (it
# alone) share both. Step 1: 2 tokens, third block (8 - 3 = 5 free), first output. Step 2: token 11 fits in block 3, the
# last output comes, and all 3 blocks are back.
HAND = [
    {
        **{"step": 0, "added": ["a"], "sched": [["a", 8, 0, "n"]], "tok": 8, "pre": [], "run": 1, "wait": 0, "free": 6},
        **{"nb": [[1, 2]], "ncb": 2, "out": [], "fin": [], "free_end": 6},
    },
    {
        **{"step": 1, "added": [], "sched": [["a", 2, 8, "c"]], "tok": 2, "pre": [], "run": 1, "wait": 0, "free": 5},
        **{"nb": [[3]], "ncb": 3, "out": [["a", 1]], "fin": [], "free_end": 5},
    },
    {
        **{"step": 2, "added": [], "sched": [["a", 1, 10, "c"]], "tok": 1, "pre": [], "run": 1, "wait": 0, "free": 5},
        **{"nb": [[]], "ncb": 3, "out": [["a", 1]], "fin": ["a"], "free_end": 8},
    },
]
SUMMARY = {"stuck": False, "steps": 3, "tokens": 11, "preemptions": {}, "cached_first": {}, "finish_step": {"a": 2}}


def test_hand_worked_run():
    steps, summary = steps_of(scenario())
    assert steps == HAND
    assert {key: summary[key] for key in SUMMARY} == SUMMARY


def test_groups_have_tables_each_and_a_last_empty_step():
    """Two groups: 2 blocks in each for 8 tokens; the core flushes the end of the last request with an empty step."""
    groups = [{"type": "full", "bs": 4}, {"type": "swa", "bs": 4, "window": 8}]
    steps, summary = steps_of(scenario({"groups": groups, "num_gpu_blocks": 20}), "0.19.0")
    assert steps[0]["nb"] == [[[1, 2], [3, 4]]]
    assert "ncb" not in steps[0]
    assert (steps[-1]["tok"], summary["steps"], summary["free_final"]) == (0, 4, 19)


def test_calls_schedule_ahead_of_the_output():
    """Async, two in flight: call 0 only issues; call 2 issues the decode and completes batch 1; then a flush batch."""
    steps, summary = steps_of(scenario({"async_scheduling": True, "pp": 1, "depth": 2}), "0.19.0")
    assert [(s["issued"], s["completed"], s.get("tok")) for s in steps] == [
        *((0, None, 8), (1, 0, 2), (2, 1, 1), (3, 2, 0), (4, 3, 0)),
        (None, 4, None),
    ]
    assert [s["fin"] for s in steps[1:]] == [[], [], ["a"], [], []]
    assert summary["batches"] == 5


def test_an_abort_while_the_call_waits_drops_the_row():
    """Abort in call 2, while batch 1 (the end of the prefill) is awaited: its token would have come, and is dropped."""
    config = {"async_scheduling": True, "pp": 1, "depth": 2}
    steps, summary = steps_of(scenario(config, REQUEST | {"abort_mid": 2}), "0.19.0")
    assert (steps[2]["abort_mid"], steps[2]["drop"], steps[2]["out"]) == (["a"], ["a"], [])
    assert summary["finish_step"] == {"a": 2}
    assert summary["dropped_rows"] == 2  # the decode that was under way, too


def test_drafts_are_verified_as_recorded():
    """k = 2, EAGLE: a row verifies 2 drafts and has min(accept, 2) accepted; 1 + 2 tokens come out at once."""
    request = REQUEST | {"accept": [2, 0], "max_tokens": 5}
    steps, _ = steps_of(scenario({"spec": {"method": "eagle", "k": 2}, "num_gpu_blocks": 20}, request), "0.33.0")
    assert [s["spec"] for s in steps] == [[], [], [["a", 2, 2]], [["a", 2, 0]]]
    assert [s["out"] for s in steps] == [[], [["a", 1]], [["a", 3]], [["a", 1]]]


@pytest.mark.parametrize("version", ["0.10.2", "0.19.0", "0.33.0"])
@pytest.mark.parametrize("mode", [{}, {"async_scheduling": True, "pp": 1, "depth": 2}, {"pp": 2, "depth": 2}])
def test_a_pool_too_small_ends_as_stuck(version, mode):
    """8 usable blocks hold 32 tokens; 20 + 30 are asked for: the engine preempts the request for ever."""
    if mode and version == "0.10.2":
        return
    request = REQUEST | {"prompt": [["p", 1, 20]], "max_tokens": 30}
    _, summary = steps_of(scenario(mode, request), version)
    assert summary["stuck"] is True


def test_what_cannot_be_played_says_so():
    with pytest.raises(Unsupported, match="a retention interval of 64 tokens is not simulated"):
        play(scenario({"retention": 64}), "0.33.0")
    with pytest.raises(Unsupported, match="KV connectors with several batches in flight are not simulated"):
        play(scenario({"connector": {"mode": "pull"}, "pp": 2}), "0.33.0")
    with pytest.raises(Unsupported, match="async scheduling of vLLM 0.10.2 is not simulated"):
        play(scenario({"async_scheduling": True}), "0.10.2")


@pytest.mark.parametrize(
    ("config", "request_", "said"),
    [
        ({"block_size": 0}, {}, "config.block_size must be a whole number from 1, got 0"),
        ({"policy": "lottery"}, {}, "config.policy must be fcfs or priority, got 'lottery'"),
        ({"spec": {"method": "eagle"}}, {}, "config.spec must be null or a method"),
        ({"groups": [{"type": "swa", "bs": 16}]}, {}, "config.groups must be a list of type"),
        ({"groups": [{"type": "swa", "bs": 16, "window": 0}]}, {}, "config.groups must be a list of type"),
        ({"groups": [{"type": "full", "bs": 16, "window": "x"}]}, {}, "config.groups must be a list of type"),
        ({"depth": 0}, {}, "config.depth must be a whole number from 1 to 256, got 0"),
        ({"pp": 10**9}, {}, "config.pp must be a whole number from 1 to 256"),
        ({"watermark": 1.5}, {}, "config.watermark must be null or a number from 0 to below 1, got 1.5"),
        ({"enable_prefix_caching": "yes"}, {}, "config.enable_prefix_caching must be true or false, got 'yes'"),
        ({"num_gpu_blocks": 10**12}, {}, "config.num_gpu_blocks must be at most 16,777,216"),
        ({"max_model_len": 9}, {}, "the prompt of request a must be of at most config.max_model_len=9 tokens, got 10"),
        ({}, {"priority": True}, "priority of request a must be a whole number, got True"),
        ({}, {"max_tokens": None}, "max_tokens of request a must be a whole number from 1, got None"),
        ({}, {"accept": []}, "accept of request a must be a list of whole numbers"),
        ({}, {"stop_after": "x"}, "stop_after of request a must be a whole number from 0"),
    ],
)
def test_what_a_scenario_lacks_is_named(config, request_, said):
    with pytest.raises(Malformed, match=said):
        play(scenario(config, REQUEST | request_), "0.19.0")


SGLANG = {"page_size": 1, "pool_tokens": 64, "max_running_requests": 4, "context_len": 64, "max_prefill_tokens": 64}


@pytest.mark.parametrize(
    ("config", "request_", "said"),
    [
        ({"page_size": 65}, {}, "config.page_size must be at most config.pool_tokens=64, got 65"),
        ({"chunked_prefill_size": "x"}, {}, "config.chunked_prefill_size must be a whole number, got 'x'"),
        ({"mixed_chunk": 5}, {}, "config.mixed_chunk must be true or false, got 5"),
        ({"conservativeness": -1}, {}, "config.conservativeness must be a number from 0, got -1"),
        ({"policy": ["fcfs"]}, {}, "config.policy must be a text"),
        ({}, {"priority": None}, "priority of request a must be a whole number, got None"),
        ({}, {"eos_len": 1.5}, "eos_len of request a must be a whole number from 1, got 1.5"),
        ({}, {"ignore_eos": "x"}, "ignore_eos of request a must be true or false, got 'x'"),
        ({}, {"max_new_tokens": 0}, "max_new_tokens of request a must be a whole number from 1, got 0"),
    ],
)
def test_what_a_scenario_of_sglang_lacks_is_named(config, request_, said):
    config, request = SGLANG | config, REQUEST | {"max_new_tokens": 2} | request_
    with pytest.raises(Malformed, match=said):
        sglang.play(Scenario("hand", config, [request], "hand.json"), "0.5.23")


def test_content_is_equal_where_kind_seed_and_index_are():
    """The second prompt holds the first's 10 tokens and its outputs 0 and 1, then something else."""
    first = token_ids(REQUEST)
    second = token_ids({"prompt": [["p", 1, 10], ["o", 7, 2], ["p", 2, 1]]})
    assert list(second[:10]) == list(first)
    assert list(second[10:12]) == [output_base(REQUEST), output_base(REQUEST) + 1]
    assert second[12] not in second[:12]


# ---- comparer


def run(lines, **summary):
    yield from lines
    yield {"summary": {"stuck": False, **summary}}


def changed(number, **values):
    return [step | (values if index == number else {}) for index, step in enumerate(HAND)]


def test_identical_runs():
    found = compare(run(HAND, steps=3), run(HAND, steps=3, batches=0))
    assert (found.steps, found.decision, found.blocks) == (3, None, None)


def test_the_first_field_in_order_of_deciding_is_named():
    found = compare(run(HAND), run(changed(1, run=2, sched=[["a", 2, 8, "r"]], free_end=0)))
    assert (found.steps, found.decision.step, found.decision.field) == (1, 1, "sched")
    assert (found.decision.recorded, found.decision.simulated) == ([["a", 2, 8, "c"]], [["a", 2, 8, "r"]])
    assert found.blocks == found.decision


def test_block_ids_are_a_level_of_their_own():
    found = compare(run(HAND), run(changed(0, nb=[[2, 1]])))
    assert found.decision is None
    assert (found.blocks.step, found.blocks.field, found.blocks.simulated) == (0, "nb", [[2, 1]])
    both = compare(run(HAND), run([changed(0, ncb=0)[0], *changed(2, wait=1)[1:]]))
    assert (both.decision.field, both.blocks.field) == ("wait", "ncb")


def test_a_run_without_end_is_left():
    """The other has gone another way at once: this one is followed for a while, and not said to be stuck."""

    def endless():
        yield from HAND
        for step in count(3):
            yield HAND[2] | {"step": step}

    assert compare(run(changed(0, tok=9)), endless()).stuck is False
    assert compare(run(HAND), endless()).decision.simulated == 3


def test_an_empty_list_is_the_same_as_none():
    assert compare(run(changed(0, drop=[])), run(HAND)).decision is None
    assert compare(run(changed(0, drop=["a"])), run(HAND)).decision.simulated == ABSENT


def test_a_longer_run_differs_at_its_next_step():
    shorter = compare(run(HAND[:2]), run(HAND)).decision
    assert (shorter.step, shorter.field, shorter.simulated) == (2, "step", 2)
    assert compare(run(HAND), run(HAND[:2])).decision.recorded == 2


def test_summaries_are_compared_where_both_have_the_key():
    found = compare(run(HAND, tokens=11, free_final=8), run(HAND, tokens=12)).decision
    assert (found.step, found.field, found.recorded, found.simulated) == (None, "summary.tokens", 11, 12)


def test_two_livelocks_are_equal_wherever_they_are_cut_off():
    assert compare(run(HAND[:2], stuck=True), run(HAND, stuck=True)).decision is None
    assert compare(run(HAND, stuck=True), run(HAND[:2], stuck=True)).stuck
    found = compare(run(HAND), run(HAND, stuck=True))
    assert (found.decision.field, found.decision.recorded, found.decision.simulated) == ("stuck", False, True)


def test_a_run_that_differs_is_followed_to_its_livelock():
    found = compare(run(HAND), run(changed(1, wait=3), stuck=True))
    assert (found.decision.field, found.stuck) == ("wait", True)


# ---- files


def write_set(folder, part="", version="0.10.2", engine="vllm", steps=HAND, config=None, name="hand", zipped=True):
    """A set with one recording; returns its folder."""
    ending = ".gz" if zipped else ""
    opened = gzip.open if zipped else open
    for kind in ("scenarios", "traces"):
        (folder / kind / part).mkdir(parents=True, exist_ok=True)
    content = {"name": name, "config": CONFIG | (config or {}), "requests": [REQUEST]}
    with opened(folder / "scenarios" / part / f"{name}.json{ending}", "wt") as file:
        json.dump(content, file)
    header = {"header": {"engine": engine, "version": version, "scenario": name, "num_requests": 1}}
    with opened(folder / "traces" / part / f"{name}.jsonl{ending}", "wt") as file:
        for line in (header, *steps, {"summary": SUMMARY}):
            file.write(json.dumps(line) + "\n")
    return folder


def outcomes_of(path):
    sets = find_sets(path)
    headers = check_headers(sets)
    return sets, [outcome for recorded in sets for outcome in replay_set(recorded, headers)]


def test_sets_are_found_at_any_depth(tmp_path):
    write_set(tmp_path / "x" / "one")
    write_set(tmp_path / "x" / "y" / "two", part="open")
    write_set(tmp_path / "x" / "y" / "two", part="held", zipped=False)
    sets, outcomes = outcomes_of(tmp_path)
    assert [(s.name, [p.name for p in s.pairs]) for s in sets] == [
        ("one", ["hand"]),
        ("two", ["held/hand", "open/hand"]),
    ]
    assert [outcome.status for outcome in outcomes] == ["identical"] * 3
    assert last_line(outcomes) == "decisions 3/3 identical, block ids 3/3 identical"


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ("", ["held/hand", "open/hand"]),
        ("traces", ["held/hand", "open/hand"]),
        ("scenarios/held", ["held/hand"]),
        ("traces/open/hand.jsonl.gz", ["open/hand"]),
        ("scenarios/open/hand.json.gz", ["open/hand"]),
    ],
)
def test_a_path_inside_a_set_chooses_from_it(tmp_path, inside, found):
    for part in ("open", "held"):
        write_set(tmp_path / "set", part=part)
    (only,) = find_sets(tmp_path / "set" / inside)
    assert (only.name, [pair.name for pair in only.pairs]) == ("set", found)


@pytest.mark.parametrize("part", ["", "scenarios"])
def test_a_folder_that_may_not_be_read_is_not_passed_over(tmp_path, monkeypatch, part):
    write_set(tmp_path / "a")
    closed, scandir = write_set(tmp_path / "b") / part, os.scandir

    def guarded(path):
        if os.fspath(path) == os.fspath(closed):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    with pytest.raises(PermissionError, match=str(closed)):
        find_sets(tmp_path)


def test_sets_of_one_name_are_told_apart_by_their_path(tmp_path):
    write_set(tmp_path / "a" / "set")
    write_set(tmp_path / "b" / "set")
    assert [found.name for found in find_sets(tmp_path)] == ["a/set", "b/set"]


def test_what_has_no_partner_is_said(tmp_path):
    folder = write_set(tmp_path / "set")
    write_set(folder, name="other")
    (folder / "scenarios" / "hand.json.gz").unlink()
    (folder / "traces" / "other.jsonl.gz").unlink()
    sets, outcomes = outcomes_of(tmp_path)
    assert [verdict(outcome) for outcome in outcomes] == ["unpaired: there is no scenario for this trace"]
    assert "set: other.json.gz is a scenario without a trace" in set_lines(sets, outcomes)
    found = fields(sets, outcomes)
    assert (found["status"], found["traces"], found["decisions_identical"]) == ("different", 1, 0)
    assert found["sets"]["set"]["left_over"] == [{"file": "other.json.gz", "reason": "a scenario without a trace"}]


def test_unsupported_kinds_count_as_different(tmp_path):
    write_set(tmp_path / "set", config={"async_scheduling": True})
    sets, outcomes = outcomes_of(tmp_path)
    found = fields(sets, outcomes)
    assert (found["traces"], found["decisions_identical"], found["status"]) == (1, 0, "different")
    reason = "async scheduling of vLLM 0.10.2 is not simulated"
    assert found["unsupported"] == [{"set": "set", "trace": "hand", "reason": reason}]
    assert found["differences"][0]["kind"] == "unsupported"


def test_a_difference_shows_the_entries_that_differ(tmp_path):
    write_set(tmp_path / "set", steps=changed(1, sched=[["a", 2, 9, "c"]]))
    sets, (outcome,) = outcomes_of(tmp_path)
    assert verdict(outcome) == "different, step 1, sched[0][2] (tokens computed before of a): recorded 9, simulated 8"
    (difference,) = fields(sets, [outcome])["differences"]
    assert difference == {
        **{"set": "set", "trace": "hand", "kind": "decision", "step": 1, "field": "sched", "stuck": False},
        **{"recorded": [["a", 2, 9, "c"]], "simulated": [["a", 2, 8, "c"]]},
        **{"path": "sched[0][2]", "request": "a"},
        "sentence": "step 1, sched[0][2] (tokens computed before of a): recorded 9, simulated 8",
    }


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (changed(1, sched=[["a", 3, 8, "c"]]), "step 1, sched[0][1] (tokens of a): recorded 3, simulated 2"),
        (changed(1, sched=[["b", 2, 8, "c"]]), "step 1, sched[0][0] (request of row 0): recorded b, simulated a"),
        (changed(1, sched=[]), 'step 1, sched[0] (row of a): recorded absent, simulated ["a", 2, 8, "c"]'),
        (changed(1, out=[["a", 2]]), "step 1, out[0][1] (tokens emitted of a): recorded 2, simulated 1"),
        (changed(1, fin=["a"]), "step 1, fin[0] (requests that ended): recorded a, simulated absent"),
        (changed(1, nb=[[4]]), "step 1, nb[0][0] (block ids of a): recorded 4, simulated 3"),
        (changed(1, colour=1), "step 1, colour: recorded 1, simulated absent"),
        ([HAND[0], HAND[2]], "step 1 is missing in the recording"),
        (HAND[:2], "step 2 is missing in the recording"),
        ([*HAND, HAND[2] | {"step": 3}], "step 3 is missing in the simulation"),
    ],
)
def test_a_difference_is_told_in_words(tmp_path, steps, said):
    write_set(tmp_path / "set", steps=steps)
    sets, (outcome,) = outcomes_of(tmp_path)
    assert verdict(outcome).endswith(f"different, {said}")
    assert fields(sets, [outcome])["differences"][0]["sentence"] == said


def test_many_unsupported_for_one_reason_share_a_line(tmp_path):
    for number in range(6):
        write_set(tmp_path / "many", name=f"s{number}", config={"async_scheduling": True})
    write_set(tmp_path / "one", config={"async_scheduling": True})
    write_set(tmp_path / "one", name="played")
    _, outcomes = outcomes_of(tmp_path)
    assert trace_lines(outcomes) == [
        "many: 6 traces unsupported: async scheduling of vLLM 0.10.2 is not simulated",
        "one/hand: unsupported: async scheduling of vLLM 0.10.2 is not simulated",
        "one/played: identical",
    ]
    assert unsupported_lines(outcomes) == ["7 of 8 unsupported: async scheduling of vLLM 0.10.2 is not simulated"]


@pytest.mark.parametrize("key", ["_seed", "note", "desc", "comment"])
def test_remarks_are_free(key):
    config, request = CONFIG | {key: 1, "groups": [{"type": "full", "bs": 4, key: 1}]}, REQUEST | {key: 1}
    content = {"name": "x", "config": config, "requests": [request], key: 1}
    check_keys(Scenario("x", config, [request], "x.json", content), KEYS)


def test_an_unknown_key_of_an_instance_or_of_sglang_is_named():
    content = {"config_p": CONFIG, "config_d": CONFIG | {"blocksize": 1}}
    with pytest.raises(Unsupported, match=r"config_d.blocksize is an unknown key; did you mean block_size\?"):
        check_keys(Scenario("x", {}, [REQUEST], "x.json", content), KEYS)
    with pytest.raises(Unsupported, match=r"max_tokens of request a is an unknown key; did you mean max_new_tokens\?"):
        check_keys(Scenario("x", SGLANG, [REQUEST], "x.json", {"config": SGLANG}), sglang.KEYS)


def test_every_recorded_key_is_known(shared):
    """Also of the kinds that are not simulated."""
    found = find_sets(shared / "data" / "schedules")
    for pair in (pair for recorded in found for pair in recorded.pairs):
        check_keys(read_scenario(pair.scenario), player(read_header(pair.trace).engine)[1])


def test_a_trace_made_with_another_configuration_is_different(tmp_path):
    path = write_set(tmp_path / "set", zipped=False) / "traces" / "hand.jsonl"
    first, *rest = path.read_text().splitlines()

    def outcome_of(config):
        header = json.loads(first)["header"] | {"config": config}
        path.write_text("\n".join([json.dumps({"header": header}), *rest]))
        return outcomes_of(tmp_path)[1][0]

    words = "(what the engine was driven with, and the scenario)"
    more, other = outcome_of(CONFIG | {"pp": 2}), outcome_of(CONFIG | {"max_num_seqs": 5})
    assert verdict(more) == f"different, header.config.pp {words}: recorded 2, simulated absent"
    assert verdict(other) == f"different, header.config.max_num_seqs {words}: recorded 5, simulated 4"
    assert not other.decisions_identical
    assert outcome_of(CONFIG | {"policy": None, "_note": "x"}).status == "identical"
    with pytest.raises(Malformed, match="line 1: the header's config must be an object, got 5"):
        outcome_of(5)


def test_a_text_is_told_from_the_number_it_looks_like(tmp_path):
    write_set(tmp_path / "set", steps=changed(1, run="1"))
    _, (outcome,) = outcomes_of(tmp_path)
    assert verdict(outcome) == 'different, step 1, run (running requests): recorded "1", simulated 1'


def test_long_values_are_cut_for_a_person():
    assert shown([1, 2]) == "[1, 2]"
    assert len(shown(list(range(1000)))) < 110
