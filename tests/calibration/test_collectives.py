"""The collective fit: recovers known constants, reads the traps of the tables rightly, writes what is read back."""

import csv
import gzip

import numpy as np
import pytest

import calibration.collectives as collectives
from calibration.collectives import CUSTOM_TABLE, NCCL_TABLE, every_second, fit, read_series, summary, write
from sim.hardware.collective_table import ANY_GROUP, SHARPNESS, read_rows, shipped_rows


A_S, HOP_S, BYTES_PER_S = (6e-6, 12e-6, 60e-6), (1e-6, 0.8e-6, 0.2e-6), (3e9, 120e9, 340e9)
SIZES = [2**power for power in range(9, 30, 2)]


def known_s(size_bytes, group):
    traffic, steps = size_bytes * (group - 1) / group, group - 1
    times = [a + steps * hop + traffic / b for a, hop, b in zip(A_S, HOP_S, BYTES_PER_S, strict=True)]
    return sum(t**-SHARPNESS for t in times) ** (-1 / SHARPNESS)


def tables(folder, nccl, custom=()):
    for name, header, rows in (
        (NCCL_TABLE, "sys,device,lib,op_name,nccl_dtype,num_gpus,bytes,latency_ms", nccl),
        (CUSTOM_TABLE, "sys,backend_dir,framework,kernel_source,num_gpus,message_size,latency", custom),
    ):
        with gzip.open(folder / name, "wt", newline="") as stream:
            csv.writer(stream).writerows([header.split(","), *rows])
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    rows = [
        ("h100_sxm", "", "nccl/9", "alltoall", "half", group, size, 1e3 * known_s(size, group))
        for group in (2, 4, 8)
        for size in SIZES
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "STEPS", 1000)
        return fit(tables(tmp_path_factory.mktemp("tables"), rows))


def test_fit_recovers_a_known_device(fitted):
    assert [(r.family, r.library, r.op, r.group) for r in fitted] == [
        ("h100_sxm", "nccl", "all_to_all", group) for group in (2, 4, 8, ANY_GROUP)
    ]
    for row in fitted:
        assert row.fit_error < 0.01
        assert row.held_out_error < 0.02
    # Of three protocols, the ends are pinned down: the latency of a small message, the rate of a large one.
    pooled = fitted[-1]
    assert pooled.a_s[0] + 7 * pooled.hop_s[0] == pytest.approx(A_S[0] + 7 * HOP_S[0], rel=0.03)
    assert pooled.bytes_per_s[2] == pytest.approx(BYTES_PER_S[2], rel=0.03)


def test_table_survives_writing(fitted, tmp_path):
    write(fitted, tmp_path / "out.csv", "2026-11")
    text = (tmp_path / "out.csv").read_text()
    assert read_rows(text.splitlines()) == tuple(fitted)
    assert "2026-11" in text.splitlines()[0]


def test_summary_has_a_line_per_kind(fitted):
    lines = summary(fitted).splitlines()
    assert len(lines) == 4 and lines[3].split()[1] == "other"


def test_every_second_inner_size_is_left_out():
    assert every_second(6).tolist() == [1, 0, 1, 0, 1, 1]


def test_custom_sizes_are_elements_and_eager_rows_are_not_kernels(tmp_path):
    def row(build, source, size, ms, system="h100_sxm", framework="vLLM"):
        return (system, build, framework, source, 2, size, ms)

    custom = [
        row("vllm/0.9.0", "vLLM_custom_graph", 1024, 9.0),
        row("vllm/0.24.0", "vLLM_custom_graph", 1024, 5.0),
        row("vllm/0.24.0", "vLLM_custom_eager", 1024, 40.0),
        row("sglang/0.5.14", "TRTLLM", 1024, 7.0, framework="TRTLLM"),
        row("trtllm/1.0.0", "TRTLLM", 1024, 6.0, framework="TRTLLM"),
        row("vllm/0.24.0", "vLLM_custom_graph", 1024, 1.0, system="b60"),
    ]
    series = read_series(tables(tmp_path, [], custom))
    assert [(s.library, s.size_bytes.tolist(), s.time_s.tolist()) for s in series] == [
        ("trtllm", [2048.0], [6e-3]),
        ("vllm", [2048.0], [5e-3]),
    ]


def test_the_unsound_host_is_left_out(tmp_path):
    rows = [("l40s", "", "nccl/9", "all_reduce", "half", group, 1024, 1.0) for group in (2, 4, 8)]
    assert [s.group for s in read_series(tables(tmp_path, rows))] == [2]


def test_dtypes_and_builds_are_pooled_by_their_median(tmp_path):
    rows = [
        ("h100_sxm", "", lib, "all_reduce", dtype, 2, 1024, ms)
        for lib, dtype, ms in (("nccl/1", "half", 1.0), ("nccl/1", "int8", 3.0), ("nccl/2", "half", 2.0))
    ]
    (series,) = read_series(tables(tmp_path, rows))
    assert series.time_s.tolist() == [2e-3]
    assert series.source.endswith("nccl/1, nccl/2")


def test_missing_tables_are_named(tmp_path):
    with pytest.raises(ValueError, match=f"must hold {NCCL_TABLE}"):
        fit(tmp_path)


def test_shipped_table_covers_the_real_one(shared):
    series = read_series(shared / "data/hardware/collectives")
    wanted = {(s.family, s.library, s.op, s.group) for s in series}
    shipped = {(r.family, r.library, r.op, r.group): r for r in shipped_rows() if r.group != ANY_GROUP}
    assert wanted == set(shipped)
    for one in series[::7]:
        row = shipped[one.family, one.library, one.op, one.group]
        problem = collectives.problem([one], pooled=False)
        constants = np.array([row.a_s, row.hop_s, row.bytes_per_s])
        assert collectives.mean_error(constants, problem, problem.weight) == pytest.approx(row.fit_error, abs=2e-4)
