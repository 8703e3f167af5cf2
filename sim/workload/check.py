"""Whether a `WorkloadConf` makes sense, before anything is drawn or read."""

import math

from sim.documents import nearest
from sim.workload.arrival import arrival_process
from sim.workload.conf import WorkloadConf
from sim.workload.length import names as length_names
from sim.workload.retrieval.check import check_retrieval
from sim.workload.sessions.check import check_sessions, is_drawn
from sim.workload.trace import MOST_REQUESTS, MOST_SECONDS, MOST_TOKENS


# From and to: outside, the sums lose their digits or leave the clock.
RANGES = {
    "rate": (1e-8, 1e12),
    "rate_end": (1e-8, 1e12),
    "duration_s": (1e-9, MOST_SECONDS),
    "abort_after_s": (1e-9, MOST_SECONDS),
    "burstiness": (1e-6, 1e12),
    "time_scale": (1e-12, 1e12),
    "zipf_exponent": (1e-6, 100.0),
    "input_cv": (1e-6, 1000.0),
    "output_cv": (1e-6, 1000.0),
}
ENDLESS = ("rate", "burstiness")
MOST_ZIPF = 1 << 20
"""Each possible length of a zipf law has its own probability, in memory."""
NO_LIMIT = 10**12
COUNTS = {
    "num_requests": MOST_REQUESTS,
    "rounds": MOST_REQUESTS,
    "concurrency": MOST_REQUESTS,
    "limit": NO_LIMIT,
    "input_tokens": MOST_TOKENS,
    "output_tokens": MOST_TOKENS,
    "max_input_tokens": NO_LIMIT,
    "hash_block_tokens": MOST_TOKENS,
}

MOST_PRIORITIES = 1000

UNTIMED = ("closed_loop", "all_at_once")


def check_conf(conf: WorkloadConf) -> None:
    """Raise `ValueError`, one sentence with the key, for a value out of range or a combination that can't be."""
    check_numbers(conf)
    if conf.over_limit not in ("drop", "truncate", "error"):
        near = nearest(conf.over_limit, ("drop", "truncate", "error"))
        raise ValueError(f"workload.over_limit wants drop, truncate or error, got {conf.over_limit!r}{near}")
    if conf.arrival != "trace":
        arrival_process(conf.arrival)
    known = [*length_names(), "trace"]
    if conf.lengths not in known:
        near = nearest(conf.lengths, known)
        raise ValueError(f"workload.lengths wants one of {', '.join(known)}, got {conf.lengths!r}{near}")
    _check_combinations(conf)
    check_sessions(conf)
    if conf.pooling and (is_drawn(conf) or conf.max_total_tokens is not None):
        other = "workload.max_input_tokens; max_total_tokens counts outputs"
        if is_drawn(conf):
            other = "requests that stand alone, not sessions, whose rounds answer each other"
        raise ValueError(f"workload.pooling=true wants {other}")
    check_retrieval(conf)


def check_numbers(conf: WorkloadConf) -> None:
    """The part of `check_conf` that is about single numbers, whatever the others are."""
    for key, (least, most) in RANGES.items():
        value = getattr(conf, key)
        if value is None:
            continue
        if not value > 0:
            raise ValueError(f"workload.{key} wants a number > 0, got {value}")
        if math.isinf(value) and key in ENDLESS:
            continue
        if math.isinf(value):
            raise ValueError(f"workload.{key} wants a finite number > 0, got {value}")
        if not least <= value <= most:
            endless = " (or inf)" if key in ENDLESS else ""
            raise ValueError(f"workload.{key} wants a number from {least:g} to {most:g}{endless}, got {value:g}")
    for key, largest in COUNTS.items():
        value = getattr(conf, key)
        if value is None:
            continue
        if not 1 <= value < math.inf or value != int(value):
            raise ValueError(f"workload.{key} wants an integer >= 1, got {value}")
        if value > largest:
            raise ValueError(f"workload.{key} wants at most {largest:,}, got {value}")
    if conf.prefix_tokens > MOST_TOKENS:
        raise ValueError(f"workload.prefix_tokens wants at most {MOST_TOKENS:,}, got {conf.prefix_tokens}")
    if conf.prefix_tokens < 0:
        raise ValueError(f"workload.prefix_tokens wants an integer >= 0, got {conf.prefix_tokens}")
    if conf.max_total_tokens is not None and conf.max_total_tokens > NO_LIMIT:
        raise ValueError(f"workload.max_total_tokens wants at most {NO_LIMIT:,}, got {conf.max_total_tokens}")
    if conf.max_total_tokens is not None and conf.max_total_tokens < 2:
        raise ValueError(
            f"workload.max_total_tokens wants an integer >= 2 (prompt and output), got {conf.max_total_tokens}"
        )
    if conf.lengths == "zipf" and max(conf.input_tokens, conf.output_tokens) > MOST_ZIPF:
        raise ValueError(
            f"workload.lengths=zipf wants workload.input_tokens and output_tokens of at most {MOST_ZIPF:,}, "
            f"got {max(conf.input_tokens, conf.output_tokens):,}"
        )
    if len(conf.priorities) > MOST_PRIORITIES:
        raise ValueError(f"workload.priorities wants at most {MOST_PRIORITIES:,} classes, got {len(conf.priorities):,}")
    if conf.priorities and not (0 < sum(conf.priorities) < math.inf and min(conf.priorities) >= 0):
        raise ValueError(f"workload.priorities wants shares >= 0, some above 0, got {list(conf.priorities)}")
    for key in ("range_ratio", "output_range_ratio"):
        value = getattr(conf, key)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"workload.{key} wants a number from 0 to 1, got {value}")


