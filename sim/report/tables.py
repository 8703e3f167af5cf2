"""The per-request and per-step tables as Parquet columns, units in the names."""

from typing import TYPE_CHECKING

import numpy as np

from sim.report.metrics import latencies
from sim.report.result import LOOKUPS, REQUEST_STATUS, SimulationResult


if TYPE_CHECKING:
    import pyarrow


GRAPH_MODES = ("eager", "piecewise", "full")


def _columns(table: object, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(table, name)) for name in names}


def request_columns(result: SimulationResult) -> dict[str, np.ndarray]:
    """One row per request in the workload's order. Latencies are NaN where they never happened; stored as null."""
    requests = result.requests
    found = latencies(requests)
    columns: dict[str, np.ndarray] = {"request": np.arange(len(requests))}
    sessions = result.workload.sessions
    if sessions is not None:
        columns["session"] = sessions.session
        columns["round"] = columns["request"] - sessions.first[sessions.session]
    columns["status"] = np.array(REQUEST_STATUS)[np.asarray(requests.status, np.int64)]
    times = ("arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "finish_ns")
    columns |= _columns(requests, (*times, "prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "replica"))
    latency = {
        "ttft_ms": found.ttft_s,
        "ttft_queued_ms": found.ttft_queued_s,
        "tpot_ms": np.where(found.has_tpot, found.tpot_s, np.nan),
        "e2el_ms": found.e2el_s,
        **({} if requests.retrieval_ns is None else {"retrieval_ms": found.retrieval_s}),
        "queue_ms": found.queue_s,
        "prefill_ms": found.prefill_s,
        "decode_ms": found.decode_s,
    }
    for name, seconds in latency.items():
        columns[name] = np.full(len(requests), np.nan)
        columns[name][found.request] = seconds * 1e3
    return columns


def step_columns(result: SimulationResult) -> dict[str, np.ndarray]:
    """One row per step: the batch, the queues, and seconds by cost component."""
    steps = result.steps
    columns = _columns(steps, ("replica", "start_ns", "end_ns", "prefill_tokens", "prefill_chunks"))
    columns["prefill_area_pairs"] = np.asarray(steps.prefill_area)
    columns |= _columns(steps, ("prefill_kv_tokens", "prefill_max_tokens"))
    columns["decode_requests"] = np.asarray(steps.decodes)
    columns["decode_context_sum_tokens"] = np.asarray(steps.decode_sum)
    columns["decode_context_max_tokens"] = np.asarray(steps.decode_max)
    columns["decode_context_sumsq_tokens2"] = np.asarray(steps.decode_sumsq)
    columns["draft_tokens"] = np.asarray(steps.draft_tokens)
    columns["accepted_tokens"] = np.asarray(steps.accepted_tokens)
    columns["emitted_tokens"] = steps.emitted
    columns["padded_tokens"] = np.asarray(steps.padded_tokens)
    columns["graph_mode"] = np.array(GRAPH_MODES)[np.asarray(steps.graph_mode, np.int64)]
    columns["running_requests"] = np.asarray(steps.running)
    columns["waiting_requests"] = np.asarray(steps.waiting)
    columns["free_blocks"] = np.asarray(steps.free_blocks)
    columns["used_blocks"] = np.maximum(result.step_blocks - 1, 0) - np.asarray(steps.free_blocks)
    columns["preempted_requests"] = np.asarray(steps.preempted)
    columns |= _columns(steps, ("issued_ns", "ended", "freed_blocks"))
    columns |= {f"prefix_{name}": np.asarray(getattr(steps, name)) for name in LOOKUPS}
    return columns | {name: np.asarray(seconds) for name, seconds in result.components_s.items()}


def arrow_table(columns: dict[str, np.ndarray], result: SimulationResult) -> "pyarrow.Table":
    """Columns to an Arrow table; times that never happened (-1) and NaN latencies become null, texts a dictionary."""
    import pyarrow

    arrays = {}
    for name, values in columns.items():
        missing = np.isnan(values) if values.dtype.kind == "f" else (values < 0 if name.endswith("_ns") else None)
        array = pyarrow.array(values, mask=missing if missing is not None and missing.any() else None)
        arrays[name] = array.dictionary_encode() if values.dtype.kind == "U" else array
    metadata = {
        "model": result.model,
        "device": result.device,
        "engine": f"{result.engine_label} ({result.engine})",
        "workload_digest": result.workload.digest,
        "seed": str(result.seed),
    }
    return pyarrow.table(arrays).replace_schema_metadata(metadata)
