"""From a `WorkloadConf` and a seed to the one list of requests that every engine runs."""

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from sim.workload import draws
from sim.workload.arrival import arrival_process
from sim.workload.check import check_conf
from sim.workload.conf import DEFAULT_REQUESTS, WorkloadConf
from sim.workload.content import shared_prefix_ids
from sim.workload.length import length_law
from sim.workload.limits import limit_trace, within_limits
from sim.workload.reader import Trace, read_trace
from sim.workload.trace import Workload, seconds_to_ns


def build_workload(conf: WorkloadConf, seed: int) -> Workload:
    """Draw or read the requests of `conf`.

    The same `(conf, seed)` gives the same bytes in any process on any machine. Lengths and arrivals have streams of
    their own: another rate scales the same arrivals and leaves the lengths alone, and a larger `num_requests`
    appends. Raises `ValueError` in one sentence that names the key (or file and line) for bad input.
    """
    check_conf(conf)
    trace = _read(conf) if "trace" in (conf.arrival, conf.lengths) else None
    count = _count(conf, trace)
    rng = draws.stream(seed, draws.ARRIVALS)
    if conf.arrival == "trace":
        assert trace is not None and trace.arrival_ns is not None
        arrival_ns = _scaled(trace.arrival_ns[:count], conf.time_scale)
        arrivals_from = _trace_provenance(conf)
    else:
        arrival_ns = seconds_to_ns(_times_s(conf, count, rng))
        arrivals_from = _process_provenance(conf)
    if conf.duration_s is not None:
        arrival_ns = arrival_ns[arrival_ns <= conf.duration_s * 1e9]
        if not len(arrival_ns):
            raise ValueError(f"workload.duration_s wants a time with at least one arrival in it, got {conf.duration_s}")
    return _with_lengths(conf, seed, arrival_ns, arrivals_from, trace)


def _with_lengths(
    conf: WorkloadConf, seed: int, arrival_ns: Int[np.ndarray, " request"], arrivals_from: str, trace: Trace | None
) -> Workload:
    count = len(arrival_ns)
    base = Workload(
        name=conf.name,
        arrival_ns=arrival_ns,
        prompt_tokens=np.ones(count, np.int64),
        output_tokens=np.ones(count, np.int64),
        concurrency=conf.concurrency,
        digest="not yet",
    )
    notes = trace.notes if trace is not None else ()
    if conf.lengths == "trace":
        assert trace is not None
        if conf.shuffle:
            order = np.argsort(draws.stream(seed, draws.LENGTHS).random(len(trace.prompt_tokens)), kind="stable")[:count]
        else:
            order = np.arange(count)
        return replace(
            base,
            prompt_tokens=trace.prompt_tokens[order],
            output_tokens=trace.output_tokens[order],
            token_ids=_rows(trace.token_ids, order),
            output_token_ids=_rows(trace.output_token_ids, order),
            block_hashes=_rows(trace.block_hashes, order),
            hash_block_tokens=trace.hash_block_tokens,
            provenance=(arrivals_from, *trace.provenance),
            notes=notes,
            digest="",
        )
    law = length_law(conf)
    rng = draws.stream(seed, draws.LENGTHS)
    lengths = within_limits(conf, law, count, rng)
    prompt = lengths[:, 0] + conf.prefix_tokens
    ids = shared_prefix_ids(conf, prompt, draws.stream(seed, draws.CONTENT)) if conf.prefix_tokens else None
    return replace(
        base,
        prompt_tokens=prompt,
        output_tokens=lengths[:, 1],
        token_ids=ids,
        provenance=(arrivals_from, *law.provenance),
        notes=notes,
        digest="",
    )


def _rows(rows: list[np.ndarray] | None, order: Int[np.ndarray, " request"]) -> tuple[np.ndarray, ...] | None:
    return None if rows is None else tuple(rows[i] for i in order)


