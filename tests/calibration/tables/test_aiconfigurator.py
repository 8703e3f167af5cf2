"""Tables of the package: by hand from small parquet files, and the real ones where the package is installed."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibration.tables import aiconfigurator, all_parts, quarantined, tables_for


def stored(root, system, family, engine, version, name, /, **columns):
    folder = root / "aiconfigurator_core/systems/data" / system / family / engine / version
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def only(root, device, family, **more):
    (found,) = tables_for(device, family, [root], **more)
    return found


def attention_columns(**more):
    shape = {
        "kernel_source": ["fa3", "fa3"],
        "num_heads": [32, 16],
        "num_key_value_heads": [8, 2],
        "head_dim": [128, 64],
        "attn_dtype": ["bfloat16", "bfloat16"],
        "kv_cache_dtype": ["bfloat16", "fp8"],
        "window_size": [0, 128],
        "latency": [0.5, 0.25],
    }
    return shape | more


def test_a_product(tmp_path):
    shape = {"m": [1, 2], "n": [3, 4], "k": [5, 6], "gemm_dtype": ["bfloat16", "fp8_block"]}
    kernels = {"kernel_source": ["a", "b"], "latency": [0.002, 0.06]}
    stored(tmp_path, "h100_sxm", "gemm", "vllm", "0.24.0", "gemm_perf", **shape, **kernels)
    (tmp_path / "aiconfigurator_core-0.12.0.dist-info").mkdir()
    found = only(tmp_path, "h100-sxm", "gemm", engine="vllm")
    assert found.seconds.tolist() == pytest.approx([2e-6, 6e-5])
    assert (found["m"].tolist(), found["n"].tolist(), found["k"].tolist()) == ([1, 2], [3, 4], [5, 6])
    assert found["dtype"].tolist() == ["bf16", "fp8_block"]
    assert found["timing"].tolist() == ["kernel", "launch"]  # 60 us at best: the host was timed
    assert set(found["source"].tolist()) == {"aiconfigurator-core 0.12.0"}
    assert set(found["engine_version"].tolist()) == {"0.24.0"}
    assert not tables_for("h100-sxm", "gemm", [tmp_path], engine="sglang")


def test_prompts(tmp_path):
    batch = {"op_name": ["context_attention"] * 2, "batch_size": [2, 1], "isl": [3, 16], "step": [0, 4]}
    stored(tmp_path, "l40s", "attention", "vllm", "1", "context_attention_perf", **attention_columns(**batch))
    found = only(tmp_path, "l40s", "attention")
    assert found["op"].tolist() == ["prefill", "prefill"]
    assert found["prefill_area"].tolist() == [2 * 6, 16 * 4 + 136]
    assert found["prefill_kv_tokens"].tolist() == [6, 20]
    assert found["kv_bytes_per_element"].tolist() == [2, 1]
    assert found["window"].tolist() == [np.inf, 128]


def test_a_decode_context_counts_the_computed_token(tmp_path):
    batch = {"op_name": ["generation_attention"] * 2, "batch_size": [2, 4], "isl": [1, 1], "step": [127, 1]}
    stored(tmp_path, "gb200", "attention", "trtllm", "1", "generation_attention_perf", **attention_columns(**batch))
    found = only(tmp_path, "gb200", "attention")
    assert found["decode_max"].tolist() == [128, 2]
    assert found["decode_sum"].tolist() == [256, 8] and found["decode_sumsq"].tolist() == [2 * 128**2, 16]
    assert found["prefill_tokens"].tolist() == [0, 0]


def mla_columns(op, steps, **more):
    return {
        "op_name": [op] * 2,
        "kernel_source": ["x", "x"],
        "num_heads": [16, 128],
        "batch_size": [2, 2],
        "mla_dtype": ["bfloat16", "bfloat16"],
        "kv_cache_dtype": ["fp8", "bfloat16"],
        "step": steps,
        "latency": [1.0, 2.0],
    } | more


def test_latent_attention_alone_and_as_a_module(tmp_path):
    alone = mla_columns("mla_generation", [127, 1], isl=[1, 1])
    module = mla_columns("mla_generation_module", [128, 2], isl=[1, 1], gemm_type=["fp8_block"] * 2, model=["D"] * 2)
    prompt = mla_columns("mla_context", [0, 0], isl=[4, 1])
    stored(tmp_path, "b200_sxm", "mla", "vllm", "1", "generation_mla_perf", **alone)
    stored(tmp_path, "b300_sxm", "mla", "vllm", "1", "mla_generation_module_perf", **module)
    stored(tmp_path, "h200_sxm", "mla", "vllm", "1", "context_mla_perf", **prompt)
    decode, whole = only(tmp_path, "b200-sxm", "attention"), only(tmp_path, "b300-sxm", "attention")
    assert decode["decode_max"].tolist() == whole["decode_max"].tolist() == [128, 2]
    assert decode["kv_heads"].tolist() == [1, 1] and decode["q_heads"].tolist() == [16, 128]
    assert set(decode["qk_dim"].tolist()) == {576} and set(decode["v_dim"].tolist()) == {512}
    assert set(decode["op"].tolist()) == {"mla_decode"} and set(whole["op"].tolist()) == {"mla_decode_module"}
    assert whole["dtype"].tolist() == ["fp8_block"] * 2 and whole["model"].tolist() == ["D"] * 2
    prefill = only(tmp_path, "h200-sxm", "attention")
    assert prefill["prefill_area"].tolist() == [20, 2] and prefill["kv_heads"].tolist() == [16, 128]
    assert prefill["qk_dim"].tolist() == [192, 192] and set(prefill["op"].tolist()) == {"mla_prefill"}


def expert_columns(shapes, **more):
    hidden, inter, experts, top_k = zip(*shapes, strict=True)
    rows = len(shapes)
    return {
        "op_name": ["moe"] * rows,
        "kernel_source": ["k"] * rows,
        "moe_dtype": ["fp8"] * rows,
        "num_tokens": [64] * rows,
        "hidden_size": hidden,
        "inter_size": inter,
        "num_experts": experts,
        "topk": top_k,
        "moe_tp_size": [2] * rows,
        "moe_ep_size": [4] * rows,
        "distribution": ["balanced"] * rows,
        "latency": [1.0] * rows,
    } | more


NEMOTRON, DEEPSEEK, OTHER = (2688, 1856, 128, 6), (7168, 2048, 256, 8), (2048, 768, 128, 8)


@pytest.mark.parametrize(
    ("engine", "version", "kernel", "matrices"),
    [
        ("vllm", "0.24.0", "any", 2),
        ("vllm", "0.14.0", "any", 3),
        ("sglang", "0.5.10", "sglang_fused_moe_triton", 3),
        ("trtllm", "1.3.0rc20", "moe_torch_flow_nongated", 2),
        ("trtllm", "1.3.0rc20", "moe_torch_flow", 3),
    ],
)
def test_experts_without_a_gate(tmp_path, engine, version, kernel, matrices):
    columns = expert_columns([NEMOTRON, OTHER], kernel_source=[kernel, "k"])
    stored(tmp_path, "h100_sxm", "moe", engine, version, "moe_perf", **columns)
    assert only(tmp_path, "h100-sxm", "moe")["matrices"].tolist() == [matrices, 3]


def test_routing_laws_and_layouts(tmp_path):
    laws = ["balanced", "uniform", "power_law_1.2", "power_law_1.01_eplb"]
    ops = ["moe_context", "moe_generation", "wideep_moe", "wideep_moe_eplb"]
    columns = expert_columns([OTHER] * 4, distribution=laws, op_name=ops)
    stored(tmp_path, "h100_sxm", "moe", "vllm", "1", "wideep_moe_perf", num_slots=[1, 1, 1, 2], **columns)
    found = only(tmp_path, "h100-sxm", "moe")
    assert found["skew"].tolist() == [0, 0, 1.2, 1.01]
    assert found["op"].tolist() == ["experts", "experts", "experts", "experts_eplb"]
    assert found["kernel"].tolist() == [
        "k, context, 1 slots",
        "k, generation, 1 slots",
        "k, 1 slots",
        "k, 2 slots",
    ]
    assert np.isnan(found["active"]).all() and found["tp"].tolist() == [2] * 4 and found["ep"].tolist() == [4] * 4


def test_experts_chosen_by_group_are_told_apart(tmp_path):
    columns = expert_columns([DEEPSEEK, OTHER])
    stored(tmp_path, "h100_sxm", "moe", "vllm", "0.24.0", "moe_perf", **columns)
    stored(tmp_path, "h200_sxm", "moe", "vllm", "0.19.0", "moe_perf", **columns)
    assert only(tmp_path, "h100-sxm", "moe")["op"].tolist() == ["experts_group_limited", "experts"]
    assert only(tmp_path, "h200-sxm", "moe")["op"].tolist() == ["experts", "experts"]


def test_messages_are_counted_in_elements(tmp_path):
    nccl = {"nccl_dtype": ["half", "int8"], "num_gpus": [2, 8], "message_size": [256, 256]}
    nccl |= {"kernel_source": ["NCCL"] * 2, "op_name": ["alltoall", "all_reduce"], "latency": [0.01, 0.02]}
    stored(tmp_path, "h100_sxm", "comm", "nccl", "2.29.2", "nccl_perf", **nccl)
    own = {"framework": ["vLLM", "TRTLLM"], "version": ["0.14.0", "1.2"], "allreduce_dtype": ["bfloat16"] * 2}
    own |= {"num_gpus": [4, 4], "message_size": [128, 128], "op_name": ["all_reduce"] * 2, "latency": [0.01, 0.03]}
    kernels = {"kernel_source": ["vLLM_custom_graph", "TRTLLM_eager"]}
    stored(tmp_path, "h100_sxm", "comm", "vllm", "0.14.0", "custom_allreduce_perf", **own, **kernels)
    libraries = only(tmp_path, "h100-sxm", "collective", engine="nccl")
    assert libraries["bytes"].tolist() == [512, 256] and libraries["op"].tolist() == ["all_to_all", "all_reduce"]
    assert set(libraries["engine"].tolist()) == {"nccl"}
    engines = only(tmp_path, "h100-sxm", "collective", engine="vllm")
    assert engines["bytes"].tolist() == [256, 256] and engines["timing"].tolist() == ["kernel", "launch"]
    assert engines["engine"].tolist() == ["vllm", "trtllm"]  # a table may hold another engine's rows
    assert engines["kernel"].tolist() == ["vLLM_custom", "TRTLLM"]


def test_dispatch_and_combine_are_rows_of_their_own(tmp_path):
    shape = {"node_num": [2], "hidden_size": [7168], "num_token": [16], "num_topk": [8], "num_experts": [256]}
    times = {"dispatch_transmit_us": [30.0], "dispatch_notify_us": [5.0], "dispatch_sms": [20]}
    times |= {"combine_transmit_us": [60.0], "combine_notify_us": [0.0], "combine_sms": [24]}
    stored(tmp_path, "gb200", "comm", "sglang", "1", "wideep_deepep_normal_perf", **shape, **times)
    found = only(tmp_path, "gb200", "exchange")
    assert found["op"].tolist() == ["dispatch", "combine"]
    assert found.seconds.tolist() == pytest.approx([35e-6, 60e-6])
    assert found["kernel"].tolist() == ["deepep normal, 20 units", "deepep normal, 24 units"]
    assert found["ranks"].tolist() == [8, 8]  # four devices in a node of this system


def test_state_layers_keep_their_kernels_apart(tmp_path):
    columns = {"kernel_source": ["conv", "scan"], "phase": ["context", "generation"], "batch_size": [2, 4]}
    columns |= {"num_tokens": [64, 4], "d_model": [1024] * 2, "model_name": ["Q"] * 2, "latency": [1.0, 0.5]}
    columns |= {"head_k_dim": [64] * 2, "num_k_heads": [8] * 2, "num_v_heads": [16] * 2, "head_v_dim": [128] * 2}
    stored(tmp_path, "b200_sxm", "linear_attention", "vllm", "1", "gdn_perf", **columns)
    found = only(tmp_path, "b200-sxm", "recurrent")
    assert found["op"].tolist() == ["context", "decode"] and found["kernel"].tolist() == ["conv", "scan"]
    assert found["tokens"].tolist() == [64, 4] and found["state_dim"].tolist() == [64, 64]
    assert found["channels"].tolist() == [2 * 8 * 64 + 16 * 128] * 2


def test_an_unknown_column_is_refused(tmp_path):
    shape = {"m": [1], "n": [3], "k": [5], "gemm_dtype": ["bf16"], "kernel_source": ["a"], "latency": [1.0], "sm": [3]}
    stored(tmp_path, "h100_sxm", "gemm", "vllm", "1", "gemm_perf", **shape)
    with pytest.raises(ValueError, match="the column 'sm' is unknown; the nearest known is 'm'"):
        tables_for("h100-sxm", "gemm", [tmp_path])


def test_tables_of_other_kinds_and_systems_are_left_out(tmp_path):
    stored(tmp_path, "h100_sxm", "msa", "vllm", "1", "msa_context_module_perf", latency=[1.0])
    stored(tmp_path, "b60", "gemm", "vllm", "1", "gemm_perf", latency=[1.0])
    assert list(all_parts([tmp_path])) == []


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "aiconfigurator_core"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    shape = {"m": [1], "n": [3], "k": [5], "gemm_dtype": ["fp8"], "kernel_source": ["a"], "latency": [1.0]}
    stored(tmp_path, "h100_sxm", "gemm", "vllm", "1", "gemm_perf", **shape)
    monkeypatch.syspath_prepend(tmp_path)
    assert aiconfigurator.installed() == package
    assert len(tables_for("h100-sxm")) == len(tables_for("h100-sxm", "gemm", ["aiconfigurator-core"])) == 1


def test_what_to_install_is_said(monkeypatch):
    monkeypatch.setattr(aiconfigurator, "installed", lambda: None)
    with pytest.raises(
        ValueError, match=r"not installed: install headway\[profiles\] \(in a checkout: .venv/bin/pip install"
    ):
        tables_for("h100-sxm")


def test_the_real_package():
    if aiconfigurator.installed() is None:
        pytest.skip("aiconfigurator-core is not installed")
    (kept,), quarantine = quarantined(tables_for("a100-sxm-80gb", "gemm", engine="vllm"))
    assert len(kept) == 9240 and len(quarantine) == 0
    m, n, k = (kept[name] for name in ("m", "n", "k"))
    large = kept.where((m == 8192) & (n == 8192) & (k == 8192))
    assert 2 * 8192**3 / large.seconds[0] == pytest.approx(284e12, rel=0.15)
