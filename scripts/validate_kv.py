"""`headway validate kv=FILE.csv`: the KV cache that real servers had, and whether they started, against the memory sum.

Several files may be given, with commas between them. `results=DIR`: where the csv and the page go.
"""

import time
from pathlib import Path

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.folder import free_folder
from scripts.plain_keys import PlainKeys
from sim.documents import user_path


KEYS = ("kv", "results")
CSV, PAGE = "cases.csv", "report.html"


def run(arguments: Arguments) -> Answer:
    """Read the cases, predict each, score them, write csv and page. No prediction reads what was measured."""
    keys = PlainKeys.of("headway validate", arguments.words, KEYS)
    paths = [user_path(word.strip(), "kv") for word in keys.text("kv").split(",") if word.strip()]
    if not paths:
        raise ValueError("kv wants a csv of start-up logs, or several with commas between them.")
    for path in paths:
        if not path.is_file():
            raise ValueError(f"kv={path}: there is no such file.")
    folder = output_folder(keys.given.get("results"))
    from calibration.kv.case import read_cases
    from calibration.kv.predict import predict
    from calibration.kv.report import csv_text, kv_page, report_text
    from calibration.kv.score import by, scores
    from calibration.kv.setup import settings_said
    from scripts.table import table

    predictions = []
    for path in paths:
        cases = read_cases(path)
        said = settings_said(cases)
        predictions += [predict(case, said.get(case.source, {})) for case in cases]
    fields = {"status": "ok", **scores(predictions), "by": by(predictions)}
    fields["reasons"] = {one.case.name: one.problem for one in predictions if one.case.counts and one.problem}
    fields["results"] = str(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CSV).write_text(csv_text(predictions), encoding="utf-8")
    name = ", ".join(path.name for path in paths)
    (folder / PAGE).write_text(kv_page(fields, predictions, name), encoding="utf-8")
    text = f"{report_text(fields, predictions, table)}\n\nResults: {folder}/ ({CSV}, {PAGE})"
    return Answer(fields, text)


def output_folder(given: str | None) -> Path:
    """The folder of the results, which must be new, empty or hold an earlier validation."""
    if given is None:
        return free_folder(Path("results") / f"kv_{time.strftime('%Y-%m-%d_%H-%M-%S')}")
    folder = user_path(given, "results")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"results={folder} wants a folder, this is a file.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CSV).is_file():
        raise ValueError(f"results={folder} wants a new or an empty folder, or one of an earlier validation.")
    return folder