def _read(conf: WorkloadConf) -> Trace:
    trace = limit_trace(conf, read_trace(conf))
    if conf.arrival != "trace":
        return trace
    if trace.arrival_ns is None:
        raise ValueError(
            f"{conf.path}: wanted a trace with arrival times, got a data set of lengths only; "
            "set workload.arrival (poisson, closed_loop, ...) and workload.rate"
        )
    back = np.flatnonzero(np.diff(trace.arrival_ns) < 0)
    if len(back) == 0:
        return trace
    if not conf.sort:
        raise ValueError(
            f"{conf.path}, line {trace.line[back[0] + 1]}: wanted arrivals in order of time, got "
            f"{trace.arrival_ns[back[0] + 1] / 1e9} s after {trace.arrival_ns[back[0]] / 1e9} s; "
            "workload.sort=true would sort them"
        )
    order = np.argsort(trace.arrival_ns, kind="stable")
    return replace(
        trace,
        arrival_ns=trace.arrival_ns[order],
        prompt_tokens=trace.prompt_tokens[order],
        output_tokens=trace.output_tokens[order],
        line=trace.line[order],
        token_ids=_list(trace.token_ids, order),
        output_token_ids=_list(trace.output_token_ids, order),
        block_hashes=_list(trace.block_hashes, order),
        notes=(*trace.notes, f"{len(back)} requests arrived before their predecessor; sorted by arrival"),
    )


def _list(rows: list[np.ndarray] | None, order: Int[np.ndarray, " request"]) -> list[np.ndarray] | None:
    return None if rows is None else [rows[i] for i in order]


def _count(conf: WorkloadConf, trace: Trace | None) -> int:
    """How many requests at most; `duration_s` cuts later."""
    wanted = conf.num_requests
    if wanted is None and conf.rounds is not None:
        assert conf.concurrency is not None
        wanted = conf.rounds * conf.concurrency
    if trace is not None:
        rows = len(trace.prompt_tokens)
        if wanted is not None and wanted > rows:
            raise ValueError(f"workload.num_requests wants at most the {rows} requests of {conf.path}, got {wanted}")
        return rows if wanted is None else wanted
    if wanted is not None:
        return wanted
    if conf.duration_s is None:
        return DEFAULT_REQUESTS
    top = max(conf.rate, conf.rate_end or 0.0) * conf.duration_s
    # Enough for the process to run past duration_s except with negligible probability (10 standard deviations).
    spread = math.sqrt(top * (1 + 1 / min(conf.burstiness, 1.0))) if math.isfinite(conf.burstiness) else 0.0
    return int(top + 10 * spread / min(conf.burstiness, 1.0) + 100)


def _times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    process = arrival_process(conf.arrival)
    times = np.zeros(count) if math.isinf(conf.rate) else process(conf, count, rng)
    if conf.normalize_rate and times[-1] > 0:
        times = times * (count / conf.rate / times[-1])
    return times


def _scaled(arrival_ns: Int[np.ndarray, " request"], time_scale: float) -> Int[np.ndarray, " request"]:
    return arrival_ns if time_scale == 1.0 else np.floor(arrival_ns * time_scale + 0.5).astype(np.int64)


def _trace_provenance(conf: WorkloadConf) -> str:
    scale = "" if conf.time_scale == 1.0 else f", times multiplied by {conf.time_scale}"
    return f"arrivals: replayed from {conf.path}{scale}"


def _process_provenance(conf: WorkloadConf) -> str:
    parts = [f"arrivals: {conf.arrival}"]
    if conf.arrival not in ("closed_loop", "all_at_once"):
        parts.append(f"{conf.rate} requests/s")
    if conf.arrival == "ramp":
        parts.append(f"rising or falling to {conf.rate_end} requests/s")
    if conf.arrival in ("gamma", "ramp"):
        parts.append(f"burstiness {conf.burstiness}")
    if conf.normalize_rate:
        parts.append("gaps scaled so that the mean rate is exact")
    if conf.concurrency is not None:
        parts.append(f"at most {conf.concurrency} outstanding")
    return ", ".join(parts)
