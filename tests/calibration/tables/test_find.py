"""Which reader reads a path, and what is said where none does."""

import gzip

import pytest

from calibration.tables import quarantined, tables_for


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
