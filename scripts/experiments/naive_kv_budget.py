"""What the naive KV budget does: how many blocks too many, and what a batch sized by them does on the real ones."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conf.compose import compose
from scripts.answer import Answer
from scripts.experiment import Case, Experiment
from scripts.table import table


@dataclass(frozen=True)
class Outcome:
    """One case. `requests`: as many as the naive budget holds at full length. Throughputs in output tokens/s.

    `blocks_excess` and `throughput_excess`: naive over real - 1.
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


def run(experiment: Experiment, own: Sequence[str], config_dirs: Sequence[str]) -> Answer:
    """Every case twice, with the naive blocks and with the engine's; nothing is written."""
    for word in own:
        if word.lstrip("+").startswith(("engine.num_gpu_blocks_override=", "workload.num_requests=")):
            raise ValueError(f"{experiment.name} sets {word.partition('=')[0]} itself: leave it out.")
    rows = [outcome(case, own, config_dirs) for case in experiment.cases]
    published = {case.name: dict(case.published) for case in experiment.cases if case.published}
    fields: dict[str, Any] = {"status": "ok", "experiment": experiment.name, "rows": [asdict(row) for row in rows]}
    fields["published"] = published
    head = ["case", "blocks naive", "engine", "excess", "published", "requests", "tok/s naive", "engine", "excess"]
    head += ["published", "preempted naive", "engine"]
    cells = [
        [
            row.case,
            f"{row.naive_blocks:,}",
            f"{row.engine_blocks:,}",
            f"{row.blocks_excess:+.1%}",
            _percent(case.published.get("blocks")),
            f"{row.requests:,}",
            f"{row.naive_throughput:,.0f}",
            f"{row.engine_throughput:,.0f}",
            f"{row.throughput_excess:+.1%}",
            _percent(case.published.get("decode_throughput")),
            f"{row.naive_preemptions:,}",
            f"{row.engine_preemptions:,}",
        ]
        for row, case in zip(rows, experiment.cases, strict=True)
    ]
    text = [
        f"{experiment.title}: as many requests at once as the naive budget holds at full length",
        "",
        table(head, cells),
        "",
        "naive: memory x utilization - weights. Published figures are of runs whose settings are not told in full.",
    ]
    return Answer(fields, "\n".join(text))


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
    runs = []
    for blocks in (naive, real):
        settings = [f"workload.num_requests={requests}", f"engine.num_gpu_blocks_override={blocks}"]
        runs.append(measure(api.run(api.build(compose([*overrides, *settings], config_dirs)))))
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
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"
