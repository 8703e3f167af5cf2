"""`headway simulate`: one run, or with `-m` every combination of the values given."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import Request, as_yaml, request
from scripts.folder import free_folder, replaced


if TYPE_CHECKING:
    from sim.report.result import SimulationResult


def run(arguments: Arguments) -> Answer:
    """Read the command line, simulate, write the results. `ValueError` for bad input, before anything is written."""
    asked = request(arguments)
    if arguments.switch("--multirun"):
        if arguments.value("--cfg") is not None:
            raise ValueError("--cfg job prints one configuration and -m runs several: leave one of them out.")
        from scripts.sweep import sweep

        return sweep(asked, show_progress=not arguments.switch("--json"))
    if arguments.value("--cfg") is not None:
        return show_configuration(asked)
    return simulate_one(asked, show_progress=not arguments.switch("--json"))


def show_configuration(asked: Request) -> Answer:
    """`--cfg job`: the composed configuration."""
    import dataclasses

    config = asked.config()
    fields = {"status": "ok", "overrides": asked.overrides, "config": dataclasses.asdict(config)}
    return Answer(fields, "\n".join([*(f"# {line}" for line in asked.remarks()), as_yaml(config)]))


def simulate_one(asked: Request, show_progress: bool) -> Answer:
    """One run: results folder, console block, and where the page lies."""
    from scripts.progress import progress
    from sim.report.results import SUMMARY, check_folder, write_results
    from sim.report.timeline.layers import beyond

    config = asked.config()
    folder = (
        Path(config.results) if config.results else free_folder(Path("results") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    )
    check_folder(folder)
    notes = [*asked.notes, *([replaced(folder)] if (folder / SUMMARY).is_file() else [])]
    from sim import api

    job = api.prepare(config)
    with progress(len(job.workload), "simulating: requests ended", show_progress) as tell:
        result = api.run(job, lambda ended, now_ns: tell(ended, f"{now_ns / 1e9:,.1f} s simulated"))
    notes += beyond(result)
    summary = write_results(result, folder, asked.overrides, config.percentiles)
    fields = summary | {
        "results": str(folder),
        "overrides": asked.overrides,
        "ignored_flags": [{"flag": flag, "reason": why} for flag, why in asked.ignored],
        "notes": notes,
    }
    text = (folder / "console.txt").read_text(encoding="utf-8").rstrip()
    head = (
        f"{result.model} on {result.gpus} x {result.device}, {result.engine_label}, workload {result.workload.name} "
        f"({len(result.workload)} requests)"
    )
    lines = [
        head,
        "",
        text,
        "",
        *rejection(result),
        *asked.remarks(),
        *(f"note: {note}" for note in notes[len(asked.notes) :]),
        f"results: {folder}",
        f"page: {folder / 'report.html'}",
    ]
    return Answer(fields, "\n".join(lines))


def rejection(result: "SimulationResult") -> list[str]:
    """A line that says so, and why, where the engine took no request at all; none otherwise."""
    from sim.report.result import REJECTED

    requests = result.requests
    if not len(requests) or (requests.status != REJECTED).any():
        return []
    tokens = requests.prompt_tokens + requests.output_tokens
    longest = int(tokens.max())
    blocks = -(-longest // result.block_size)
    lines = [
        f"all {len(requests)} requests were rejected: the longest has {longest:,} tokens ({blocks:,} KV blocks), "
        f"the shortest {int(tokens.min()):,}; engine.max_model_len is {result.settings.get('max_model_len', 0):,} "
        f"and {result.num_gpu_blocks:,} KV blocks exist"
    ]
    return [*lines, ""]
