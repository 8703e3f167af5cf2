"""`headway validate run=DIR`: replays a measured run of a real server and prints measured, predicted and error.

DIR holds `requests.jsonl` (or has it in `vllm/`) with the times and token counts of each request, `meta.json` with the
server's settings, and perhaps the model's `config.json`. The requests are sent when they were really sent.
"""

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.compose import compose
from conf.files import by_hf_id, choices
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import key_of
from scripts.vllm_flags import choose_engine, engine_overrides, literal
from sim.documents import mapping, read_mapping, user_path


if TYPE_CHECKING:
    from sim.report.measured import Recorded
    from sim.workload.trace import Workload


def run(arguments: Arguments) -> Answer:
    """Settings from meta.json, requests from requests.jsonl, then the comparison. Own `KEY=VALUE` come last."""
    given = {key_of(word): word.partition("=")[2] for word in arguments.words}
    folder = user_path(given["run"], "run")
    own = [word for word in arguments.words if key_of(word) not in ("run", "workload")]
    if not folder.is_dir():
        raise ValueError(f"run={folder}: there is no such folder.")
    unused = [key_of(word) for word in own if key_of(word).startswith("workload.")]
    if unused:
        raise ValueError(f"{unused[0]} does nothing here: the recorded requests are replayed; leave it out.")
    if "results" in given:
        raise ValueError("results does nothing here: a comparison writes no folder (--json has it all); leave it out.")
    from sim.report.compare import compare, comparison_json, comparison_text
    from sim.report.cut import cut_note
    from sim.report.measured import read_recorded
    from sim.report.result import REJECTED

    recorded = read_recorded(folder)
    settings, remarks = recorded_settings(folder, recorded.meta, {key_of(word) for word in own})
    kept = [override for override in settings if key_of(override) not in {key_of(word) for word in own}]
    conf = compose([*kept, *own], arguments.values("--config-dir"))
    workload, origin = recorded_workload(recorded, dataset_of(folder, recorded.meta, given.get("workload")))
    remarks.append(origin)
    from calibration.step_evidence import evidence_json, evidence_text, step_evidence
    from sim import api
    from sim.cost.table import price_steps

    job = api.build(conf, workload)
    result = api.run(job)
    found = compare(recorded, result)
    steps = step_evidence(
        recorded.requests,
        result,
        lambda columns: price_steps(job.cost, job.plan.arrays, columns)["total_s"],
        lockstep=job.plan.domains.lockstep,
    )
    cut = " ".join(cut_note(result))
    found = dataclasses.replace(found, notes=[*found.notes, *remarks, *([cut] if cut else [])])
    not_modelled = [f"not modelled: {sentence}" for sentence in result.not_modelled]
    head = f"{result.model} on {result.gpus} x {result.device}, {result.engine_label}, {len(workload)} requests"
    fields = {"status": "ok", "run": str(folder), "overrides": [*kept, *own], **comparison_json(found)}
    for row in found.rows:
        both = {"measured": row.measured, "predicted": row.predicted, "error": row.error}
        fields.setdefault(row.metric, {})[row.statistic] = both
    fields |= {"model": result.model, "device": result.device, "engine_label": result.engine_label}
    fields |= {"not_modelled": result.not_modelled, "steps": evidence_json(steps)}
    served = (result.requests.status != REJECTED).any()
    if not served:
        fields |= {"status": "error", "message": "the predicted run rejected every request; see the notes."}
    text = [head, "", comparison_text(found), *not_modelled, "", evidence_text(steps)]
    return Answer(fields, "\n".join(text), 0 if served else 2)


