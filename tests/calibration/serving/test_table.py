"""The table is read as it stands, and what cannot be is said with its line."""

import pytest

from calibration.serving.table import COLUMNS, Workers, read_table


def test_a_row_is_read(row):
    found = row(throughput_tok_s_per_gpu_output="77.5")
    assert (found.line, found.num_gpus, found.isl, found.concurrency) == (2, 8, 1024, 64.0)
    assert (found.statistic, found.measured_ms("ttft"), found.measured_ms("tpot")) == ("mean", 100.0, 10.0)
    assert (found.output_per_gpu, found.total_per_gpu) == (77.5, None)
    assert (found.date, found.period, found.bench) == ("2026-03-02", "development", "inferencex")


@pytest.mark.parametrize(
    ("notes", "workers"),
    [
        (
            "date=2026-03-02; P: 2x(tp4,dp1,moe_tp1,ep4); D: 1x(tp8,dp8,moe_tp1,ep8)",
            (Workers(2, 4, 1, 4), Workers(1, 8, 8, 8)),
        ),
        ("P: 1x(tp4); D: 3x(tp2)", (Workers(1, 4, 1, 1), Workers(3, 2, 1, 1))),
        ("P: 1x(tp4,dp0,ep1); D: 1x(tp4)", (Workers(1, 4, 1, 1), Workers(1, 4, 1, 1))),
        (
            "dp_attn(prefill/decode)=False/True; P: 2x(tp4,ep1) 8gpu; D: 1x(tp32,ep32) 32gpu",
            (Workers(2, 4, 1, 1), Workers(1, 1, 32, 32)),
        ),
        ("dp_attn(prefill/decode)=True/True; P: 1x(tp1,ep1) 4gpu; D: 1x(tp8,ep8) 8gpu", None),
        ("dp_attn(prefill/decode)=True/True; P: 1x(tp4,ep4); D: 1x(tp8,ep8)", None),
        ("P: 1x(tp4)", None),
        ("P: 1x(tp4); D: Nonex(tp4)", None),
        ("P: 1x(dp4); D: 1x(tp4)", None),
        ("", None),
    ],
)
def test_instances_of_a_disaggregated_deployment(row, notes, workers):
    assert row(notes=notes).workers == workers


def test_the_median_stands_in_for_a_mean_that_is_missing(row):
    found = row(ttft_ms_mean="", ttft_ms_p50="90", tpot_ms_p50="9")
    assert (found.statistic, found.measured_ms("ttft"), found.measured_ms("tpot")) == ("p50", 90.0, 9.0)
    assert row(ttft_ms_mean="").statistic is None
    both = {"ttft_ms_p50": "90", "tpot_ms_p50": "9"}
    assert (row(**both).statistic, row(disagg="1", **both).statistic) == ("mean", "p50")


@pytest.mark.parametrize(
    ("notes", "date", "period"),
    [
        ("measured=2026-04-01T00:00:00Z; id=x", "2026-04-01", "held out"),
        ("date=20260331; y", "2026-03-31", "development"),
        ("updated=2026-05-01", None, "development"),
    ],
)
def test_dates_and_periods(row, notes, date, period):
    found = row(notes=notes)
    assert (found.date, found.period) == (date, period)


def test_who_measured_it(row):
    assert row(source="core", notes="NVIDIA-internal measurement; id=a").bench == "vendor"
    assert row(source="core", notes="NVIDIA-internal measurement; id=kimi_gap_analysis_b200").bench == "inferencex"
    assert row(source="S/InferenceX experimental/token").bench == "token-position"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"osl": "12.5"}, "line 2: osl must be a whole number, got '12.5'"),
        ({"tpot_ms_mean": "-3"}, "line 2: tpot_ms_mean must be a number from 0 to 1e.09 or empty, got '-3'"),
        ({"ttft_ms_mean": "0"}, "line 2: ttft_ms_mean must be above 0 ms, got '0'"),
        ({"dup": "yes"}, "line 2: dup must be a number"),
        ({"num_gpus": "nan"}, "line 2: num_gpus must be a number"),
    ],
)
def test_a_cell_that_cannot_be(write, cells, said):
    with pytest.raises(ValueError, match=said):
        read_table(write(cells))


def test_a_comma_too_many(write):
    path = write({"notes": "a;b"})
    path.write_text(path.read_text().replace("a;b", "a,b"))
    with pytest.raises(ValueError, match="line 2: wanted 24 cells as in the header"):
        read_table(path)


def test_other_tables_are_refused(write, tmp_path):
    with pytest.raises(ValueError, match="has the column tp, got"):
        read_table(write({}, columns=[column for column in COLUMNS if column != "tp"]))
    with pytest.raises(ValueError, match="an unknown column 'power'"):
        read_table(write({}, columns=[*COLUMNS, "power"]))
    with pytest.raises(ValueError, match="at least one row"):
        read_table(write())
    with pytest.raises(ValueError, match="there is no such file"):
        read_table(tmp_path / "none.csv")
