"""Captured sizes and padding, against lists recorded from three vLLM versions."""

import csv

import pytest
from hypothesis import given, strategies as st

from sim.deployment.graphs import (
    EAGER,
    FULL,
    PIECEWISE,
    capture_sizes,
    full_graph_top,
    graph_mode_of,
    padded,
    padding_table,
    prefill_runs_as,
    prefill_sizes,
    runs_as,
)


# version, max_num_seqs, max_num_batched_tokens, draft tokens, the user's own, sizes ("a-b/step" is a run)
ROWS = [
    ("trtllm-1.0", 2048, 8192, 0, "", "1 2 4 8-128/8 256 512"),
    ("trtllm-1.0", 50, 8192, 0, "", "1 2 4 8-48/8 50"),
    ("trtllm-1.0", 2048, 8192, 0, "max_size=300", "1 2 4 8-128/8 256 300"),
    ("0.10.2", 1, 2048, 0, "", "1 2 4"),
    ("0.10.2", 128, 2048, 0, "", "1 2 4 8-256/8"),
    ("0.10.2", 1024, 8192, 0, "", "1 2 4 8-512/8"),
    ("0.10.2", 128, 200, 0, "", "1 2 4 8-200/8"),
    ("0.10.2", 256, 8192, 0, "cuda_graph_sizes=64", "1 2 4 8-64/8"),
    ("0.10.2", 256, 8192, 0, "cuda_graph_sizes=1,2,8,100,4000,9000", "1 2 8 100 4000"),
    ("0.19.0", 1, 2048, 0, "", "1 2"),
    ("0.19.0", 1024, 8192, 0, "", "1 2 4 8-256/8 272-512/16"),
    ("0.19.0", 100, 300, 2, "", "1 2 4 8-256/8 272 288"),
    ("0.19.0", 256, 8192, 0, "max_size=96", "1 2 4 8-96/8"),
    ("0.33.0", 3, 2048, 0, "", "1-4/1"),
    ("0.33.0", 257, 8192, 0, "", "1 2 4 8-256/8 257 272-512/16"),
    ("0.33.0", 1024, 8192, 5, "", "1 2-8/2 12 16-256/8 272-512/16"),
    ("0.33.0", 100, 300, 2, "", "1-4/1 6 8 12 16-272/8 288 300"),
    ("0.33.0", 256, 8192, 0, "sizes=1,2,8,100,4000", "1 2 8 100 4000"),
]


def listed(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split():
        first, _, rest = part.partition("-")
        last, _, step = rest.partition("/")
        found += range(int(first), int(last) + 1, int(step)) if rest else [int(first)]
    return tuple(found)


def sizes_of(version, seqs, tokens, drafts, user, top=512):
    key, _, values = user.partition("=")
    numbers = [int(value) for value in values.split(",") if value]
    own = {
        "cuda_graph_sizes": {"old_sizes": numbers},
        "capture_sizes": {"sizes": numbers},
        "sizes": {"sizes": numbers},
        "max_size": {"max_size": numbers[0] if numbers else None},
    }.get(key, {})
    return capture_sizes(version, seqs, tokens, query_len=1 + drafts, top=top, **own)


@pytest.mark.parametrize(("version", "seqs", "tokens", "drafts", "user", "sizes"), ROWS)
def test_recorded_lists(version, seqs, tokens, drafts, user, sizes):
    assert sizes_of(version, seqs, tokens, drafts, user) == listed(sizes)


def test_every_recorded_list(shared):
    with (shared / "data/tables/vllm_cudagraph.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) > 60
    for row in table:
        top = 1024 if row["version"] == "0.33.0" and row["gpu_family"] == "blackwell-dc" else 512
        numbers = (int(row[key]) for key in ("max_num_seqs", "max_num_batched_tokens", "spec_k"))
        assert sizes_of(row["version"], *numbers, row["user"], top) == listed(row["sizes"]), row


def test_33_rows_pad_to_40_and_above_the_largest_nothing_is_padded():
    sizes = capture_sizes("0.10.2", 256, 8192)
    assert padded(33, sizes) == 40
    assert padded(40, sizes) == 40
    assert padded(512, sizes) == 512
    assert padded(513, sizes) == 513
    assert padded(0, sizes) == 0
    assert padded(33, ()) == 33


@given(st.integers(1, 300), st.integers(1, 3000), st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]))
def test_padding_is_the_next_size(seqs, extra, version):
    tokens = seqs + extra
    sizes = capture_sizes(version, seqs, tokens)
    assert list(sizes) == sorted(set(sizes))
    table = padding_table(600, sizes)
    assert table == sorted(table)
    assert all(table[t] >= t and (table[t] == t or table[t] in sizes) for t in range(601))
    assert sizes[-1] <= max(tokens, 4)


