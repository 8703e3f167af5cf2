"""vLLM's log: every few seconds one line per engine, with rates since the line before and the state as of now.

    Engine 000: Avg prompt throughput: 85.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs, ...

Before V1 the line has `Swapped` and `Pending` instead of `Waiting`, and names no engine. Prompt tokens are counted when
their first token is there; both rates are of the time between two lines.

Sources: vllm-project/vllm, vllm/v1/metrics/loggers.py and vllm/engine/metrics.py; lines quoted in its
issues 6737 and 43295.
"""

import re

import numpy as np

from calibration.from_run.spans import EngineLog, no_prefills


LINE = re.compile(
    r"^(?P<head>.*?)Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<output>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs(?P<rest>.*)$",
    re.MULTILINE,
)
ENGINE = re.compile(r"Engine (\d+): $")
AGGREGATED = re.compile(r"Engines Aggregated")
USAGE = re.compile(r"GPU KV cache usage: ([\d.]+)%")
HIT_RATE = re.compile(r"Prefix cache hit rate: (?:GPU: )?([\d.]+)%")
DRAFTS = re.compile(r"SpecDecoding metrics|Speculative metrics")
CACHE_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
BLOCKS = re.compile(r"# (?:GPU|cuda) blocks: ([\d,]+)")
SETTINGS = {
    "version": re.compile(r"(?:API server version|LLM engine \((?:version )?) ?v?(\d+(?:\.\d+){1,2})"),
    "model": re.compile(r"LLM engine .*? with config: model='([^']+)'"),
    "deployment.tensor_parallel": re.compile(r"\btensor_parallel_size=(\d+)"),
    "deployment.pipeline_parallel": re.compile(r"\bpipeline_parallel_size=(\d+)"),
    "deployment.data_parallel": re.compile(r"\bdata_parallel_size=(\d+)"),
    "engine.max_model_len": re.compile(r"\bmax_seq_len=(\d+)"),
    "engine.max_num_batched_tokens": re.compile(r"\bmax_num_batched_tokens=(\d+)"),
    "engine.enforce_eager": re.compile(r"\benforce_eager=(True|False)"),
}


def read(text: str, name: str, digest: str) -> EngineLog:
    """Lines of each engine, one after the other, as spans.

    **Raises:** ValueError for lines without KV usage, and for speculative decoding, whose steps the rates do not tell.
    """
    if DRAFTS.search(text):
        raise ValueError(
            f"{name} is of speculative decoding, whose rates do not tell the time of a step; give a log without drafts."
        )
    lines: dict[int, list[tuple[float, ...]]] = {}
    aggregated = 0
    for found in LINE.finditer(text):
        if AGGREGATED.search(found["head"]):
            aggregated += 1
            continue
        engine = ENGINE.search(found["head"])
        usage, hits = USAGE.search(found["rest"]), HIT_RATE.search(found["rest"])
        row = (
            float(found["running"]),
            float(usage[1]) / 100.0 if usage else np.nan,
            float(found["prompt"]),
            float(found["output"]),
            float(hits[1]) / 100.0 if hits else 0.0,
        )
        lines.setdefault(int(engine[1]) if engine else 0, []).append(row)
    pairs = [(before, after) for rows in lines.values() for before, after in zip(rows, rows[1:], strict=False)]
    table = np.array(pairs, np.float64).reshape(-1, 2, 5)
    if len(table) and np.isnan(table[..., 1]).all():
        raise ValueError(f"{name} has no KV cache usage in its lines, so the length of contexts is not known.")
    settings = {key: match[1] for key, pattern in SETTINGS.items() if (match := pattern.search(text))}
    if "engine.enforce_eager" in settings:
        settings["engine.enforce_eager"] = settings["engine.enforce_eager"].lower()
    tokens, blocks = CACHE_TOKENS.search(text), BLOCKS.search(text)
    unknown = np.full(len(table), np.nan)
    return EngineLog(
        name=name,
        sha256=digest,
        engine="vllm",
        running=table[:, :, 0],
        kv=table[:, :, 1],
        decodes=table[:, :, 0].mean(1),
        output_tokens_per_s=table[:, 1, 3],
        prompt_tokens_per_s=table[:, 1, 2],
        decode_steps=unknown,
        seconds=unknown,
        idle=np.zeros(len(table), bool),
        hit_rate=table[:, 1, 4],
        prefills=no_prefills(),
        kv_in_tokens=False,
        joint=True,
        rounded=True,
        blocks=_whole(blocks),
        cache_tokens=_whole(tokens),
        settings=settings,
        notes=(f"{aggregated} lines that add up several engines are left out",) if aggregated else (),
    )


def _whole(found: re.Match[str] | None) -> int | None:
    return int(found[1].replace(",", "")) if found else None
