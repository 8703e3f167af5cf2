"""`headway calibrate --from LOG`: learns constants of a step from the log of a user's own server.

A log tells running requests, KV cache in use and rates every few seconds: the time of decode steps, less surely that of
prefill. It tells no latency of a request.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conf.compose import compose
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.calibrate_from import NAMES, constants_table, learnable
from scripts.calibrate_server import described, model_notes, model_told
from scripts.configure import key_of, request
from scripts.table import table
from scripts.vllm_flags import choose_engine


if TYPE_CHECKING:
    from calibration.from_run.spans import EngineLog
    from calibration.from_run.steady import LearnedLog
    from calibration.from_run.windows import Windows

NEVER_TOLD = "time to first token, latencies of single requests, API server, waiting (request_s is not fitted)"


def run(arguments: Arguments, path: Path, engine: str, out: Path) -> Answer:
    """Learn from the log at `path`, which `engine` wrote; print before and after, write OUT."""
    from calibration.from_run import engine_log
    from calibration.from_run.steady import learn_windows
    from calibration.from_run.windows import windows_of
    from predictors.served import OwnFit
    from sim import api

    log = engine_log.read(path, engine)
    asked = request(arguments)
    found = told(log, {key_of(word) for word in asked.overrides})
    overrides = [*found, *asked.overrides]
    conf = learnable(compose(overrides, arguments.values("--config-dir")))
    if conf.engine.name != engine:
        raise ValueError(
            f"{path} is a log of {engine}, but the configuration names engine {conf.engine.name}; set engine=."
        )
    job = api.build(conf)
    plan, settings = job.plan, job.plan.engine
    if plan.shared is not None or len(plan.stages) > 1 or settings.prefill_context_parallel > 1:
        raise ValueError(
            "a log of pipeline stages, ranks in lockstep or ranks that divide prefills cannot be learned from yet; "
            "set deployment.pipeline_parallel=1, deployment.data_parallel=1 and deployment.prefill_context_parallel=1."
        )
    windows = windows_of(log, settings, (job.pool_blocks - 1) * settings.block_size)
    learned = learn_windows(windows, job.cost, plan.arrays)
    check_held_out(learned, windows, log.name)
    sets = sets_of(learned, windows)
    errors = {
        when: {f"{name}_step_time_{what}": value for name, mask in sets.items() for what, value in summary(found[mask])}
        for when, found in (("before", learned.before), ("after", learned.after))
    }
    fit = OwnFit(
        predictor=conf.predictor,
        device=plan.device.name,
        engine=f"{settings.name} {settings.version}",
        values=learned.values,
        spread=learned.spread,
        data=log.name,
        sha256=log.sha256,
        date=datetime.date.today().isoformat(),
        errors=errors,
        model=plan.model.name,
        tensor_parallel=plan.deployment.tensor_parallel,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    fit.save(out)
    server, line = described(plan, found, asked.overrides)
    notes = [line, *model_notes(log.settings.get("model", ""), log.name, plan)]
    notes += [*windows.notes, *asked.remarks(), *untold(learned)]
    if len(job.groups) > 1:
        notes.append("layers keep several kinds of KV cache: contexts follow from the share in use only roughly")
    text = "\n".join([lines(learned, windows, sets), "", *notes, "", f"written: {out} (predictor={out})"])
    fields: dict[str, Any] = {"status": "ok", "out": str(out), "overrides": overrides, "values": learned.values}
    fields |= {"spread": learned.spread, "errors": errors, "rounds": learned.iterations, "notes": notes}
    fields |= {"windows": {name: int(mask.sum()) for name, mask in sets.items()}, "left_out": windows.left_out}
    fields["server"] = server
    return Answer(fields | {"untold": learned.untold, "together": learned.together}, text)


def told(log: "EngineLog", said: set[str]) -> list[str]:
    """Overrides for what the log tells of its server and the user did not say."""
    found = model_told(log.settings.get("model", ""), log.name, said)
    if not said & {"engine", "engine.name", "engine.version"}:
        found += choose_engine(log.engine, log.settings.get("version"))
    return found + [f"{key}={value}" for key, value in log.settings.items() if "." in key and key not in said]


def check_held_out(learned: "LearnedLog", windows: "Windows", name: str) -> None:
    """**Raises:** ValueError for constants that the log does not tell, or that windows held out do not bear out."""
    kept = "so constants stay as they were and nothing is written (more windows, of small and large batches, tell more)"
    if not learned.values:
        raise ValueError(f"{name} teaches nothing: it tells less of every constant than was known before, {kept}.")
    from calibration.from_run.steady import held_out_errors, worse_decodes

    before, after = held_out_errors(learned, windows)
    which = "windows held out"
    if after < before:
        worse = worse_decodes(learned, windows)
        if worse is None:
            return
        (before, after), which = worse, "decode windows held out"
    raise ValueError(
        f"{name} teaches nothing that holds: in {which} the time of a step is {100 * before:.2f} % off before the fit "
        f"and {100 * after:.2f} % after it, {kept}."
    )


def sets_of(learned: "LearnedLog", windows: "Windows") -> dict[str, np.ndarray]:
    """Windows by what runs in them and by what they are for."""
    kinds = {"decode": learned.decode, "mixed": ~learned.decode}
    uses = {"fitted": ~windows.held_out, "held_out": windows.held_out}
    both = {f"{kind}_{use}": mask & other for kind, mask in kinds.items() for use, other in uses.items()}
    return {name: mask for name, mask in both.items() if mask.any()}


def summary(errors: np.ndarray) -> Sequence[tuple[str, float]]:
    """Median error and bias of step times."""
    return ("median_error", float(np.median(np.abs(errors)))), ("bias", float(np.median(errors)))


def untold(learned: "LearnedLog") -> list[str]:
    """What the log does not tell."""
    notes = [f"not told by a log: {NEVER_TOLD}"]
    if learned.untold:
        notes.append(f"not told by this log, left as it was: {', '.join(NAMES[name] for name in learned.untold)}")
    if learned.together:
        names = ", ".join(NAMES[name] for name in learned.together)
        notes.append(
            f"told only together with others (windows of other batch sizes and contexts would part them): {names}"
        )
    return notes


def lines(learned: "LearnedLog", windows: "Windows", sets: dict[str, np.ndarray]) -> str:
    """The constants, the errors of step times before and after, and what is still unexplained."""
    rows = []
    for name, mask in sets.items():
        before, after = learned.before[mask], learned.after[mask]
        shown = [f"{100 * value:+.1f}" for found in (before, after) for value in (np.median(found), _median(found))]
        rows.append(
            (
                name.replace("_", " "),
                f"{mask.sum()}",
                *(text.lstrip("+") if i % 2 else text for i, text in enumerate(shown)),
            )
        )
    errors = table(("windows", "number", "bias before %", "error before %", "bias after %", "error after %"), rows)
    left = np.abs(learned.after[windows.held_out])
    skipped = "; ".join(f"{count} {reason}" for reason, count in windows.left_out.items())
    return "\n".join(
        [
            constants_table(learned.values, learned.spread),
            "",
            errors,
            "",
            f"Unexplained in held-out windows: {100 * np.median(left):.1f} % of a step's time in the middle, "
            f"{100 * np.percentile(left, 90):.1f} % in nine of ten.",
            *([f"Windows left out: {skipped}."] if skipped else []),
        ]
    )


def _median(errors: np.ndarray) -> float:
    return float(np.median(np.abs(errors)))
