"""A row becomes the configuration that its notes and the public recipes of its benchmark describe."""

import pytest

from calibration.serving.formula import evaluate
from calibration.serving.recipes import POOL, recipes
from calibration.serving.setup import device_of, parallel_sizes, setup_of, stored_as
from calibration.serving.version import BY_DATE, NEAREST, OWN, version_of
from conf.compose import compose
from conf.files import by_hf_id
from sim.deployment.conf import PoolConf


def test_a_row_as_overrides(row):
    cells = {"engine_version": "v0.10.2", "precision": "fp8", "notes": "date=2025-10-29"}
    overrides = setup_of(row(**cells), by_hf_id).overrides
    assert overrides[:4] == (
        "model=llama-3.1-70b",
        "hardware=h200-sxm",
        "engine=vllm-0.10.2",
        "++model.config.quantization_config={quant_method:fp8}",
    )
    assert "deployment.tensor_parallel=8" in overrides
    assert "engine.max_num_seqs=64" in overrides and "engine.kv_cache_dtype=fp8" in overrides
    assert overrides[-2:] == ("workload.lengths=uniform_below", "workload.range_ratio=0.8")
    conf = compose(overrides)
    assert (conf.workload.concurrency, conf.workload.rounds, conf.engine.max_model_len) == (64, 10, 2248)


def test_a_disaggregated_row_becomes_two_pools(row):
    """Limits that recipes derive from parallel sizes are those of the decode side, where requests stay."""
    notes = "date=2026-03-02; P: 1x(tp4,dp1,moe_tp1,ep4); D: 4x(tp1,dp8,moe_tp1,ep8)"
    found = setup_of(row(disagg="1.0", notes=notes), by_hf_id)
    assert found.parallel == "1xtp4ep+4xdp8ep"
    conf = compose(found.overrides)
    prefill, decode = conf.deployment.pools["prefill"], conf.deployment.pools["decode"]
    assert (prefill.role, prefill.replicas, prefill.tensor_parallel, prefill.data_parallel) == ("prefill", 1, 4, 1)
    assert (decode.role, decode.replicas, decode.tensor_parallel, decode.data_parallel) == ("decode", 4, 1, 8)
    assert prefill.expert_parallel and decode.expert_parallel


def test_each_side_has_the_settings_of_its_own_recipe(row):
    """A generation server's batch is a power of two that the clients of each rank fill: 84 on 4 of 8 devices, 16."""
    notes = "date=2026-02-07; dp_attn(prefill/decode)=True/False; P: 1x(tp4,ep4) 4gpu; D: 4x(tp8,ep8) 32gpu"
    cells = {"engine": "trtllm(dynamo)", "engine_version": "0.8.1.post2", "model": "deepseek-ai/DeepSeek-R1"}
    cells |= {"hardware": "gb300", "precision": "fp8", "concurrency_or_qps": "84", "disagg": "1.0", "notes": notes}
    found = setup_of(row(**cells), by_hf_id)
    assert (found.version.name, found.version.kind) == ("1.2.0", BY_DATE)
    pools = compose(found.overrides).deployment.pools
    prefill, decode = pools["prefill"].settings, pools["decode"].settings
    assert (prefill["async_scheduling"], prefill["cudagraph_mode"], prefill["max_num_seqs"]) == (False, "NONE", 8)
    assert (decode["max_num_seqs"], decode["max_model_len"]) == (16, 2088)
    assert compose(found.overrides).deployment.decode_router == "round_robin"
    assert pools["prefill"].data_parallel == 4 and pools["decode"].tensor_parallel == 8


def test_nothing_measured_is_read(row):
    slow = row(ttft_ms_mean="5000", tpot_ms_mean="90", throughput_tok_s_per_gpu_output="1")
    assert setup_of(slow, by_hf_id) == setup_of(row(), by_hf_id)


