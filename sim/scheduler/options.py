"""Options of a policy's own (a scheduler's `engine.scheduler_options`): its `Options` dataclass, filled and checked."""

import dataclasses
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def read_options[T](schema: type[T], given: Mapping[str, Any], scheduler: str = "this scheduler") -> T:
    """An instance of the dataclass `schema` with the values of `engine.scheduler_options`."""
    return fill_options(schema, given, scheduler, "engine.scheduler_options")


def fill_options[T](schema: type[T], given: Mapping[str, Any], whose: str, where: str) -> T:
    """An instance of the dataclass `schema` with the values `given`; its fields have plain types.

    **Raises:** `ValueError`, naming the key below `where`, for a key it does not have, one that is missing, a value of
    another type, or what its `__post_init__` refuses.
    """
    types = typing.get_type_hints(schema)
    known = [field.name for field in dataclasses.fields(schema)]  # type: ignore[arg-type]
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
            raise ValueError(f"{where}.{key} is no option of {whose}: {hint}")
        wanted = types[key]
        fits = isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            fits = True
        if wanted in WORDS and not fits:
            raise ValueError(f"{where}.{key} wants {WORDS[wanted]}, got {value!r}.")
    for field in dataclasses.fields(schema):  # type: ignore[arg-type]
        without = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if without and field.name not in given:
            raise ValueError(f"{where}.{field.name} must be given: {whose} has no default for it.")
    try:
        return schema(**given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def no_options(given: Mapping[str, Any], scheduler: str) -> None:
    """Raise `ValueError` if options are given to a scheduler that has none."""
    if given:
        raise ValueError(f"engine.scheduler_options.{next(iter(given))} has no meaning: {scheduler} has no options.")


def at_least(least: float, **values: float) -> None:
    """Raise `ValueError`, by name, for the first value below `least`."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least:g}, got {value:g}.")


def one_of(known: tuple[str, ...], **values: str) -> None:
    """Raise `ValueError`, by name, for the first value that is none of `known`."""
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")
