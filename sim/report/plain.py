"""Plain data: what goes into JSON and YAML."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None.

    Numpy scalars and arrays become numbers and lists, dataclasses dicts, and a number that is not finite None, for
    JSON has no word for it. Anything else becomes its text.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return str(value)


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON text of the plain form."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(plain(value), allow_nan=False, indent=indent, separators=separators, ensure_ascii=False)
