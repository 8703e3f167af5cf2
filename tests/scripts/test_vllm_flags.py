"""Flags of vLLM, SGLang and TensorRT-LLM, one row each: what they become, what is left out, what is refused."""

import dataclasses
import shlex

import pytest

from conf.compose import compose
from scripts.arguments import Arguments
from scripts.configure import request
from scripts.vllm_flags import bench, choose_engine, engine_overrides, serve
from scripts.vllm_flags.parser import human_int, words_of
from scripts.vllm_flags.serve import BENCH, SERVE, SGLANG, TRTLLM
from scripts.vllm_flags.translation import literal, table


MODEL = "model=qwen3-32b"

SERVE_ROWS = {
    '--speculative-config \'{"method": "eagle", "num_speculative_tokens": 2}\'': [
        "speculation=eagle",
        "engine.speculation.num_speculative_tokens=2",
    ],
    "--speculative-config.method deepseek_mtp": ["speculation=mtp"],
    "--speculative-config.method draft_model --speculative-config.model Qwen/Qwen3-0.6B": [
        "speculation=draft-model",
        "engine.speculation.draft_model=qwen3-0.6b",
    ],
    "--tensor-parallel-size 2": ["deployment.tensor_parallel=2"],
    "--tensor_parallel_size=2": ["deployment.tensor_parallel=2"],
    "-tp 2": ["deployment.tensor_parallel=2"],
    "--pipeline-parallel-size 4": ["deployment.pipeline_parallel=4"],
    "-pp 4": ["deployment.pipeline_parallel=4"],
    "--data-parallel-size 3": ["deployment.data_parallel=3"],
    "-dp 1": ["deployment.data_parallel=1"],
    "--prefill-context-parallel-size 2": ["deployment.prefill_context_parallel=2"],
    "-pcp 2": ["deployment.prefill_context_parallel=2"],
    "--decode-context-parallel-size 8": ["deployment.decode_context_parallel=8"],
    "-dcp 8 --dcp-comm-backend ag_rs --cp-kv-cache-interleave-size 1": ["deployment.decode_context_parallel=8"],
    "--enable-expert-parallel": ["deployment.expert_parallel=true"],
    "--dtype float16": ["model.dtype=float16"],
    "--dtype auto": [],
    "--quantization fp8": ["model.quantization=fp8"],
    "-q fp8": ["model.quantization=fp8"],
    "--kv-cache-dtype fp8": ["engine.kv_cache_dtype=fp8"],
    "--gpu-memory-utilization 0.95": ["engine.gpu_memory_utilization=0.95"],
    "--kv-cache-memory-bytes 10G": [f"engine.kv_cache_memory_bytes={10 * 2**30}"],
    "--kv-cache-memory 1000": ["engine.kv_cache_memory_bytes=1000"],
    "--num-gpu-blocks-override 512": ["engine.num_gpu_blocks_override=512"],
    "--block-size 32": ["engine.block_size=32"],
    "--max-model-len 8192": ["engine.max_model_len=8192"],
    "--max-model-len 8k": ["engine.max_model_len=8000"],
    "--max-model-len 8K": ["engine.max_model_len=8192"],
    "--max-model-len auto": ["engine.max_model_len=-1"],
    "--max-model-len -1": ["engine.max_model_len=-1"],
    "--max-num-seqs 128": ["engine.max_num_seqs=128"],
    "--max-num-batched-tokens 2048": ["engine.max_num_batched_tokens=2048"],
    "--long-prefill-token-threshold 512": ["engine.long_prefill_token_threshold=512"],
    "--max-num-partial-prefills 1": [],
    "--enable-chunked-prefill": ["engine.enable_chunked_prefill=true"],
    "--enable-chunked-prefill false": ["engine.enable_chunked_prefill=false"],
    "--no-enable-chunked-prefill": ["engine.enable_chunked_prefill=false"],
    "--enable-prefix-caching": ["engine.enable_prefix_caching=true"],
    "--no-enable-prefix-caching": ["engine.enable_prefix_caching=false"],
    "--no_enable_prefix_caching": ["engine.enable_prefix_caching=false"],
    "--scheduling-policy fcfs": ["engine.scheduling_policy=fcfs"],
    "--enforce-eager": ["engine.enforce_eager=true"],
    "--max-cudagraph-capture-size 256": ["engine.max_cudagraph_capture_size=256"],
    "--cudagraph-capture-sizes 1 2 4 -tp 2": [
        "engine.cudagraph_capture_sizes=[1,2,4]",
        "deployment.tensor_parallel=2",
    ],
    '--compilation-config \'{"cudagraph_mode": "full"}\'': ["engine.cudagraph_mode=FULL"],
    "--compilation-config.cudagraph_mode piecewise": ["engine.cudagraph_mode=PIECEWISE"],
    "-cc.cudagraph_capture_sizes '[1, 8]'": ["engine.cudagraph_capture_sizes=[1,8]"],
    "-O0": ["engine.cudagraph_mode=NONE"],
    "-O3": [],
    "--async-scheduling": ["engine.async_scheduling=true"],
    "--scheduling-policy priority": ["engine.scheduling_policy=priority"],
    "--no-async-scheduling": ["engine.async_scheduling=false"],
    "--disable-hybrid-kv-cache-manager": ["engine.hybrid_kv_cache=false"],
    "--hf-overrides '{\"num_hidden_layers\": 8}'": ["++model.config.num_hidden_layers=8"],
}


