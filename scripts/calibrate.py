"""`headway calibrate device=NAME`: fits the learned families of a device to operator tables and writes an artifact."""

import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from conf.files import choices
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.operator_errors import error_table
from scripts.plain_keys import PlainKeys


KEYS = ("device", "family", "sources", "seed", "out", "date", "splits", "quick")
OUT = "predictors-fitted"
OF_SERVERS = ("model", "hardware", "workload", "engine", "deployment", "slo", "predictor")
"""Groups and keys of a configuration, which only learning from a server takes."""
NOT_LEARNED = {
    "sequence": "a step's head is priced as a product (family gemm), its sampler by the analytic model",
    "collective": "constants of collectives come with the device (docs/add-a-device.md)",
    "exchange": "exchanges of experts are priced by constants that come with the device",
}
"""Why tables of these families are read by none."""


def run(arguments: Arguments) -> Answer:
    """Fit, judge on held-out shapes, write `OUT/<device>/card.json` and one file per family; with `--from`: learn."""
    run_file = arguments.value("--from")
    if run_file is not None:
        from scripts import calibrate_from

        return calibrate_from.run(arguments, run_file)
    refuse_foreign(arguments.words)
    keys = PlainKeys.of("headway calibrate", arguments.words, KEYS)
    if not keys.text("device"):
        raise ValueError(
            "headway calibrate wants device=NAME[,NAME ...] (`headway hardware` lists them), or --from FILE, a run of "
            "a server."
        )
    devices = keys.several("device", list(choices("hardware")))
    from calibration.tables.find import PACKAGE
    from predictors.families import MODULES

    names, sources = keys.several("family", list(MODULES)), keys.sources("sources", PACKAGE)
    seed, quick = keys.whole("seed", 0), keys.truth("quick")
    splits = keys.choice("splits", ("shapes", "all"), "shapes")
    date = keys.text("date", datetime.date.today().isoformat())
    out = Path(keys.text("out", OUT)).expanduser()
    from calibration.operators import NothingToFit, calibrated
    from predictors.store import save

    errors: dict[str, dict[str, dict]] = {}
    aside: dict[str, dict[str, str]] = {}
    notes, refused = [], []
    every = splits == "all"
    for device in devices:
        for name in names:
            if not arguments.switch("--json"):
                print(f"headway: {device}: {name} ...", file=sys.stderr, flush=True)
            try:
                found = calibrated(device, name, sources, seed=seed, quick=quick, every_split=every, date=date)
            except NothingToFit as error:
                refused.append(str(error))
                continue
            if found is not None:
                save(out / device, found.device.name, [found.fitted], {name: found.card})
                errors.setdefault(device, {})[name] = found.card["errors"]
                aside.setdefault(device, {})[name] = found.card["set_aside"]
                notes += [f"{device} {name}: {note}" for note in found.notes]
    notes += [*refused, *(unread(devices, sources) if "family" not in keys.given else [])]
    if not errors:
        nothing = f"sources hold no table of {', '.join(devices)} for {', '.join(names)}"
        raise ValueError("; ".join(refused or [nothing, *notes]) + ".")
    fields = {"status": "ok", "out": str(out), "errors": errors, "set_aside": aside, "notes": notes}
    return Answer(fields, text_of(errors, aside, notes, out))


def text_of(
    errors: Mapping[str, Mapping[str, dict]], aside: Mapping[str, Mapping[str, str]], notes: Sequence[str], out: Path
) -> str:
    """The errors where any were measured, what was set aside, what else to know, and where the artifact is."""
    judged = any(by_kernel for found in errors.values() for by in found.values() for by_kernel in by.values())
    parts = [error_table(errors)] if judged else []
    parts.append("\n".join(["set aside:", *aside_lines(aside)]))
    if notes:
        parts.append("\n".join(f"note: {note}" for note in notes))
    folders = [f"{out}/{device}" for device in errors]
    parts.append("\n".join(f"written: {folder}; use it with predictor={folder}" for folder in folders))
    return "\n\n".join(parts)


def refuse_foreign(words: Sequence[str]) -> None:
    """ValueError for keys of `--from` where it was not given: they describe a server, tables are of a device."""
    named = [word.partition("=")[0].lstrip("+") for word in words if "=" in word]
    groups = [key for key in named if key.partition(".")[0] in OF_SERVERS]
    if not groups:
        return
    instead = (
        "device=NAME says whose operator tables are fitted" if groups[0] == "hardware" else "tables need no server"
    )
    raise ValueError(
        f"headway calibrate takes {groups[0]} only with --from, which learns from a run or a log of a server; without "
        f"it {instead} (its keys are {', '.join(KEYS)})."
    )


def unread(devices: Sequence[str], sources: Sequence[str | Path]) -> list[str]:
    """What to say of tables of these devices that no family learns."""
    from calibration.tables.find import all_parts
    from predictors.families import MODULES, TABLES

    learned = {TABLES.get(name, name) for name in MODULES}
    there = {part.family for part in all_parts(sources) if part.device in devices}
    return [f"{family} tables are not learned here: {NOT_LEARNED[family]}" for family in sorted(there - learned)]


def aside_lines(aside: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The summaries by device and family, each line once though two families share a table."""
    from predictors.families import TABLES

    told: dict[str, None] = {}
    for device, by_family in aside.items():
        for family, summary in by_family.items():
            for line in summary.splitlines():
                told[line if line.startswith(f"{device} ") else f"{device} {TABLES.get(family, family)}: {line}"] = None
    return [f"  {line}" for line in told]
