"""What the memory sum says of a case: from first principles, and from the terms that its own log prints."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibration.kv.case import DIED, REFUSED, STARTED, KVCase, Reported
from calibration.kv.setup import Server, server_of
from sim.deployment.settings import resolve_engine
from sim.memory import memory_budget, request_shape
from sim.memory.describe import AUTO_LENGTH, with_fitting_length
from sim.memory.terms import MemoryBudget
from sim.units import GIB


AVAILABLE = ("available_kv_worst_rank_derived", "available_kv", "kv_allocated")
"""Metrics that print what is left for the cache; of stages (`available_kv_stage0`) the least counts."""

PRINTED = {"weights": "weights", "peak_activation": "peak_activation", "non_torch": "non_torch"}
GRAPHS = "cudagraph_estimated"


@dataclass(frozen=True)
class Range:
    """A number that is known to lie between two, and the best guess in between."""

    low: float
    best: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """A case and what was made of it.

    `problem`: why it could not be described, "" if it could. `outcome`: `started`, `refused` or `ran out of memory`.
    `blocks`, `tokens`: from first principles. `given_blocks`: from the printed terms, where there are enough.
    """

    case: KVCase
    problem: str = ""
    outcome: str = ""
    words: str = ""
    version: str = ""
    blocks: float = 0.0
    tokens: float = 0.0
    tokens_per_block: float = 0.0
    given_blocks: Range | None = None
    budget: MemoryBudget | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured_blocks(self) -> float | None:
        """Blocks of the log, or its tokens in blocks; None where it tells neither."""
        reported = self.case.reported
        if "num_gpu_blocks" in reported:
            return reported["num_gpu_blocks"].value
        tokens = reported.get("kv_tokens")
        return None if tokens is None or not self.tokens_per_block else tokens.value / self.tokens_per_block

    @property
    def error(self) -> float:
        """Predicted over measured - 1, in blocks where they are logged, else tokens; infinite without a prediction."""
        measured = self.measured_blocks
        if self.problem or not measured:
            return float("inf")
        return self.predicted_blocks / measured - 1

    @property
    def predicted_blocks(self) -> float:
        """In the same measure as `measured_blocks`."""
        if "num_gpu_blocks" in self.case.reported or not self.tokens_per_block:
            return self.blocks
        return self.tokens / self.tokens_per_block


def predict(case: KVCase, said: Mapping[str, int]) -> Prediction:
    """The prediction of one case; what was measured enters `given_blocks` alone. `said`: see `settings_said`."""
    try:
        server = server_of(case, said)
    except ValueError as error:
        return Prediction(case, problem=str(error))
    notes = list(server.notes)
    try:
        engine = resolve_engine(server.engine, server.model, server.device, server.deployment)
        budget = memory_budget(server.model, server.device, engine, server.deployment)
        if not case.max_model_len and not budget.fits:
            longest = replace(server.engine, max_model_len=AUTO_LENGTH)
            conf = with_fitting_length(longest, server.model, server.device, server.deployment)
            engine = resolve_engine(conf, server.model, server.device, server.deployment)
            budget = memory_budget(server.model, server.device, engine, server.deployment)
            notes.append(f"the log tells no length: {engine.max_model_len:,}, the longest that fits, is taken")
    except ValueError as error:
        # the engine says no to the same: a length above the model's, ranks that do not divide it
        problem = "" if not case.counts else str(error)
        return Prediction(case, problem, REFUSED, str(error), server.engine.version, notes=server.notes)
    taken = another_process(case, budget)
    shape = request_shape(engine, budget.layout)
    blocks = float(budget.num_blocks)
    return Prediction(
        case=case,
        outcome=REFUSED if taken else outcome_of(budget),
        words=taken or budget.verdict,
        version=engine.version,
        blocks=blocks,
        tokens=float(budget.tokens),
        tokens_per_block=budget.tokens / blocks if blocks else budget.layout.tokens(1000, shape) / 1000,
        given_blocks=given_blocks(case, server, budget),
        budget=budget,
        notes=tuple(notes),
    )


def another_process(case: KVCase, budget: MemoryBudget) -> str:
    """Why a server does not start on a device of which the log says how much is free; "" where it does not say."""
    free = case.reported.get("free")
    requested = budget.terms[0].value_bytes / GIB
    if free is None or requested <= free.value:
        return ""
    return f"does not fit: {requested:.2f} GiB are asked for, {free.value:g} GiB of the device are free."


def outcome_of(budget: MemoryBudget) -> str:
    """How such a server starts: memory that does not fit is refused, too little beside the cache runs out later."""
    if not budget.fits:
        return REFUSED
    return DIED if budget.oom_risk == "likely" else STARTED


def given_blocks(case: KVCase, server: Server, budget: MemoryBudget) -> Range | None:
    """Blocks that follow from the terms the log prints; None where it prints neither all of them nor what they leave.

    Every printed number leaves half its last digit open. Inside that, our own value of the term is the guess. What is
    not printed (CUDA graphs, where the version counts them) is ours.
    """
    left = left_over(case, budget)
    if left is None:
        return None
    layout = budget.layout
    low, best, high = (float(max(layout.num_blocks(value), 0)) for value in (left.low, left.best, left.high))
    return Range(low, best, high)


def left_over(case: KVCase, budget: MemoryBudget) -> Range | None:
    """Bytes for the cache by the printed terms, by the printed rest, or by both where both are printed."""
    summed, printed = _from_terms(case.reported, budget), _from_rest(case.reported)
    if summed is None or printed is None:
        found = summed or printed
        return None if found is None else _around(found, budget.available_bytes)
    low, high = max(summed.low, printed.low), min(summed.high, printed.high)
    if low > high:
        # the terms do not add up to the rest: another rank, or something the log leaves out
        return _around(printed, budget.available_bytes)
    return _around(Range(low, summed.best, high), budget.available_bytes)


def _from_terms(reported: Mapping[str, Reported], budget: MemoryBudget) -> Range | None:
    if not all(name in reported for name in PRINTED) or budget.pipeline_parallel > 1:
        return None
    rest = budget.terms[0].value_bytes
    names = {**PRINTED, "cuda_graphs": GRAPHS}
    low = high = best = rest
    for row in budget.terms[1:]:
        if not row.counted:
            continue
        number = reported.get(names.get(row.name, ""))
        if number is None:
            low, best, high = low - row.value_bytes, best - row.value_bytes, high - row.value_bytes
            continue
        least, most = (number.value - number.half) * GIB, (number.value + number.half) * GIB
        low, high = low - most, high - least
        best -= min(max(row.value_bytes, least), most)
    return Range(low, best, high)


def _from_rest(reported: Mapping[str, Reported]) -> Range | None:
    rows = [reported[name] for name in AVAILABLE if name in reported][:1]
    if not rows:
        stages = [value for name, value in reported.items() if name.startswith("available_kv_stage")]
        rows = sorted(stages, key=lambda row: row.value)[:1]
    if not rows and {"k_size", "v_size"} <= reported.keys():
        key, value = reported["k_size"], reported["v_size"]
        rows = [Reported(key.value + value.value, key.half + value.half, key.unit)]
    if not rows:
        return None
    row = rows[0]
    return Range((row.value - row.half) * GIB, row.value * GIB, (row.value + row.half) * GIB)


def _around(found: Range, ours: float) -> Range:
    return Range(found.low, min(max(ours, found.low), found.high), found.high)