@pytest.mark.parametrize("flags", SERVE_ROWS)
def test_a_flag_of_vllm_serve(flags):
    found = serve(f"vllm serve Qwen/Qwen3-32B {flags}")
    assert sorted(found.overrides) == sorted([MODEL, *SERVE_ROWS[flags]])
    assert found.ignored == []


LEFT_OUT = {
    '--speculative-config \'{"method": "mlp_speculator"}\'': "drafts by mlp_speculator are not modelled",
    '--kv-transfer-config \'{"kv_connector": "x"}\'': "makes prefill and decode instances of their own",
    "--cpu-offload-gb 4": "weights in host memory are not modelled yet",
    "--max-num-partial-prefills 2": "no such rule",
    "--host 0.0.0.0": "does not change",
    "--port 8000": "does not change",
    "--trust-remote-code": "does not change",
    "--served-model-name a b": "does not change",
}


@pytest.mark.parametrize("flags", LEFT_OUT)
def test_what_is_left_out_is_said(flags):
    found = serve(f"vllm serve Qwen/Qwen3-32B {flags}")
    assert found.overrides == [MODEL]
    ((flag, why),) = found.ignored
    assert flag == flags.partition(" ")[0].partition(".")[0]
    assert LEFT_OUT[flags] in why


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "vllm serve Qwen/Qwen3-32B --max-num-seq 3",
            "vllm serve has no flag --max-num-seq: did you mean --max-num-seqs?",
        ),
        ("vllm serve Qwen/Qwen3-32B --request-rate 3", "no flag --request-rate: it is one of `vllm bench serve`"),
        ("vllm serve Qwen/Qwen3-32B --qqqq 3", "no flag --qqqq, as far as headway knows"),
        ("vllm serve Qwen/Qwen3-32B --max-num-seqs many", "--max-num-seqs wants a whole number, got 'many'"),
        ("vllm serve Qwen/Qwen3-32B --max-num-seqs", "--max-num-seqs wants a value, and the command ends there"),
        ("vllm serve Qwen/Qwen3-32B --gpu-memory-utilization x", "--gpu-memory-utilization wants a number, got 'x'"),
        ("vllm serve Qwen/Qwen3-32B --enforce-eager=maybe", "--enforce-eager wants true or false, got 'maybe'"),
        ("vllm serve Qwen/Qwen3-32B --speculative-config x", "--speculative-config wants JSON with keys, got 'x'"),
        (
            "vllm serve Qwen/Qwen3-32B --compilation-config null",
            "--compilation-config wants JSON with keys, got 'null'",
        ),
        ("vllm serve Qwen/Qwen3-32B --compilation-config []", "--compilation-config wants JSON with keys"),
        ("vllm serve Qwen/Qwen3-32B --compilation-config true", "--compilation-config wants JSON with keys"),
        ("vllm serve Qwen/Qwen3-32B --hf-overrides " + "[" * 100_000, "--hf-overrides wants JSON with keys"),
        ("vllm serve Qwen/Qwen3-32B -cc 3 -cc.level 2", "-cc.level wants --compilation-config to hold keys"),
        (
            "vllm serve Qwen/Qwen3-32B --hf-overrides.a 1 --hf-overrides.a.b 2",
            "--hf-overrides.a.b wants a to hold keys",
        ),
        ("vllm serve Qwen/Qwen3-32B --cudagraph-capture-sizes", "--cudagraph-capture-sizes wants one value or more"),
        (
            "vllm serve Qwen/Qwen3-32B --data-parallel-size 0",
            "--data-parallel-size wants a whole number above 0, got 0",
        ),
        ("vllm serve Qwen/Qwen3-32B --max-num-seqs " + "9" * 400, "--max-num-seqs wants a whole number"),
        ("vllm serve ''", "model wants a name or a path, got ''"),
        ("vllm serve ~nobody-of-this-name/x", "there is no user ~nobody-of-this-name"),
        ("vllm serve Qwen/Qwen3-32B extra", "'extra' belongs to no flag"),
        ("vllm serve Qwen/Qwen3-31B", "did you mean qwen3-"),
        ("vllm serve --max-num-seqs 3", "vllm serve wants a model"),
        ("vllm", "--serve wants a whole command in quotes"),
        ("ollama run x", "--serve wants a whole command in quotes"),
        ("vllm bench serve --seed 3", "give `vllm bench serve ...` as --bench"),
        ("vllm serve 'x", "no closing quotation"),
    ],
)
def test_mistakes_in_a_servers_command(command, said):
    with pytest.raises(ValueError, match=said):
        serve(command)


