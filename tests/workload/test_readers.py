"""Every trace format on a small file written by hand, and the sentence for every way a file can be wrong."""

import gzip
import json

import numpy as np
import pytest

from sim.workload import WorkloadConf, build_workload


def replay(path, **fields):
    return build_workload(WorkloadConf(arrival="trace", lengths="trace", path=str(path), **fields), 0)


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.csv"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


PLAIN = "arrival_s,input_tokens,output_tokens\n0.5,10,2\n0.75,20,4\n2,30,6\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:50.9951691,12,1\n"
)


def test_plain(write):
    workload = replay(write(PLAIN))
    assert workload.arrival_ns.tolist() == [500_000_000, 750_000_000, 2_000_000_000]
    assert workload.prompt_tokens.tolist() == [10, 20, 30]
    assert workload.output_tokens.tolist() == [2, 4, 6]
    assert workload.concurrency is None and workload.token_ids is None and workload.block_hashes is None


def test_plain_with_windows_lines_byte_order_mark_spaces_and_blank_lines(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbf Arrival_s , input_tokens,output_tokens\r\n0.5, 10 ,2\r\n\r\n0.75,20.0,4\r\n")
    workload = replay(path)
    assert workload.prompt_tokens.tolist() == [10, 20]
    assert workload.arrival_ns.tolist() == [500_000_000, 750_000_000]


def test_gzip_is_read_whatever_the_name(tmp_path, write):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(PLAIN.encode()))
    assert replay(path).digest == replay(write(PLAIN)).digest


def test_azure_keeps_the_ticks_of_100_ns(write):
    workload = replay(write(AZURE))
    # 50.9951690 - 46.6805900 = 4.3145790 s.
    assert workload.arrival_ns.tolist() == [0, 4_314_579_000, 4_314_579_100]
    assert workload.prompt_tokens.tolist() == [374, 396, 12]


def test_azure_2024_with_time_zone(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,9,8\n"
    )
    assert replay(write(text)).arrival_ns.tolist() == [0, 990_070_000]


def test_burstgpt_drops_failures_and_starts_at_the_first_request(write):
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118.5,GPT-4,417,276,693,API log\n"
    )
    workload = replay(write(text))
    assert workload.arrival_ns.tolist() == [0, 113_500_000_000]
    assert workload.output_tokens.tolist() == [18, 276]
    assert workload.notes == ("1 requests that failed in the trace (no response) dropped",)


def test_burstgpt_with_sessions(write):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5270405,1,0.5,GPT-4,472,18,490,Conversation log\n"
        "5270407,2,0.5,GPT-4,20,30,50,API log\n"
    )
    assert replay(write(text)).arrival_ns.tolist() == [0, 2_000_000_000]


def test_vidur_lists_with_and_without_times(write):
    timed = replay(write("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,4808,10\n0.052,3180,8\n"))
    assert timed.arrival_ns.tolist() == [0, 52_000_000]
    path = write("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n", "arxiv.csv")
    untimed = build_workload(WorkloadConf(arrival="all_at_once", lengths="trace", path=str(path)), 0)
    assert (untimed.prompt_tokens.tolist(), untimed.output_tokens.tolist()) == ([3772], [54])


MOONCAKE = (
    '{"timestamp": 0, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 27, "input_length": 512, "output_length": 7, "hash_ids": [0]}\n'
)


def test_mooncake_has_milliseconds_and_hashes_of_512_tokens(write):
    workload = replay(write(MOONCAKE, "trace.jsonl"))
    assert workload.arrival_ns.tolist() == [0, 27_000_000]
    assert workload.hash_block_tokens == 512
    assert [row.tolist() for row in workload.block_hashes] == [[0, 1, 2], [0]]


def test_timed_trace_has_seconds_and_hashes_of_16_tokens(write):
    text = (
        '{"timestamp": 0.5, "input_length": 33, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
        '{"timestamp": 1, "input_length": 16, "output_length": 6, "hash_ids": [7]}\n'
    )
    workload = replay(write(text, "trace.jsonl"))
    assert workload.arrival_ns.tolist() == [500_000_000, 1_000_000_000]
    assert workload.hash_block_tokens == 16
    # vLLM's way to replay a Mooncake file: chunks of 512 and a multiplier of 0.001.
    mooncake = write(MOONCAKE, "mooncake.jsonl")
    as_vllm = replay(mooncake, format="timed_trace", hash_block_tokens=512, time_scale=0.001)
    assert as_vllm.digest == replay(mooncake).digest


