"""The load that a benchmark's result is replayed with: what the file tells of it, less what the user says."""

from typing import TYPE_CHECKING

from scripts.configure import BELONGS_TO_DATASET, key_of
from sim.workload.used import readers, reads


if TYPE_CHECKING:
    from calibration.from_run.observed import Observed

OWN = {"workload", "workload.path", "workload.profile", "workload.lengths_path"}
"""Keys of which one says that the user describes the lengths."""
GAPS = ("poisson", "gamma")
"""Arrivals whose gaps can be scaled to the rate, which `workload=random` does unless told otherwise."""
MEANS = ("workload.input_tokens", "workload.output_tokens")


def load_told(observed: "Observed", said: list[str]) -> list[str]:
    """Overrides that the file tells and the user did not say, nor made idle by another process or law."""
    given = {key_of(word): word.partition("=")[2] for word in said}
    dropped = set(given) | (BELONGS_TO_DATASET | {"workload"} if OWN & given.keys() else set())
    kept = [word for word in observed.keys if key_of(word) not in dropped]
    for kind, choice in (("arrival", "workload.arrival"), ("length", "workload.lengths")):
        read = reads(kind, given[choice]) if choice in given else None
        if read is not None:
            kept = [word for word in kept if _name(word) in read or not readers(kind, _name(word))]
    if given.get("workload.arrival", "poisson") in GAPS:
        return kept
    kept = [word for word in kept if _name(word) not in ("burstiness", "normalize_rate")]
    own = {"workload", "workload.normalize_rate"} & given.keys()
    return kept if own else [*kept, "workload.normalize_rate=false"]


def load_remarks(observed: "Observed", told: list[str], said: list[str]) -> list[str]:
    """Where lengths come from that are neither known request by request nor said by the user."""
    means = [word for word in told if key_of(word) in MEANS]
    if means:
        why = "total_input_tokens and total_output_tokens over completed; it tells no spread, workload= would"
        return [f"mean lengths of {observed.name}: {', '.join(means)} ({why})"]
    lengths = (*OWN, *MEANS, "workload.lengths")
    if observed.workload is None and not any(key_of(word) in lengths for word in said):
        return [f"note: {observed.name} tells no lengths: those of the default workload are taken; give workload="]
    return []


def _name(word: str) -> str:
    return key_of(word).removeprefix("workload.")