@pytest.mark.parametrize(
    "command",
    [
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_USE_V1=1 vllm serve Qwen/Qwen3-32B -tp 2",
        "/usr/local/bin/vllm serve Qwen/Qwen3-32B \\\n  --tensor-parallel-size 2",
        "python3 -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B --tensor-parallel-size=2",
        "vllm serve --model Qwen/Qwen3-32B -tp=2",
    ],
)
def test_a_command_as_it_stands_in_a_script(command):
    assert sorted(serve(command).overrides) == ["deployment.tensor_parallel=2", MODEL]


RANDOM = {
    "workload": "random",
    "workload.lengths": "fixed",
    "workload.input_tokens": "1024",
    "workload.output_tokens": "128",
    "workload.prefix_tokens": "0",
    "workload.num_requests": "1000",
    "workload.arrival": "poisson",
    "workload.rate": "inf",
}

BENCH_ROWS = {
    "": {},
    "--request-rate 10 --num-prompts 300": {
        "workload.rate": "10.0",
        "workload.num_requests": "300",
        "workload.normalize_rate": "true",
    },
    "--request-rate inf": {},
    "--burstiness 0.5 --request-rate 2": {
        "workload.arrival": "gamma",
        "workload.burstiness": "0.5",
        "workload.rate": "2.0",
        "workload.normalize_rate": "true",
    },
    "--max-concurrency 8": {"workload.concurrency": "8"},
    "--random-input-len 100 --random-output-len 200": {"workload.input_tokens": "100", "workload.output_tokens": "200"},
    "--random-range-ratio 0.2": {"workload.lengths": "uniform", "workload.range_ratio": "0.2"},
    "--random-prefix-len 64": {"workload.prefix_tokens": "64"},
    "--seed 3": {"seed": "3"},
    "--goodput ttft:500 tpot:50.5": {"slo.ttft_ms": "500.0", "slo.tpot_ms": "50.5"},
    "--metric-percentiles 25,99.9": {"percentiles": "[25.0,99.9]"},
    "--dataset-name sonnet": {
        "workload.name": "sonnet",
        "workload.input_tokens": "350",
        "workload.output_tokens": "150",
        "workload.prefix_tokens": "200",
    },
    "--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9": {
        "workload.arrival": "ramp",
        "workload.rate": "1.0",
        "workload.rate_end": "9.0",
    },
}


@pytest.mark.parametrize("flags", BENCH_ROWS)
@pytest.mark.parametrize("prefix", ["", "vllm bench serve "])
def test_a_flag_of_vllm_bench_serve(prefix, flags):
    found = bench(prefix + flags)
    assert dict(override.split("=", 1) for override in found.overrides) == RANDOM | BENCH_ROWS[flags]
    assert found.ignored == []


def test_sharegpt_is_the_shipped_profile_where_the_file_is_absent(tmp_path):
    found = bench("--dataset-name sharegpt --dataset-path nowhere.json --request-rate 4")
    assert "workload=sharegpt" in found.overrides
    assert "nowhere.json not being here" in found.notes[0]
    file = tmp_path / "share.json"
    file.write_text("[]")
    assert f"workload={file}" in bench(f"--dataset-name sharegpt --dataset-path {file}").overrides


