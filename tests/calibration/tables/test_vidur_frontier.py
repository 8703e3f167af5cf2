"""Profiles in the columns of Vidur: a column per layer, chunks and decodes, and what Frontier adds."""

import json

import pytest

from calibration.tables import quarantined, tables_for


MODEL = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"
ATTENTION = "n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,attention_backend"
SHAPES = "batch_size,prefill_chunk_size,kv_cache_size,is_prefill"
TIMES = "time_stats.attn_prefill.median,time_stats.attn_decode.median"


def write(root, name, *lines):
    path = root / "data/profiling" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def mlp(root, device="a100"):
    head = f"time_stats.attn_pre_proj.median,time_stats.attn_pre_proj.std,time_stats.emb.median,{MODEL}"
    rows = ("0.012,0.1,0.004,16,4,1024,2816,32000,True,8,1", "0.008,0.1,,16,4,1024,2816,32000,True,8,2")
    write(root, f"compute/{device}/owner/model/mlp.csv", head, *rows)


def test_layers(tmp_path):
    mlp(tmp_path)
    (gemm,) = tables_for("a100-sxm-80gb", "gemm", [tmp_path])
    assert gemm["op"].tolist() == ["qkv_proj", "qkv_proj"]
    assert gemm["n"].tolist() == [1024 + 2 * 256, 512 + 2 * 128] and gemm["k"].tolist() == [1024, 1024]
    assert gemm.seconds.tolist() == pytest.approx([12e-6, 8e-6])
    assert set(gemm["dtype"].tolist()) == {"fp16"} and set(gemm["model"].tolist()) == {"owner/model"}
    (other,) = tables_for("a100-sxm-80gb", "elementwise", [tmp_path])
    assert other["bytes_per_token"].tolist() == [2 * 1024 * 2]  # the other rank's cell is empty


def test_sends_between_nodes_and_copied_files(tmp_path):
    head = "time_stats.send_recv.median,rank,num_workers,size,collective,devices_per_node,max_devices_per_node"
    rows = ("0.012,0,2,2048,send_recv,1,8", "0.01,0,2,2048,send_recv,2,8")
    for node in ("a100_pairwise_nvlink", "h100_pairwise_nvlink"):
        write(tmp_path, f"network/{node}/send_recv.csv", head, *rows)
    (found,) = tables_for("a100-pcie-80gb", "collective", [tmp_path])
    assert found["bytes"].tolist() == [2048, 2048] and found["nodes"].tolist() == [2, 1]
    assert set(found["op"].tolist()) == {"send"}
    kept, quarantine = quarantined(tables_for("h100-pcie", "collective", [tmp_path]))
    assert not kept and "the file repeats another device's (Vidur (copy of a100_pairwise_nvlink) nccl)" in str(
        quarantine
    )


def test_hardware_that_nobody_knows(tmp_path):
    mlp(tmp_path, device="a101")
    with pytest.raises(ValueError, match="the hardware 'a101' is unknown; the nearest known is 'a100'"):
        tables_for("a100-sxm-80gb", "gemm", [tmp_path])


def frontier(root, **files):
    write(root, "compute/a800/small/linear_op.csv", MODEL + ",model_arch", "16,4,1024,2816,32000,True,8,1,generic")
    config = root / "data/config/models/small.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"head_dim": 128}))
    for name, lines in files.items():
        write(root, f"compute/a800/small/{name}.csv", *lines)
    return root


def test_head_width_and_timing_of_frontier(tmp_path):
    head = f"time_stats.attn_pre_proj.median,{MODEL},measurement_type,model_arch,quant_signature,profiling_precision"
    row = "0.03,16,4,1024,2816,32000,True,8,1,KERNEL_ONLY,generic,method=fp8|act=none,BF16"
    gemm = tables_for("a800", "gemm", [frontier(tmp_path, linear_op_kernel_only=(head, row))])[-1]
    assert gemm["n"].tolist() == [16 * 128 + 2 * 4 * 128]
    assert gemm["timing"].tolist() == ["kernel"] and gemm["dtype"].tolist() == ["fp8"]


