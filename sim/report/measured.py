"""A recorded run of a real engine, read into the same table a simulation fills."""

import csv
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.documents import mapping, parse_json, read_mapping, read_text
from sim.report.result import FINISHED, RequestTable
from sim.units import NS_PER_S
from sim.workload.trace import MOST_TOKENS


@dataclass(frozen=True)
class Recorded:
    """Requests of a recorded run in arrival order, times in ns from the first arrival, their clocks joined.

    `series`: `t_s`, `running`, `waiting`, `gen_throughput` (tokens/s) as the recorder sampled them, or None; `meta`
    is its meta.json.
    """

    requests: RequestTable
    series: dict[str, np.ndarray] | None = None
    meta: dict[str, Any] = field(default_factory=dict)


LONGEST_S = 1e7
"""A recorded run lasts at most this, some four months: its series are compared second by second."""

LARGEST = 1e300  # beyond it lie integers that no float can hold

FIELDS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def read_recorded(folder: str | Path) -> Recorded:
    """Read `requests.jsonl`, and `timeseries.csv` and `meta.json` where present, from a folder or its `vllm` subfolder.

    Each line has the token counts, `arrival_time` (client, Unix seconds) and the engine's `queued_ts`,
    `scheduled_ts`, `first_token_ts`, `last_token_ts` (monotonic seconds), which `joined` brings onto one clock. Raises
    `ValueError` for a missing file, a broken line or a missing or impossible time.
    """
    folder = Path(folder)
    if not (folder / "requests.jsonl").is_file() and (folder / "vllm" / "requests.jsonl").is_file():
        folder = folder / "vllm"
    path = folder / "requests.jsonl"
    if not path.is_file():
        raise ValueError(f"a recorded run wants a requests.jsonl, found none in {folder}; change the key run")
    rows = []
    for number, text in enumerate(read_text(path).split("\n"), 1):
        if text.strip():
            rows.append(_record(text, f"{path} line {number}"))
    if not rows:
        raise ValueError(f"{path} holds no request; change the key run")
    table = np.array(rows)
    table = table[np.argsort(table[:, 2], kind="stable")]
    arrival, (queued, scheduled, first, last) = table[:, 2], table[:, 3:].T
    if not np.isfinite(table).all() or (scheduled < queued).any() or (first < scheduled).any() or (last < first).any():
        raise ValueError(
            f"{path} wants finite times with queued <= scheduled <= first token <= last token for every request"
        )
    counts = table[:, :2]
    if (counts < 1).any() or (counts > MOST_TOKENS).any() or (counts != np.floor(counts)).any():
        raise ValueError(
            f"{path} wants input_toks and output_toks as whole numbers from 1 to {MOST_TOKENS:,} for every request"
        )
    arrival = arrival + (queued - arrival).min()  # near the engine's clock, before both become ns
    if last.max() - arrival.min() > LONGEST_S:
        raise ValueError(
            f"{path} wants all times within {LONGEST_S:g} s of the first, got {last.max() - arrival.min():.3g} s"
        )
    t0 = arrival[0]

    def ns(seconds: np.ndarray) -> np.ndarray:
        return np.floor((seconds - t0) * NS_PER_S + 0.5).astype(np.int64)

    count = len(table)
    requests = RequestTable(
        arrival_ns=ns(arrival),
        queued_ns=ns(queued),
        scheduled_ns=ns(scheduled),
        first_token_ns=ns(first),
        finish_ns=ns(last),
        prompt_tokens=table[:, 0].astype(np.int64),
        output_tokens=table[:, 1].astype(np.int64),
        cached_tokens=np.zeros(count, np.int64),
        preemptions=np.zeros(count, np.int64),
        replica=np.zeros(count, np.int64),
        status=np.full(count, FINISHED),
    )
    requests = joined(requests)
    meta_path = folder / "meta.json"
    meta = read_mapping(meta_path) if meta_path.is_file() else {}
    return Recorded(requests, _series(folder / "timeseries.csv"), meta)


def joined(requests: RequestTable) -> RequestTable:
    """Arrivals moved, all by the same, so that the request taken up soonest after its arrival was taken up at once.

    A recording has arrivals by the client's clock and all else by the engine's, and says nothing of how far apart
    they are: no part of a latency that every request has between client and engine can be read from it. A simulated run
    knows that part; joined likewise, it tells what the recording tells, and the two can be compared.
    """
    arrival, queued = np.asarray(requests.arrival_ns), np.asarray(requests.queued_ns)
    taken = queued >= 0
    if not taken.any():
        return requests
    return replace(requests, arrival_ns=arrival + (queued - arrival)[taken].min())


def _record(text: str, where: str) -> list[float]:
    """The numbers of one line."""
    record = mapping(parse_json(text, where), where)
    found = []
    for name in FIELDS:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
            got = f"{value!r:.60}" if name in record else f"no {name}"
            raise ValueError(f"{where} wants a JSON object with {', '.join(FIELDS)} as numbers, got {got} for {name}")
        found.append(float(value))
    return found


def _series(path: Path) -> dict[str, np.ndarray] | None:
    if not path.is_file():
        return None
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except csv.Error as error:
        raise ValueError(f"{path} is no csv table: {error}") from None
    names = {"t_s": "t", "running": "running", "waiting": "waiting", "gen_throughput": "gen_throughput"}
    try:
        return {name: np.array([float(row[column]) for row in rows]) for name, column in names.items()}
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} wants the columns {', '.join(names.values())} with a number in every row") from None
