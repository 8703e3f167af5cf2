"""Default limits against recorded ones, profiles by version, and the sentences for bad settings."""

import csv
import re
from dataclasses import replace

import pytest

from sim.deployment.conf import DeploymentConf
from sim.deployment.defaults import default_limits, static_fraction
from sim.deployment.engine import EngineConf, LimitTier
from sim.deployment.rules import SglangRules
from sim.deployment.settings import engine_names, load_engine, resolve_engine, version_key
from sim.hardware.read import load_device
from sim.model.read import load_model
from sim.units import GIB


USAGE = {"LLM_CLASS": "llm_class", "OPENAI_API_SERVER": "api_server", "ENGINE_CONTEXT": "other"}

# version, device, GiB, usage, max_model_len, given sequences, tokens, sequences
ROWS = [
    ("0.10.2", "NVIDIA T4", 15, "LLM_CLASS", 131072, None, 8192, 256),
    ("0.10.2", "NVIDIA A100-SXM4-80GB", 79, "LLM_CLASS", 131072, None, 8192, 256),
    ("0.10.2", "NVIDIA B200", 178, "OPENAI_API_SERVER", 131072, None, 8192, 1024),
    ("0.10.2", "just under 70 GiB", 69.99, "OPENAI_API_SERVER", 131072, None, 2048, 256),
    ("0.10.2", "NVIDIA L4", 22, "ENGINE_CONTEXT", 4, None, 512, 128),
    ("0.19.0", "NVIDIA H100 80GB HBM3", 79, "OPENAI_API_SERVER", 131072, None, 8192, 1024),
    ("0.19.0", "NVIDIA H100 80GB HBM3", 79, "OPENAI_API_SERVER", 131072, 16, 8192, 16),
    ("0.19.0", "NVIDIA L40S", 44, "OPENAI_API_SERVER", 131072, None, 2048, 256),
    ("0.19.0", "NVIDIA GB10", 119, "LLM_CLASS", 131072, None, 16384, 1024),
    ("0.33.0", "NVIDIA GB10", 119, "LLM_CLASS", 131072, None, 8192, 256),
    ("0.33.0", "AMD Instinct MI300X", 191, "OPENAI_API_SERVER", 131072, None, 16384, 1024),
    ("0.33.0", "NVIDIA A100-SXM4-80GB", 79, "ENGINE_CONTEXT", 131072, None, 2048, 128),
]


@pytest.fixture(scope="module")
def llama():
    return load_model("llama-3.1-8b")


@pytest.fixture(scope="module")
def h100():
    return load_device("h100-sxm")


def settings(model, device, deployment=None, **keys):
    return resolve_engine(EngineConf(**keys), model, device, deployment or DeploymentConf())


@pytest.mark.parametrize(("version", "device", "gib", "usage", "length", "seqs", "tokens", "sequences"), ROWS)
def test_recorded_limits(version, device, gib, usage, length, seqs, tokens, sequences):
    profile = load_engine("vllm", version).profile
    found = default_limits(profile, gib, device, USAGE[usage], length, None, seqs)
    assert found[:2] == (tokens, sequences)


