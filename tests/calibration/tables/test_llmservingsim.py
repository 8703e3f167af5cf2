"""Profiles of one model by layer: shapes on a rank, contexts, and the sum of iterations in skew.csv."""

import json

import numpy as np
import pytest

from calibration.tables import quarantined, tables_for


CONFIG = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}


def profile(root, **files):
    """A profile of RTX 4090, tp 2, with the csv files given by name."""
    config = root / "configs/model/owner/model.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG))
    folder = root / "profiler/perf/RTX4090/owner/model/bf16"
    (folder / "tp2").mkdir(parents=True)
    (folder / "meta.yaml").write_text("vllm_version: 0.19.0\nhardware: RTX4090\nmodel: owner/model\nvariant: bf16\n")
    for name, text in files.items():
        (folder / "tp2" / f"{name}.csv").write_text(text)
    return root


def test_layers_of_a_rank(tmp_path):
    layers = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "rotary_emb", "act_fn", "embedding")
    text = "layer,tokens,time_us\n" + "".join(f"{layer},{8 + i},{i + 1}\n" for i, layer in enumerate(layers))
    root = profile(tmp_path, dense=text)
    (gemm,) = tables_for("rtx-4090", "gemm", [root])
    # half of 16 heads of 64, half of 4 twice; half of 4096
    assert list(zip(gemm["op"], gemm["m"], gemm["n"], gemm["k"], strict=True)) == [
        ("qkv_proj", 8, 512 + 2 * 128, 1024),
        ("o_proj", 9, 1024, 512),
        ("gate_up_proj", 10, 4096, 1024),
        ("down_proj", 11, 1024, 2048),
    ]
    assert gemm.seconds.tolist() == pytest.approx([1e-6, 2e-6, 3e-6, 4e-6])
    assert set(gemm["model"].tolist()) == {"owner/model"} and set(gemm["engine_version"].tolist()) == {"0.19.0"}
    (other,) = tables_for("rtx-4090", "elementwise", [root])
    assert dict(zip(other["op"].tolist(), other["bytes_per_token"].tolist(), strict=True)) == {
        "norm": 4 * 1024 * 2,
        "rotary": 2 * (512 + 128) * 2,
        "activation": 3 * 256 * 2,  # an expert's, where the model has experts
        "embedding": 2 * 1024 * 2,
    }


def test_rows_of_the_head_are_sequences(tmp_path):
    root = profile(tmp_path, per_sequence="layer,sequences,time_us\nlm_head,4,100\nsampler,4,20\n")
    (found,) = tables_for("rtx-4090", "sequence", [root])
    assert found["vocab"].tolist() == [16000, 32000] and found["rows"].tolist() == [4, 4]


def test_chunks_and_decodes_in_one_kernel(tmp_path):
    text = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,32,0,0,5\n0,0,4,127,6\n16,0,2,9,7\n"
    (found,) = tables_for("rtx-4090", "attention", [profile(tmp_path, attention=text)])
    assert found["op"].tolist() == ["prefill", "decode", "mixed"]
    assert found["prefill_area"].tolist() == [16 * 32 + 136, 0, 136]
    assert found["prefill_kv_tokens"].tolist() == [48, 0, 16]
    assert found["decode_sum"].tolist() == [0, 4 * 128, 2 * 10] and found["decode_max"].tolist() == [0, 128, 10]
    assert found["q_heads"].tolist() == [8] * 3 and found["kv_heads"].tolist() == [2] * 3
    assert not found["warm"].any()


def test_skewed_times_are_divided_by_their_iterations(tmp_path):
    head = "regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha\n"
    rows = "pure,4,1,0.25,4,0,0,9,39,16.5,30,60,45,0.5\nmixed,2,1,0.5,4,8,4,9,39,24,3,6,4.5,0.5\n"
    (found,) = tables_for("rtx-4090", "attention", [profile(tmp_path, skew=head + rows)])
    assert found["op"].tolist() == [
        *("decode_skewed", "mixed_skewed"),
        *("decode_uniform", "mixed_uniform") * 2,
    ]
    assert found.seconds.tolist() == pytest.approx([15e-6, 1.5e-6, 10e-6, 1e-6, 20e-6, 2e-6])
    # one of 40 tokens and three of 10; all four of 17.5; all four of 40
    assert found["decode_sum"].tolist() == [70, 50, 70, 50, 160, 80]
    assert found["decode_max"].tolist() == [40, 40, 17.5, 25, 40, 40]
    assert found["decode_sumsq"].tolist() == [1600 + 300, 1700, 4 * 17.5**2, 2 * 625, 6400, 3200]
    assert found["prefill_area"].tolist() == [0, 8 * 4 + 36] * 3


