"""Sessions: drawn from laws, and read from traces."""

import dataclasses
import json

import numpy as np
import pytest

from sim.workload.build import build_workload
from sim.workload.conf import WorkloadConf
from sim.workload.sessions.conf import LawConf, SessionsConf
from sim.workload.sessions.law import names, sample


S = 1_000_000_000


def drawn(rounds=3.0, seed=0, law="fixed", latency=("fixed", 2.0), **more):
    pause = LawConf(*latency)
    own = {key: more.pop(key) for key in ("first_tokens", "reasoning_share", "system_prompts") if key in more}
    sessions = SessionsConf(rounds=LawConf(law, rounds), latency_s=pause, **own)
    values = {"num_requests": 4, "input_tokens": 50, "output_tokens": 20} | more
    return build_workload(WorkloadConf(sessions=sessions, **values), seed)


def test_a_prompt_is_all_that_was_said_before_and_a_new_part():
    """System prompt 10, first task 100, then 50 new tokens a round; outputs 20, of which the first 5 are dropped.

    Prompts: 10 + 100; 110 + 15 + 50 = 175; 175 + 15 + 50 = 240. What was said: 125 and 190 tokens of these.
    """
    made = drawn(prefix_tokens=10, first_tokens=LawConf("fixed", 100), reasoning_share=0.25, num_requests=2)
    assert made.prompt_tokens.tolist() == [110, 175, 240] * 2
    assert made.sessions.history_tokens.tolist() == [0, 125, 190] * 2
    assert made.sessions.dropped_tokens.tolist() == [5] * 6
    assert made.sessions.latency_ns.tolist() == [0, 2 * S, 2 * S] * 2
    assert made.sessions.first.tolist() == [0, 3, 6]
    assert len(set(made.arrival_ns[:3].tolist())) == 1


def test_sessions_of_one_round_are_the_requests_without_sessions():
    plain = build_workload(WorkloadConf(num_requests=30, lengths="lognormal", max_total_tokens=2000), 3)
    one = drawn(
        1.0, 3, num_requests=30, lengths="lognormal", max_total_tokens=2000, input_tokens=1024, output_tokens=128
    )
    for key in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(plain, key), getattr(one, key))
    assert not one.has_content


def test_more_sessions_append_and_another_seed_is_another():
    few, many = (drawn(4.0, law="geometric", latency=("lognormal", 1.0), num_requests=n) for n in (5, 50))
    count = len(few)
    assert few.sessions.first.tolist() == many.sessions.first[:6].tolist()
    for key in ("latency_ns", "history_tokens"):
        assert np.array_equal(getattr(few.sessions, key), getattr(many.sessions, key)[:count])
    assert np.array_equal(few.prompt_tokens, many.prompt_tokens[:count])
    assert drawn(4.0, 1, law="geometric").digest != drawn(4.0, law="geometric").digest


def test_a_session_ends_before_a_round_beyond_the_limit():
    """Prompts 50, 120, 190, 260 with 20 out: 280 is beyond 270."""
    made = drawn(6.0, max_total_tokens=270)
    assert made.sessions.rounds.tolist() == [3] * 4
    assert made.notes == (
        "4 of 4 sessions end before a round over workload.max_input_tokens=None, workload.max_total_tokens=270 "
        "(12 rounds)",
    )


@pytest.mark.parametrize(
    ("law", "mean"),
    [
        (LawConf("fixed", 3.0), 3.0),
        (LawConf("uniform", least=2.0, most=6.0), 4.0),
        (LawConf("exponential", 5.0), 5.0),
        (LawConf("geometric", 4.0), 4.0),
        (LawConf("lognormal", 6.0, 0.5), 6.0),
        (LawConf("lognormal", 6.0, 0.5, most=0.5), 0.5),
    ],
)
def test_laws_have_their_means(law, mean):
    assert law.law in names()
    assert sample(law, 20_000, np.random.default_rng(0)).mean() == pytest.approx(mean, rel=0.02)


TABLE = """arrival_s,input_tokens,output_tokens,session,round,latency_s
0.5,100,10,a,0,
0.7,30,5,b,0,
,130,10,a,1,1.5
2.0,40,1,,0,
,120,10,a,2,0.25
"""


def replayed(tmp_path, text, name="trace.csv", **more):
    path = tmp_path / name
    path.write_text(text)
    return build_workload(WorkloadConf(path=str(path), arrival="trace", lengths="trace", **more), 0)


