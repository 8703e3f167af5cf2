"""How the servers of a benchmark were started, where that is public: settings by engine, device, model and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from calibration.serving.formula import evaluate
from sim.documents import mapping, parse_yaml
from sim.scheduler.find import find_scheduler


CONDITIONS = (
    "bench", "engine", "hardware", "model", "precision", "tensor_parallel", "isl", "osl", "attention",
    "since", "before", "concurrency_from", "role", "instances",
)  # fmt: skip


OPTIONS = "scheduler_options."
POOL = "pool."
"""Keys of a pool of a disaggregated deployment, not of its engine: sizes other than the row's, `all_to_all`."""


@dataclass(frozen=True)
class Recipe:
    """One entry: what must hold of a row, and settings, as they stand and as formulas."""

    when: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Any]
    formulas: Mapping[str, str]

    def holds(self, facts: Mapping[str, str], concurrency: int) -> bool:
        """Whether the entry is for a row with these facts; a condition that names nothing of it does not hold.

        Without a condition on the `role` it is for servers that do both prefill and decode.
        """
        for key, wanted in ({"role": ("both",)} | dict(self.when)).items():
            if key == "since":
                good = facts["date"] >= wanted[0]
            elif key == "before":
                good = facts["date"] < wanted[0]
            elif key == "concurrency_from":
                good = concurrency >= int(wanted[0])
            else:
                good = facts[key] in wanted
            if not good:
                return False
        return True


def settings_of(facts: Mapping[str, str], counts: Mapping[str, int]) -> tuple[dict[str, Any], list[str]]:
    """Engine settings (by their keys below `engine.`) that the entries for a row give, later ones over earlier ones;
    and keys of its pool, with `pool.` before them.

    `facts`: bench, engine, hardware, model, precision, tensor_parallel, isl, osl, attention (`dp` or `tp`), role,
    instances (of the role) and date, as texts; `counts`: concurrency, isl, osl, tensor_parallel and ranks (of all
    instances of the role), which formulas may use. Also the settings that the engine's scheduler has no option for, as
    `name=value`: those are left out.
    """
    settings: dict[str, Any] = {}
    for recipe in recipes():
        if recipe.holds(facts, counts["concurrency"]):
            settings |= recipe.settings
            settings |= {key: evaluate(formula, counts) for key, formula in recipe.formulas.items()}
    unknown = [
        key
        for key in settings
        if key.startswith(OPTIONS) and key.removeprefix(OPTIONS) not in scheduler_options(facts["engine"])
    ]
    return settings, [f"{key.removeprefix(OPTIONS)}={settings.pop(key)}" for key in unknown]


@cache
def scheduler_options(engine: str) -> frozenset[str]:
    """The names of the options that an engine's own scheduler has."""
    options = getattr(find_scheduler(engine), "Options", None)
    return frozenset(field.name for field in fields(options)) if options else frozenset()


@cache
def recipes() -> tuple[Recipe, ...]:
    """The shipped entries, in order."""
    text = (resources.files("calibration.serving") / "recipes.yaml").read_text(encoding="utf-8")
    found = []
    for number, entry in enumerate(mapping(parse_yaml(text, "recipes.yaml"), "recipes.yaml")["recipes"], 1):
        where = f"recipes.yaml, entry {number}"
        entries = mapping(entry, where)
        when = {key: _texts(value) for key, value in mapping(entries.pop("when"), where).items()}
        unknown = [key for key in when if key not in CONDITIONS]
        settings = mapping(entries.pop("set", {}), where)
        formulas = {key: str(value) for key, value in mapping(entries.pop("compute", {}), where).items()}
        if unknown or entries:
            raise ValueError(f"{where}: unknown key {[*unknown, *entries][0]}.")
        found.append(Recipe(when, settings, formulas))
    return tuple(found)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)