def test_the_whole_expert_block(tmp_path):
    (found,) = tables_for("rtx-4090", "moe", [profile(tmp_path, moe="tokens,activated_experts,time_us\n4,6,50\n")])
    assert (found["active"][0], found["experts"][0], found["top_k"][0], found["inter"][0]) == (6, 8, 2, 512)
    assert found["op"][0] == "block" and np.isnan(found["skew"][0])


def test_dimensions_must_be_known(tmp_path):
    root = profile(tmp_path, moe="tokens,activated_experts,time_us\n4,6,50\n")
    (root / "configs/model/owner/model.json").unlink()
    with pytest.raises(ValueError, match=r"needs the dimensions of owner/model: put its config.json into"):
        tables_for("rtx-4090", "moe", [root])


def older(root):
    config = root / "configs/model/owner/model.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG))
    folder = root / "profiler/v0/perf_models/A6000/owner/model/tp1"
    folder.mkdir(parents=True)
    layers = "layer_name,input,kv_cache,tp_size,latency(ns)\n"
    layers += (
        "q_proj,2,0,1,3000\nexpert.w2,2,0,1,4000\ngate,2,0,1,500\nlm_head,3,0,1,9000\nrope,2,0,1,250\nattn,4,0,1,800\n"
    )
    (folder / "layers.csv").write_text(layers)
    head = "n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,max_model_len,batch_size,prefill_chunk_size,"
    head += "kv_cache_size,is_prefill,attention_backend,time_stats.attn_prefill.median,time_stats.attn_decode.median\n"
    rows = (
        "1024,16,4,1,4096,1,32,64,True,FLASH_ATTENTION,0.004,\n1024,16,4,1,4096,8,0,31,False,FLASH_ATTENTION,,0.006\n"
    )
    (folder / "attention.csv").write_text(head + rows)
    return root


def test_older_profiles(tmp_path):
    root = older(tmp_path)
    (gemm,) = tables_for("rtx-a6000", "gemm", [root])
    assert list(zip(gemm["op"], gemm["n"], gemm["k"], gemm.seconds.tolist(), strict=True)) == [
        ("q_proj", 1024, 1024, pytest.approx(3e-6)),
        ("expert_down_proj", 1024, 512, pytest.approx(4e-6)),
        ("router", 8, 1024, pytest.approx(5e-7)),
    ]
    prompt, both = tables_for("rtx-a6000", "attention", [root])
    assert prompt["prefill_area"].tolist() == [10] and prompt.seconds.tolist() == pytest.approx([8e-7])
    assert both["op"].tolist() == ["prefill", "decode"] and both.seconds.tolist() == pytest.approx([4e-6, 6e-6])
    assert both["prefill_area"].tolist() == [32 * 64 + 32 * 33 / 2, 0] and both["decode_sum"].tolist() == [0, 8 * 32]


def test_the_real_profiles(shared):
    path = shared / "data/llmservingsim"
    (kept,), quarantine = quarantined(tables_for("rtx-4090", "attention", [path]))
    assert len(quarantine) < 0.005 * len(kept)
    # the stream rate of long contexts: 0.95 TB/s of 1.008, and never above it
    long = kept.where((kept["op"] == "decode") & (kept["decode_sum"] > 2e6))
    assert np.median(long["decode_sum"] * 4096 / long.seconds) == pytest.approx(0.95e12, rel=0.03)
    # the two files measured the same cells: a third of the one is the other
    keys = zip(kept["op"], kept["decodes"], kept["decode_max"], strict=True)
    cells = dict(zip(keys, kept.seconds, strict=True))
    ratios = [
        seconds / cells["decode", *cell]
        for (op, *cell), seconds in cells.items()
        if op == "decode_uniform" and ("decode", *cell) in cells
    ]
    assert len(ratios) > 40 and np.median(ratios) == pytest.approx(1.0, abs=0.03)


def test_decodes_that_share_their_keys_are_set_aside(shared):
    (kept,), quarantine = quarantined(tables_for("rtx-a6000", "attention", [shared / "data/llmservingsim"]))
    assert set(kept["op"].tolist()) == {"prefill"}
    assert len(quarantine) > 50_000
