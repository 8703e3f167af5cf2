"""`headway calibrate --from FILE`: learns a few constants from what a user's own server measured, no profiling needed.

FILE is the result of `vllm bench serve --save-result` (better: with `--save-detailed`), a folder with
`requests.jsonl` as `headway validate run=DIR` reads it, or an engine's log (`scripts.calibrate_from_log`); its content
decides, not its name. Server and load are described as for `headway simulate`; what the file tells of them comes first,
what the user says has the last word.
"""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.compose import compose
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.calibrate_load import load_remarks, load_told
from scripts.calibrate_server import described, model_notes, model_told
from scripts.configure import key_of, request
from scripts.folder import check_writable
from scripts.table import table
from sim.documents import user_path


if TYPE_CHECKING:
    from calibration.from_run.learn import Learned
    from calibration.from_run.observed import Observed
    from conf.schema import SimulateConf

NAMES = {
    "memory": "memory rate",
    "compute": "matrix rate",
    "links": "collectives' rate",
    "host_s": "host, per step",
    "request_s": "server, per request",
}


def run(arguments: Arguments, path_given: str) -> Answer:
    """Learn, print before and after, write OUT (`run-fit.json`), which `predictor=OUT` then uses."""
    given = [word.partition("=")[2] for word in arguments.words if key_of(word) == "out"]
    path, out = user_path(path_given, "--from"), output(given or ["run-fit.json"], path_given)
    own = [word for word in arguments.words if key_of(word) != "out"]
    if not path.is_dir():
        from calibration.from_run import bench_result, engine_log
        from calibration.serving.table import is_table

        if is_table(path):
            from scripts import calibrate_served

            for option in ("--config-dir", "--serve", "--bench", "--engine"):
                if arguments.options.get(option):
                    raise ValueError(f"--from TABLE.csv takes no {option}: each row tells its own server and load.")
            return calibrate_served.run(own, path, out, not arguments.switch("--json"))
        if not bench_result.matches(path):
            engine = engine_log.engine_of(path)
            if engine is None:
                raise ValueError(
                    "--from wants the .json of `vllm bench serve --save-result`, a folder with requests.jsonl, or a "
                    f"log of vLLM, SGLang or TensorRT-LLM with its lines of throughput, got {path}."
                )
            from scripts import calibrate_from_log

            return calibrate_from_log.run(Arguments(arguments.options, own), path, engine, out)
    observed, told, said, remarks = read(path, Arguments(arguments.options, own))
    overrides = [*told, *said]
    conf = learnable(compose(overrides, arguments.values("--config-dir")))
    import dataclasses

    from calibration.from_run.learn import errors_of, learn
    from predictors.run_fit import adjusted
    from predictors.served import OwnFit
    from sim import api

    job = api.build(conf, observed.workload)
    if path.is_dir():
        from calibration.from_run.folder import picked_up

        profile = job.plan.engine.profile
        observed = picked_up(observed, profile.api_pickup_s + profile.api_door_s)
    server, line = described(job.plan, told, said)
    remarks = [line, *model_notes(observed.model_id, observed.name, job.plan), *remarks]

    def simulate(values: Mapping[str, float]) -> Any:
        return api.run(dataclasses.replace(job, plan=adjusted(job.plan, values)) if values else job)

    first = simulate({})
    rate_error = first.claim.rel_error if first.claim else 0.15
    learned = learn(observed, simulate, job.cost, job.plan.arrays, rate_error)
    if learned.after is learned.before:
        raise ValueError(
            f"{observed.name} teaches nothing: no constants bring the simulation nearer to it, so those that were are "
            "kept and nothing is written."
        )
    errors = {"before": errors_of(observed, learned.before), "after": errors_of(observed, learned.after)}
    fit = OwnFit(
        predictor=conf.predictor,
        device=job.plan.device.name,
        engine=first.engine_label,
        values=learned.values,
        spread=learned.spread,
        data=observed.name,
        sha256=observed.sha256,
        date=datetime.date.today().isoformat(),
        errors=errors,
        model=job.plan.model.name,
        tensor_parallel=job.plan.deployment.tensor_parallel,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    fit.save(out)
    shown = lines(learned, observed, errors)
    text = "\n".join([*remarks, "", shown, "", f"written: {out} (predictor={out})"])
    fields: dict[str, Any] = {"status": "ok", "out": str(out), "overrides": overrides, "values": learned.values}
    fields |= {"errors": errors}
    fields |= {"spread": learned.spread, "rounds": learned.rounds, "notes": remarks, "server": server}
    return Answer(fields, text)


def output(given: list[str], read: str) -> Path:
    """The file to write, which `predictor=` can name: checked before anything is simulated."""
    if len(given) > 1:
        raise ValueError(f"--from wants out= once, got {', '.join(given)}.")
    out = user_path(given[0], "out")
    if out.suffix != ".json" or out.is_dir():
        raise ValueError(f"out must be the name of a .json file, which predictor= then takes, got {out}.")
    if out.resolve() == Path(read).expanduser().resolve():
        raise ValueError(f"out={out} is the file that --from reads; give another name.")
    check_writable(out, "out")
    return out


def learnable(conf: "SimulateConf") -> "SimulateConf":
    """The configuration, unless its prices were learned from a run already."""
    if conf.predictor.endswith(".json"):
        raise ValueError(f"predictor={conf.predictor} was learned from a run already; give auto, analytic or a folder.")
    return conf


def read(path: Path, arguments: Arguments) -> "tuple[Observed, list[str], list[str], list[str]]":
    """What was measured, the overrides of the simulation that it tells and those that the user says, and remarks."""
    if path.is_dir():
        from calibration.from_run.folder import observed_run
        from scripts.validate_run import dataset_of, recorded_settings, recorded_workload
        from sim.report.measured import read_recorded

        own = [word for word in arguments.words if key_of(word) != "workload"]
        recorded = read_recorded(path)
        said = {key_of(word) for word in own}
        settings, remarks = recorded_settings(path, recorded.meta, said)
        given = next((word.partition("=")[2] for word in arguments.words if key_of(word) == "workload"), None)
        workload, origin = recorded_workload(recorded, dataset_of(path, recorded.meta, given))
        kept = [word for word in settings if key_of(word) not in said]
        return observed_run(path, recorded, workload), kept, own, [*remarks, origin]
    from calibration.from_run import bench_result

    found = bench_result.read(path)
    asked = request(arguments)
    load = load_told(found, asked.overrides)
    told = [*model_told(found.model_id, found.name, {key_of(word) for word in asked.overrides}), *load]
    remarks = [*found.notes, *load_remarks(found, load, asked.overrides), *asked.remarks()]
    return found, told, asked.overrides, remarks


def constants_table(values: Mapping[str, float], spread: Mapping[str, float]) -> str:
    """The constants and how well they are known."""
    rows = []
    for name, value in values.items():
        if name.endswith("_s"):
            rows.append((NAMES[name], f"+{1e3 * value:.3f} ms", f"+-{1e3 * spread[name]:.3f} ms"))
        else:
            rows.append((NAMES[name], f"x {value:.3f}", f"+-{100 * spread[name]:.1f} %"))
    return table(("constant", "learned", "known to"), rows)


def lines(learned: "Learned", observed: "Observed", errors: dict[str, dict[str, float]]) -> str:
    """Two tables: the constants, and every statistic before and after."""
    metrics = [
        (
            name,
            f"{1e3 * observed.statistics[metric, statistic]:,.2f}",
            f"{100 * errors['before'][name]:+.1f}",
            f"{100 * found:+.1f}",
        )
        for name, found in errors["after"].items()
        for statistic, metric in [tuple(name.split("_", 1))]
    ]
    left = max((abs(value) for value in errors["after"].values()), default=0.0)
    return "\n".join(
        [
            constants_table(learned.values, learned.spread),
            "",
            table(("metric", "measured ms", "before %", "after %"), metrics),
            "",
            f"Unexplained: up to {100 * left:.1f} % of a statistic after {learned.rounds} rounds.",
        ]
    )