def test_every_recorded_limit(shared):
    with (shared / "data/tables/vllm_defaults.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) > 80
    for row in table:
        given = [int(row[key]) if row[key] else None for key in ("user_max_num_batched_tokens", "user_max_num_seqs")]
        profile = load_engine("vllm", row["version"]).profile
        found = default_limits(
            profile,
            float(row["memory_gib"]),
            row["gpu"],
            USAGE[row["usage_context"]],
            int(row["max_model_len"]),
            *given,
        )
        assert found[:2] == (int(row["max_num_batched_tokens"]), int(row["max_num_seqs"])), row


def test_defaults_name_their_origin(llama, h100):
    found = settings(llama, h100, version="0.19.0", max_num_batched_tokens=4096)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (4096, 1024)
    assert found.origin["max_num_batched_tokens"] == "user"
    assert found.origin["max_num_seqs"] == "vllm 0.19.0 api_server default for >= 70 GiB"
    assert found.max_model_len == 131072 and found.origin["max_model_len"] == "model"
    assert found.async_scheduling and found.batches_in_flight == 2
    assert found.reserve_full_input and found.prefix_caching and found.chunked_prefill
    assert found.graph_mode == "FULL_AND_PIECEWISE" and len(found.graph_sizes) == 51
    assert found.notes == ()


@pytest.mark.parametrize(
    ("version", "profile", "utilization", "in_budget", "asynchronous"),
    [
        ("0.9.1", "0.10.2", 0.9, False, False),
        ("0.10.2", "0.10.2", 0.9, False, False),
        ("0.14.1", "0.14.0", 0.9, False, True),
        ("0.16.0", "0.15.0", 0.9, False, True),
        ("0.19.0", "0.19.0", 0.9, False, True),
        ("0.20.2", "0.20.0", 0.92, True, True),
        ("0.22.1", "0.22.0", 0.92, True, True),
        ("0.28.0rc1", "0.28.0", 0.92, True, True),
        ("0.33.0", "0.33.0", 0.92, True, True),
        ("1.0", "0.33.0", 0.92, True, True),
    ],
)
def test_nearest_earlier_profile(llama, h100, version, profile, utilization, in_budget, asynchronous):
    found = settings(llama, h100, version=version)
    assert found.profile.version == profile
    assert found.gpu_memory_utilization == utilization
    assert found.profile.graph_memory_in_budget is in_budget
    assert found.async_scheduling is asynchronous
    exact = version_key(version) == version_key(profile)
    assert bool(found.notes) is not exact
    if not exact:
        assert f"that of {profile} is used" in found.notes[0]


def test_a_profile_of_another_version_is_not_kept(llama, h100):
    conf = replace(load_engine("vllm", "0.10.2"), version="0.33.0")
    assert resolve_engine(conf, llama, h100, DeploymentConf()).profile.version == "0.33.0"
    own = load_engine("vllm", "0.33.0")
    own.profile.memory["sampler_bytes_per_logit"] = 1.0
    assert resolve_engine(own, llama, h100, DeploymentConf()).profile.memory["sampler_bytes_per_logit"] == 1.0
    assert load_engine("vllm", "0.33.0").profile.memory["sampler_bytes_per_logit"] != 1.0


def test_batches_in_flight_by_version_and_pipeline(llama, h100):
    two = DeploymentConf(pipeline_parallel=2)
    four = DeploymentConf(pipeline_parallel=4)
    assert settings(llama, h100, four, version="0.19.0").batches_in_flight == 4
    assert settings(llama, h100, two, version="0.33.0").batches_in_flight == 3
    assert settings(llama, h100, two, version="0.33.0", async_scheduling=False).batches_in_flight == 2
    assert settings(llama, h100, version="0.10.2").batches_in_flight == 1


@pytest.mark.parametrize(
    ("version", "alone", "staged"),
    [
        ("0.10.2", False, False),
        ("0.11.0", False, False),
        ("0.14.0", True, False),
        ("0.15.0", True, True),
        ("0.17.0", True, True),
        ("0.18.0", True, True),
        ("0.19.0", True, True),
        ("0.33.0", True, True),
    ],
)
def test_async_scheduling_with_stages_by_version(llama, h100, version, alone, staged):
    two = DeploymentConf(pipeline_parallel=2)
    assert settings(llama, h100, version=version).async_scheduling is alone
    found = settings(llama, h100, two, version=version)
    assert found.async_scheduling is staged
    assert ("with pipeline stages" in found.origin["async_scheduling"]) is (alone and not staged)
    if staged:
        assert settings(llama, h100, two, version=version, async_scheduling=True).async_scheduling
        return
    assert found.batches_in_flight == 2
    assert settings(llama, h100, version=version, async_scheduling=True).batches_in_flight == 2
    with pytest.raises(ValueError, match=f"vllm {version} refuses async .* engine.async_scheduling=true with depl"):
        settings(llama, h100, two, version=version, async_scheduling=True)


def test_sglang_without_chunks_does_not_bound_prompts_by_its_tokens(llama, h100):
    conf = replace(load_engine("sglang"), enable_chunked_prefill=False)
    found = resolve_engine(conf, llama, h100, DeploymentConf())
    assert not found.chunked_prefill and found.max_num_batched_tokens < found.max_model_len


def test_every_profile_resolves_and_has_sources(llama, h100):
    names = engine_names()
    assert {"vllm-0.10.2", "vllm-0.19.0", "vllm-0.33.0", "sglang-0.5", "trtllm-1.0"} <= set(names)
    for name in names:
        engine, _, version = name.partition("-")
        conf = load_engine(engine, version)
        assert f"{conf.name}-{conf.version}" == name and conf.profile.version == version
        found = resolve_engine(conf, llama, h100, DeploymentConf())
        assert 0 < found.gpu_memory_utilization <= 1
        groups = {key.split(".")[0] for key in conf.profile.sources}
        assert {"limits", "memory"} <= groups


def test_hybrid_and_sparse_models_raise_the_block_size(h100):
    hybrid = load_model("qwen3-next-80b-a3b")
    # bf16 state: a page of 16 tokens x 2 KV heads x 256 x 2 x 2 B = 32 KiB holds 1/33.5 of 1,097,728 B: 34 x 16 = 544
    found = settings(hybrid, h100, version="0.19.0", max_model_len=8192)
    state = max(layer.mixer.cache(1, 2.0).state_bytes for layer in hybrid.layers)
    assert found.block_size == 16 * -(-state // 32768)
    assert "recurrent state" in found.origin["block_size"]
    four = DeploymentConf(tensor_parallel=4)
    # one KV head on each of four ranks and a quarter of the state: half the tokens
    assert settings(hybrid, h100, four, version="0.19.0").block_size * 2 in (found.block_size, found.block_size + 16)
    assert settings(load_model("deepseek-v3.2"), h100, version="0.33.0").block_size == 64


def test_sglang_computes_its_fraction(llama, h100):
    # 512 + 1.5 x 8192 + 128 + 2 x 256 + 8 x 58 = 13,904 MiB reserved of 143,771
    assert static_fraction(143771, 8192, 1, 256, False) == 0.903
    # at least 10,240 MiB of a large device: (100,000 - 10,240) / 100,000
    assert static_fraction(100_000, 2048, 1, 8, False) == 0.898
    # latent attention takes 1,536 MiB for its graphs: 512 + 3,072 + 128 + 16 + 1,536 = 5,264 of 20,000
    assert static_fraction(20_000, 2048, 1, 8, True) == 0.737
    found = resolve_engine(load_engine("sglang"), llama, h100, DeploymentConf())
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (8192, 4096)
    assert found.gpu_memory_utilization == static_fraction(h100.memory_bytes / 2**20, 8192, 1, 256, False)


def test_sglang_captures_prefills_by_their_tokens(llama, h100):
    def found(**changes):
        conf = replace(load_engine("sglang"), max_num_batched_tokens=576, **changes)
        return resolve_engine(conf, llama, h100, DeploymentConf())

    # 8 sizes to 32, 14 to 256, 8 to 512, then 576
    assert len(found().prefill_graph_sizes) == 8 + 14 + 8 + 1
    # the number of running requests is not bound to the tokens of a prefill batch
    assert found().max_num_seqs == 4096
    assert found(enforce_eager=True).prefill_graph_sizes == ()
    assert found(cudagraph_mode="FULL_DECODE_ONLY").prefill_graph_sizes == ()
    latent = resolve_engine(
        load_engine("sglang"),
        load_model("deepseek-v3"),
        replace(h100, memory_bytes=int(180 * GIB)),
        DeploymentConf(tensor_parallel=8),
    )
    assert (latent.max_num_batched_tokens, latent.prefill_graph_sizes[-1]) == (16384, 8192)


def test_sglangs_older_profile(llama, h100):
    old, new = load_engine("sglang", "0.5.4"), load_engine("sglang", "0.5.23")
    assert load_engine("sglang", "0.5.10").profile == old.profile
    assert load_engine("sglang", "0.5").profile.sglang == new.profile.sglang == SglangRules()
    assert not old.profile.sglang.split_prompt and old.profile.sglang.refresh_passes == 0
    assert resolve_engine(old, llama, h100, DeploymentConf()).prefill_graph_sizes == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "vlm"}, "engine must be one of sglang, trtllm, vllm, got 'vlm': change engine.name"),
        ({"version": "latest"}, "version must look like 0.19.0, got 'latest'"),
        ({"usage": "server"}, "usage must be one of api_server, llm_class, other, got 'server'"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
        (
            {"max_num_seqs": 512, "max_num_batched_tokens": 256},
            r"max_num_batched_tokens \(256\) must be at least max_num_seqs \(512\)",
        ),
        ({"max_model_len": 200_000}, "between 1 and the 131,072 tokens of llama-3.1-8b, .* got 200,000"),
        ({"enable_chunked_prefill": False}, r"without chunked prefill .* at least max_model_len \(131,072\)"),
        ({"gpu_memory_utilization": 1.2}, "above 0 and at most 1, got 1.2"),
        ({"gpu_memory_utilization": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"gpu_memory_utilization": float("nan")}, "above 0 and at most 1, got nan"),
        ({"block_size": 24}, "block_size must be one of .* got 24"),
        ({"kv_cache_dtype": "fp7"}, "kv_cache_dtype must be auto or one of .* got 'fp7'"),
        ({"kv_cache_memory_bytes": -1.0}, r"kv_cache_memory_bytes must be above 0 and at most 1e\+15 bytes, got -1"),
        ({"kv_cache_memory_bytes": float("inf")}, "got inf: change engine.kv_cache_memory_bytes"),
        ({"kv_cache_memory_bytes": float("nan")}, "got nan: change engine.kv_cache_memory_bytes"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override must be at least 1, got 0"),
        ({"num_gpu_blocks_override": 2**40 + 1}, "must be at most 1,099,511,627,776, got .* engine.num_gpu_blocks_o"),
        ({"max_num_batched_tokens": 10**12}, "at most 16,777,216, got 1,000,000,000,000: change engine.max_num_batch"),
        ({"max_num_seqs": 10**12}, "at most 1,048,576, got 1,000,000,000,000: change engine.max_num_seqs"),
        ({"max_cudagraph_capture_size": 0}, "got 0: change engine.max_cudagraph_capture_size, or set engine.enforce"),
        ({"max_cudagraph_capture_size": 10**9}, "at most 1,048,576, got .*: change engine.max_cudagraph_capture_size"),
        ({"cudagraph_capture_sizes": []}, r"between 1 and 1,048,576, at least one, got \[\]: change engine.cudagraph_"),
        ({"cudagraph_capture_sizes": [8, 0]}, r"got \[8, 0\]: change engine.cudagraph_capture_sizes"),
        ({"cudagraph_capture_sizes": [10**9]}, r"got \[1000000000\]: change engine.cudagraph_capture_sizes"),
        ({"enforce_eager": True, "cudagraph_mode": "HALF"}, "got 'HALF': change engine.cudagraph_mode"),
        ({"cudagraph_mode": "HALF"}, "cudagraph_mode must be one of NONE, PIECEWISE, .* got 'HALF'"),
        ({"cuda_graph_sizes": [8]}, "cuda_graph_sizes is a setting of vLLM 0.10.2, got it for vllm 0.19.0"),
    ],
)
def test_bad_settings_are_one_sentence(llama, h100, keys, message):
    with pytest.raises(ValueError, match=message) as error:
        settings(llama, h100, **({"version": "0.19.0"} | keys))
    assert "\n" not in str(error.value)