def test_hashed_trace_without_hashes_needs_its_format_named(write):
    path = write('{"timestamp": 3, "input_length": 8, "output_length": 5}\n', "trace.jsonl")
    with pytest.raises(
        ValueError, match="got one that fits mooncake and timed_trace; workload.format=NAME would name it"
    ):
        replay(path)
    workload = replay(path, format="mooncake")
    assert workload.arrival_ns.tolist() == [3_000_000] and workload.block_hashes is None


def test_llmservingsim_carries_token_ids(write):
    rows = [
        {
            "input_toks": 3,
            "output_toks": 2,
            "arrival_time_ns": 46926808,
            "input_tok_ids": [5, 6, 7],
            "output_tok_ids": [1, 2],
        },
        {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 46926809, "input_tok_ids": [5], "output_tok_ids": [3]},
    ]
    workload = replay(write("\n".join(map(json.dumps, rows)) + "\n", "trace.jsonl"))
    assert workload.arrival_ns.tolist() == [46926808, 46926809]
    assert [row.tolist() for row in workload.token_ids] == [[5, 6, 7], [5]]
    assert [row.tolist() for row in workload.output_token_ids] == [[1, 2], [3]]


def test_llmservingsim_without_ids_and_as_a_table(write):
    text = '{"input_toks": 27369, "output_toks": 1626, "arrival_time_ns": 101537000}\n'
    workload = replay(write(text, "trace.jsonl"))
    table = replay(write("input_toks\toutput_toks\tarrival_time_ns\n27369\t1626\t101537000\n", "trace.tsv"))
    assert workload.token_ids is None
    assert workload.digest == table.digest


def test_sharegpt_takes_the_first_two_turns(write):
    records = [
        {
            "id": "a",
            "conversations": [{"from": "human", "value": "x" * 9}, {"from": "gpt", "value": "y" * 8}, {"value": "z"}],
        },
        {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
        {
            "id": "c",
            "conversations": [
                {"from": "human", "value": "?", "num_tokens": 40},
                {"from": "gpt", "value": "!", "num_tokens": 50},
            ],
        },
    ]
    path = write(json.dumps(records), "sharegpt.json")
    workload = build_workload(WorkloadConf(arrival="all_at_once", lengths="trace", path=str(path)), 0)
    # ceil(9 / 4) = 3 and 8 / 4 = 2 tokens by the estimate; 40 and 50 as counted.
    assert workload.prompt_tokens.tolist() == [3, 40]
    assert workload.output_tokens.tolist() == [2, 50]
    assert workload.notes == ("1 conversations without a prompt and an answer skipped",)
    assert any("1 with lengths estimated as characters / 4" in line for line in workload.provenance)
    lines = write("\n".join(map(json.dumps, records)), "sharegpt.jsonl")
    assert (
        build_workload(WorkloadConf(arrival="all_at_once", lengths="trace", path=str(lines)), 0).digest
        == workload.digest
    )


def test_lengths_of_a_trace_with_times_of_a_process_and_the_other_way(write):
    path = str(write(PLAIN))
    drawn = build_workload(WorkloadConf(arrival="constant", rate=2.0, lengths="trace", path=path), 0)
    assert drawn.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]
    assert drawn.prompt_tokens.tolist() == [10, 20, 30]
    timed = build_workload(
        WorkloadConf(arrival="trace", lengths="fixed", input_tokens=7, output_tokens=1, path=path), 0
    )
    assert timed.arrival_ns.tolist() == [500_000_000, 750_000_000, 2_000_000_000]
    assert timed.prompt_tokens.tolist() == [7, 7, 7]


def test_shuffle_keeps_the_pairs(write):
    rows = "".join(f"{i},{i + 1},{2 * (i + 1)}\n" for i in range(50))
    path = str(write("arrival_s,input_tokens,output_tokens\n" + rows))
    conf = WorkloadConf(arrival="all_at_once", lengths="trace", path=path, shuffle=True)
    first, again, other = build_workload(conf, 1), build_workload(conf, 1), build_workload(conf, 2)
    assert sorted(first.prompt_tokens.tolist()) == list(range(1, 51))
    assert np.array_equal(first.output_tokens, 2 * first.prompt_tokens)
    assert first.digest == again.digest != other.digest


