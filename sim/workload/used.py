"""Whether the keys that a user set are read by the workload they set them for: one that is not would do nothing.

Arrival processes and length laws name what they read in `READS`; one without (a user's own) may read anything.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module

from sim.workload import arrival, length
from sim.workload.conf import WorkloadConf
from sim.workload.retrieval.check import unread_of_retrieval
from sim.workload.sessions.check import unread_of_sessions


OF_TRACES = ("format", "hash_block_tokens")
OF_OUTPUTS = ("output_tokens", "output_cv", "output_range_ratio")


@cache
def reads(kind: str, name: str) -> frozenset[str] | None:
    """What the arrival process or length law `name` of `sim.workload.<kind>` reads; None: not known."""
    if name == "trace":
        return frozenset()
    known = name in (arrival if kind == "arrival" else length).names()
    found = getattr(import_module(f"sim.workload.{kind}.{name}"), "READS", None) if known else None
    return None if found is None else frozenset(found)


@cache
def readers(kind: str, key: str) -> tuple[str, ...]:
    """The processes or laws that say they read `key`."""
    names = (arrival if kind == "arrival" else length).names()
    return tuple(name for name in names if key in (reads(kind, name) or ()))


def check_read(conf: WorkloadConf, keys: Iterable[str]) -> None:
    """Raise `ValueError`, one sentence, for the first of `keys` (as `input_tokens`) that is set and does nothing.

    Combinations that `sim.workload.check` refuses, whoever set them, are left to it.
    """
    for key in keys:
        group, _, name = key.partition(".")
        if group in ("sessions", "retrieval"):
            of_sessions = group == "sessions"
            wants = (
                unread_of_sessions(conf.sessions, name) if of_sessions else unread_of_retrieval(conf.retrieval, name)
            )
            if wants:
                raise ValueError(f"workload.{key} does nothing here: it wants {wants}; leave it out.")
        elif getattr(conf, key, None) is not None and (wants := unread(conf, key)):
            raise ValueError(f"workload.{key} does nothing here: it wants {wants}; leave it out.")


def unread(conf: WorkloadConf, key: str) -> str:
    """What `key` wants in order to be read, and what there is; empty where it is read."""
    for kind, choice, group in (("arrival", conf.arrival, "arrival"), ("length", conf.lengths, "lengths")):
        wanted, found = readers(kind, key), reads(kind, choice)
        if wanted and found is not None and key not in found:
            return f"workload.{group}={' or '.join(wanted)}, got {choice}"
    if key in OF_OUTPUTS and conf.pooling:
        return "workload.pooling=false, got true"
    if key in OF_TRACES and "trace" not in (conf.arrival, conf.lengths):
        return f"workload.arrival=trace or workload.lengths=trace, got {conf.arrival} and {conf.lengths}"
    if key == "over_limit" and conf.max_input_tokens is None and conf.max_total_tokens is None:
        return "workload.max_input_tokens or workload.max_total_tokens, got neither"
    if key == "rounds" and conf.num_requests is not None:
        return f"workload.num_requests=null, got {conf.num_requests}"
    return ""
