"""What the naive KV budget does: how many blocks too many, and what a batch sized by them does on the real ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.compose import compose
from scripts.experiments.naive_kv_budget_report import report
from scripts.experiments.study import Case, Experiment, Findings
from scripts.progress import Tell


if TYPE_CHECKING:
    from sim.memory.terms import MemoryBudget
    from sim.report.result import SimulationResult


MOST_BINS = 200
"""Of requests over time."""


@dataclass(frozen=True)
class Outcome:
    """One case. `requests`: as many as the naive budget holds at full length. Throughputs in output tokens/s.

    `blocks_excess` and `throughput_excess`: naive over real - 1. `forgotten_bytes`: what the naive sum leaves out, by
    term. `naive_running`, `engine_running`: (s, requests that run) over the time of each run.
    """

    case: str
    naive_blocks: int
    engine_blocks: int
    blocks_excess: float
    requests: int
    naive_throughput: float
    engine_throughput: float
    throughput_excess: float
    naive_preemptions: int
    engine_preemptions: int
    forgotten_bytes: dict[str, float] = field(default_factory=dict)
    naive_running: list[tuple[float, float]] = field(default_factory=list)
    engine_running: list[tuple[float, float]] = field(default_factory=list)
    not_modelled: tuple[str, ...] = ()


def run(experiment: Experiment, own: Sequence[str], config_dirs: Sequence[str], tell: Tell) -> Findings:
    """Every case twice, with the naive blocks and with the engine's; `tell` is called with the number of cases done."""
    for word in own:
        if word.lstrip("+").startswith(("engine.num_gpu_blocks_override=", "workload.num_requests=")):
            raise ValueError(f"{experiment.name} sets {word.partition('=')[0]} itself: leave it out.")
    rows = []
    for done, case in enumerate(experiment.cases, 1):
        rows.append(outcome(case, own, config_dirs))
        tell(done, case.name)
    return report(experiment, rows, own)


def outcome(case: Case, own: Sequence[str], config_dirs: Sequence[str]) -> Outcome:
    """Both runs of one case. ValueError where not one request fits the naive budget, or lengths are not fixed."""
    from calibration.kv.naive import naive_blocks
    from sim import api
    from sim.report.metrics import measure

    overrides = [*case.overrides, *own]
    conf = compose([*overrides, "workload.num_requests=1"], config_dirs)
    length = (conf.workload.input_tokens or 0) + (conf.workload.output_tokens or 0)
    if conf.workload.lengths != "fixed" or not length:
        raise ValueError(
            "the naive budget counts requests of one length, so workload.lengths must be fixed, got "
            f"{conf.workload.lengths}."
        )
    budget = api.build(conf).budget
    naive, real = naive_blocks(budget), budget.num_blocks
    # one block is the engine's own; groups of layers have a table each
    requests = (naive - 1) // len(budget.layout.groups) * budget.block_size // length
    if requests < 1:
        raise ValueError(f"{case.name}: the naive budget of {naive:,} blocks holds no request of {length:,} tokens.")
    runs, results = [], []
    for blocks in (naive, real):
        settings = [f"workload.num_requests={requests}", f"engine.num_gpu_blocks_override={blocks}"]
        results.append(api.run(api.build(compose([*overrides, *settings], config_dirs))))
        runs.append(measure(results[-1]))
    ahead, behind = (run.output_throughput or 0.0 for run in runs)
    return Outcome(
        case=case.name,
        naive_blocks=naive,
        engine_blocks=real,
        blocks_excess=naive / real - 1,
        requests=requests,
        naive_throughput=ahead,
        engine_throughput=behind,
        throughput_excess=ahead / behind - 1,
        naive_preemptions=runs[0].preemptions,
        engine_preemptions=runs[1].preemptions,
        forgotten_bytes=forgotten(budget),
        naive_running=running(results[0]),
        engine_running=running(results[1]),
        not_modelled=tuple(results[1].not_modelled),
    )


def forgotten(budget: "MemoryBudget") -> dict[str, float]:
    """Bytes of the terms that the engine takes off before it counts blocks and the naive sum does not."""
    first, *others = budget.stage.terms
    return {term.name: term.value_bytes for term in others if term.counted and term.name != "weights"}


def running(result: "SimulationResult") -> list[tuple[float, float]]:
    """(s, requests that run) in equal bins."""
    from sim.report.series import nice_width_s, series

    found = series(result, nice_width_s(float(result.steps.end_ns.max()) / 1e9, MOST_BINS))
    return [(float(t), float(n)) for t, n in zip(found.t_s, found.running, strict=True)]
