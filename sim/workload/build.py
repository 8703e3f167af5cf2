"""From a `WorkloadConf` and a seed to the one list of requests that every engine runs."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from sim.units import NS_PER_S, to_ns
from sim.workload import draws
from sim.workload.arrival import arrival_process
from sim.workload.check import check_conf
from sim.workload.conf import DEFAULT_REQUESTS, WorkloadConf
from sim.workload.content import shared_prefix_ids
from sim.workload.length import length_law
from sim.workload.limits import limit_trace, within_limits
from sim.workload.reader import read_trace
from sim.workload.retrieval.drawn import drawn_retrieval, provenance as retrieval_provenance, retrieves
from sim.workload.sessions.check import is_drawn
from sim.workload.sessions.drawn import drawn_sessions
from sim.workload.sessions.replayed import check_latencies, replayed_sessions, starts, whole_sessions
from sim.workload.source import Trace
from sim.workload.trace import MOST_REQUESTS, MOST_SECONDS, MOST_TOKENS, Workload, seconds_to_ns


MOST_IDS = 1 << 28
"""Token ids of all prompts together, where a shared prefix asks for them: 2 GiB."""


def build_workload(conf: WorkloadConf, seed: int) -> Workload:
    """Draw or read the requests of `conf`.

    The same `(conf, seed)` gives the same bytes in any process on any machine. Lengths and arrivals have streams of
    their own: another rate scales the same arrivals and leaves the lengths alone, and a larger `num_requests`
    appends. Raises `ValueError` in one sentence that names the key (or file and line) for bad input.
    """
    check_conf(conf)
    trace = _trace(conf) if "trace" in (conf.arrival, conf.lengths) else None
    arrival_ns = _arrivals(conf, seed, None if trace is None else starts(trace))
    if is_drawn(conf):
        content = drawn_sessions(conf, seed, arrival_ns)
    elif conf.lengths != "trace":
        content = _drawn(conf, seed, len(arrival_ns))
    else:
        content = _replayed(conf, seed, arrival_ns, trace)
    if conf.pooling:
        content = _without_outputs(content)
    sessions = content.get("sessions")
    count = len(content["prompt_tokens"])
    priorities = _priorities(conf, seed, count if sessions is None else len(sessions))
    if sessions is not None and priorities:
        priorities["priority"] = priorities["priority"][sessions.session]
    patience = _patience(conf, count, trace)
    retrieval = _retrieval(conf, seed, count)
    source = (conf.source,) if conf.source else ()
    notes = (*(trace.notes if trace is not None else ()), *content.pop("notes", ()))
    return Workload(
        name=conf.name,
        concurrency=conf.concurrency,
        provenance=(
            _arrival_provenance(conf),
            *content.pop("provenance"),
            *priorities.pop("provenance", ()),
            *patience.pop("provenance", ()),
            *retrieval.pop("provenance", ()),
            *source,
        ),
        notes=notes,
        **{"arrival_ns": arrival_ns, **content, **priorities, **patience, **retrieval},
    )


def _without_outputs(content: dict[str, Any]) -> dict[str, Any]:
    """The same requests, which end when their prompt is computed."""
    if content.get("sessions") is not None:
        raise ValueError("workload.pooling=true wants requests that stand alone, got a trace with sessions")
    return content | {
        "output_tokens": np.zeros_like(content["output_tokens"]),
        "output_token_ids": None,
        "provenance": (
            *content["provenance"],
            "pooling: requests have no outputs, they end when their prompt is computed",
        ),
    }


def _retrieval(conf: WorkloadConf, seed: int, count: int) -> dict[str, Any]:
    """What each request retrieves, and after what time; nothing where nothing is looked up."""
    if not retrieves(conf):
        return {}
    return {
        "retrieval": drawn_retrieval(conf, seed, count),
        "provenance": retrieval_provenance(conf.retrieval),
    }


def _priorities(conf: WorkloadConf, seed: int, count: int) -> dict[str, Any]:
    """A priority for each request, drawn by the shares of `conf`; nothing without them."""
    if not conf.priorities:
        return {}
    bounds = np.cumsum(conf.priorities) / sum(conf.priorities)
    drawn = draws.stream(seed, draws.PRIORITIES).random(count)
    shares = ", ".join(f"{share / sum(conf.priorities):.3g}" for share in conf.priorities)
    return {
        "priority": np.minimum(np.searchsorted(bounds, drawn, side="right"), len(bounds) - 1),
        "provenance": (f"priorities from 0, drawn with shares {shares}",),
    }


def _patience(conf: WorkloadConf, count: int, trace: Trace | None) -> dict[str, Any]:
    """How long the client waits for each request, where `conf` says it for all; nothing where it does not."""
    if conf.abort_after_s is None:
        return {}
    if conf.lengths == "trace" and trace is not None and trace.abort_after_ns is not None:
        raise ValueError(
            f"workload.abort_after_s={conf.abort_after_s:g} is set, but {conf.path} says for each request how long its "
            "client waits: leave out one of them"
        )
    return {
        "abort_after_ns": np.full(count, max(1, to_ns(conf.abort_after_s))),
        "provenance": (f"clients give a request up {conf.abort_after_s:g} s after they sent it",),
    }


def _arrivals(conf: WorkloadConf, seed: int, trace: Trace | None) -> Int[np.ndarray, " request"]:
    if conf.arrival == "trace":
        assert trace is not None and trace.arrival_ns is not None
        arrival_ns = trace.arrival_ns[: _count(conf, trace)]
        scaled_s = arrival_ns[-1] / NS_PER_S * conf.time_scale
        if scaled_s > MOST_SECONDS:
            last = trace.line[len(arrival_ns) - 1]
            raise ValueError(
                f"{conf.path}, line {last}: wanted arrivals within {MOST_SECONDS:g} s (ten years) of the start, "
                f"got {scaled_s:.4g} s; lower workload.time_scale, or let the times of the file begin near 0"
            )
        if conf.time_scale != 1:
            arrival_ns = np.floor(arrival_ns * conf.time_scale + 0.5).astype(np.int64)
    else:
        arrival_ns = _process_ns(conf, seed, trace)
    if conf.duration_s is None:
        return arrival_ns
    inside = arrival_ns[arrival_ns <= conf.duration_s * 1e9]
    if not len(inside):
        raise ValueError(
            f"workload.duration_s wants to hold at least one arrival, got {conf.duration_s} s with the first "
            f"arrival at {arrival_ns[0] / 1e9} s"
        )
    return inside


def _process_ns(conf: WorkloadConf, seed: int, trace: Trace | None) -> Int[np.ndarray, " request"]:
    """Drawn arrivals; where only `duration_s` bounds them, more are drawn until they pass it."""
    process = arrival_process(conf.arrival)
    open_ended = conf.duration_s is not None and trace is None and conf.num_requests is None and conf.rounds is None
    count = DEFAULT_REQUESTS if open_ended else _count(conf, trace)
    if open_ended:
        rate = conf.rate if conf.rate_end is None else (conf.rate + conf.rate_end) / 2
        _check_count(rate * (conf.duration_s or 0.0) / 2, "workload.duration_s x workload.rate")
    while True:
        times = np.zeros(count) if math.isinf(conf.rate) else process(conf, count, draws.stream(seed, draws.ARRIVALS))
        if not open_ended or times[-1] > (conf.duration_s or 0.0):
            break
        _check_count(count + 1, "workload.duration_s x workload.rate")
        count = min(count * 2, MOST_REQUESTS)
    if conf.normalize_rate and times[-1] > 0:
        times = times * (count / conf.rate / times[-1])
    if conf.duration_s is not None:
        # Later ones are cut in any case; the clock must hold them until then.
        times = np.minimum(times, 2 * MOST_SECONDS)
    elif not times[-1] <= MOST_SECONDS:
        raise ValueError(
            f"workload.rate={conf.rate:g} wants to bring {count:,} requests within {MOST_SECONDS:g} s (ten years), "
            f"got {times[-1]:.4g} s; raise the rate or lower workload.num_requests"
        )
    return seconds_to_ns(times)


def _check_count(count: float, key: str) -> None:
    if count > MOST_REQUESTS:
        raise ValueError(f"{key} wants at most {MOST_REQUESTS:,} requests, got {count:,.0f} or more")


def _count(conf: WorkloadConf, trace: Trace | None) -> int:
    """How many requests, before `duration_s` cuts."""
    wanted = conf.num_requests
    if wanted is None and conf.rounds is not None:
        wanted = conf.rounds * (conf.concurrency or 1)
        _check_count(wanted, "workload.rounds x workload.concurrency")
    if trace is None:
        return DEFAULT_REQUESTS if wanted is None else wanted
    if wanted is not None and wanted > len(trace):
        raise ValueError(f"workload.num_requests wants at most the {len(trace)} requests of {conf.path}, got {wanted}")
    return len(trace) if wanted is None else wanted


def _drawn(conf: WorkloadConf, seed: int, count: int) -> dict[str, Any]:
    law = length_law(conf)
    before = conf.prefix_tokens + conf.retrieval.chunks * conf.retrieval.chunk_tokens
    lengths = within_limits(replace(conf, prefix_tokens=before), law, count, draws.stream(seed, draws.LENGTHS))
    prompt = lengths[:, 0] + before
    if prompt.max() > MOST_TOKENS:
        chunks = f" with retrieval.chunks={conf.retrieval.chunks}" if conf.retrieval.chunks else ""
        raise ValueError(
            f"workload.prefix_tokens={conf.prefix_tokens}{chunks} wants prompts of at most {MOST_TOKENS:,} tokens, "
            f"got {prompt.max():,}"
        )
    said_again = conf.prefix_tokens > 0 and not conf.retrieval.chunks  # chunks are put together when they are sent
    if said_again and prompt.sum() > MOST_IDS:
        raise ValueError(
            f"workload.prefix_tokens wants at most {MOST_IDS:,} prompt tokens in all, whose ids memory holds, got "
            f"{prompt.sum():,}; lower workload.num_requests or the lengths"
        )
    content: dict[str, Any] = {"prompt_tokens": prompt, "output_tokens": lengths[:, 1], "provenance": law.provenance}
    if said_again:
        content["token_ids"] = shared_prefix_ids(conf, prompt, draws.stream(seed, draws.CONTENT))
        content["provenance"] += (f"content: all prompts begin with the same {conf.prefix_tokens} tokens",)
    return content


def _replayed(
    conf: WorkloadConf, seed: int, arrival_ns: Int[np.ndarray, " start"], trace: Trace | None
) -> dict[str, Any]:
    assert trace is not None
    count = len(starts(trace))
    order = np.arange(count)
    if conf.shuffle:
        order = np.argsort(draws.stream(seed, draws.LENGTHS).random(count), kind="stable")
    order = order[: len(arrival_ns)]
    rows = trace.take(order) if trace.session is None else whole_sessions(trace, order)
    chained = {} if trace.session is None else replayed_sessions(conf, seed, rows)
    if chained:
        chained["arrival_ns"] = arrival_ns[chained["sessions"].session]
    return chained | {
        "prompt_tokens": rows.prompt_tokens,
        "output_tokens": rows.output_tokens,
        "token_ids": _tuple(rows.token_ids),
        "output_token_ids": _tuple(rows.output_token_ids),
        "block_hashes": _tuple(rows.block_hashes),
        "hash_block_tokens": rows.hash_block_tokens,
        "priority": rows.priority,
        "abort_after_ns": rows.abort_after_ns,
        "provenance": (
            *trace.provenance,
            *(("order: shuffled",) if conf.shuffle else ()),
            *(("clients give requests up after their abort_after_s",) if rows.abort_after_ns is not None else ()),
            *chained.get("provenance", ()),
        ),
    }


def _tuple(rows: list[np.ndarray] | None) -> tuple[np.ndarray, ...] | None:
    return None if rows is None else tuple(rows)


def _trace(conf: WorkloadConf) -> Trace:
    """The trace of `conf`, within its limits and, where its times are used, in order of time."""
    assert conf.path is not None
    trace = limit_trace(conf, read_trace(conf, conf.path))
    if conf.lengths == "trace":
        check_latencies(conf, trace)
    if conf.arrival != "trace":
        return trace
    if trace.arrival_ns is None:
        raise ValueError(
            f"{conf.path}: wanted a trace with arrival times for workload.arrival=trace, got lengths only; set "
            "workload.arrival to poisson, closed_loop or another process"
        )
    begun = starts(trace)
    assert begun.arrival_ns is not None
    back = np.flatnonzero(np.diff(begun.arrival_ns) < 0)
    if not len(back):
        return trace
    if not conf.sort:
        before, after = begun.arrival_ns[back[0]], begun.arrival_ns[back[0] + 1]
        raise ValueError(
            f"{conf.path}, line {begun.line[back[0] + 1]}: wanted arrivals in order of time, got {after / 1e9} s after "
            f"{before / 1e9} s; workload.sort=true would sort them"
        )
    order, note = np.argsort(begun.arrival_ns, kind="stable"), f"sorted by arrival ({len(back)} were out of order)"
    return trace.take(order, note) if trace.session is None else whole_sessions(trace, order, note)


def _arrival_provenance(conf: WorkloadConf) -> str:
    if conf.arrival == "trace":
        parts = [f"replayed from {conf.path}"]
        if conf.time_scale != 1:
            parts.append(f"times multiplied by {conf.time_scale}")
    else:
        at_once = conf.arrival not in ("closed_loop", "all_at_once") and math.isinf(conf.rate)
        parts = ["all at once"] if at_once else [conf.arrival]
        if conf.arrival not in ("closed_loop", "all_at_once") and not at_once:
            parts.append(f"{conf.rate} requests/s")
        if conf.arrival == "ramp":
            parts.append(f"to {conf.rate_end} requests/s in a straight line")
        if conf.arrival in ("gamma", "ramp"):
            parts.append(f"burstiness {conf.burstiness}")
        if conf.normalize_rate:
            parts.append("gaps scaled so that the mean rate is exact")
    if conf.concurrency is not None:
        parts.append(f"at most {conf.concurrency} outstanding")
    return f"arrivals: {', '.join(parts)}"
