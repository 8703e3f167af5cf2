"""Rows of a measured-serving table, by what a test cares about."""

import csv

import pytest

from calibration.serving.table import COLUMNS, read_table


CELLS = {
    "source": "InferenceX (export)",
    "hardware": "h200",
    "num_gpus": "8.0",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "model": "meta-llama/Llama-3.1-70B",
    "precision": "",
    "tp": "8.0",
    "ep": "1.0",
    "dp": "1.0",
    "disagg": "0.0",
    "isl": "1024.0",
    "osl": "1024.0",
    "concurrency_or_qps": "64.0",
    "ttft_ms_mean": "100.0",
    "tpot_ms_mean": "10.0",
    "notes": "date=2026-03-02; spec=none",
    "dup": "0",
}


@pytest.fixture
def write(tmp_path):
    """`write({"osl": "128"}, {})` writes a table of two rows, other cells as in `CELLS`; returns its path."""

    def table(*rows: dict[str, str], columns=COLUMNS):
        path = tmp_path / "points.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, "", "ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(CELLS | row for row in rows)
        return path

    return table


@pytest.fixture
def row(write):
    """`row(osl="128")`: one row, read from a file."""
    return lambda **cells: read_table(write(cells))[0]
