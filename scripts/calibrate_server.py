"""Which server a measurement is of: model, engine, version, tensor parallel size and device, and who says so."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conf.files import by_hf_id, shape_name
from scripts.configure import key_of


if TYPE_CHECKING:
    from sim.deployment.plan import Plan

KEYS = {
    "model": ("model", "model.name", "model.path", "model.config"),
    "engine": ("engine", "engine.name", "engine.version"),
    "tensor_parallel": ("deployment", "deployment.tensor_parallel"),
    "device": ("hardware", "hardware.name"),
}
"""The keys that decide each."""
GIVEN, TOLD, DEFAULT = "as given", "from the file", "the default"


def model_told(model_id: str, name: str, said: set[str]) -> list[str]:
    """`model=` for the id that the file `name` holds, where the user said none.

    **Raises:** ValueError for an id that is of no model of the catalogue.
    """
    if not model_id or said.intersection(KEYS["model"]):
        return []
    found = _known(model_id)
    if found is None:
        raise ValueError(
            f"{name} is of the model {model_id}, which the catalogue does not have; give model=NAME (`headway models` "
            "lists them) or model=PATH/config.json."
        )
    return [f"model={found}"]


def model_notes(model_id: str, name: str, plan: "Plan") -> list[str]:
    """That the model of `plan` is not that of the file `name`: right for a fine-tune, a mistake otherwise."""
    taken, known = plan.model.name, _known(model_id) if model_id else None
    if not model_id or taken == known or shape_name(taken) == shape_name(model_id):
        return []
    what = "is not in the catalogue" if known is None else f"is {known}"
    return [f"note: the model of {name}, {model_id}, {what}; model={taken} is taken, as given"]


def described(plan: "Plan", told: Sequence[str], said: Sequence[str]) -> tuple[dict[str, Any], str]:
    """For `--json` and for a person: what served, and whether the user, the file or a default says so."""
    values = {
        "model": plan.model.name,
        "engine": plan.engine.name,
        "version": plan.engine.version,
        "tensor_parallel": plan.deployment.tensor_parallel,
        "device": plan.device.name,
    }
    origin = {what: _origin(keys, told, said) for what, keys in KEYS.items()}
    shown = {
        "model": f"model {plan.model.name}",
        "engine": f"{plan.engine.name} {plan.engine.version}",
        "tensor_parallel": f"tensor parallel {plan.deployment.tensor_parallel}",
        "device": plan.device.name,
    }
    line = ", ".join(f"{text} ({origin[what]})" for what, text in shown.items())
    return values | {"origin": origin}, f"taken as measured on: {line}"


def _origin(keys: Sequence[str], told: Sequence[str], said: Sequence[str]) -> str:
    for words, origin in ((said, GIVEN), (told, TOLD)):
        if any(key_of(word) in keys for word in words):
            return origin
    return DEFAULT


def _known(model_id: str) -> str | None:
    """The catalogue's name of a HuggingFace id, or of the one model of its shape."""
    try:
        return by_hf_id(model_id)
    except ValueError:
        return None
