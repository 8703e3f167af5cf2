"""`headway validate kv=FILE.csv`: the KV cache that real servers had, and whether they started, against the memory sum.

Several files may be given, with commas between them. `results=DIR`: where the csv and the page go.
"""

import time

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.folder import results_folder
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
    folder = results_folder(keys.given.get("results"), f"kv_{time.strftime('%Y-%m-%d_%H-%M-%S')}", CSV)
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
    fields |= {"results": str(folder.path), "notes": folder.notes}
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / CSV).write_text(csv_text(predictions), encoding="utf-8")
    name = ", ".join(path.name for path in paths)
    (folder.path / PAGE).write_text(kv_page(fields, predictions, name), encoding="utf-8")
    ends = [f"Results: {folder.path}/ ({CSV}, {PAGE})", *(f"note: {note}" for note in folder.notes)]
    return Answer(fields, "\n".join([report_text(fields, predictions, table), "", *ends]))
