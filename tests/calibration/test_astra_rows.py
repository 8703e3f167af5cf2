"""Rows of collectives that cannot be runs: one sentence with the row and the column."""

import pytest

from calibration.astra_sim import COLUMNS, read_graphs, read_runs


GOOD = dict(
    zip(
        COLUMNS,
        ("unaware", "Ring", "8", "all_reduce", "4096", "400", "936.25", "ring", "4", "1", "10", "1600", "53016"),
        strict=True,
    )
)


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("cycles_ns", "0", "row 2: cycles_ns wants a whole number of at least 1, got '0'"),
        ("bandwidth_GBps", "0", "row 2: bandwidth_GBps wants a number of at least"),
        ("bytes", "-5", "row 2: bytes wants a whole number of at least 1, got '-5'"),
        ("bytes", "nan", "row 2: bytes wants a whole number"),
        ("latency_ns", "-500", "row 2: latency_ns wants a number of at least 0, got '-500'"),
        ("latency_ns", "inf", "row 2: latency_ns wants a number"),
        ("npus", "8x4", "want as many parts, joined by x"),
        ("backend", "packet", "row 2: backend wants unaware or aware, got 'packet'"),
    ],
)
def test_a_row_that_is_no_run_is_refused(tmp_path, column, cell, message):
    path = tmp_path / "runs.csv"
    path.write_text(",".join(COLUMNS) + "\n" + ",".join((GOOD | {column: cell}).values()) + "\n")
    with pytest.raises(ValueError, match=message):
        read_runs(path)
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(GOOD.values()) + "\n")
    assert len(read_runs(path)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "broken JSON"), ("[]", "has no graphs"), ('{"graphs": [{}]}', "wanted a list of graphs, each with name")],
)
def test_a_file_without_graphs_is_refused(tmp_path, text, message):
    path = tmp_path / "graphs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_graphs(path)
