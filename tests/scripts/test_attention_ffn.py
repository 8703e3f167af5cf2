"""Attention and FFN on different devices, from the command line to the page."""

import pytest


SMALL = ("model=llama-3.2-1b", "workload=fixed-512-512", "workload.output_tokens=20", "workload.num_requests=12")
APART = (
    *SMALL,
    "deployment=pd-1p1d",
    "deployment.pools.decode.data_parallel=2",
    "deployment.pools.decode.ffn={devices: 2, hardware: h20, micro_batches: 2}",
)


def test_prefill_on_one_device_decode_on_four(headway, tmp_path):
    """Two attention instances and two FFN devices of another kind behind a prefill instance."""
    found = headway("simulate", *APART, f"results={tmp_path / 'run'}", "--json").json()
    assert (found["status"], found["completed"], found["gpus"]) == ("ok", 12, 5)
    assert found["device"] == "NVIDIA H100 SXM 80GB + NVIDIA H20 96GB"
    assert all(found["checks"].values())
    assert found["attention_ffn"] is None
    prefill, decode = found["pools"]
    assert prefill["attention_ffn"] is None
    apart = decode["attention_ffn"]
    assert (apart["instances"], apart["ffn_devices"], apart["ffn_device"]) == (2, 2, "NVIDIA H20 96GB")
    assert apart["attention_busy"] + apart["attention_bubble"] == pytest.approx(1.0)
    assert 0 < apart["ffn_busy"] < 1
    # 16 layers of 2,048 numbers in 16 bits, as many bytes there as back
    assert apart["there_bytes"] == apart["back_bytes"]
    assert apart["there_bytes"] % (16 * 2048 * 2) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<h3>Attention and FFN devices</h3>" in page
    assert "decode: 2 x 1 / 2 NVIDIA H20 96GB" in page
    assert "Busy in a step (%):" in (tmp_path / "run" / "console.txt").read_text(encoding="utf-8")


def test_the_tree_has_both_sides(headway):
    found = headway("plan", *APART[:1], *APART[4:], "--json").json()
    assert (found["status"], found["gpus"]) == ("ok", 5)
    text = headway("plan", *APART[:1], *APART[4:]).out
    assert "(2 NVIDIA H100 SXM 80GB for attention + 2 NVIDIA H20 96GB for FFN)" in text
    assert "FFN of 16 layers, each of 2 devices (NVIDIA H20 96GB):" in text
    assert "feed-forward: 4,096 of 8,192 units, in 16 layers" in text


def test_refusals_name_the_side(headway):
    big = headway("plan", "model=llama-3.3-70b", "deployment.tensor_parallel=4", "deployment.ffn.devices=1")
    assert big.code == 2
    assert "an FFN device holds" in big.out
    assert "it fits with deployment.ffn.devices=2" in big.out
    said = headway("simulate", *SMALL, "deployment.ffn.devices=2", "experts.law=zipf").err
    assert "experts.law=zipf is not simulated on FFN devices" in said
    said = headway("simulate", *SMALL, "deployment=pd-1p1d", "deployment.pools.prefill.ffn.devices=2").err
    assert "deployment.pools.prefill has the role prefill" in said