def test_eager_has_no_graphs(llama, h100):
    found = settings(llama, h100, enforce_eager=True)
    assert found.graph_mode == "NONE" and found.graph_sizes == ()
    assert settings(llama, h100, version="0.10.2", cuda_graph_sizes=[16]).graph_sizes == (1, 2, 4, 8, 16)
    assert settings(llama, h100, cudagraph_capture_sizes=[4, 2]).origin["graph_sizes"] == "user"


def test_kv_bytes(llama, h100):
    assert settings(llama, h100).kv_bytes_per_element == 2
    assert settings(llama, h100, kv_cache_dtype="fp8").kv_bytes_per_element == 1
    assert settings(llama, h100, kv_cache_dtype="fp8").origin["kv_cache_dtype"] == "user"


def conf_with(**changes):
    """The configuration of vLLM 0.19.0 with changes of its profile; `memory` is merged."""
    conf = load_engine("vllm", "0.19.0")
    memory = conf.profile.memory | changes.pop("memory", {})
    return replace(conf, profile=replace(conf.profile, memory=memory, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({key: value}, rf"profile.{key} must be between 0 and 10 seconds, got .*: change engine.profile.{key}$")
            for key in ("host_step_s", "idle_sleep_s", "api_pickup_s")
            for value in (-1e-9, 10.1, float("nan"), float("inf"))
        ),
        *(
            ({"memory": {"context_bytes": value}}, r"memory.context_bytes must be between 0 and 1e\+15, got")
            for value in (-1.0, 1e30, float("nan"), float("inf"))
        ),
        ({"memory": {"context_byte": 1.0}}, r"unknown constant context_byte \(did you mean context_bytes\?\): correct"),
        ({"graph_top": 0}, "profile.graph_top must be between 1 and 1,048,576, got 0: change engine.profile.graph_top"),
        ({"graph_top_blackwell": -1}, "profile.graph_top_blackwell must be between 1"),
        ({"graph_mode": "HALF"}, "profile.graph_mode must be one of NONE, .* change engine.profile.graph_mode"),
        ({"default_gpu_memory_utilization": 2.0}, "default_gpu_memory_utilization must be between 0 and 1, got 2"),
        ({"other_seqs": 0}, "profile.other_seqs must be between 1"),
        ({"limits": [LimitTier(max_num_seqs=0)]}, "engine.profile.limits.0.max_num_seqs"),
        ({"version": ""}, "engine.profile.version must be .* 0.10.2, .* got '': choose engine=vllm-0.19.0"),
        ({"version": "9.9"}, r"must be the engine.version \(0.19.0\) or one of 0.10.2, .* got '9.9'"),
        (
            {"memory_rule": "sglang"},
            "engine.name=vllm goes with the memory rule vllm, got .*memory_rule=sglang: choose",
        ),
    ],
)
def test_bad_facts_are_one_sentence(llama, h100, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        resolve_engine(conf_with(**changes), llama, h100, DeploymentConf())
    assert "\n" not in str(error.value)


def test_a_profile_without_a_constant_is_refused(llama, h100):
    conf = conf_with()
    del conf.profile.memory["context_bytes"]
    with pytest.raises(ValueError, match="lacks context_bytes, .*: add engine.profile.memory.context_bytes"):
        resolve_engine(conf, llama, h100, DeploymentConf())


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (EngineConf(name="sglang"), "engine.name=sglang .* engine.scheduler=vllm, .* choose engine=sglang-0.5"),
        (replace(load_engine("vllm"), name="trtllm"), "engine.scheduler=vllm.* choose engine=trtllm-1.0"),
        (
            replace(load_engine("vllm"), name="sglang", scheduler="sglang"),
            "memory rule sglang, .*=vllm: choose engine=sg",
        ),
        (replace(load_engine("vllm"), scheduler="sglang"), "engine.scheduler=sglang, the scheduler of sglang: choose"),
    ],
)
def test_engines_do_not_mix(llama, h100, conf, message):
    with pytest.raises(ValueError, match=message):
        resolve_engine(conf, llama, h100, DeploymentConf())


