"""`headway validate operators`: the error of the fitted families on shapes they have never seen."""

import sys

from conf.files import choices
from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.operator_errors import error_table
from scripts.plain_keys import PlainKeys


KEYS = ("operators", "device", "family", "sources", "splits", "predictor", "seed", "quick")


def run(arguments: Arguments) -> Answer:
    """`errors[family][split][device]`, of the shipped artifacts, a folder `predictor=DIR`, or `predictor=analytic`.

    Split "shapes" is measured on the artifact as it is. With `splits=all` the others are measured too, each by a fit
    without its rows; otherwise they come from the artifact's card, as they were when it was made.
    """
    words = [word if "=" in word else f"{word}=true" for word in arguments.words]
    keys = PlainKeys.of("headway validate operators", words, KEYS)
    from calibration.tables.find import PACKAGE
    from predictors.families import MODULES, family
    from predictors.learned import shipped_for

    if not keys.truth("operators"):
        raise ValueError("validate operators=true judges the learned kernels, got operators=false.")
    names, sources = keys.several("family", list(MODULES)), keys.sources("sources", PACKAGE)
    devices = keys.several("device", list(choices("hardware")))
    every = keys.choice("splits", ("shapes", "all", "card"), "shapes")
    seed, quick = keys.whole("seed", 0), keys.truth("quick")
    from calibration.operators import NothingToFit, fit_family, further_splits, gather, judged, too_few

    nested: dict[str, dict[str, dict[str, dict]]] = {}
    by_device: dict[str, dict[str, dict[str, dict]]] = {}
    said = not arguments.switch("--json")
    notes: list[str] = []
    predictor = keys.text("predictor", "auto")
    for device in devices:
        artifact = None if predictor == "analytic" else shipped_for(device, predictor)
        for name in names:
            fitted = None if artifact is None else artifact.families.get(name)
            if fitted is None and predictor != "analytic":
                continue
            found = {} if artifact is None else dict(artifact.card["families"][name]["errors"])
            try:
                gathered = None if every == "card" else gather(device, name, sources)
            except NothingToFit as error:
                gathered = None
                notes.append(str(error))
            if gathered is not None:
                if said:
                    print(f"headway: {device}: {name} ...", file=sys.stderr, flush=True)
                found["shapes"] = _plain(judged(name, fitted, gathered))
                if not family(name).splits(gathered.table, gathered.device)["shapes"].any():
                    notes.append(f"{device} {name}: {too_few(name, gathered.table)}")
                for split in further_splits(name, gathered) if every == "all" else ():
                    try:
                        other = fitted and fit_family(name, gathered, seed=seed, quick=quick, without=split)
                    except NothingToFit as error:
                        notes.append(f"split {split}: {error}")
                        continue
                    found[split] = _plain(judged(name, other, gathered, split))
            found = {split: by_kernel for split, by_kernel in found.items() if by_kernel}
            if found:
                by_device.setdefault(device, {})[name] = found
            for split, by_kernel in found.items():
                nested.setdefault(name, {}).setdefault(split, {})[device] = _judged(by_kernel)
    if not nested:
        nothing = f"no artifact of {', '.join(devices)} has a family among {', '.join(names)}"
        raise ValueError("; ".join(notes or [nothing]) + ".")
    text = "\n".join([error_table(by_device), *(f"note: {note}" for note in notes)])
    return Answer({"status": "ok", "splits": every, **nested}, text)


def _plain(errors: dict) -> dict[str, dict[str, float]]:
    return {kernel: dict(vars(found)) for kernel, found in errors.items()}


def _judged(by_kernel: dict[str, dict[str, float]]) -> dict:
    whole = by_kernel.get("", {})
    return {
        "median_error": whole.get("median"),
        "p95_error": whole.get("p95"),
        "mean_error": whole.get("mean"),
        "bias": whole.get("bias"),
        "rows": whole.get("rows"),
        "noise": whole.get("noise"),
        "by_kernel": {kernel: found for kernel, found in by_kernel.items() if kernel},
    }