def test_limit_num_requests_duration_and_time_scale(write):
    path = write(PLAIN)
    assert len(replay(path, limit=2)) == 2
    assert len(replay(path, num_requests=1)) == 1
    assert replay(path, time_scale=2.0).arrival_ns.tolist() == [1_000_000_000, 1_500_000_000, 4_000_000_000]
    assert len(replay(path, duration_s=0.75)) == 2
    assert len(replay(path, duration_s=1.0, time_scale=2.0)) == 1
    with pytest.raises(ValueError, match="workload.num_requests wants at most the 3 requests of .*, got 4"):
        replay(path, num_requests=4)
    with pytest.raises(ValueError, match="workload.duration_s wants to hold at least one arrival, got 0.1 s"):
        replay(path, duration_s=0.1)


def test_limits_on_lengths_drop_truncate_or_refuse(write):
    path = write(PLAIN)
    dropped = replay(path, max_total_tokens=24)
    assert dropped.prompt_tokens.tolist() == [10, 20]
    assert dropped.arrival_ns.tolist() == [500_000_000, 750_000_000]
    assert "1 of 3 requests over" in dropped.notes[0] and "were dropped" in dropped.notes[0]
    cut = replay(path, max_input_tokens=15, max_total_tokens=18, over_limit="truncate")
    assert cut.prompt_tokens.tolist() == [10, 15, 15]
    assert cut.output_tokens.tolist() == [2, 3, 3]
    with pytest.raises(ValueError, match=r"line 4: wanted a request within .*max_total_tokens=24, got 30 \+ 6 tokens"):
        replay(path, max_total_tokens=24, over_limit="error")
    with pytest.raises(ValueError, match="wanted some request within .*, got none"):
        replay(path, max_total_tokens=5)


def test_truncation_cuts_content_too(write):
    workload = replay(write(MOONCAKE, "t.jsonl"), max_input_tokens=600, over_limit="truncate")
    assert [row.tolist() for row in workload.block_hashes] == [[0, 1], [0]]
    row = {
        "input_toks": 3,
        "output_toks": 2,
        "arrival_time_ns": 0,
        "input_tok_ids": [5, 6, 7],
        "output_tok_ids": [1, 2],
    }
    workload = replay(write(json.dumps(row), "ids.jsonl"), max_total_tokens=3, over_limit="truncate")
    assert workload.token_ids[0].tolist() == [5, 6] and workload.output_token_ids[0].tolist() == [1]


def test_unsorted_arrivals_are_refused_or_sorted_with_their_content(write):
    text = (
        '{"timestamp": 27, "input_length": 512, "output_length": 7, "hash_ids": [4]}\n'
        '{"timestamp": 0, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
    )
    path = write(text, "trace.jsonl")
    with pytest.raises(
        ValueError,
        match=r"trace.jsonl, line 2: wanted arrivals in order of time, got 0.0 s after 0.027 s; workload.sort=true",
    ):
        replay(path)
    workload = replay(path, sort=True)
    assert workload.arrival_ns.tolist() == [0, 27_000_000]
    assert [row.tolist() for row in workload.block_hashes] == [[0, 1, 2], [4]]
    assert "sorted by arrival" in workload.notes[0]


