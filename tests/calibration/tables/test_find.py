"""Which reader reads a path, and what is said where none does."""

import gzip
import re
from pathlib import Path

import pytest

from calibration.tables import quarantined, tables_for
from calibration.tables.find import PACKAGE


def test_names_are_refused_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match="the device 'h100' is unknown; the nearest known is 'h100-"):
        tables_for("h100", "gemm", [tmp_path])
    with pytest.raises(ValueError, match="the family 'gem' is unknown; the nearest known is 'gemm'"):
        tables_for("h100-sxm", "gem", [tmp_path])


def test_paths_are_refused(tmp_path):
    with pytest.raises(ValueError, match="must name existing folders or files, got .*nowhere"):
        tables_for("h100-sxm", "gemm", [tmp_path / "nowhere"])
    with pytest.raises(ValueError, match=r"holds tables of no known format \(aiconfigurator, llmservingsim, frontier"):
        tables_for("h100-sxm", "gemm", [tmp_path])


def test_folders_below_with_tables_are_named(tmp_path):
    rows = "device,dtype,m,n,k,time_us\nh100-sxm,bf16,16,64,64,1.0\n"
    for name in ("h100/run-1", "h100/run-2", "h100/logs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("run-1", "run-2"):
        (tmp_path / "h100" / name / "gemm.csv").write_text(rows)
    one, two = tmp_path / "h100/run-1", tmp_path / "h100/run-2"
    wanted = re.escape(f"itself holds no tables, but folders below it do: give sources={one},{two}.")
    for folder in (tmp_path / "h100", tmp_path):
        with pytest.raises(ValueError, match=wanted):
            tables_for("h100-sxm", "gemm", [folder])
    assert [len(table) for table in tables_for("h100-sxm", "gemm", [one, two])] == [1, 1]


def test_a_folder_that_is_called_as_the_package_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "gemm.csv").write_text("device,dtype,m,n,k,time_us\nh100-sxm,bf16,16,64,64,1.0\n")
    (found,) = tables_for("h100-sxm", "gemm", [Path(f"./{PACKAGE}")])
    assert len(found) == 1


def test_collective_tables_as_csv(tmp_path):
    with gzip.open(tmp_path / "nccl_perf_normalised_bytes.csv.gz", "wt") as stream:
        stream.write("sys,device,lib,op_name,nccl_dtype,num_gpus,bytes,latency_ms\n")
        stream.write("h100_sxm,X,nccl/2.27.3,alltoall,half,8,512,0.01\nb60,X,nccl/2.27.3,alltoall,half,8,512,0.01\n")
    with gzip.open(tmp_path / "custom_allreduce_perf.csv.gz", "wt") as stream:
        stream.write("sys,backend_dir,framework,version,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,")
        stream.write("latency\nh100_sxm,vllm/0.24.0,vLLM,0.24.0,all_reduce,vLLM_custom_graph,bfloat16,4,512,0.02\n")
    own, nccl = tables_for("h100-sxm", "collective", [tmp_path])
    assert nccl["bytes"].tolist() == [512] and nccl["op"].tolist() == ["all_to_all"]
    assert nccl.seconds.tolist() == pytest.approx([1e-5]) and nccl["engine_version"].tolist() == ["2.27.3"]
    assert own["bytes"].tolist() == [1024] and own["engine"].tolist() == ["vllm"]


def test_the_real_collectives(shared):
    (kept, exchange), quarantine = quarantined(tables_for("h200-sxm", None, [shared / "data/hardware/collectives"]))
    assert (kept.family, exchange.family) == ("collective", "exchange")
    assert len(kept) == 2501 and len(exchange) == 7272
    assert [one.reason for one in quarantine.aside] == ["rows of one shape are up to 4.22 times apart"]
