"""`headway calibrate device=NAME`: fits the learned families of a device to operator tables and writes an artifact."""

import datetime
import sys
from pathlib import Path

from conf.files import choices
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.operator_errors import error_table
from scripts.plain_keys import PlainKeys


KEYS = ("device", "family", "sources", "seed", "out", "date", "splits", "quick")


def run(arguments: Arguments) -> Answer:
    """Fit, judge on held-out shapes, write `OUT/<device>/card.json` and one file per family; with `--from`: learn."""
    run_file = arguments.value("--from")
    if run_file is not None:
        from scripts import calibrate_from

        return calibrate_from.run(arguments, run_file)
    keys = PlainKeys.of("headway calibrate", arguments.words, KEYS)
    if not keys.text("device"):
        raise ValueError("headway calibrate wants device=NAME[,NAME ...] (`headway hardware` lists them).")
    devices = keys.several("device", list(choices("hardware")))
    from calibration.tables.find import PACKAGE
    from predictors.families import MODULES

    names, sources = keys.several("family", list(MODULES)), keys.sources("sources", PACKAGE)
    seed, quick = keys.whole("seed", 0), keys.truth("quick")
    splits = keys.choice("splits", ("shapes", "all"), "shapes")
    date = keys.text("date", datetime.date.today().isoformat())
    out = Path(keys.text("out", "predictors-fitted")).expanduser()
    from calibration.operators import calibrated
    from predictors.store import save

    errors: dict[str, dict[str, dict]] = {}
    for device in devices:
        for name in names:
            if not arguments.switch("--json"):
                print(f"{device}: {name} ...", file=sys.stderr, flush=True)
            found = calibrated(device, name, sources, seed=seed, quick=quick, every_split=splits == "all", date=date)
            if found is not None:
                save(out / device, found.device.name, [found.fitted], {name: found.card})
                errors.setdefault(device, {})[name] = found.card["errors"]
    if not errors:
        raise ValueError(f"sources hold no table of {', '.join(devices)} for {', '.join(names)}.")
    text = f"{error_table(errors)}\n\nwritten: {out}/<device>; use it with predictor={out}/<device>"
    return Answer({"status": "ok", "out": str(out), "errors": errors}, text)
