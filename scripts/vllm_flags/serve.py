"""A server's command line: `vllm serve`, `sglang serve` or `trtllm-serve`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conf.files import by_hf_id, choices, hub_names, looks_like_file
from conf.mistakes import did_you_mean, nearest
from scripts.vllm_flags.parser import WANTED, Flag, Given, convert, parse_flags, words_of
from scripts.vllm_flags.speculative import speculative_rule
from scripts.vllm_flags.translation import Rule, Translation, apply, literal, table
from sim.deployment.all_to_all import AUTO, DIRECT, EXCHANGES
from sim.documents import user_path
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY


DEEPEP_MODES = {"auto": AUTO, "normal": HIGH_THROUGHPUT, "low_latency": LOW_LATENCY}
SERVE, BENCH, SGLANG, TRTLLM = "vllm serve", "vllm bench serve", "sglang serve", "trtllm-serve"

# How each program may begin, and the engine whose profiles it is run with.
STARTS = {
    ("vllm", "bench", "serve"): BENCH,
    ("vllm", "serve"): SERVE,
    ("python", "-m", "vllm.entrypoints.openai.api_server"): SERVE,
    ("sglang", "serve"): SGLANG,
    ("python", "-m", "sglang.launch_server"): SGLANG,
    ("trtllm-serve", "serve"): TRTLLM,
    ("trtllm-serve",): TRTLLM,
}
ENGINES = {SERVE: "vllm", SGLANG: "sglang", TRTLLM: "trtllm"}
ONLY_MEMORY = (
    "is read for its model, parallel sizes and memory settings: `headway memory` follows its memory rule; "
    "its scheduler is not simulated yet"
)


def program_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Which program a command starts, and its arguments. `ValueError` for any other program."""
    plain = [Path(words[0]).name if words else "", *words[1:]]
    if re.fullmatch(r"python3?(\.\d+)?", plain[0]):
        plain[0] = "python"
    for start, program in STARTS.items():
        if tuple(plain[: len(start)]) == start:
            return program, plain[len(start) :]
    raise ValueError(
        "--serve wants a whole command in quotes, `vllm serve MODEL ...` (or sglang serve, trtllm-serve), "
        f"got {' '.join(words)!r}."
    )


def version_key(version: str) -> tuple[int, ...]:
    """`0.33` -> (0, 33, 0), for ordering."""
    numbers = tuple(int(part) for part in version.split("."))
    return (numbers + (0, 0))[:3]


def choose_engine(name: str, wanted: str | None) -> list[str]:
    """Overrides for the engine `name` at `wanted` (`vllm-0.33.0`, `vllm@0.33`, `0.33.0`), or at its default version.

    A version without a profile of its own takes the nearest earlier one, or the oldest, which the settings then say.
    """
    profiles = [choice for choice in choices("engine") if choice.startswith(f"{name}-")]
    if not profiles:
        engines = sorted({choice.partition("-")[0] for choice in choices("engine")})
        raise ValueError(f"--engine {wanted}: there is no engine {name}{did_you_mean(nearest(name, engines))}")
    known = {choice.removeprefix(f"{name}-"): choice for choice in profiles}
    newest_first = sorted(known, key=version_key, reverse=True)
    if wanted is None:
        return [] if name == "vllm" else [f"engine={known[newest_first[0]]}"]
    found = re.fullmatch(rf"(?:{name}[-@]?)?v?(\d+(?:\.\d+){{0,2}})", wanted.lower())
    if not found:
        raise ValueError(f"--engine wants {name}-VERSION, got {wanted}{did_you_mean(nearest(wanted, profiles))}")
    version = version_key(found[1])
    profile = next((known for known in newest_first if version_key(known) <= version), newest_first[-1])
    exact = version_key(profile) == version
    return [f"engine={known[profile]}"] + ([] if exact else [f'engine.version="{found[1]}"'])


