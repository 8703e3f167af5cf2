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

    **Raises:** ValueError for times and counts that are no positive numbers, lists of different lengths, or no latency
    at all.
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
    model = content.get("model_id")
    return Observed(
        name=path.name,
        sha256=sha256(text.encode()).hexdigest(),
        statistics=statistics,
        ttft_s=ttft_s,
        e2el_s=e2el_s,
        workload=workload,
        keys=() if workload is not None else (*_lengths(content, path), *_load(content, path)),
        notes=tuple(notes),
        model_id=model if isinstance(model, str) else "",
    )


def _lengths(content: Mapping[str, Any], path: Path) -> list[str]:
    """Mean lengths of the requests that were answered, as the load generator of the file counts them."""
    counts = [_counted(content, name, path) for name in ("total_input_tokens", "total_output_tokens", "completed")]
    if None in counts:
        return []
    prompts, outputs, completed = (float(count or 0.0) for count in counts)
    found = {"input_tokens": prompts / completed, "output_tokens": outputs / completed}
    fixed = ["workload=random", "workload.lengths=fixed"]
    return fixed + [f"workload.{name}={max(round(mean), 1)}" for name, mean in found.items()]


def _load(content: Mapping[str, Any], path: Path) -> list[str]:
    """When requests were sent, as far as the file tells; `vllm bench serve` scales its gaps to the rate."""
    keys = []
    concurrency, count = (_counted(content, name, path) for name in ("max_concurrency", "num_prompts"))
    if concurrency:
        keys.append(f"workload.concurrency={int(concurrency)}")
    rate, burstiness = content.get("request_rate"), content.get("burstiness")
    if rate in ("inf", np.inf):
        keys += ["workload.arrival=poisson", "workload.rate=inf", "workload.normalize_rate=false"]
    elif isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < np.inf:
        even = isinstance(burstiness, int | float) and 0 < burstiness < np.inf and burstiness != 1
        keys += (
            ["workload.arrival=gamma", f"workload.burstiness={burstiness:g}"] if even else ["workload.arrival=poisson"]
        )
        keys += [f"workload.rate={rate:g}", "workload.normalize_rate=true"]
    if count:
        keys.append(f"workload.num_requests={int(count)}")
    return keys


def _counted(content: Mapping[str, Any], name: str, path: Path) -> float | None:
    """A count of the file; None where it has none, or counted nothing."""
    value = content.get(name)
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e15:
        raise ValueError(f"{path}: {name} must be a number of at least 1, got {value!r:.40}.")
    return float(value)


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