def test_other_architectures_have_no_known_slices(tmp_path):
    head = f"time_stats.attn_pre_proj.median,time_stats.attn_wq_proj.median,{MODEL},model_arch"
    linear = frontier(tmp_path, linear_op_x=(head, "0.03,0.1,16,4,1024,2816,32000,True,8,1,generic"))
    assert [len(found) for found in tables_for("a800", "gemm", [linear])] == [0, 0]


def test_batches_of_frontier(tmp_path):
    extra = "is_mixed_batch,is_true_mixed_batch,seq_lens,prefill_seq_lens,prefill_kv_cache_sizes,decode_kv_cache_sizes"
    head = f"{TIMES},{ATTENTION},{SHAPES},{extra},measurement_type"
    same = "1024,16,4,2,AttentionBackend.FLASHINFER"
    rows = (
        f"0.01,0.07,{same},1,4,6,True,False,,[4],,,,CUDA_EVENT",
        f"0.01,0.07,{same},3,0,7,False,False,,[1],,,,CUDA_EVENT",
        f'0.02,0.07,{same},2,0,2,True,True,,"[3, 5]",,,,CUDA_EVENT',
        f'0.02,0.07,{same},3,0,0,True,False,True,,[4],[6],"[7, 9]",CUDA_EVENT',
    )
    (found,) = tables_for("a800", "attention", [frontier(tmp_path, attention=(head, *rows))])
    assert found["op"].tolist() == ["prefill", "decode", "prefill", "mixed"]
    assert found.seconds.tolist() == pytest.approx([1e-5, 7e-5, 2e-5, 9e-5])
    # 4 on 6; three decodes after 7; 3 and 5 on 2 each; 4 on 6 beside decodes after 7 and 9
    assert found["prefill_area"].tolist() == [24 + 10, 0, 6 + 6 + 10 + 15, 34]
    assert found["prefill_max_tokens"].tolist() == [10, 0, 7, 10]
    assert found["decode_sum"].tolist() == [0, 24, 0, 18] and found["decode_max"].tolist() == [0, 8, 0, 10]
    assert found["q_heads"].tolist() == [8] * 4 and found["kv_heads"].tolist() == [2] * 4
    assert found["qk_dim"].tolist() == [128] * 4 and set(found["kernel"].tolist()) == {"flashinfer"}
    assert set(found["timing"].tolist()) == {"launch"}


def test_experts_of_frontier_count_the_rows_of_a_rank(tmp_path):
    shape = (
        "num_tokens,num_experts,num_experts_per_device,expert_parallel_size,router_topk,hidden_dim,expert_hidden_dim"
    )
    load = "use_gated,num_tensor_parallel_workers,total_routed_tokens,expert_utilization,max_load_ratio"
    head = f"time_stats.moe_grouped_gemm.median,{shape},{load},routing_assignment_policy,measurement_type"
    rows = ("0.2,200,128,16,8,8,2048,768,True,2,1600,0.5,1.5,logit_topk,CUDA_EVENT",)
    (found,) = tables_for("a800", "moe", [frontier(tmp_path, moe=(head, *rows))])
    # 1600 rows on one of eight ranks are those of 1600 x 8 / 8 tokens; half of its 16 experts have some
    assert found["tokens"].tolist() == [1600] and found["active"].tolist() == [8]
    assert found["max_load"].tolist() == [1.5] and found["ep"].tolist() == [8] and found["tp"].tolist() == [2]


def test_the_real_profiles(shared):
    (gemm,), quarantine = quarantined(tables_for("a100-sxm-80gb", "gemm", [shared / "data/vidur"]))
    assert len(gemm) == 36_188 and len(quarantine) == 0
    (a800,), _ = quarantined(tables_for("a800", "moe", [shared / "data/frontier"]))
    assert len(a800) > 7000
    # 293 TB/s of keys in one public table: its like is found here too
    (kept,), quarantine = quarantined(tables_for("h800", "attention", [shared / "data/frontier"]))
    assert len(quarantine) > 3000 and "the memory or the link of NVIDIA H800" in str(quarantine)