def serve(command: str, engine: str | None = None) -> Translation:
    """Translate a server's command line."""
    program, words = program_of(words_of(command))
    if program == BENCH:
        raise ValueError("--serve wants the server's command; give `vllm bench serve ...` as --bench.")
    names, shorts = table(program)
    given = parse_flags(words, names, shorts, program, {BENCH: table(BENCH)[0]})
    out = Translation(choose_engine(ENGINES[program], engine))
    model_flag = "model-path" if program == SGLANG else "model"
    model = given.flags.get(model_flag) or (given.words.pop(0) if given.words else None)
    if model is None:
        raise ValueError(f"{program} wants a model: a HuggingFace id, or the path of a folder with its config.json.")
    if given.words:
        raise ValueError(f"{program}: {given.words[0]!r} belongs to no flag.")
    given.flags[model_flag] = model
    apply(given, program, RULES, out)
    if program == TRTLLM:
        out.notes.append(f"{program} {ONLY_MEMORY}")
    return out


def engine_overrides(arguments: Mapping[str, Any]) -> Translation:
    """Translate the arguments of vLLM's engine in Python (`tensor_parallel_size=2`), the model apart.

    None means the default. An argument that is no flag known here is left out and said.
    """
    names, _ = table(SERVE)
    given, out = Given(), Translation()
    for argument, value in arguments.items():
        name = argument.replace("_", "-")
        if value is None or name == "model":
            continue
        if name in names:
            given.flags[names[name].name] = of_kind(names[name], argument, value)
        else:
            out.ignored.append((argument, "not a setting known here"))
    apply(given, SERVE, RULES, out)
    return out


PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "text": (str, int, float),
    "flag": (bool,),
    "json": (dict,),
    "list": (list,),
}


def of_kind(flag: Flag, argument: str, value: Any) -> Any:
    """An engine's argument, text converted as on the command line; `ValueError` for one of another kind."""
    if isinstance(value, str) and flag.kind not in ("text", "list"):
        return convert(flag, value, "engine_kwargs")
    kinds = PYTHON_TYPES[flag.kind] + ((int,) if flag.special == "compilation" else ())
    if not isinstance(value, kinds) or (isinstance(value, bool) and flag.kind != "flag"):
        raise ValueError(f"engine_kwargs: {argument} wants {WANTED[flag.kind]}, got {value!r:.60}.")
    return value


def model_rule(given: Given, out: Translation) -> None:
    """The catalogue's name of a HuggingFace id, or a local folder or file."""
    _, model = first(given, "model", "model-path")
    local = user_path(model, "model").exists() or (
        looks_like_file(model) and not re.fullmatch(r"[\w.-]+/[\w.-]+", model)
    )
    name = model if local else by_hf_id(model)
    out.set("model", name)
    if not local and hub_names().get(model.lower()) != name:
        out.notes.append(f"{model} is taken to have the shape of the catalogue's {name}")


def first(given: Given, *names: str) -> tuple[str, Any]:
    """Name and value of the flag that was given of those that mean the same in different programs."""
    return next((name, given.flags[name]) for name in names if name in given.flags)


def data_parallel_rule(given: Given, out: Translation) -> None:
    """Ranks inside one replica, each with a queue and a KV cache; a model's experts are shared by all of them."""
    out.set("deployment.data_parallel", at_least_one(given, "data-parallel-size"))


def all_to_all_rule(given: Given, out: Translation) -> None:
    """How tokens get to the experts of other ranks, where there are any."""
    backend = given.flags["all2all-backend"].removeprefix("flashinfer_")
    if given.flags.get("data-parallel-size", 1) == 1:
        out.ignored.append(("--all2all-backend", "there are no data-parallel ranks to exchange tokens with"))
    elif backend in DIRECT and not given.flags.get("enable-expert-parallel"):
        out.ignored.append(("--all2all-backend", "only --enable-expert-parallel has whole experts to send tokens to"))
    elif backend in EXCHANGES:
        out.set("deployment.all_to_all", backend)
    else:
        why = f"{backend} is not modelled yet: tokens are exchanged as the version does by default"
        out.ignored.append(("--all2all-backend", why))