def test_flags_of_the_client_that_change_nothing_are_said():
    found = bench("--ignore-eos --save-result --backend vllm")
    assert [flag for flag, _ in found.ignored] == ["--ignore-eos", "--save-result", "--backend"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--dataset-name hf", "--dataset-name hf is not available here"),
        ("--dataset-name burstgpt", "wants --dataset-path"),
        ("--goodput ttft=3", "--goodput wants ttft, tpot, itl or e2el as METRIC:MILLISECONDS"),
        ("--max-num-seqs 3", "no flag --max-num-seqs: it is one of `vllm serve`"),
        ("--request-rat 3", "did you mean --request-rate"),
        ("--ramp-up-strategy exponential", "--ramp-up-strategy wants linear"),
        ("--ramp-up-strategy linear", "wants --ramp-up-start-rps too"),
        ("vllm serve x", "give the server's command as --serve"),
        ("--goodput", "--goodput wants one value or more, got none"),
        ("--goodput --num-prompts 3", "--goodput wants one value or more, got none"),
        ("--metric-percentiles 50,abc", "--metric-percentiles wants numbers from 0 to 100, 25,50,99, got '50,abc'"),
        ("--metric-percentiles 50,101", "--metric-percentiles wants numbers from 0 to 100"),
        ("--metric-percentiles ''", "--metric-percentiles wants numbers from 0 to 100"),
        ("3", "--bench wants the flags of `vllm bench serve`, .* got '3'"),
        ("--dataset-name sharegpt --dataset-path ~nobody-of-this-name/x", "there is no user ~nobody-of-this-name"),
    ],
)
def test_mistakes_in_a_load_generators_flags(flags, said):
    with pytest.raises(ValueError, match=said):
        bench(flags)