HEADER = "arrival_s,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "trace.csv: wanted at least one request, got an empty file"),
        ("\n \n", "wanted at least one request, got an empty file"),
        (HEADER, "wanted at least one request, got a header alone"),
        (HEADER + "0,1,1\n1,5\n", "trace.csv, line 3: wanted 3 columns as in the header, got 2"),
        (HEADER + "0,1,1\n\n1,5,\n", "line 4: wanted output_tokens as an integer >= 1, got ''"),
        (HEADER + "-0.5,1,1\n", "line 2: wanted arrival_s as a finite number >= 0, got '-0.5'"),
        (HEADER + "0,1,1\nnan,1,1\n", "line 3: wanted arrival_s as a finite number >= 0, got 'nan'"),
        (HEADER + "inf,1,1\n", "line 2: wanted arrival_s as a finite number >= 0, got 'inf'"),
        (HEADER + "soon,1,1\n", "line 2: wanted arrival_s as a finite number >= 0, got 'soon'"),
        (HEADER + "0,0,1\n", "line 2: wanted input_tokens as an integer >= 1, got '0'"),
        (HEADER + "0,5,-3\n", "line 2: wanted output_tokens as an integer >= 1, got '-3'"),
        (HEADER + "0,5.5,3\n", "line 2: wanted input_tokens as an integer >= 1, got '5.5'"),
        (HEADER + "0,5,nan\n", "line 2: wanted output_tokens as an integer >= 1, got 'nan'"),
        (
            HEADER + "1,1,1\n0.5,1,1\n",
            "line 3: wanted arrivals in order of time, got 0.5 s after 1.0 s; workload.sort=true would",
        ),
        (HEADER + "0,10," + "2" * 200_000, "line 2: wanted a row of a csv table, got field larger than field limit"),
        ("x" * 200_000 + "," + HEADER + "1,0,1,1\n", "line 1: wanted a row of a csv table, got field larger"),
        (HEADER.strip() + ",input_tokens\n0,1,1,1\n", "line 1: wanted one column 'input_tokens', got 2"),
        (HEADER + "0,99999999999999999999,1\n", "line 2: wanted input_tokens as an integer >= 1 and at most 16777216"),
        (HEADER + "1e30,1,1\n", "line 2: wanted arrival_s as a finite number >= 0 and at most 9000000000, got '1e30'"),
        (HEADER + "0,1,1\n4e8,1,1\n", r"line 3: wanted arrivals within 3.2e\+08 s .*, got 4e\+08 s"),
        ("when,what\n1,2\n", "wanted a file of one known trace format .*azure.*, got one with the columns what, when"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n",
            "line 2: wanted TIMESTAMP as YYYY-MM-DD.*, got 'yesterday'",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n,1,1\n", "line 2: wanted TIMESTAMP as YYYY-MM-DD.*, got ''"),
        (
            "Timestamp,Request tokens,Response tokens\n1,5,-1\n",
            "line 2: wanted Response tokens as an integer >= 0, got '-1'",
        ),
        (
            "Timestamp,Request tokens,Response tokens\n1,5,0\n",
            "wanted at least one request, got none in the format burstgpt",
        ),
        (
            "input_tokens,output_tokens\n5,5\n",
            "wanted a trace with arrival times for workload.arrival=trace, got lengths only",
        ),
    ],
)
def test_broken_csv(write, text, message):
    with pytest.raises(ValueError, match=message):
        replay(write(text))


