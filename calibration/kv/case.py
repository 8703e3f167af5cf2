"""Cases of a csv: what a server was started with, what it said of its memory, and how it ended.

Two formats: one metric a row (`id` is `CASE.METRIC`), and one server a row (`total_kv_blocks_16tok`).
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sim.documents import read_text


LOG_COLUMNS = {
    "id", "source", "category", "model", "hardware", "tp", "pp", "dtype", "engine", "engine_version",
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "metric", "value", "unit", "quote_short",
}  # fmt: skip
BLOCK_COLUMNS = {"exp", "model", "hardware", "tp", "max_num_seqs", "max_num_batched_tokens", "total_kv_blocks_16tok"}

MEASURED = ("num_gpu_blocks", "kv_tokens")
"""What makes a case: either is the answer, and no prediction reads it."""

TERMS = ("weights", "peak_activation", "non_torch", "cudagraph_estimated", "available_kv")
"""What a log says of the sum. What CUDA graphs took in the end (`cudagraph_actual`) is outside it."""

STARTED, REFUSED, DIED = "started", "refused", "ran out of memory"


@dataclass(frozen=True)
class Reported:
    """A printed number in the unit it was printed in, and half its last digit: the truth lies within `+- half`."""

    value: float
    half: float
    unit: str


@dataclass(frozen=True)
class KVCase:
    """One server. Texts are as in the csv; `reported`: metric -> number; `outcome`: how it ended, "" if not told."""

    name: str
    source: str
    model: str
    hardware: str
    dtype: str = ""
    engine: str = "vllm"
    engine_version: str = ""
    utilization: str = ""
    max_model_len: str = ""
    max_num_seqs: str = ""
    quote: str = ""
    tensor_parallel: int | None = 1
    pipeline_parallel: int | None = 1
    max_num_batched_tokens: int | None = None
    reported: Mapping[str, Reported] = field(default_factory=dict)
    outcome: str = ""

    @property
    def counts(self) -> bool:
        """Whether it tells its blocks or tokens."""
        return any(name in self.reported for name in MEASURED)


def read_cases(path: Path) -> list[KVCase]:
    """All cases of a file, in its order. ValueError for a file that has neither format, or a broken row."""
    reader = csv.DictReader(read_text(path).splitlines())
    try:
        header = set(reader.fieldnames or ())
        rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}: is no table ({error}).") from None
    if header >= LOG_COLUMNS:
        cases = _from_logs(rows, path)
    elif header >= BLOCK_COLUMNS:
        cases = _from_blocks(rows, path)
    else:
        if not header:
            raise ValueError(f"kv={path} is empty, wanted a header and rows.")
        wanted = min((LOG_COLUMNS - header, BLOCK_COLUMNS - header), key=len)
        raise ValueError(f"kv={path} lacks the column{'s' if len(wanted) > 1 else ''} {', '.join(sorted(wanted))}.")
    if not any(case.counts or case.outcome for case in cases):
        raise ValueError(f"kv={path} holds no case: no row tells {' or '.join(MEASURED)}, or how a start ended.")
    return cases


def _from_logs(rows: Iterable[Mapping[str, str]], path: Path) -> list[KVCase]:
    rows = list(rows)
    starts = {row["id"].partition(".")[0] for row in rows if _outcome(row)}
    cases: dict[str, KVCase] = {}
    for line, row in enumerate(rows, 2):
        name, _, metric = row["id"].partition(".")
        outcome = _outcome(row)
        if row["category"] != "kv_budget" and name not in starts:
            continue
        if not name or not metric:
            raise ValueError(f"kv={path}, line {line}: 'id' must be CASE.METRIC, got {row['id']!r:.40}.")
        case = cases.get(name) or KVCase(
            name=name,
            source=row["source"],
            model=row["model"],
            hardware=row["hardware"],
            dtype=row["dtype"],
            engine=row["engine"],
            engine_version=row["engine_version"],
            utilization=row["gpu_memory_utilization"],
            max_model_len=row["max_model_len"],
            max_num_seqs=row["max_num_seqs"],
            quote=row["quote_short"],
            tensor_parallel=_whole(row["tp"], "tp", path, line),
            pipeline_parallel=_whole(row["pp"], "pp", path, line),
        )
        number = printed(row["value"], row["unit"])
        if number is not None:
            case = replace(case, reported={**case.reported, row["metric"]: number})
        cases[name] = replace(case, outcome=outcome or case.outcome)
    return [replace(case, outcome=case.outcome or _told(case)) for case in cases.values()]


def _told(case: KVCase) -> str:
    """How a start ended that no row tells: what a server with a cache says of it, or that it wants more."""
    reported = case.reported
    needed, available = reported.get("kv_needed_one_seq"), reported.get("available_kv")
    if needed and available and needed.value > available.value:
        return REFUSED
    return STARTED if case.counts or available else ""


def _from_blocks(rows: Iterable[Mapping[str, str]], path: Path) -> list[KVCase]:
    found = []
    for line, row in enumerate(rows, 2):
        blocks = printed(row["total_kv_blocks_16tok"], "blocks")
        if blocks is None:
            raise ValueError(f"kv={path}, line {line}: 'total_kv_blocks_16tok' must be a number.")
        found.append(
            KVCase(
                name=row["exp"],
                source=path.name,
                model=row["model"],
                hardware=row["hardware"],
                engine_version=row.get("engine_version", "") or _day(row["exp"]),
                utilization=row.get("gpu_memory_utilization", ""),
                max_num_seqs=row["max_num_seqs"],
                tensor_parallel=_whole(row["tp"], "tp", path, line),
                max_num_batched_tokens=_whole(row["max_num_batched_tokens"], "max_num_batched_tokens", path, line),
                reported={"num_gpu_blocks": blocks},
                outcome=STARTED,
            )
        )
    # runs of one file that do not tell their day belong to the same campaign
    days = sorted(case.engine_version for case in found if case.engine_version)
    day = days[len(days) // 2] if days else ""
    return [replace(case, engine_version=case.engine_version or day) for case in found]


def printed(text: str, unit: str) -> Reported | None:
    """A number with what its last digit leaves open; None for a word."""
    if not re.fullmatch(r"-?\d+(\.\d+)?", text):
        return None
    half = 0.5 * 10.0 ** -len(text.partition(".")[2]) if "." in text or "GiB" in unit or "GB" in unit else 0.0
    return Reported(float(text), half, unit)


def _outcome(row: Mapping[str, str]) -> str:
    """How a start ended, by a row of the metric `startup` (or `startup_at_` the utilization of the case)."""
    if row["metric"] not in ("startup", f"startup_at_{row['gpu_memory_utilization']}"):
        return ""
    if row["value"].startswith("OOM"):
        return DIED
    return STARTED if row["value"] == "ok" else REFUSED


def _day(text: str) -> str:
    """The day that a run's name begins with (`20260217-155451`), "" for other names."""
    found = re.match(r"(20\d\d)(\d\d)(\d\d)-", text)
    return "-".join(found.groups()) if found else ""


def _whole(text: str, column: str, path: Path, line: int) -> int | None:
    """A whole number of at least 1; None for an empty cell."""
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"kv={path}, line {line}: '{column}' must be a whole number of at least 1, got {text!r:.40}.")
    return int(text)
