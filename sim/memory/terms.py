"""The parts of a memory sum and its result, as a person and a program read them."""

import re
from dataclasses import dataclass, field

from sim.memory.groups import CacheLayout


DEVICES = re.compile(r"\b(?:[ABHL]\d{2,3}S?|RTX (?:PRO |A)?\d{4})\b")
"""How sources name the devices they were read on: H100, L40S, RTX 5090."""


@dataclass(frozen=True)
class Term:
    """One row of the sum, for one rank.

    `value_bytes` is taken off (or, for `requested`, starts) the sum; `low_bytes` and `high_bytes` bound it. `formula`
    says in words how it came about, `source` where the rule or constant was read. `counted` is false for memory
    that the engine uses but does not take off its budget.
    """

    name: str
    value_bytes: float
    low_bytes: float
    high_bytes: float
    formula: str
    source: str
    counted: bool = True


def term(name: str, value: float, formula: str, source: str, spread: float = 0.0, counted: bool = True) -> Term:
    """A term known to `+- spread` of its value."""
    return Term(name, value, value * (1 - spread), value * (1 + spread), formula, source, counted)


def carried(source: str, device: str) -> str:
    """A source that names devices, said to be carried over from them if `device` is none of them."""
    named = set(DEVICES.findall(source))
    if not named or any(name in device for name in named):
        return source
    return f"carried over from other devices: {source}"


def value_of(terms: tuple[Term, ...], name: str) -> float:
    """Bytes of the term called `name`; 0 if there is none."""
    return sum(row.value_bytes for row in terms if row.name == name)


@dataclass(frozen=True)
class StageBudget:
    """The sum of one pipeline stage's rank: its terms, what is left for KV, and how many blocks that is."""

    stage: int
    terms: tuple[Term, ...]
    available_bytes: float
    layout: CacheLayout
    num_blocks: int

    def value(self, name: str) -> float:
        """Bytes of the term called `name`; 0 if the engine has none."""
        return value_of(self.terms, name)

    @property
    def spread_bytes(self) -> float:
        """Uncertainty of the available memory: the terms' own, taken as independent (root of squares)."""
        return sum(((row.high_bytes - row.low_bytes) / 2) ** 2 for row in self.terms if row.counted) ** 0.5


@dataclass(frozen=True)
class FfnMemory:
    """The sum of one device that holds feed-forward parts alone: `terms` as of a rank, what stays free, a sentence."""

    device: str
    devices: int
    total_bytes: float
    terms: tuple[Term, ...]
    free_bytes: float
    verdict: str

    @property
    def fits(self) -> bool:
        """Whether the device holds its part."""
        return self.free_bytes >= 0.0


@dataclass(frozen=True)
class MemoryBudget:
    """What fits on one rank of one replica. `terms`, `available_bytes` and the rest are those of the worst stage.

    - `num_blocks`: KV blocks of the replica (vLLM keeps one of them as the null block); `blocks_low`, `blocks_high`:
      their range from the terms' uncertainties.
    - `tokens`: the engine's "GPU KV cache size"; `max_concurrency`: requests of `max_model_len` that fit at once.
    - `fits`: the engine starts. `verdict`: one sentence. `longest_model_len` (if it does not fit at this length) and
      `smallest_tensor_parallel` say what would: 0 if nothing does, None if not needed or not looked for.
    - `oom_risk`: `low`, `possible` or `likely`: whether what is not in the sum can exhaust the device after sizing;
      `margin_bytes` is what is left over for it.
    - `ffn`: the devices of the feed-forward parts, where they have some of their own.
    """

    engine: str
    version: str
    model: str
    device: str
    tensor_parallel: int
    pipeline_parallel: int
    utilization: float
    max_model_len: int
    total_bytes: float
    stages: tuple[StageBudget, ...]
    worst: int
    num_blocks: int
    blocks_low: int
    blocks_high: int
    block_size: int
    tokens: int
    max_concurrency: float
    fits: bool
    verdict: str
    oom_risk: str
    margin_bytes: float
    risk: str
    longest_model_len: int | None = None
    smallest_tensor_parallel: int | None = None
    notes: tuple[str, ...] = field(default=())
    ffn: FfnMemory | None = None

    @property
    def stage(self) -> StageBudget:
        """The stage that decides."""
        return self.stages[self.worst]

    @property
    def terms(self) -> tuple[Term, ...]:
        """Rows of the deciding stage."""
        return self.stage.terms

    @property
    def available_bytes(self) -> float:
        """Memory for KV on the deciding stage's rank; negative if weights and the rest exceed the budget."""
        return self.stage.available_bytes

    @property
    def layout(self) -> CacheLayout:
        """KV-cache groups of the deciding stage."""
        return self.stage.layout

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block on the deciding stage's rank."""
        return self.layout.bytes_per_block

    @property
    def usable_tokens(self) -> int:
        """Tokens of one request that the blocks hold if it fills them all: blocks over groups, times block size."""
        return self.num_blocks // len(self.layout.groups) * self.block_size