@pytest.mark.parametrize(
    "stamp",
    [
        *("now", "today", "NaT", "2024-05-10", "2024-02-30 00:00:00", "2024-05-10 25:00:00", "20240510T000000"),
        *("9999-01-01 00:00:00", "1500-01-01 00:00:00", "0001-01-01 00:00:00", "2024-05-10 00:00:00.1234567890"),
    ],
)
def test_azure_takes_no_other_times(write, stamp):
    with pytest.raises(ValueError, match="line 3: wanted TIMESTAMP as YYYY-MM-DD .* of the years 1970 to 2200"):
        replay(write(f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-09 00:00:00,1,1\n{stamp},1,1\n"), sort=True)


def test_azure_with_other_time_zones(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00,1,1\n"
        "2024-05-10 02:00:01.5+02:00,1,1\n"
        "2024-05-09T22:00:02-0200,1,1\n"
        "2024-05-10 00:00:03Z,1,1\n"
    )
    assert replay(write(text)).arrival_ns.tolist() == [0, 1_500_000_000, 2_000_000_000, 3_000_000_000]


def hashed(timestamp, length, hashes):
    row = {"timestamp": timestamp, "input_length": length, "output_length": 5, "hash_ids": list(range(hashes))}
    return json.dumps(row) + "\n"


@pytest.mark.parametrize(
    "rows, block_tokens",
    [
        ([(0, 10, 1), (100, 600, 2)], 512),  # 600 tokens are 2 blocks of 512
        ([(0, 10, 1), (100, 600, 38)], 16),  # and 38 of 16
        ([(0, 10, 1), (0.5, 16, 1)], 16),  # neither tells, but milliseconds have no fractions
        ([(0.5, 10, 1), (1, 600, 2)], 512),  # hashes tell more than times
    ],
)
def test_a_later_row_or_the_times_decide_where_the_first_fits_two_formats(write, rows, block_tokens):
    path = write("".join(hashed(*row) for row in rows), "trace.jsonl")
    workload = replay(path)
    assert workload.hash_block_tokens == block_tokens
    unit_ns = 1_000_000_000 if block_tokens == 16 else 1_000_000
    assert workload.arrival_ns.tolist() == [int(time * unit_ns) for time, _, _ in rows]


def test_where_nothing_decides_the_format_has_to_be_named(write):
    path = write(hashed(0, 10, 1) + hashed(1, 16, 1), "trace.jsonl")
    with pytest.raises(ValueError, match="fits mooncake and timed_trace; workload.format=NAME would name it"):
        replay(path)


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_as_on_other_machines(tmp_path, end):
    path = tmp_path / "trace.csv"
    path.write_bytes(PLAIN.replace("\n", end).encode())
    assert replay(path).prompt_tokens.tolist() == [10, 20, 30]


def test_time_scale_stays_on_the_clock(write):
    with pytest.raises(
        ValueError, match=r"line 4: wanted arrivals within 3.2e\+08 s .*, got 2e\+09 s; lower workload.time"
    ):
        replay(write(PLAIN), time_scale=1e9)


SERVING = {"input_toks": 1, "output_toks": 1, "arrival_time_ns": 0}


@pytest.mark.parametrize(
    "text, message",
    [
        (
            json.dumps(SERVING | {"arrival_time_ns": 10**20}),
            r"arrival_time_ns as a finite number >= 0 and at most 9e\+18",
        ),
        (json.dumps(SERVING | {"arrival_time_ns": 10**400}), "line 1: wanted arrival_time_ns as a finite number"),
        (json.dumps(SERVING | {"input_tok_ids": [10**20]}), "input_tok_ids as a list of integers of 64 bits"),
        (json.dumps(SERVING).replace("1", "1" * 5000, 1), "line 1: wanted one JSON object, got a number of thousands"),
        (
            json.dumps(SERVING)[:-1] + ', "x": ' + "[" * 90_000,
            "line 1: wanted one JSON object, got one nested too deep",
        ),
        ("[" * 100_000, "wanted a JSON array of records, got one nested too deeply"),
        ("[]", "got one with the keys nothing"),
        ("[5]", "got one with the keys nothing"),
    ],
)
def test_json_that_no_number_or_stack_holds(write, text, message):
    with pytest.raises(ValueError, match=message):
        replay(write(text + "\n", "trace.jsonl"))


GOOD = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n'


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD + "{nonsense\n", r"trace.jsonl, line 2: wanted one JSON object, got broken JSON: .* \(column 2\)"),
        (GOOD + GOOD[:30], "line 2: wanted one JSON object, got broken JSON"),
        (GOOD + "[1]\n", "line 2: wanted one JSON object, got a JSON list"),
        (
            GOOD + '{"timestamp": 1, "hash_ids": []}\n',
            "line 2: wanted the key 'input_length', got only 'timestamp', 'hash_ids'",
        ),
        (GOOD.replace("0,", "-1,", 1), "line 1: wanted timestamp as a finite number >= 0, got -1"),
        (GOOD.replace("0,", "NaN,", 1), "line 1: wanted timestamp as a finite number >= 0, got nan"),
        (GOOD.replace("0,", "null,", 1), "line 1: wanted timestamp as a finite number >= 0, got None"),
        (GOOD.replace("0,", "true,", 1), "line 1: wanted timestamp as a finite number >= 0, got True"),
        (GOOD.replace("5", "0", 1), "line 1: wanted input_length as an integer >= 1, got 0"),
        (GOOD.replace("5", "5.5", 1), "line 1: wanted input_length as an integer >= 1, got 5.5"),
        (
            GOOD.replace("[1]", "[1, 2]"),
            r"line 1: wanted 1 hash_ids for 5 tokens in blocks of 16 \(workload.hash_block_tokens\), got 2",
        ),
        (GOOD.replace("[1]", '["a"]'), r"line 1: wanted hash_ids as a list of integers, got \['a'\]"),
        (GOOD.replace("[1]", "7"), "line 1: wanted hash_ids as a list of integers, got 7"),
    ],
)
def test_broken_json_lines(write, text, message):
    with pytest.raises(ValueError, match=message):
        replay(write(text, "trace.jsonl"), format="timed_trace")