def test_a_recipe_tells_the_sizes_of_pools_that_the_table_has_wrong(row):
    """Kimi-K2.5 with vLLM: the table says tensor-parallel attention on 4 and 16 devices, the recipe (dep4, dep16)
    data-parallel, with limits of a rank."""
    notes = "P: 1x(tp4,dp1,moe_tp1,ep4); D: 1x(tp16,dp1,moe_tp1,ep16); measured=2026-04-07T00:00:00"
    cells = {"source": "core; InferenceX-derived", "hardware": "gb200", "model": "moonshotai/Kimi-K2.5"}
    cells |= {"precision": "fp4", "engine_version": "0.18.0", "disagg": "1.0", "notes": notes}
    found = setup_of(row(**cells), by_hf_id)
    pools = compose(found.overrides).deployment.pools
    assert found.parallel == "1xdp4ep+1xdp16ep"
    assert [(pool.tensor_parallel, pool.data_parallel) for pool in pools.values()] == [(1, 4), (1, 16)]
    assert {pool.all_to_all for pool in pools.values()} == {"nvlink_one_sided"}
    assert [pool.settings["max_num_seqs"] for pool in pools.values()] == [1024, 256]
    assert not any(key.startswith("pool.") for pool in pools.values() for key in pool.settings)


@pytest.mark.parametrize(("instances", "clients", "seats"), [(1, 288, 256), (2, 288, 128), (1, 512, 512)])
def test_seats_of_decode_instances_by_their_number(row, instances, clients, seats):
    """srt-slurm's b200-fp8/8k1k_stp_maxtpt: 8 prefill ranks with a row each, seats by the layout."""
    notes = f"P: 1x(tp1,dp8,moe_tp8,ep1); D: {instances}x(tp1,dp8,moe_tp1,ep8); measured=2026-03-18T00:00:00"
    cells = {"source": "core; InferenceX-derived", "hardware": "b200", "model": "deepseek-ai/DeepSeek-V3"}
    cells |= {"engine": "sglang", "precision": "fp8", "isl": "8192", "disagg": "1.0", "notes": notes}
    pools = compose(setup_of(row(**cells, concurrency_or_qps=str(clients)), by_hf_id).overrides).deployment.pools
    assert pools["prefill"].settings["max_num_seqs"] == pools["prefill"].data_parallel == 8
    assert pools["decode"].settings["max_num_seqs"] == seats


def test_a_vendors_sweep_has_equal_lengths_and_the_token_budget_of_its_configurator(row):
    """`batch size + prompt + 1500` tokens a step, the batch size being the number of clients."""
    found = setup_of(row(source="core", notes="NVIDIA-internal measurement"), by_hf_id)
    conf = compose(found.overrides)
    workload, engine = conf.workload, conf.engine
    assert (workload.lengths, workload.rounds) == ("fixed", 10)
    assert engine.max_num_batched_tokens == workload.concurrency + workload.input_tokens + 1500
    assert not any("max_num_seqs" in word for word in found.overrides)


