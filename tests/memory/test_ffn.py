"""Memory of the two sides: KV on attention devices alone, weights of feed-forward parts on FFN devices."""

import pytest

from sim.deployment.conf import DeploymentConf, FfnConf
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.memory.describe import describe
from sim.memory.terms import value_of
from sim.model.read import load_model
from sim.model.shards import Shards
from sim.model.sides import attention_side, feedforward_side
from sim.model.spec import ModelConf
from sim.model.weights import layer_bytes


ENGINE = load_engine("vllm", "0.19.0")


def budget(model, device="h800", **changes):
    ffn = FfnConf(**{"devices": 8} | changes.pop("ffn", {}))
    deployment = DeploymentConf(**{"data_parallel": 2, "tensor_parallel": 4} | changes, ffn=ffn)
    conf = ModelConf(name=model, path=model)
    return describe(conf, load_device(device), ENGINE, deployment)


def test_the_two_sides_have_all_weights_once():
    for name in ("step3-316b", "llama-3.1-8b", "deepseek-v3", "gemma-3-4b"):
        model = load_model(name)
        attention, fed = attention_side(model), feedforward_side(model)
        there = sum(layer.params(model.hidden) for layer in fed.layers)
        assert attention.params() + there == model.params()


def test_ffn_devices_hold_their_weights():
    """304.6e9 parameters of Step-3 in 16 bits: 567 GiB on eight H800 do not fit, on eight H20 they do."""
    found = budget("step3-316b")
    assert found.ffn is not None
    assert not found.fits
    assert found.num_blocks > 0
    weights = value_of(found.ffn.terms, "weights")
    assert weights * 8 == pytest.approx(
        2 * sum(x.params(7168) for x in feedforward_side(load_model("step3-316b")).layers), rel=2e-3
    )
    assert "an FFN device holds 70.87 GiB of weights" in found.verdict
    assert "it fits with deployment.ffn.devices=16" in found.verdict
    other = budget("step3-316b", ffn={"hardware": "h20"})
    assert other.fits
    assert other.num_blocks == found.num_blocks
    assert budget("step3-316b", ffn={"devices": 16}).fits


def test_the_cache_has_what_the_feed_forward_parts_leave():
    apart = budget("llama-3.1-8b", tensor_parallel=1)
    model = load_model("llama-3.1-8b")
    fed = layer_bytes(feedforward_side(model), Shards())
    together = describe(ModelConf(path="llama-3.1-8b"), load_device("h800"), ENGINE, DeploymentConf())
    assert apart.available_bytes - together.available_bytes == pytest.approx(fed, rel=0.05)


def test_attention_that_does_not_fit_is_named():
    found = budget("llama-3.1-8b", device="t4", tensor_parallel=1, ffn={"devices": 4, "hardware": "h800"})
    assert not found.fits
    assert found.verdict.startswith("attention devices: does not fit")