def test_broken_token_ids(write):
    row = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0, "input_tok_ids": [5, 6], "output_tok_ids": [1, 2]}
    with pytest.raises(ValueError, match="line 1: wanted 3 entries in input_tok_ids, got 2"):
        replay(write(json.dumps(row), "trace.jsonl"))


@pytest.mark.parametrize(
    "text, message",
    [
        ('[{"conversations": [}]', "line 1: wanted valid JSON, got"),
        ('[{"conversations": 5}]', "record 1: wanted an object with a list 'conversations'"),
        ('[{"conversations": [{"value": "a"}, {"value": 5}]}]', "record 1: wanted turns with a text 'value'"),
        (
            '[{"conversations": [{"value": "a"}]}]',
            "wanted at least one conversation of two turns, got none in 1 records",
        ),
        (
            '[{"conversations": [{"num_tokens": 0}, {"num_tokens": 5}]}]',
            "record 1: wanted num_tokens of the first turn as an integer >= 1, got 0",
        ),
    ],
)
def test_broken_sharegpt(write, text, message):
    path = write(text, "sharegpt.json")
    with pytest.raises(ValueError, match=message):
        build_workload(WorkloadConf(lengths="trace", path=str(path), format="sharegpt"), 0)


def test_missing_file_folder_and_undecodable_bytes(tmp_path):
    with pytest.raises(ValueError, match="workload.path wants a file, got .*nowhere.csv, which does not exist"):
        replay(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="which does not exist or is no file"):
        replay(tmp_path)
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(PLAIN.encode() * 100)[:60])
    with pytest.raises(ValueError, match="cut.gz: wanted UTF-8 text, plain or gzip, got bytes that don't decode"):
        replay(path)
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match="wanted UTF-8 text"):
        replay(path)
    with pytest.raises(ValueError, match="workload.lengths_path wants a file, got .*nowhere"):
        build_workload(WorkloadConf(lengths="empirical", lengths_path=str(tmp_path / "nowhere")), 0)


def test_named_format_that_the_file_is_not(write):
    with pytest.raises(ValueError, match="line 1: wanted a column 'timestamp', got only 'arrival_s', 'input_tokens'"):
        replay(write(PLAIN), format="azure")
    with pytest.raises(ValueError, match="workload.format wants one of auto, azure, .*, got 'parquet'"):
        replay(write(PLAIN), format="parquet")


def test_azure_conversation_trace_replays_whole(shared):
    folder = shared / "data" / "traces"
    workload = replay(folder / "AzureLLMInferenceTrace_2023_conv.csv")
    assert len(workload) == 19_366
    # 1,154.7 and 211.1 tokens on average, by the trace's own columns.
    assert abs(workload.prompt_tokens.mean() - 1154.6974) < 1e-3
    assert abs(workload.output_tokens.mean() - 211.1259) < 1e-3
    # The same hour as another project's list of it, which has seconds instead of calendar times.
    assert replay(folder / "vidur_splitwise_conv.csv").digest == workload.digest


def test_mooncake_conversation_trace_replays_whole(shared):
    workload = replay(shared / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz")
    assert len(workload) == 12_031 and workload.hash_block_tokens == 512
    assert sum(map(len, workload.block_hashes)) == np.sum(-(-workload.prompt_tokens // 512))


def test_llmservingsim_workload_replays_whole(shared):
    folder = shared / "data" / "llmservingsim" / "workloads"
    workload = replay(folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl")
    assert len(workload) == 300 and workload.arrival_ns[0] == 46_926_808
    assert [len(row) for row in workload.token_ids] == workload.prompt_tokens.tolist()
    assert len(replay(folder / "workload_me2_01_mixed.jsonl")) == 608