def test_what_the_scheduler_has_no_option_for_is_left_out_and_said(row, monkeypatch):
    monkeypatch.setattr("calibration.serving.recipes.scheduler_options", lambda engine: {"max_prefill_tokens"})
    cells = {"engine": "sglang", "hardware": "mi355x", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8"}
    found = setup_of(row(**cells, engine_version="0.5.9"), by_hf_id)
    assert found.left_out == ("num_continuous_decode_steps=4",)
    assert not any("num_continuous" in word for word in found.overrides)
    assert "++engine.scheduler_options.max_prefill_tokens=196608" in found.overrides


def test_an_experiment_says_how_many_prompts(row):
    cells = {"source": "S/InferenceX experimental/t", "notes": "date=20260216; experimental 160 prompts; closed loop"}
    assert "workload.num_requests=160" in setup_of(row(**cells), by_hf_id).overrides


@pytest.mark.parametrize(
    ("cells", "name", "kind"),
    [
        ({"engine_version": "0.19.0"}, "0.19.0", OWN),
        ({"engine_version": "v0.15.1-cu130"}, "0.15.1", NEAREST),
        ({"engine": "trtllm", "engine_version": "1.2.0rc6.post2"}, "1.2.0", NEAREST),
        ({"engine_version": "", "notes": "date=2025-10-29"}, "0.10.2", BY_DATE),
        ({"engine_version": "nightly-dev-20260216", "notes": "measured=2026-01-25"}, "0.14.0", BY_DATE),
        ({"engine_version": "", "notes": "date=2024-01-01"}, "0.10.2", BY_DATE),
    ],
)
def test_versions(row, cells, name, kind):
    found = version_of(row(**cells))
    assert (found.name, found.kind) == (name, kind)


@pytest.mark.parametrize(
    ("cells", "sizes"),
    [
        ({"tp": "8", "dp": "1", "ep": "8"}, (8, 1, True)),
        ({"tp": "8", "dp": "8", "ep": "8"}, (1, 8, True)),
        ({"tp": "1", "dp": "8", "ep": "0"}, (1, 8, False)),
        ({"tp": "2", "dp": "4", "ep": "8"}, (2, 4, True)),
        ({"tp": "4", "dp": "4", "ep": "16", "num_gpus": "4"}, (4, 1, True)),
        ({"tp": "", "dp": "", "ep": "", "num_gpus": "4"}, (4, 1, False)),
    ],
)
def test_parallel_sizes(row, cells, sizes):
    assert parallel_sizes(row(**cells)) == sizes


def test_models_and_how_they_are_stored(row):
    def stored(model, precision):
        found = setup_of(row(model=model, precision=precision), by_hf_id)
        return found.model, [word for word in found.overrides if "quantization" in word]

    assert stored_as("deepseek-r1") == "fp8" and stored_as("kimi-k2.5") == "int4" and stored_as("gpt-oss-120b") == "fp4"
    assert stored("deepseek-ai/DeepSeek-R1-0528", "fp8") == ("deepseek-r1", [])
    assert stored("openai/gpt-oss-120b", "fp4") == ("gpt-oss-120b", [])
    assert stored("Qwen/Qwen3-32B", "fp8") == ("qwen3-32b-fp8", [])
    assert stored("nvidia/DeepSeek-V3.1-NVFP4", "fp4")[0] == "deepseek-v3"
    model, words = stored("deepseek-ai/DeepSeek-R1", "fp4")
    assert words[0] == "~model.config.quantization_config" and "NVFP4" in words[1]
    section = compose(["model=deepseek-r1", *words]).model.config["quantization_config"]
    assert section["quant_algo"] == "NVFP4" and "weight_block_size" not in section


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"hardware": "h9000"}, "hardware must name a device"),
        ({"model": "acme/None-1"}, "no model of the HuggingFace id"),
        ({"concurrency_or_qps": ""}, "whole number of clients"),
        ({"concurrency_or_qps": "inf"}, "whole number of clients"),
        ({"isl": ""}, "isl and osl"),
        ({"precision": "fp6"}, "precision must be one of"),
        ({"dp": "3"}, "dp=3 must divide num_gpus=8"),
    ],
)
def test_what_cannot_be_described(row, cells, said):
    with pytest.raises(ValueError, match=said):
        setup_of(row(**cells), by_hf_id)


def test_devices_by_the_tables_names():
    names = {"h100": "h100-sxm", "gb200": "gb200", "a100-80gb": "a100-sxm-80gb", "MI355X": "mi355x"}
    assert {name: device_of(name) for name in names} == names


def test_formulas():
    names = {"isl": 1000, "concurrency": 64}
    assert evaluate("max(8192, (isl + concurrency + 127) // 64 * 64)", names) == 8192
    assert evaluate("(isl + concurrency + 127) // 64 * 64", names) == 1152
    assert [evaluate("at_most(concurrency // 9, 2, 4, 8)", {"concurrency": n}) for n in (9, 27, 80, 900)] == [
        2,
        2,
        8,
        8,
    ]
    for bad in ("osl + 1", "isl ** 2", "__import__('os')", "1 +", "isl + 0.5"):
        with pytest.raises(ValueError, match="formula"):
            evaluate(bad, names)


def test_every_recipe_names_known_things():
    assert len(recipes()) > 20
    counts = {"isl": 1, "osl": 1, "concurrency": 1, "tensor_parallel": 1, "ranks": 1}
    for recipe in recipes():
        for device in recipe.when.get("hardware", ()):
            assert device_of(device) == device
        for model in recipe.when.get("model", ()):
            assert stored_as(model)
        for formula in recipe.formulas.values():
            assert evaluate(formula, counts) > 0
        own = {key.removeprefix(POOL) for key in recipe.settings if key.startswith(POOL)}
        assert own <= set(PoolConf.__annotations__)