def test_sglang_and_trtllm_are_read(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    found = serve(
        f"python -m sglang.launch_server --model-path {tmp_path} --tp 4 --mem-fraction-static 0.9 "
        "--disable-radix-cache --max-running-requests 64 --chunked-prefill-size 4096 --page-size 16 "
        "--cuda-graph-max-bs 32 --enable-dp-attention --schedule-policy lpm --enable-mixed-chunk "
        "--disable-overlap-schedule --schedule-conservativeness 0.5"
    )
    assert set(found.overrides) == {
        "engine=sglang-0.5.23",
        f"model={tmp_path}",
        "deployment.tensor_parallel=4",
        "engine.gpu_memory_utilization=0.9",
        "engine.enable_prefix_caching=false",
        "engine.max_num_seqs=64",
        "engine.max_num_batched_tokens=4096",
        "engine.block_size=16",
        "engine.max_cudagraph_capture_size=32",
        "engine.scheduling_policy=lpm",
        "engine.async_scheduling=false",
        "++engine.scheduler_options.enable_mixed_chunk=true",
        "++engine.scheduler_options.schedule_conservativeness=0.5",
    }
    assert not found.ignored  # one rank: data-parallel attention changes nothing
    assert not found.notes
    found = serve(f"sglang serve --model-path {tmp_path} --chunked-prefill-size -1")
    assert "engine.enable_chunked_prefill=false" in found.overrides
    found = serve(f"trtllm-serve {tmp_path} --tp_size 2 --kv_cache_free_gpu_memory_fraction 0.8 --max_batch_size 8")
    assert set(found.overrides) == {
        "engine=trtllm-1.0",
        f"model={tmp_path}",
        "deployment.tensor_parallel=2",
        "engine.gpu_memory_utilization=0.8",
        "engine.max_num_seqs=8",
    }


def shape(command: str) -> list[str]:
    """The parallel sizes of a translated command."""
    return sorted(word for word in serve(command).overrides if word.startswith("deployment."))


def test_data_parallel_ranks_of_sglang_are_part_of_its_tensor_parallel_group(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    start = f"sglang serve --model-path {tmp_path} --tp 8 --dp 4"
    assert shape(f"{start} --enable-dp-attention") == ["deployment.data_parallel=4", "deployment.tensor_parallel=2"]
    assert shape(start) == ["deployment.replicas=4", "deployment.tensor_parallel=8"]
    with pytest.raises(ValueError, match="--dp-size 3 must divide --tp-size 8"):
        serve(f"sglang serve --model-path {tmp_path} --tp 8 --dp 3 --enable-dp-attention")
    with pytest.raises(ValueError, match="--dp-size wants a whole number above 0, got 0"):
        serve(f"sglang serve --model-path {tmp_path} --dp 0")


def test_context_parallel_ranks_of_sglang_are_part_of_its_tensor_parallel_group(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    start = f"sglang serve --model-path {tmp_path} --tp 8 --attn-cp-size 4"
    wanted = ["deployment.prefill_context_parallel=4", "deployment.tensor_parallel=2"]
    assert sorted(shape(f"{start} --enable-prefill-cp")) == wanted
    [(flag, why)] = serve(start).ignored
    assert (flag, why) == ("--attn-cp-size", "only --enable-prefill-cp divides the tokens of prefills")
    with pytest.raises(ValueError, match="--attn-cp-size 3 must divide --tp-size 8"):
        serve(f"sglang serve --model-path {tmp_path} --tp 8 --attn-cp-size 3 --enable-prefill-cp")
    assert (
        "deployment.decode_context_parallel=4" in serve(f"sglang serve --model-path {tmp_path} --dcp-size 4").overrides
    )


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        ("", "deepep_auto"),
        (" --deepep-mode auto", "deepep_auto"),
        (" --deepep-mode normal", "deepep_high_throughput"),
        (" --deepep-mode low_latency", "deepep_low_latency"),
    ],
)
def test_deepep_of_sglang(tmp_path, mode, way):
    (tmp_path / "config.json").write_text("{}")
    start = f"sglang serve --model-path {tmp_path} --tp 8 --dp 8 --moe-a2a-backend deepep{mode}"
    wanted = {f"deployment.all_to_all={way}", "deployment.expert_parallel=true", "deployment.data_parallel=8"}
    assert wanted <= set(shape(f"{start} --enable-dp-attention"))
    [(flag, why)] = serve(start).ignored
    assert flag == "--moe-a2a-backend" and "no data-parallel ranks" in why


def test_other_exchanges_of_sglang_are_told(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    start = f"sglang serve --model-path {tmp_path} --tp 8 --dp 8 --enable-dp-attention --moe-a2a-backend"
    assert serve(f"{start} none").ignored == []
    [(flag, why)] = serve(f"{start} megamoe").ignored
    assert flag == "--moe-a2a-backend" and "megamoe is not modelled" in why


def test_exchange_of_tokens():
    ranks = "vllm serve Qwen/Qwen3-30B-A3B -dp 2 -ep --all2all-backend"
    assert "deployment.all_to_all=naive" in serve(f"{ranks} naive").overrides
    for mode in ("deepep_low_latency", "deepep_high_throughput"):
        assert f"deployment.all_to_all={mode}" in serve(f"{ranks} {mode}").overrides
    assert "deployment.all_to_all=nvlink_one_sided" in serve(f"{ranks} flashinfer_nvlink_one_sided").overrides
    [(flag, why)] = serve(f"{ranks} pplx").ignored
    assert flag == "--all2all-backend" and "pplx is not modelled" in why
    [(flag, why)] = serve(f"{ranks.replace(' -ep ', ' ')} deepep_low_latency").ignored
    assert flag == "--all2all-backend" and "whole experts" in why
    [(flag, why)] = serve("vllm serve Qwen/Qwen3-30B-A3B --all2all-backend naive").ignored
    assert flag == "--all2all-backend" and "no data-parallel ranks" in why


def test_copies_of_experts():
    ranks = "vllm serve Qwen/Qwen3-30B-A3B -dp 8 -ep"
    assert "deployment.redundant_experts=16" in serve(f"{ranks} --num-redundant-experts 16").overrides
    config = '{"num_redundant_experts": 8, "window_size": 1000}'
    found = serve(f"{ranks} --enable-eplb --eplb-config '{config}'")
    assert "deployment.redundant_experts=8" in found.overrides
    left = dict(found.ignored)
    assert "experts.law" in left["--enable-eplb"] and "window_size: experts do not move" in left["--eplb-config"]


@pytest.mark.parametrize(
    ("wanted", "overrides"),
    [
        (None, []),
        ("vllm-0.33.0", ["engine=vllm-0.33.0"]),
        ("vllm@0.33", ["engine=vllm-0.33.0"]),
        ("0.19.0", ["engine=vllm-0.19.0"]),
        ("v0.10.2", ["engine=vllm-0.10.2"]),
        ("vllm-0.20.1", ["engine=vllm-0.20.0", 'engine.version="0.20.1"']),
    ],
)
def test_engine_versions(wanted, overrides):
    assert choose_engine("vllm", wanted) == overrides


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("vlm-0.19", "wants vllm-VERSION, got vlm-0.19"), ("vllm-new", "wants vllm-VERSION, got vllm-new")],
)
def test_engine_versions_that_are_none(wanted, said):
    with pytest.raises(ValueError, match=said):
        choose_engine("vllm", wanted)