def sglang_all_to_all_rule(given: Given, out: Translation) -> None:
    """DeepEP in one of its modes, `auto` by default; experts are then whole, one group over all ranks."""
    backend, mode = given.flags.get("moe-a2a-backend", "none"), given.flags.get("deepep-mode", "auto")
    if backend == "none":
        return
    if backend != "deepep" or mode not in DEEPEP_MODES:
        named = f"{backend} --deepep-mode {mode}" if backend == "deepep" else backend
        why = f"{named} is not modelled: tokens are exchanged as the version does by default"
        out.ignored.append(("--moe-a2a-backend", why))
    elif given.flags.get("enable-dp-attention") and given.flags.get("dp-size", 1) > 1:
        out.set("deployment.all_to_all", DEEPEP_MODES[mode])
        out.set("deployment.expert_parallel", True)
    else:
        out.ignored.append(("--moe-a2a-backend", "there are no data-parallel ranks to exchange tokens with"))


def eplb_rule(given: Given, out: Translation) -> None:
    """Copies of experts; when they move is not modelled."""
    config = given.flags["eplb-config"]
    copies = config.get("num_redundant_experts", 0)
    if copies:
        out.set("deployment.redundant_experts", copies)
    rest = ", ".join(key for key in config if key != "num_redundant_experts")
    if rest:
        out.ignored.append(("--eplb-config", f"{rest}: experts do not move while the engine runs"))


