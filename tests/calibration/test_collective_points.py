"""Measured collectives point by point: the traps of their tables, written as read, judged on what was left out."""

import csv
import gzip

import pytest

import calibration.collectives as collectives
from calibration.collective_points import errors_between_groups, errors_between_sizes, read, write
from calibration.collectives import CUSTOM_TABLE, NCCL_TABLE
from sim.hardware.collective_points import CollectivePoints, read_points, shipped_points


def tables(folder, nccl=(), custom=()):
    for name, header, rows in (
        (NCCL_TABLE, "sys,device,lib,op_name,nccl_dtype,num_gpus,bytes,latency_ms", nccl),
        (CUSTOM_TABLE, "sys,backend_dir,framework,kernel_source,num_gpus,message_size,latency", custom),
    ):
        with gzip.open(folder / name, "wt", newline="") as stream:
            csv.writer(stream).writerows([header.split(","), *rows])
    return folder


def test_builds_stay_apart_and_only_16_bit_sums_count(tmp_path):
    nccl = [
        ("h100_sxm", "", lib, "alltoall", dtype, 2, 1024, ms)
        for lib, dtype, ms in (
            ("nccl/2.9", "half", 1.0),
            ("nccl/2.9", "bfloat16", 3.0),
            ("nccl/2.9", "int8", 9.0),
            ("nccl/2.10", "half", 5.0),
        )
    ]
    custom = [
        ("h100_sxm", "vllm/0.24.0", "vLLM", "custom_graph", 2, 512, 7.0),
        ("h100_sxm", "vllm/0.24.0", "vLLM", "custom_eager", 2, 512, 40.0),
        ("h100_sxm", "sglang/0.5.14", "TRTLLM", "TRTLLM", 2, 512, 9.0),  # another engine's rows in its folder
    ]
    found = read(tables(tmp_path, nccl, custom))
    assert [(one.library, one.build, one.op, one.size_bytes, one.time_s) for one in found] == [
        ("nccl", "2.10", "all_to_all", (1024.0,), (5e-3,)),
        ("nccl", "2.9", "all_to_all", (1024.0,), (2e-3,)),
        ("vllm", "0.24.0", "all_reduce", (1024.0,), (7e-3,)),
    ]
    write(found, tmp_path / "out.csv", "2026-11")
    assert read_points((tmp_path / "out.csv").read_text().splitlines()) == tuple(found)


def series(group, times_s):
    sizes = tuple(float(2**power) for power in range(10, 10 + len(times_s)))
    return CollectivePoints("f", "nccl", "1", "all_gather", group, sizes, times_s)


def test_left_out_sizes_and_groups_are_judged(monkeypatch):
    monkeypatch.setattr(collectives, "STEPS", 600)
    # Linear in bytes, a protocol's own form: what is left out is met. A third group at twice the middle of the others
    # is missed by half.
    smooth = series(2, tuple(1e-5 + 2**power * 1e-10 for power in range(10, 21)))
    rough = series(2, tuple(time * (1.5 if index % 2 else 1.0) for index, time in enumerate(smooth.time_s)))
    errors = errors_between_sizes([smooth, rough])
    assert errors[0] < 0.01 and errors[1] == pytest.approx(1 / 3, abs=0.03)
    groups = [series(2, (1e-5, 2e-5)), series(4, (4e-5, 8e-5)), series(8, (4e-5, 8e-5))]
    assert errors_between_groups(groups) == {groups[1]: pytest.approx(0.5)}


def test_shipped_points_are_the_measured_ones(shared):
    wanted = read(shared / "data/hardware/collectives")
    shipped = [one for several in shipped_points().values() for one in several]
    assert sorted(wanted) == sorted(shipped)