def test_changed_facts_of_another_version_are_not_dropped(llama, h100):
    changed = replace(conf_with(host_step_s=2e-3), version="0.11.0")
    with pytest.raises(
        ValueError, match="engine.profile.host_step_s was changed .* takes that of 0.11.0: choose engin"
    ):
        resolve_engine(changed, llama, h100, DeploymentConf())
    own = replace(conf_with(version="0.20.1", host_step_s=2e-3), version="0.20.1")
    found = resolve_engine(own, llama, h100, DeploymentConf())
    assert found.profile.host_step_s == 2e-3 and found.notes == ()


@pytest.mark.parametrize(
    ("keys", "sizes", "note"),
    [
        ({"cudagraph_capture_sizes": [1_000_000]}, 0, "nothing of engine.cudagraph_capture_sizes is captured .* 8,192"),
        ({"cudagraph_capture_sizes": [4, 9000]}, 1, r"9,000 of engine.cudagraph_capture_sizes exceeds .*up to 4"),
        ({"max_cudagraph_capture_size": 9000}, 1, "9,000 of engine.max_cudagraph_capture_size exceeds"),
        ({"cudagraph_capture_sizes": [4], "enforce_eager": True}, 0, "has no effect: CUDA graphs are off"),
        ({"cudagraph_capture_sizes": [4], "cudagraph_mode": "NONE"}, 0, "has no effect: CUDA graphs are off"),
        ({"cuda_graph_sizes": [4, 9000], "version": "0.10.2"}, 1, "9,000 of engine.cuda_graph_sizes exceeds"),
        ({"cudagraph_capture_sizes": [4, 8]}, 2, None),
        ({"max_cudagraph_capture_size": 96}, 3 + 12, None),
    ],
)
def test_sizes_that_are_not_captured_are_noted(llama, h100, keys, sizes, note):
    found = settings(llama, h100, **({"version": "0.19.0"} | keys))
    assert (len(found.graph_sizes) == 0) is (sizes == 0)
    assert (found.graph_mode == "NONE") is (sizes == 0)
    if note is None:
        assert len(found.graph_sizes) == sizes and found.notes == ()
    else:
        assert len(found.notes) == 1
        assert re.search(note, found.notes[0])


def test_a_device_below_sglangs_reserve(llama, h100):
    tiny = replace(h100, memory_bytes=1e9)
    with pytest.raises(ValueError, match="sglang reserves more .* 0.93 GiB .* set engine.gpu_memory_utilization"):
        resolve_engine(load_engine("sglang"), llama, tiny, DeploymentConf())


def test_expert_parallel_over_one_rank_is_said_to_change_nothing(llama, h100):
    conf = EngineConf()
    notes = resolve_engine(conf, llama, h100, DeploymentConf(expert_parallel=True)).notes
    assert any("with one rank it changes nothing" in note for note in notes)
    assert not any("one rank" in note for note in resolve_engine(conf, llama, h100, DeploymentConf()).notes)