def recorded_settings(folder: Path, meta: dict[str, Any], said: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Overrides that describe the recorded server, and remarks on what was guessed or left out.

    `said`: keys the user gives, whose recorded values need not be known here.
    """
    overrides, remarks = [], []
    if "model" not in said:
        overrides.append(f"model={literal(recorded_model(folder, meta))}")
    if "hardware" not in said:
        device = device_named_in(folder)
        if device is None:
            raise ValueError(f"run={folder}: no folder of the path bears a device's name; add hardware=NAME.")
        overrides.append(f"hardware={device}")
        remarks.append(f"the device, {device}, is taken from the folder's name; hardware=NAME changes it")
    if meta.get("vllm_version") and "engine" not in said:
        try:
            overrides += choose_engine("vllm", recorded_version(meta["vllm_version"]))
        except ValueError as error:
            raise ValueError(f"meta.json: vllm_version={meta['vllm_version']}: {error}") from None
    translated = engine_overrides(engine_arguments(meta))
    remarks += [f"not used: {flag} ({why})" for flag, why in translated.ignored]
    remarks += translated.notes
    return [*overrides, *translated.overrides], remarks


def engine_arguments(meta: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the engine in meta.json; none where it names none."""
    return mapping(meta.get("engine_kwargs") or {}, "meta.json: engine_kwargs")


def recorded_version(given: object) -> str:
    """The release a version string begins with: `0.11.1` of `0.11.1rc2.dev3+gabc`."""
    found = re.match(r"v?(\d+(?:\.\d+){1,2})", given) if isinstance(given, str) else None
    if not found:
        raise ValueError(f"a version such as 0.19.0 is wanted, got {given!r:.60}.")
    return found[1]


def recorded_model(folder: Path, meta: dict[str, Any]) -> str:
    """The catalogue's name of the model in meta.json, else the config.json of a model in the folder."""
    hf_id = meta.get("model") or engine_arguments(meta).get("model")
    config = folder / "config.json"
    if config.is_file() and "model_type" in read_mapping(config):
        return str(config)
    if hf_id is None:
        raise ValueError(f"{folder} names no model in meta.json and holds no config.json of one; add model=NAME.")
    return by_hf_id(str(hf_id))


def device_named_in(folder: Path) -> str | None:
    """The device whose name one of the folders of the path bears (`RTXPRO6000` is rtx-pro-6000), innermost first."""
    known = {re.sub(r"[^a-z0-9]", "", name): name for name in choices("hardware")}
    for part in reversed(folder.resolve().parts):
        name = known.get(re.sub(r"[^a-z0-9]", "", part.lower()))
        if name:
            return name
    return None


def dataset_of(folder: Path, meta: dict[str, Any], given: str | None) -> Path | None:
    """The file the recorded run was driven with: the one given, else the one of the right hash near the run."""
    if given is not None:
        path = user_path(given, "workload")
        if not path.is_file():
            raise ValueError(f"workload={given}: there is no such file.")
        return path
    wanted = meta.get("dataset_hash")
    if not wanted:
        return None
    for path in near(folder.resolve(), str(meta.get("dataset_path", ""))):
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == wanted:
            return path
    return None


def near(folder: Path, dataset_path: str) -> Iterator[Path]:
    """Where a dataset may lie: as named from the run or a folder above it, or beside those by its last name."""
    name = Path(dataset_path).name
    for base in (folder, *list(folder.parents)[:4]):
        for relative in (dataset_path, name, f"workloads/{name}"):
            if relative:
                yield base / relative


def recorded_workload(recorded: "Recorded", dataset: Path | None) -> tuple["Workload", str]:
    """The requests as they were really sent, with the dataset's token ids where it is there, and a remark on that."""
    from sim.workload.conf import WorkloadConf
    from sim.workload.reader import read_trace
    from sim.workload.trace import Workload

    requests = recorded.requests
    plain = Workload(
        name="recorded",
        arrival_ns=requests.arrival_ns,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.output_tokens,
        provenance=("lengths and arrivals: as recorded in requests.jsonl",),
    )
    if dataset is None:
        return plain, "lengths come from requests.jsonl, without content: prefix hits are not modelled"
    trace = read_trace(WorkloadConf(name="recorded", path=str(dataset)), str(dataset))
    if list(trace.prompt_tokens) != list(requests.prompt_tokens):
        raise ValueError(f"workload={dataset} does not hold the prompts of the recorded run: their lengths differ.")
    if trace.token_ids is None:
        return plain, f"{dataset.name} holds no token ids: prefix hits are not modelled"
    content = dataclasses.replace(plain, token_ids=tuple(trace.token_ids), digest="")
    return content, f"token ids come from {dataset.name}"