def test_a_table_with_sessions(tmp_path):
    """Session a has three rounds; 130 repeats 110 tokens, 120 is shorter than 140 and so all repeated."""
    made = replayed(tmp_path, TABLE)
    assert made.prompt_tokens.tolist() == [100, 130, 120, 30, 40]
    assert made.arrival_ns.tolist() == [S // 2] * 3 + [7 * S // 10, 2 * S]
    assert made.sessions.latency_ns.tolist() == [0, 3 * S // 2, S // 4, 0, 0]
    assert made.sessions.history_tokens.tolist() == [0, 110, 120, 0, 0]
    assert "1 rounds have prompts shorter than what was said before" in made.notes[0]


def sub_requests(*rounds, arrival=0, ids=None):
    found = [{"input_toks": p, "output_toks": o, "tool_duration_ns": t} for p, o, t in rounds]
    for one, said in zip(found, ids or [], strict=False):
        one["input_tok_ids"] = said
    return json.dumps({"session_id": "s", "arrival_time_ns": arrival, "sub_requests": found})


def test_sessions_with_sub_requests_and_requests_beside_them(tmp_path):
    """The second prompt's ids go on after the first one's: what follows there is the first output."""
    flat = json.dumps({"input_toks": 3, "output_toks": 2, "arrival_time_ns": 5, "input_tok_ids": [7, 8, 9]})
    text = sub_requests((2, 2, 30), (5, 1, 0), ids=[[1, 2], [1, 2, 3, 4, 5]]) + "\n" + flat + "\n"
    made = replayed(tmp_path, text, "trace.jsonl")
    assert made.sessions.first.tolist() == [0, 2, 3]
    assert made.sessions.latency_ns.tolist() == [0, 30, 0]
    assert made.arrival_ns.tolist() == [0, 0, 5]
    assert [ids.tolist() for ids in made.output_token_ids] == [[3, 4], [], []]


def test_limits_and_order_of_a_trace_are_of_whole_sessions(tmp_path):
    text = sub_requests((10, 2, 1), (20, 2, 1), (90, 2, 1), (30, 2, 0), arrival=9) + "\n" + sub_requests((5, 1, 0))
    made = replayed(tmp_path, text, "trace.jsonl", sort=True, max_input_tokens=50)
    assert made.prompt_tokens.tolist() == [5, 10, 20]
    assert made.sessions.first.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (sub_requests(), r"line 1: wanted sub_requests as a list of one object or more, got \[\]"),
        (sub_requests((2, 2, -1), (9, 1, 0)), "line 1: wanted tool_duration_ns as a finite number >= 0, got -1"),
        (sub_requests((2, 2, 5), (0, 1, 0)), "line 1: wanted input_toks as an integer >= 1, got 0"),
        (
            sub_requests((2, 2, 5), (9, 1, 5), (9, 1, 0)).replace(
                ', "tool_duration_ns": 5}, {"input_toks": 9', '}, {"input_toks": 9', 1
            ),
            "wanted tool_duration_ns in every sub-request but the last .*, got none in sub-request 1",
        ),
        (
            sub_requests((2, 2, 5), (9, 1, 0))
            .replace(', "tool_duration_ns": 5', "")
            .replace(', "tool_duration_ns": 0', ""),
            "wanted how long after the one before a round is sent .*, got none; workload.sessions.latency_s.law=fixed",
        ),
    ],
)
def test_sub_requests_that_are_none(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        replayed(tmp_path, text, "trace.jsonl")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "130,10,a,1",
            "130,10,a,2",
            "line 4: wanted round 1 of session 'a', whose rounds come in order from 0 or 1, got 2",
        ),
        (",1.5", ",-1.5", "line 4: wanted latency_s as a finite number >= 0, got '-1.5'"),
        (",1.5", ",", "line 4: wanted latency_s as a finite number >= 0, got ''"),
        ("0.5,100", ",100", "line 2: wanted arrival_s as a finite number >= 0, got ''"),
    ],
)
def test_tables_with_broken_sessions(tmp_path, old, new, words):
    with pytest.raises(ValueError, match=words):
        replayed(tmp_path, TABLE.replace(old, new))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": LawConf("fixed", 0)}, "workload.sessions.rounds.mean wants a number from 1 to 1e"),
        ({"latency_s": LawConf("fixed", -1)}, "workload.sessions.latency_s.mean wants a number from 0 to 1e"),
        ({"latency_s": LawConf("exponential", 0)}, "latency_s.mean wants a number > 0 for the law exponential"),
        ({"rounds": LawConf("geometrical", 2)}, r"rounds.law wants one of .*\(did you mean geometric\?\)"),
        ({"rounds": LawConf("uniform", least=3)}, "rounds.law=uniform wants .*least and .*most"),
        ({"rounds": LawConf("geometric", 2, least=5, most=4)}, "most=4 wants to be no smaller than .*least=5"),
        ({"latency_s": LawConf("lognormal", 1, 0)}, "latency_s.cv wants a number above 0"),
        ({"reasoning_share": 1.5}, "reasoning_share wants a number from 0 to 1, got 1.5"),
        ({"system_prompts": 3}, "system_prompts wants workload.prefix_tokens, how long they are"),
        ({"system_prompts": 0}, "system_prompts wants an integer from 1"),
        ({"rounds": LawConf()}, "latency_s and reasoning_share want workload.sessions.rounds.law, or a trace"),
    ],
)
def test_what_makes_no_sessions(changes, words):
    sessions = dataclasses.replace(SessionsConf(rounds=LawConf("fixed", 2), latency_s=LawConf("fixed", 1)), **changes)
    with pytest.raises(ValueError, match=words):
        build_workload(WorkloadConf(num_requests=3, sessions=sessions), 0)


def test_limits_that_refuse_and_latencies_twice(tmp_path):
    with pytest.raises(ValueError, match="want every round to fit, got 120 \\+ 20 tokens; workload.over_limit=drop"):
        drawn(max_total_tokens=130, over_limit="error")
    with pytest.raises(ValueError, match="latency_s.law=fixed is set, but .* says for each round"):
        replayed(tmp_path, TABLE, sessions=SessionsConf(latency_s=LawConf("fixed", 1)))
