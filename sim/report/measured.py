"""A recorded run of a real engine, read into the same table a simulation fills."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.report.result import FINISHED, RequestTable
from sim.units import NS_PER_S


@dataclass(frozen=True)
class Recorded:
    """Requests of a recorded run in arrival order, times in ns from the first arrival.

    `series`: `t_s`, `running`, `waiting`, `gen_throughput` (tokens/s) as the recorder sampled them, or None; `meta`
    is its meta.json.
    """

    requests: RequestTable
    series: dict[str, np.ndarray] | None = None
    meta: dict[str, Any] = field(default_factory=dict)


FIELDS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def read_recorded(folder: str | Path) -> Recorded:
    """Read `requests.jsonl`, and `timeseries.csv` and `meta.json` where present, from a folder or its `vllm` subfolder.

    Each line has the token counts, `arrival_time` (client, Unix seconds) and the engine's `queued_ts`,
    `scheduled_ts`, `first_token_ts`, `last_token_ts` (monotonic seconds). The two clocks are joined by taking the
    request that was taken up soonest after its arrival to have been taken up at once. Raises `ValueError` for a
    missing file, a broken line or a missing or impossible time.
    """
    folder = Path(folder)
    if not (folder / "requests.jsonl").is_file() and (folder / "vllm" / "requests.jsonl").is_file():
        folder = folder / "vllm"
    path = folder / "requests.jsonl"
    if not path.is_file():
        raise ValueError(f"a recorded run wants a requests.jsonl, found none in {folder}; change the key run")
    rows = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
            rows.append([float(record[name]) for name in FIELDS])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} line {number} wants a JSON object with {', '.join(FIELDS)}, "
                f"got {type(error).__name__}: {error}"
            ) from None
    if not rows:
        raise ValueError(f"{path} holds no request; change the key run")
    table = np.array(rows)
    table = table[np.argsort(table[:, 2], kind="stable")]
    arrival, (queued, scheduled, first, last) = table[:, 2], table[:, 3:].T
    if not np.isfinite(table).all() or (scheduled < queued).any() or (first < scheduled).any() or (last < first).any():
        raise ValueError(
            f"{path} wants finite times with queued <= scheduled <= first token <= last token for every request"
        )
    arrival = arrival + (queued - arrival).min()
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
    meta_path = folder / "meta.json"
    meta = json.loads(meta_path.read_text(encoding="utf-8")) if meta_path.is_file() else {}
    return Recorded(requests, _series(folder / "timeseries.csv"), meta)


def _series(path: Path) -> dict[str, np.ndarray] | None:
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = {"t_s": "t", "running": "running", "waiting": "waiting", "gen_throughput": "gen_throughput"}
    try:
        return {name: np.array([float(row[column]) for row in rows]) for name, column in names.items()}
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path} wants the columns {', '.join(names.values())} with a number in every row") from None
