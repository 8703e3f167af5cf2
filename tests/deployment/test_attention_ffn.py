"""Feed-forward parts on devices of their own: what is compiled, how many devices at what price, what is refused."""

import dataclasses

import pytest

from predictors.run_fit import adjusted
from sim.deployment.compile import compile_plan
from sim.deployment.conf import DeploymentConf, FfnConf, PoolConf
from sim.deployment.pools import pools_of
from sim.deployment.settings import load_engine
from sim.hardware.read import load_device
from sim.hardware.spec import LinkConf
from sim.model.read import load_model


H800, H20 = load_device("h800"), load_device("h20")
ENGINE = load_engine("vllm", "0.19.0")
STEP3, LLAMA = load_model("step3-316b", quantization="fp8"), load_model("llama-3.1-8b")


def deployed(**changes) -> DeploymentConf:
    ffn = FfnConf(**{"devices": 8} | changes.pop("ffn", {}))
    return DeploymentConf(**{"data_parallel": 2, "tensor_parallel": 4} | changes, ffn=ffn)


def test_both_kinds_of_devices_count_and_have_a_price():
    """Two replicas of 2 x 4 at 3 USD and 8 at 1 USD."""
    dear, cheap = (dataclasses.replace(device, usd_per_hour=usd) for device, usd in ((H800, 3.0), (H20, 1.0)))
    plan = compile_plan(STEP3, dear, ENGINE, deployed(replicas=2))
    assert (plan.gpus, plan.ffn_gpus, plan.usd_per_gpu_hour) == (32, 16, 3.0)
    assert plan.ffn is not None
    other = dataclasses.replace(plan, ffn=dataclasses.replace(plan.ffn, device=cheap))
    assert other.usd_per_gpu_hour == 2.0
    unknown = dataclasses.replace(plan, ffn=dataclasses.replace(plan.ffn, device=H20))
    assert unknown.usd_per_gpu_hour == 0.0


def test_layers_of_step3():
    """Four dense layers, 56 routed ones, a dense one: one kind of mixer, two of feed-forward parts."""
    ffn = compile_plan(STEP3, H800, ENGINE, deployed()).ffn
    assert ffn is not None
    assert [feed for _, feed in ffn.layers] == [0] * 4 + [1] * 56 + [0]
    assert {mixer for mixer, _ in ffn.layers} == {0}
    assert ffn.visits == 61
    assert (ffn.domains.ep_ffn, ffn.domains.tp_ffn) == (8, 1)
    assert ffn.feeds[1].moe.local_experts[0] == 6
    sliced = compile_plan(STEP3, H800, ENGINE, deployed(ffn={"expert_parallel": False})).ffn
    assert sliced is not None
    assert (sliced.feeds[1].moe.local_experts[0], sliced.feeds[1].moe.inter[0]) == (48, 640)


def test_the_ranks_hold_no_feed_forward_part():
    plan = compile_plan(LLAMA, H800, ENGINE, deployed(tensor_parallel=1))
    assert plan.held.params() < plan.model.params() / 2
    assert plan.ffn is not None
    assert (plan.ffn.domains.ep_ffn, plan.ffn.domains.tp_ffn) == (1, 8)
    assert plan.shared is None
    assert plan.ffn.link == "InfiniBand of NVIDIA H800 SXM 80GB"
    near = compile_plan(LLAMA, H800, ENGINE, deployed(tensor_parallel=1, ffn={"devices": 4})).ffn
    assert near is not None
    assert near.link == "NVLink of one node"


NO_NETWORK = dataclasses.replace(H800, nic=LinkConf())


@pytest.mark.parametrize(
    ("model", "device", "deployment", "words"),
    [
        (
            STEP3,
            H800,
            deployed(ffn={"micro_batches": 0}),
            r"deployment.ffn.micro_batches must be between 1 and 64, got 0",
        ),
        (STEP3, H800, deployed(ffn={"devices": -1}), r"deployment.ffn.devices must be between 1 and 4,096, got -1"),
        (
            STEP3,
            H800,
            deployed(ffn={"devices": 32}),
            r"ffn.devices=32 does not divide the 48 routed experts; 4, 8, 16 do, or",
        ),
        (LLAMA, H800, deployed(ffn={"devices": 6}), r"does not divide the units of a feed-forward part; 4, 7, 8 do"),
        (STEP3, NO_NETWORK, deployed(), "the attention device NVIDIA H800 SXM 80GB has no network; give its nic.kind"),
        (STEP3, H800, deployed(ffn={"dispatch_dtype": "fp4"}), "dispatch_dtype must be one of bf16, fp8, got 'fp4'"),
        (STEP3, H800, deployed(ffn={"hardware": "h2000"}), "hardware=h2000 is not a known device"),
        (STEP3, H800, deployed(pipeline_parallel=2), "FFN devices cannot be simulated with pipeline stages"),
        (STEP3, H800, deployed(expert_parallel=True), r"leave it out, deployment.ffn.expert_parallel is what counts"),
        (STEP3, H800, deployed(all_to_all="naive"), "deployment.all_to_all says nothing where the experts"),
        (STEP3, H800, deployed(ffn={"devices": 0, "micro_batches": 3}), "deployment.ffn has no effect without devices"),
        (load_model("mamba2-2.7b"), H800, deployed(), "mamba2-2.7b has no feed-forward parts: leave out"),
    ],
)
def test_refusals(model, device, deployment, words):
    with pytest.raises(ValueError, match=words):
        compile_plan(model, device, ENGINE, deployment)


def test_a_pool_has_ffn_devices_of_its_own_unless_it_only_prefills():
    pools = {
        "p": PoolConf(role="prefill", tensor_parallel=8),
        "d": PoolConf(role="decode", tensor_parallel=4, ffn=FfnConf(devices=8, hardware="h20")),
    }
    prefill, decode = pools_of(DeploymentConf(pools=pools), H800, ENGINE)
    assert (prefill.deployment.ffn.devices, decode.deployment.ffn.devices) == (0, 8)
    said = decode.refusal(ValueError("deployment.ffn.devices=5 is wrong"))
    assert said == "pool d (decode): deployment.pools.d.ffn.devices=5 is wrong"
    pools["p"].ffn.devices = 4
    with pytest.raises(ValueError, match=r"pools.p has the role prefill, whose feed-forward parts stay with attention"):
        pools_of(DeploymentConf(pools=pools), H800, ENGINE)
    with pytest.raises(
        ValueError, match=r"deployment.ffn does nothing here: where pools are listed .*deployment.pools.d.ffn"
    ):
        pools_of(DeploymentConf(pools={"d": pools["d"]}, ffn=FfnConf(devices=8)), H800, ENGINE)


def test_what_servers_taught_reaches_the_devices_it_was_learned_on():
    """Experts twice as slow: on FFN devices of the same kind, not on others."""
    values = {"experts": 2.0, "decode_attention": 1.5}
    same, other = (compile_plan(STEP3, H800, ENGINE, deployed(ffn={"hardware": name})) for name in ("", "h20"))
    for plan, wanted in ((same, 2.0), (other, 1.0)):
        taught = adjusted(plan, values).ffn
        assert taught is not None
        assert float(taught.feeds[1].device.expert_time) == wanted
        assert float(taught.mixers[0].device.decode_attention_time) == 1.5
