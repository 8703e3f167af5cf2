"""`headway experiment NAME`: a study that ships with its configurations (conf/experiment), run; a table and a page.

`KEY=VALUE` words are added to the configuration of every case, but `results=DIR`: where the page, the table as csv and
the answer go. Without NAME, what there is.
"""

import csv
import importlib
import time
from difflib import get_close_matches

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.experiments.study import Findings, experiment_names, read_experiment
from scripts.folder import results_folder
from scripts.progress import progress
from sim.report.plain import to_json


ANSWER, CSV, PAGE = "answer.json", "table.csv", "report.html"


def run(arguments: Arguments) -> Answer:
    """List the experiments, or run the one that was named and write what it found."""
    names = [word for word in arguments.words if "=" not in word]
    known = experiment_names()
    if not names:
        found = [read_experiment(name) for name in known]
        lines = [f"{one.name}  {one.title} ({len(one.cases)} cases)" for one in found]
        return Answer({"status": "ok", "experiments": {one.name: one.title for one in found}}, "\n".join(lines))
    if len(names) > 1:
        raise ValueError(f"headway experiment runs one at a time, got {' and '.join(names)}.")
    if names[0] not in known:
        near = get_close_matches(names[0], known, 1, 0.0)[0]
        raise ValueError(f"there is no experiment {names[0]}: did you mean {near}? (known: {', '.join(known)})")
    experiment = read_experiment(names[0])
    own = [word for word in arguments.words if "=" in word]
    given = [word.partition("=")[2] for word in own if word.startswith("results=")]
    folder = results_folder(
        given[-1] if given else None, f"{experiment.name}_{time.strftime('%Y-%m-%d_%H-%M-%S')}", CSV
    )
    own = [word for word in own if not word.startswith("results=")]
    study = importlib.import_module(f"scripts.experiments.{experiment.study}")
    with progress(len(experiment.cases), "simulating: cases", not arguments.switch("--json")) as tell:
        findings: Findings = study.run(experiment, own, arguments.values("--config-dir"), tell)
    fields = findings.fields | {"results": str(folder.path), "notes": folder.notes}
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / ANSWER).write_text(to_json(fields, indent=2) + "\n", encoding="utf-8")
    with open(folder.path / CSV, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([findings.head, *findings.rows])
    (folder.path / PAGE).write_text(findings.page, encoding="utf-8")
    ends = [*(f"note: {note}" for note in folder.notes), f"results: {folder.path}", f"page: {folder.path / PAGE}"]
    return Answer(fields, "\n".join([findings.text, "", *ends]))
