"""Which rows of the table count, and why the others do not: by what the row says, never by what we predict."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256

from calibration.serving.table import Row


ENGINES = ("vllm", "sglang", "trtllm")

DUPLICATE = "duplicate"
DISAGGREGATED = "disaggregated"
POOLS_KNOWN = "disaggregated, pools known"
ADMISSION_LIMITED = "admission-limited"

LONG_ANSWER = 2048
"""Tokens."""
LEAST_LOADS = 16

STILL_SIMULATED = (DUPLICATE, ADMISSION_LIMITED)
"""Excluded rows that can be simulated all the same; their errors are shown apart."""


def excluded(row: Row) -> str:
    """Why a row does not count, the first reason that holds; empty for one that does."""
    reasons = {
        POOLS_KNOWN: pools_known(row),
        DISAGGREGATED: row.disaggregated,
        "static batch": re.search(r"static (?:offline )?batch", row.notes, re.IGNORECASE),
        "no latency": row.statistic is None,
        "speculative decoding": (row.note("spec") or "none") != "none",
        "another engine": row.serves not in ENGINES,
        "devices told as one tensor-parallel size": not servable(row.tp),
        DUPLICATE: row.duplicate,
        ADMISSION_LIMITED: admission_limited(row),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def pools_known(row: Row) -> bool:
    """Whether a disaggregated row tells all that simulating its pools needs, and speculates nothing."""
    told = row.workers is not None and row.statistic is not None and (row.concurrency or 0.0) >= 1
    plain = row.serves in ENGINES and (row.note("spec") or "none") == "none"
    return row.disaggregated and told and plain and not row.duplicate


def servable(tensor_parallel: int) -> bool:
    """Whether one server may have this size: beyond a node's 8, none but 16. Such rows give all devices of a deployment
    that they do not describe, as 36 for a model of 128 heads.
    """
    return tensor_parallel <= 8 or tensor_parallel == 16


def admission_limited(row: Row) -> bool:
    """Whether requests waited to be let in, and not only for each other's prompts: TTFT (c - 1) > D (c + 1).

    D = TPOT (osl - 1) is the time from first token to last, c the concurrency. Let an engine admit whoever comes and
    let one prompt take p. In the worst case, all c at once, prompt i waits for those before it, so TTFT is
    p (c + 1) / 2 in the mean; and each first token is followed by the prompts behind it, which delay the decoding of
    those before, so D is p (c - 1) / 2 in the mean, and more by the decoding itself. So TTFT / D <= (c + 1) / (c - 1).
    Beyond that bound there was time in which a request neither was computed nor waited for another's prompt: it waited
    for a seat, for cache, or for a server that was not ready. Both sides are the row's own numbers.
    """
    if row.statistic is None or row.concurrency is None or row.osl < 2:
        return False
    decode_ms = row.measured_ms("tpot") * (row.osl - 1)
    return row.measured_ms("ttft") * (row.concurrency - 1) > decode_ms * (row.concurrency + 1)


def chosen(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """At most `limit` rows, those with the smallest hash of what was measured (not of its result), in file order."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return sorted(sorted(rows, key=lambda row: (_hash(row), row.line))[:limit], key=lambda row: row.line)


def balanced(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """As `chosen`, with as many rows of each engine as it has and the limit allows: one of each in turn."""
    if limit is None:
        return list(rows)
    engines: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (_hash(row), row.line)):
        engines[row.serves].append(row)
    turns = sorted((place, engine, row.line, row) for engine, mine in engines.items() for place, row in enumerate(mine))
    return sorted((row for *_, row in turns[:limit]), key=lambda row: row.line)


def sampled(rows: Sequence[Row], loads: int) -> list[tuple[Row, float]]:
    """Up to `loads` different loads of each deployment, and how many rows each of them stands for; more where an engine
    has so few deployments on a device that they would give less than `LEAST_LOADS` rows.

    By hash, so that days and versions are mixed; at most one of long answers, whose simulation takes as long as that of
    all others. None of data-parallel ranks: their steps wait for each other.
    """
    deployments: dict[tuple, list[Row]] = defaultdict(list)
    for row in rows:
        if row.dp > 1:
            continue
        key = (row.hardware, row.engine, row.model, row.precision, row.num_gpus, row.tp, row.ep)
        deployments[key].append(row)
    number = Counter(key[:2] for key in deployments)
    found: list[tuple[Row, float]] = []
    for key, mine in deployments.items():
        most = max(loads, -(-LEAST_LOADS // number[key[:2]]))
        taken: dict[tuple, Row] = {}
        for row in sorted(mine, key=lambda row: (_hash(row), row.line)):
            load = (row.isl, row.osl, row.concurrency)
            long = row.osl > LONG_ANSWER and any(osl > LONG_ANSWER for _, osl, _ in taken)
            if load not in taken and not long and len(taken) < most:
                taken[load] = row
        found += [(row, len(mine) / len(taken)) for row in taken.values()]
    return found


def _hash(row: Row) -> str:
    said = (
        row.hardware, row.engine, row.engine_version, row.model, row.precision, row.num_gpus, row.tp, row.ep, row.dp,
        row.isl, row.osl, row.concurrency, row.date,
    )  # fmt: skip
    return sha256("|".join(map(str, said)).encode()).hexdigest()
