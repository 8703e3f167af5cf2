"""The JSON that `vllm bench serve --save-result` writes, with or without `--save-detailed`."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from calibration.from_run.observed import METRICS, STATISTICS, Observed
from sim.documents import mapping, parse_json, read_text
from sim.workload.trace import Workload, seconds_to_ns


def matches(path: Path) -> bool:
    """Whether the file looks like one, whatever its name."""
    return path.is_file() and '"mean_ttft_ms"' in read_text(path)


def read(path: Path) -> Observed:
    """Latency statistics and, where they were saved, lengths and latencies of each request.

    **Raises:** ValueError for times that are no positive numbers, lists of different lengths, or no latency at all.
    """
    text = read_text(path)
    content = mapping(parse_json(text, str(path)), str(path))
    statistics = {}
    for metric in METRICS:
        for statistic in STATISTICS:
            value = content.get(f"{statistic}_{metric}_ms")
            if value is not None:
                statistics[metric, statistic] = _positive(value, f"{path}: {statistic}_{metric}_ms") / 1e3
    if not statistics:
        raise ValueError(f"{path} holds no latency such as mean_ttft_ms; give the result file of a serving benchmark.")
    ttft_s, e2el_s, workload, notes = _requests(content, path)
    keys = _keys(content)
    return Observed(
        path.name, sha256(text.encode()).hexdigest(), statistics, ttft_s, e2el_s, workload, tuple(keys), tuple(notes)
    )


def _keys(content: Mapping[str, Any]) -> list[str]:
    """What the file tells of its load."""
    keys = []
    concurrency, rate = content.get("max_concurrency"), content.get("request_rate")
    if concurrency:
        keys.append(f"workload.concurrency={int(concurrency)}")
    if isinstance(rate, int | float) and np.isfinite(rate) and rate > 0:
        keys += ["workload.arrival=poisson", f"workload.rate={rate:g}"]
    if content.get("num_prompts"):
        keys.append(f"workload.num_requests={int(content['num_prompts'])}")
    return keys


def _requests(content: Mapping[str, Any], path: Path) -> tuple[Any, Any, Workload | None, list[str]]:
    """TTFT and end-to-end latency of each request, and the workload they make; None where nothing was saved."""
    names = ("input_lens", "output_lens", "ttfts", "itls")
    lists: dict[str, Any] = {name: content.get(name) for name in names}
    if not all(isinstance(value, list) and value for value in lists.values()):
        return None, None, None, ["the file has no lists of single requests (--save-detailed): statistics are fitted"]
    count = len(lists["ttfts"])
    if any(len(value) != count for value in lists.values()):
        got = ", ".join(f"{name} {len(value)}" for name, value in lists.items())
        raise ValueError(f"{path}: lists of requests must be equally long, got {got}.")
    prompt, outputs = (np.asarray(lists[name], np.float64) for name in ("input_lens", "output_lens"))
    ttft_s = np.asarray(lists["ttfts"], np.float64)
    e2el_s = ttft_s + np.array([float(np.sum(gaps)) for gaps in lists["itls"]])
    served = (prompt >= 1) & (outputs >= 1) & (ttft_s > 0)
    if not served.any():
        raise ValueError(f"{path}: no request of the file has a prompt, an output and a first token.")
    notes = [] if served.all() else [f"{int((~served).sum())} failed requests are left out"]
    starts = content.get("start_times")
    concurrency = content.get("max_concurrency")
    if isinstance(starts, list) and len(starts) == count:
        sent = np.asarray(starts, np.float64)
        sent = sent - sent[served].min()
    elif concurrency and not np.isfinite(float(content.get("request_rate") or np.inf)):
        sent = np.zeros(count)
    else:
        return None, None, None, [*notes, "the file does not tell when requests were sent: statistics are fitted"]
    order = np.flatnonzero(served)[np.argsort(sent[served], kind="stable")]
    workload = Workload(
        name=path.stem,
        arrival_ns=seconds_to_ns(np.maximum(sent[order], 0.0)),
        prompt_tokens=prompt[order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
        concurrency=int(concurrency) if concurrency and not isinstance(starts, list) else None,
        provenance=(f"lengths and arrivals: {path.name}",),
    )
    return ttft_s[order], e2el_s[order], workload, notes


def _positive(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        raise ValueError(f"{where} must be a positive number of milliseconds, got {value!r}.")
    return float(value)