def test_a_version_before_all_profiles_takes_the_oldest():
    assert choose_engine("vllm", "vllm-0.9.0") == ["engine=vllm-0.10.2", 'engine.version="0.9.0"']


def test_engine_arguments_of_a_recorded_run():
    found = engine_overrides({"model": "x", "max_num_seqs": 128, "dtype": "bfloat16", "max_model_len": None, "odd": 1})
    assert set(found.overrides) == {"engine.max_num_seqs=128", "model.dtype=bfloat16"}
    assert found.ignored == [("odd", "not a setting known here")]


def test_own_keys_win_over_flags():
    options = {"--serve": "vllm serve Qwen/Qwen3-32B -tp 2", "--bench": "--request-rate 10"}
    asked = request(Arguments(dict(options), ["deployment.tensor_parallel=4", "workload=sharegpt"]))
    found = asked.config()
    assert found.deployment.tensor_parallel == 4
    assert (found.workload.name, found.workload.rate, found.workload.lengths) == ("sharegpt", 10.0, "profile")


def test_a_whole_command_composes():
    options = {
        "--serve": "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-num-seqs 128 --host 0.0.0.0",
        "--bench": "--request-rate 10 --num-prompts 300",
        "--engine": "vllm-0.33.0",
    }
    asked = request(Arguments(dict(options), []))
    found = asked.config()
    assert (found.model.name, found.deployment.tensor_parallel, found.engine.max_num_seqs) == ("qwen3-32b", 2, 128)
    assert (found.engine.version, found.workload.num_requests, found.workload.rate) == ("0.33.0", 300, 10.0)
    same, left_out, device = asked.remarks()
    assert same.startswith("the same as: headway simulate engine=vllm-0.33.0 model=qwen3-32b workload=random ")
    assert left_out == "not used: --host (it does not change what is served, nor how fast)"
    assert "hardware=NAME" in device
    again = request(Arguments({}, shlex.split(same)[5:]))
    assert again.config() == found


def test_a_device_that_was_said_needs_no_remark():
    asked = request(Arguments({"--serve": "vllm serve Qwen/Qwen3-32B"}, ["hardware=l40s"]))
    assert asked.notes == []


def test_an_engine_without_a_command():
    assert request(Arguments({"--engine": "vllm-0.33.0"}, [])).overrides == ["engine=vllm-0.33.0"]
    with pytest.raises(ValueError, match="there is no engine vlm: did you mean"):
        request(Arguments({"--engine": "vlm-0.33.0"}, []))


@pytest.mark.parametrize("program", [SERVE, BENCH, SGLANG, TRTLLM])
def test_every_key_of_the_table_exists(program):
    """A flag has exactly one meaning: a key of the schema, a rule, or a reason to leave it out."""
    from conf.mistakes import keys
    from sim.scheduler.sglang import Options

    known = set(keys()) | {f"++engine.scheduler_options.{field.name}" for field in dataclasses.fields(Options)}
    names, _ = table(program)
    for name, flag in names.items():
        assert sum((flag.key is not None, flag.special is not None, bool(flag.why))) == 1, name
        assert flag.key is None or flag.key in known, name
        assert flag.kind in ("int", "float", "text", "flag", "list", "json"), name


@pytest.mark.parametrize(("text", "value"), [("4096", 4096), ("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("-1", -1)])
def test_human_integers(text, value):
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "4kB", "0.0001k"])
def test_what_is_no_integer(text):
    with pytest.raises(ValueError, match="^"):
        human_int(text)


def test_values_survive_the_grammar_of_overrides():
    for value in ("a b", 'say "x"', "a,b", "x=1", "back\\slash", "end\\", "100%"):
        assert compose([f"workload.name={literal(value)}"]).workload.name == value
    assert literal([1, True, None, "a"]) == "[1,true,null,a]"


def test_words_of_a_command():
    assert words_of("A=1 B=2 vllm serve x # comment") == ["vllm", "serve", "x"]
