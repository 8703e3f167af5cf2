"""What graphs cost and which sizes are missing, on step tables written by hand."""

import dataclasses

import numpy as np
import pytest

from sim.report.graphs import graph_fields, sizes_to_add
from sim.report.summary import summary


EAGER, PIECEWISE, FULL = 0, 1, 2


def with_steps(run, rows, sizes):
    """The run with these steps only: (prefill tokens, decodes, padded tokens, graph mode), each of 1 ms."""
    table = np.array(rows, np.int64)
    names = [field.name for field in dataclasses.fields(run.steps)]
    columns = {name: np.zeros(len(rows), np.int64) for name in names}
    columns |= dict(zip(("prefill_tokens", "decodes", "padded_tokens", "graph_mode"), table.T, strict=True))
    columns["start_ns"] = np.arange(len(rows)) * 1_000_000
    columns["end_ns"] = columns["start_ns"] + 1_000_000
    steps = dataclasses.replace(run.steps, **columns)
    settings = run.settings | {"graph_mode": "FULL_AND_PIECEWISE", "graph_sizes": sizes, "max_num_seqs": 64}
    return dataclasses.replace(run, steps=steps, settings=settings)


def test_shares_by_hand(toy):
    """Four steps: a prefill of 5 on 3 decodes padded 8 -> 8, decodes 9 -> 16 and 3 -> 4, and 20 that no size holds."""
    rows = [(5, 3, 8, PIECEWISE), (0, 9, 16, FULL), (0, 3, 4, FULL), (0, 20, 20, EAGER)]
    found = graph_fields(with_steps(toy(requests=4), rows, (1, 2, 4, 8, 16)))
    assert found["steps"] == {"eager": 1, "piecewise": 1, "full": 2}
    assert found["time_share"] == {"eager": 0.25, "piecewise": 0.25, "full": 0.5}
    assert found["padded_tokens"] == 7 + 1  # 16 - 9 and 4 - 3
    assert found["padding_share"] == pytest.approx(8 / (8 + 9 + 3))
    assert found["decode_padding_share"] == pytest.approx(8 / 12)
    assert found["eager_decode_share"] == pytest.approx(1 / 3) and found["eager_decode_tokens"] == [20, 20]
    assert found["sizes_to_add"] == [3, 9, 20]  # what ran eager first, then 7 tokens saved, then 1


@pytest.mark.parametrize(
    ("batches", "sizes", "wanted"),
    [
        ([9] * 100 + [16] * 5, (1, 2, 4, 8, 16), [9]),  # 700 tokens saved of 980; nothing else is padded
        ([5] * 10 + [7] * 10, (8,), [5, 7]),  # 5 saves 3 x 10; of what is left, 7 saves 1 x 10; then nothing
        ([8] * 10, (8,), []),
        ([3] + [8] * 100, (8,), []),  # 5 of 803 tokens are below a hundredth
        ([9, 12], (8,), [9, 12]),  # no graph holds 9 to 12: first 12, for all; then 9 saves 3
        ([3], (), []),  # without graphs there is nothing to add to
    ],
)
def test_the_sizes_that_save_most(toy, batches, sizes, wanted):
    last = max(sizes, default=0)
    rows = [(0, n, min(s for s in sizes if s >= n), FULL) if n <= last else (0, n, n, EAGER) for n in batches]
    assert sizes_to_add(with_steps(toy(requests=4), rows, sizes)) == wanted


def test_capturing_what_is_named_leaves_no_padding(toy):
    """With the named sizes captured too, the same batches are padded less by exactly what was promised."""
    batches, sizes = [9] * 50 + [12] * 20 + [30] * 10, (8, 16, 32)

    def rows(captured):
        return [(0, n, min(s for s in captured if s >= n), FULL) for n in batches]

    before = with_steps(toy(requests=4), rows(sizes), sizes)
    more = tuple(sorted({*sizes, *sizes_to_add(before)}))
    after = graph_fields(with_steps(toy(requests=4), rows(more), more))
    assert more == (8, 9, 12, 16, 30, 32) and after["padded_tokens"] == 0 and after["sizes_to_add"] == []


def test_a_summary_has_it_and_a_run_without_steps_has_none(toy):
    run = toy(requests=4)
    assert summary(run)["cuda_graphs"] == graph_fields(run)
    assert graph_fields(dataclasses.replace(run, settings={})) is None
