"""The measured-serving table: one csv row per measured point of a real server under a closed loop of clients."""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sim.documents import read_text


LATENCIES = tuple(f"{metric}_ms_{statistic}" for metric in ("ttft", "tpot") for statistic in ("p50", "mean", "p99"))
THROUGHPUTS = ("throughput_tok_s_per_gpu_output", "throughput_tok_s_per_gpu_total")
TEXTS = ("source", "hardware", "engine", "engine_version", "model", "precision", "notes")
COUNTS = ("num_gpus", "tp", "ep", "dp", "isl", "osl")
COLUMNS = (
    *TEXTS, *COUNTS, "disagg", "concurrency_or_qps", *LATENCIES, *THROUGHPUTS, "dup",
)  # fmt: skip

MOST = 1e9
"""No count, and no latency in ms, is larger."""

HELD_OUT_SINCE = "2026-04-01"
"""Points of this day and later are for the score; earlier ones, and those without a date, are for development."""

BENCHES = ("inferencex", "token-position", "vendor")
"""Who measured: SemiAnalysis' InferenceX, its token-position experiment, or a vendor's own sweeps."""


@dataclass(frozen=True)
class Workers:
    """Equal instances of one side of a disaggregated deployment, as the notes tell them."""

    count: int
    tensor_parallel: int
    data_parallel: int
    expert_parallel: int


@dataclass(frozen=True)
class Row:
    """One measured point. Times in ms; counts are 0 and numbers None where the cell is empty; `line` of the file."""

    line: int
    source: str
    hardware: str
    engine: str
    engine_version: str
    model: str
    precision: str
    notes: str
    num_gpus: int
    tp: int
    ep: int
    dp: int
    isl: int
    osl: int
    concurrency: float | None
    disaggregated: bool
    duplicate: bool
    latency_ms: Mapping[str, float]
    output_per_gpu: float | None
    total_per_gpu: float | None

    @property
    def serves(self) -> str:
        """The engine without what moves its KV: `sglang` of `sglang(dynamo)`."""
        return self.engine.partition("(")[0]

    @property
    def statistic(self) -> str | None:
        """Which statistic of both latencies was measured: `mean`, else `p50`; None where neither was.

        Of disaggregated rows `p50` goes first: the mean has the first requests of instances that are not warm yet.
        """
        for name in ("p50", "mean") if self.disaggregated else ("mean", "p50"):
            if all(f"{metric}_ms_{name}" in self.latency_ms for metric in ("ttft", "tpot")):
                return name
        return None

    def measured_ms(self, metric: str) -> float:
        """Measured `ttft` or `tpot` of the row's statistic (ms)."""
        return self.latency_ms[f"{metric}_ms_{self.statistic}"]

    @property
    def date(self) -> str | None:
        """The day of the measurement, `2026-03-25`; None where the notes do not say."""
        found = re.search(r"\b(?:date|measured)=(\d{4})-?(\d\d)-?(\d\d)", self.notes)
        return "-".join(found.groups()) if found else None

    @property
    def period(self) -> str:
        """`held out` or `development`."""
        return "held out" if (self.date or "") >= HELD_OUT_SINCE else "development"

    @property
    def bench(self) -> str:
        """Which of `BENCHES` measured it: it decides lengths, number of requests and server settings.

        Rows of a `gap_analysis` repeat InferenceX's to the last digit.
        """
        if "InferenceX experimental" in self.source:
            return "token-position"
        said = self.source + self.notes
        return "inferencex" if "InferenceX" in said or "gap_analysis" in said else "vendor"

    @property
    def workers(self) -> tuple[Workers, Workers] | None:
        """Prefill and decode instances, from `P: 1x(tp4,dp1,...,ep4); D: 4x(...)` in the notes; None where not all is
        told.

        Where the notes say which side has attention in data parallel (`dp_attn(prefill/decode)=True/False`), `tp` is
        the width of an instance, which must be that of its devices (`P: 1x(tp4,ep4) 4gpu`).
        """
        attention = re.search(r"dp_attn\(prefill/decode\)=(True|False)/(True|False)", self.notes)
        sides = []
        for place, side in enumerate(("P", "D"), 1):
            match = re.search(rf"(?:^|;)\s*{side}: (\d+)x\(([^)]*)\)(?: (\d+)gpu)?", self.notes)
            sizes = {} if match is None else {key: int(n) for key, n in re.findall(r"\b(tp|dp|ep)(\d+)", match[2])}
            if match is None or not int(match[1]) or not sizes.get("tp"):
                return None
            count, tensor, data = int(match[1]), sizes["tp"], max(sizes.get("dp", 1), 1)
            if attention is not None:
                if match[3] is None or tensor * count != int(match[3]):
                    return None
                tensor, data = (1, tensor) if attention[place] == "True" else (tensor, 1)
            sides.append(Workers(count, tensor, data, sizes.get("ep", 1)))
        return sides[0], sides[1]

    def note(self, key: str) -> str | None:
        """The value of `key=value` in the notes."""
        found = re.search(rf"(?:^|;)\s*{re.escape(key)}=([^;]*)", self.notes)
        return found[1].strip() if found else None


