"""TensorRT-LLM's log of iterations (`print_iter_log: true`): one line per step, with its time and its batch.

    iter = 198, global_rank = 0, ..., host_step_time = 5.06ms, ..., states = {'num_ctx_requests': 0, ...}

The time of a line is of the loop's turn, which waits for a batch or two before; so spans of many steps are taken. KV
tokens are told since 2026 (`cached_kv_tokens` or `kv_cache_util`).

Sources: NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/py_executor.py; its pull requests 3914, 14206 and 14734.
"""

import re

import numpy as np

from calibration.from_run.spans import EngineLog, prefills_of


LINE = re.compile(r"\biter = \d+, (?P<rest>.*\bstates = \{.*)$", re.MULTILINE)
RANK = re.compile(r"\bglobal_rank = (\d+)")
STEP_MS, STEP_S = re.compile(r"host_step_time = ([\d.]+)ms"), re.compile(r"elapsed_time = ([\d.]+)s")
SCHEDULED = re.compile(r"num_scheduled_requests[:=]? ?=? ?(\d+)")
CONTEXT_REQUESTS, CONTEXT_TOKENS = re.compile(r"'num_ctx_requests': (\d+)"), re.compile(r"'num_ctx_tokens': (\d+)")
CACHED = re.compile(r"(?:'cached_kv_tokens':|cached_kv_len =) (\d+)")
USAGE = re.compile(r"kv_cache_util = ([\d.]+)")
STEPS = 32
"""Steps of one span."""


def read(text: str, name: str, digest: str) -> EngineLog:
    """Spans of `STEPS` consecutive steps of rank 0 in which somebody ran.

    **Raises:** ValueError for lines without KV usage.
    """
    rows = []
    for found in LINE.finditer(text):
        rest = found["rest"]
        rank = RANK.search(rest)
        if rank and int(rank[1]):
            continue
        millis, whole = STEP_MS.search(rest), STEP_S.search(rest)
        took_s = 1e-3 * float(millis[1]) if millis else float(whole[1]) if whole else np.nan
        values = [_number(pattern, rest) for pattern in (SCHEDULED, CONTEXT_REQUESTS, CONTEXT_TOKENS, CACHED, USAGE)]
        rows.append((took_s, *values))
    table = np.array(rows[1:], np.float64).reshape(-1, 6)  # the first step waits for its request
    in_tokens = bool(np.isfinite(table[:, 4]).any())
    cache = table[:, 4] if in_tokens else table[:, 5]
    if len(table) and np.isnan(cache).all():
        raise ValueError(
            f"{name} has no cached_kv_tokens nor kv_cache_util in its lines, so the length of contexts is not known."
        )
    count = len(table) // STEPS
    groups = table[: count * STEPS].reshape(count, STEPS, 6)
    cache = cache[: count * STEPS].reshape(count, STEPS)
    step_s, scheduled, prompts, tokens = (groups[..., column] for column in range(4))
    decodes, alone = scheduled - prompts, tokens == 0
    seconds = step_s.sum(1)
    prefills = [(at, tokens[at, step], prompts[at, step], 0.0) for at, step in np.argwhere(~alone)]
    running, kv = _mean(decodes, alone), _mean(cache + decodes * in_tokens, alone)
    return EngineLog(
        name=name,
        sha256=digest,
        engine="trtllm",
        running=np.stack([decodes.min(1), decodes.max(1)], 1),
        kv=np.stack([kv, kv], 1),
        decodes=running,
        output_tokens_per_s=decodes.sum(1) / seconds,
        prompt_tokens_per_s=np.full(count, np.nan),
        decode_steps=alone.sum(1).astype(np.float64),
        seconds=seconds,
        idle=(scheduled == 0).any(1),
        hit_rate=np.zeros(count),
        prefills=prefills_of(prefills),
        kv_in_tokens=in_tokens,
        joint=True,
        rounded=not in_tokens,
    )


def _mean(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Mean over the steps of each span that are marked; NaN where none is."""
    count = where.sum(1)
    total = np.where(where, values, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _number(pattern: re.Pattern[str], text: str) -> float:
    found = pattern.search(text)
    return float(found[1]) if found else np.nan
