"""What a KV transfer costs beside its bytes, as measured (`kv_transfer.yaml`)."""

from functools import cache
from importlib import resources

from sim.documents import parse_yaml


@cache
def transfer_facts() -> tuple[dict[str, float], dict[str, str]]:
    """Values by key, in seconds (or a share), and where each was read."""
    found = parse_yaml(
        (resources.files("sim.hardware") / "kv_transfer.yaml").read_text(encoding="utf-8"), "kv_transfer"
    )
    assert isinstance(found, dict)
    return {key: float(value) for key, value in found["transfer"].items()}, dict(found["sources"])