def sglang_parallel_rule(given: Given, out: Translation) -> None:
    """Data-parallel attention divides a tensor-parallel group into ranks; without it, ranks are replicas.

    So does prefill context parallelism, into ranks that divide the tokens of a prefill.
    """
    flags = given.flags
    if "tp-size" in flags:
        at_least_one(given, "tp-size")
    ranks, width = at_least_one(given, "dp-size"), flags.get("tp-size", 1)
    width = _prefill_ranks(given, width, out)
    if flags.get("enable-dp-attention") and ranks > 1:
        if width % ranks:
            raise ValueError(
                f"{SGLANG}: --dp-size {ranks} must divide --tp-size {width}, as --enable-dp-attention is given."
            )
        out.set("deployment.tensor_parallel", width // ranks)
        out.set("deployment.data_parallel", ranks)
        return
    if "tp-size" in flags:
        out.set("deployment.tensor_parallel", width)
    if "dp-size" in flags:
        out.set("deployment.replicas", ranks)
        if ranks != 1:
            out.notes.append(f"data parallelism becomes {ranks} replicas behind a router, each with all weights")


def _prefill_ranks(given: Given, width: int, out: Translation) -> int:
    """Devices that share attention heads, of `width` that share the tokens of prefills with others."""
    size = at_least_one(given, "attn-cp-size")
    if size == 1:
        return width
    if not given.flags.get("enable-prefill-cp"):
        out.ignored.append(("--attn-cp-size", "only --enable-prefill-cp divides the tokens of prefills"))
        return width
    if width % size:
        raise ValueError(f"{SGLANG}: --attn-cp-size {size} must divide --tp-size {width}.")
    out.set("deployment.prefill_context_parallel", size)
    return width // size


def at_least_one(given: Given, name: str) -> int:
    """A number of ranks, 1 if the flag is not given."""
    size = given.flags.get(name, 1)
    if size < 1:
        raise ValueError(f"--{name} wants a whole number above 0, got {size}.")
    return int(size)


def dtype_rule(given: Given, out: Translation) -> None:
    """The type of activations and unquantised weights."""
    if given.flags["dtype"] != "auto":
        out.set("model.dtype", given.flags["dtype"])


def quantization_rule(given: Given, out: Translation) -> None:
    """What the engine makes of a checkpoint that does not say itself how it is quantised."""
    out.set("model.quantization", given.flags["quantization"])


def hf_overrides_rule(given: Given, out: Translation) -> None:
    """Keys of the model's config.json."""
    out.overrides += [f"++model.config.{key}={literal(value)}" for key, value in given.flags["hf-overrides"].items()]


def max_model_len_rule(given: Given, out: Translation) -> None:
    """A length, or -1, the longest that fits, for `auto`."""
    _, value = first(given, "max-model-len", "context-length", "max-seq-len")
    out.set("engine.max_model_len", -1 if value == "auto" else value)


def compilation_rule(given: Given, out: Translation) -> None:
    """The CUDA-graph settings of the compilation config."""
    config = given.flags["compilation-config"]
    if isinstance(config, int):
        return set_level(str(config), out)
    keys = {
        "cudagraph_mode": "engine.cudagraph_mode",
        "cudagraph_capture_sizes": "engine.cudagraph_capture_sizes",
        "max_cudagraph_capture_size": "engine.max_cudagraph_capture_size",
    }
    for key, value in config.items():
        if key in ("level", "mode"):
            set_level(str(value), out)
        elif key == "full_cuda_graph" and value:
            out.set("engine.cudagraph_mode", "FULL")
        elif key in keys:
            out.set(keys[key], value.upper() if isinstance(value, str) else value)
        else:
            out.ignored.append(
                (f"--compilation-config.{key}", "compiled kernels are priced by the device's achieved rates")
            )
    return None


def set_level(level: str, out: Translation) -> None:
    """Optimisation level 0 is eager without graphs; the others differ in compile time and fusion."""
    if level in ("0", "NONE"):
        out.set("engine.cudagraph_mode", "NONE")
    elif level not in ("2", "3", "VLLM_COMPILE"):
        out.ignored.append((f"-O{level}", "only level 0 (no CUDA graphs) and the default are told apart"))


def optimization_rule(given: Given, out: Translation) -> None:
    """`-O0` to `-O3`."""
    set_level(given.flags["optimization-level"], out)


def hybrid_rule(given: Given, out: Translation) -> None:
    """One block table for all layers, or one per kind of attention."""
    out.set("engine.hybrid_kv_cache", not given.flags["disable-hybrid-kv-cache-manager"])


def no_prefix_caching_rule(given: Given, out: Translation) -> None:
    """SGLang's switch is the other way round."""
    out.set("engine.enable_prefix_caching", not given.flags["disable-radix-cache"])


def no_overlap_rule(given: Given, out: Translation) -> None:
    """SGLang's normal loop in place of the overlap loop."""
    out.set("engine.async_scheduling", not given.flags["disable-overlap-schedule"])


def chunked_prefill_size_rule(given: Given, out: Translation) -> None:
    """Tokens of a prefill batch; -1: prompts are not cut."""
    size = given.flags["chunked-prefill-size"]
    if size > 0:
        out.set("engine.max_num_batched_tokens", size)
    else:
        out.set("engine.enable_chunked_prefill", False)


def expert_size_rule(given: Given, out: Translation) -> None:
    """Any expert-parallel size above 1."""
    if given.flags["ep-size"] != 1:
        out.set("deployment.expert_parallel", True)


RULES: dict[str, Rule] = {
    "speculative": speculative_rule,
    "model": model_rule,
    "data_parallel": data_parallel_rule,
    "all_to_all": all_to_all_rule,
    "sglang_all_to_all": sglang_all_to_all_rule,
    "eplb": eplb_rule,
    "sglang_parallel": sglang_parallel_rule,
    "dtype": dtype_rule,
    "quantization": quantization_rule,
    "hf_overrides": hf_overrides_rule,
    "max_model_len": max_model_len_rule,
    "compilation": compilation_rule,
    "optimization": optimization_rule,
    "hybrid": hybrid_rule,
    "no_prefix_caching": no_prefix_caching_rule,
    "no_overlap": no_overlap_rule,
    "chunked_prefill_size": chunked_prefill_size_rule,
    "expert_size": expert_size_rule,
}