def _check_combinations(conf: WorkloadConf) -> None:
    replayed = "trace" in (conf.arrival, conf.lengths)
    wrong = [
        (conf.arrival == "closed_loop" and conf.concurrency is None, "arrival=closed_loop wants workload.concurrency"),
        (conf.rounds is not None and conf.concurrency is None, "rounds wants workload.concurrency"),
        (conf.arrival == "ramp" and conf.rate_end is None, "arrival=ramp wants workload.rate_end"),
        (
            conf.arrival == "ramp" and not (math.isfinite(conf.rate) and math.isfinite(conf.burstiness)),
            "arrival=ramp wants a finite workload.rate and workload.burstiness",
        ),
        (
            conf.duration_s is not None
            and (conf.arrival in UNTIMED or (conf.arrival != "trace" and math.isinf(conf.rate))),
            "duration_s wants arrivals spread over time (here all are sent at 0); set workload.num_requests instead",
        ),
        (
            conf.rate_end is not None and conf.arrival != "ramp",
            f"rate_end wants workload.arrival=ramp, got {conf.arrival}",
        ),
        (
            conf.burstiness != 1 and conf.arrival not in ("gamma", "ramp"),
            f"burstiness={conf.burstiness} wants workload.arrival=gamma or ramp, got {conf.arrival}",
        ),
        (
            conf.arrival != "trace" and (conf.time_scale != 1 or conf.sort),
            f"time_scale and workload.sort want workload.arrival=trace, got {conf.arrival}",
        ),
        (conf.limit is not None and not replayed, "limit wants a trace; workload.num_requests limits drawn requests"),
        (replayed and not conf.path, "arrival=trace or lengths=trace wants workload.path"),
        (bool(conf.path) and not replayed, "path wants workload.arrival=trace or workload.lengths=trace to be used"),
        (
            conf.shuffle and (conf.arrival == "trace" or conf.lengths != "trace"),
            "shuffle wants workload.lengths=trace with drawn arrivals (a replay keeps each request's own time)",
        ),
        (
            conf.normalize_rate and conf.arrival not in ("poisson", "gamma"),
            "normalize_rate wants workload.arrival=poisson or gamma",
        ),
        (
            conf.normalize_rate and conf.duration_s is not None,
            "normalize_rate wants a run without workload.duration_s (it fixes when the last request arrives)",
        ),
        (
            conf.prefix_tokens > 0 and conf.lengths == "trace",
            "prefix_tokens wants drawn lengths (a trace has its own content)",
        ),
        (
            conf.max_input_tokens is not None and conf.prefix_tokens >= conf.max_input_tokens,
            f"max_input_tokens={conf.max_input_tokens} wants to exceed workload.prefix_tokens={conf.prefix_tokens}",
        ),
        (
            conf.max_total_tokens is not None and conf.prefix_tokens + 1 >= conf.max_total_tokens,
            f"max_total_tokens={conf.max_total_tokens} wants to exceed workload.prefix_tokens={conf.prefix_tokens} + 1",
        ),
    ]
    for bad, sentence in wrong:
        if bad:
            raise ValueError(f"workload.{sentence}")
