"""Which engine version a row ran: as it says, or the one its benchmark used on that day."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from calibration.serving.table import Row
from sim.deployment.settings import engine_names, version_key
from sim.documents import mapping, parse_yaml


OWN, NEAREST, BY_DATE = "own profile", "nearest profile", "by date"


@dataclass(frozen=True)
class Version:
    """An engine version and how it is known: its profile is its `own`, the `nearest`, or it was found `by date`."""

    name: str
    kind: str


def version_of(row: Row) -> Version:
    """The version of a row. A cell without a release in it (blank, `nightly`) takes that of the row's date.

    Of a row without a date too, the newest version that has a profile.
    """
    stated = None if _is_dynamos(row) else re.match(r"v?(\d+\.\d+(?:\.\d+)?)", row.engine_version)
    if stated:
        own = version_key(stated[1]) in map(version_key, _profiles(row.serves))
        return Version(_three(stated[1]), OWN if own else NEAREST)
    if row.date is None:
        return Version(_three(max(_profiles(row.serves), key=version_key)), BY_DATE)
    return Version(released(row.serves, row.date), BY_DATE)


def _is_dynamos(row: Row) -> bool:
    """Whether the version is that of Dynamo's container of TensorRT-LLM: `0.8.1.post2`, which holds 1.2."""
    return row.disaggregated and row.serves == "trtllm" and row.engine_version.startswith("0.")


def released(engine: str, day: str) -> str:
    """The last version of `engine` in use by `day` (`2026-03-25`), or the first known."""
    since = [(str(at), str(version)) for version, at in _releases()[engine].items()]
    before = [version for at, version in since if at <= day]
    return _three(before[-1] if before else since[0][1])


def _profiles(engine: str) -> list[str]:
    return [name.partition("-")[2] for name in engine_names() if name.partition("-")[0] == engine]


def _three(version: str) -> str:
    return ".".join([*version.split("."), "0", "0"][:3])


@cache
def _releases() -> dict[str, dict[str, Any]]:
    text = (resources.files("calibration.serving") / "releases.yaml").read_text(encoding="utf-8")
    engines = mapping(parse_yaml(text, "releases.yaml"), "releases.yaml")
    return {engine: mapping(versions, engine) for engine, versions in engines.items()}