def is_table(path: Path) -> bool:
    """Whether the file's first line is the header of such a table."""
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline().strip().split(",")
    return {"engine", "concurrency_or_qps"} <= set(header)


def read_table(path: Path) -> list[Row]:
    """The rows of a measured-serving table. `ValueError`, one sentence with file and line, for what cannot be read."""
    lines = read_text(path).splitlines()
    reader = csv.DictReader(lines, restkey="")
    names = list(reader.fieldnames or [])
    missing = [name for name in COLUMNS if name not in names]
    if not names:
        raise ValueError(f"{path}: the file is empty, wanted a header and rows.")
    if missing:
        columns = f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise ValueError(f"{path}: a measured-serving table has the {columns}, got {', '.join(names)[:200]}.")
    unknown = [name for name in names if name not in COLUMNS]
    twice = [name for name in names if names.count(name) > 1]
    if unknown or twice:
        what = f"an unknown column {unknown[0]!r}" if unknown else f"the column {twice[0]} twice"
        raise ValueError(f"{path}: {what}; known are {', '.join(COLUMNS)}.")
    rows = []
    for line, cells in _records(reader, path):
        where = f"{path}, line {line}"
        if "" in cells or None in cells.values():
            raise ValueError(f"{where}: wanted {len(names)} cells as in the header.")
        rows.append(_row(cells, where, line))
    if not rows:
        raise ValueError(f"{path}: wanted at least one row, got a header alone.")
    return rows


def _records(reader: "csv.DictReader[str]", path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each record with its line in the file, blank ones counted."""
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: is no table ({error}).") from None


def _row(cells: dict[str, str], where: str, line: int) -> Row:
    def text(key: str) -> str:
        return cells[key].strip()

    def number(key: str) -> float | None:
        if not text(key):
            return None
        try:
            value = float(text(key))
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST:
            raise ValueError(f"{where}: {key} must be a number from 0 to {MOST:g} or empty, got {text(key)!r:.40}.")
        return value

    def count(key: str) -> int:
        value = number(key) or 0.0
        if value != int(value):
            raise ValueError(f"{where}: {key} must be a whole number, got {cells[key]!r:.40}.")
        return int(value)

    latency = {key: value for key in LATENCIES if (value := number(key)) is not None}
    zero = next((key for key, value in latency.items() if not value), None)
    if zero:
        raise ValueError(f"{where}: {zero} must be above 0 ms, got {cells[zero]!r:.40}.")
    return Row(
        line=line,
        source=text("source"),
        hardware=text("hardware"),
        engine=text("engine"),
        engine_version=text("engine_version"),
        model=text("model"),
        precision=text("precision"),
        notes=text("notes"),
        num_gpus=count("num_gpus"),
        tp=count("tp"),
        ep=count("ep"),
        dp=count("dp"),
        isl=count("isl"),
        osl=count("osl"),
        # "inf": all at once
        concurrency=math.inf if text("concurrency_or_qps") == "inf" else number("concurrency_or_qps"),
        disaggregated=bool(number("disagg")),
        duplicate=bool(number("dup")),
        latency_ms=latency,
        output_per_gpu=number("throughput_tok_s_per_gpu_output") or None,
        total_per_gpu=number("throughput_tok_s_per_gpu_total") or None,
    )