def test_full_graphs_only_for_uniform_decodes():
    sizes = (1, 2, 4, 8)
    assert graph_mode_of("FULL_AND_PIECEWISE", 3, True, sizes, 8) == FULL
    assert graph_mode_of("FULL_AND_PIECEWISE", 3, False, sizes, 8) == PIECEWISE
    assert graph_mode_of("FULL_AND_PIECEWISE", 9, True, sizes, 8) == EAGER
    assert graph_mode_of("PIECEWISE", 3, True, sizes, 0) == PIECEWISE
    assert graph_mode_of("FULL_DECODE_ONLY", 3, False, sizes, 8) == EAGER
    assert graph_mode_of("FULL", 3, False, sizes, 8) == FULL
    assert graph_mode_of("NONE", 3, True, sizes, 0) == EAGER
    assert graph_mode_of("FULL", 0, True, sizes, 8) == EAGER


def test_a_full_decode_batch_off_the_grid_has_no_full_graph():
    """vllm-project/vllm#57355: of 100 rows, 96 run in a full graph and 97 to 100 in pieces, until 0.33 captures 100.

    vllm-project/vllm-ascend#16049: with decode graphs only and 12 rows, 9 to 12 run eager where sizes end at 8.
    """
    sizes = capture_sizes("0.19.0", 100, 8192)
    top = full_graph_top("FULL_AND_PIECEWISE", sizes, 100)
    assert top == 96
    assert [runs_as("FULL_AND_PIECEWISE", rows, True, sizes, top) for rows in (95, 96, 97, 100)] == [
        (96, FULL),
        (96, FULL),
        (104, PIECEWISE),
        (104, PIECEWISE),
    ]
    newer = capture_sizes("0.33.0", 100, 8192)
    assert runs_as("FULL_AND_PIECEWISE", 97, True, newer, full_graph_top("FULL_AND_PIECEWISE", newer, 100)) == (
        100,
        FULL,
    )
    ascend = (1, 2, 4, 8)
    top = full_graph_top("FULL_DECODE_ONLY", ascend, 12)
    assert [runs_as("FULL_DECODE_ONLY", rows, True, ascend, top) for rows in (8, 9, 12)] == [
        (8, FULL),
        (9, EAGER),
        (12, EAGER),
    ]


@given(st.integers(1, 600), st.sampled_from(["0.19.0", "0.33.0", "sglang-0.5", "trtllm-1.0"]))
def test_full_graphs_end_at_the_largest_batch(seqs, version):
    """Multiples of 16 are on every grid; 0.33, SGLang and TensorRT-LLM capture the largest batch wherever it is."""
    sizes = capture_sizes(version, seqs, 1 << 20)
    top = full_graph_top("FULL_AND_PIECEWISE", sizes, seqs)
    assert top <= seqs
    if version != "0.19.0" or seqs % 16 == 0:
        assert top == min(seqs, 512)
    assert full_graph_top("FULL", sizes, seqs) == sizes[-1] and full_graph_top("PIECEWISE", sizes, seqs) == 0


@pytest.mark.parametrize(
    ("mode", "tokens", "all_decode", "found"),
    [
        ("FULL_AND_PIECEWISE", 5, True, (8, FULL)),
        ("FULL_AND_PIECEWISE", 5, False, (8, PIECEWISE)),
        ("FULL_AND_PIECEWISE", 9, True, (9, EAGER)),
        ("FULL_DECODE_ONLY", 5, True, (8, FULL)),
        ("FULL_DECODE_ONLY", 5, False, (5, EAGER)),
        ("PIECEWISE", 5, True, (8, PIECEWISE)),
        ("FULL", 5, False, (8, FULL)),
        ("NONE", 5, True, (5, EAGER)),
        ("FULL", 0, True, (0, EAGER)),
    ],
)
def test_an_eager_step_is_not_padded(mode, tokens, all_decode, found):
    assert runs_as(mode, tokens, all_decode, (1, 4, 8), full_graph_top(mode, (1, 4, 8), 9)) == found


def test_sglang_lists():
    # decode: 1 2 4 8 12, then steps of 8; the largest is appended where the grid misses it
    assert capture_sizes("sglang-0.5", 2048, 8192, top=30) == (1, 2, 4, 8, 12, 16, 24, 30)
    assert capture_sizes("sglang-0.5", 10, 8192, top=256) == (1, 2, 4, 8, 10)
    # 8 + 14 + 8 + 8 + 12 + 8 sizes up to 8,192
    assert len(prefill_sizes(8192)) == 58
    assert prefill_sizes(2048)[-1] == 2048


def test_a_prefill_pads_to_at_most_twice_its_tokens():
    sizes = (4, 8, 12)
    assert [prefill_runs_as(tokens, sizes) for tokens in (0, 1, 2, 8, 9, 13)] == [
        (0, EAGER),
        (1, EAGER),
        (4, PIECEWISE),
        (8, PIECEWISE),
        (12, PIECEWISE),
        (13, EAGER),
    ]
    assert prefill_runs_as(5, ()) == (5, EAGER)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="captured sizes must be positive.*engine.cudagraph_capture_sizes"):
        capture_sizes("0.19.0", 8, 64, sizes=[0, 4])
    with pytest.raises(ValueError, match="largest captured size must be a positive.*enforce_eager"):
        capture_sizes("0.19.0", 8, 64, max_size=0)
    with pytest.raises(ValueError, match="graph list rule must be one of"):
        capture_sizes("0.99", 8, 64)
