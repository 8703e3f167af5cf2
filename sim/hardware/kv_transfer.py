"""What a KV transfer costs beside its bytes, as measured, by connector (`kv_transfer.yaml`)."""

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from sim.documents import parse_yaml


class TransferFacts(NamedTuple):
    """Values by key, in seconds (`efficiency`: a share), and where each was read."""

    values: dict[str, float]
    sources: dict[str, str]


@cache
def _file() -> dict[str, Any]:
    text = (resources.files("sim.hardware") / "kv_transfer.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = parse_yaml(text, "kv_transfer.yaml")
    return found


def connectors() -> list[str]:
    """Those that were measured."""
    return list(_file()["connectors"])


def connector_of(given: str, scheduler: str) -> str:
    """The one that is `given`, or where nothing is, the one of an engine with this scheduler."""
    engines = _file()["engines"]
    return given or str(engines.get(scheduler, engines["own"]))


def transfer_facts(connector: str) -> TransferFacts:
    """The facts of one of `connectors`."""
    section = _file()["connectors"][connector]
    return TransferFacts(
        {key: float(value) for key, value in section.items() if key != "sources"}, dict(section["sources"])
    )
