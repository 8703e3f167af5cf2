"""How many drafts are accepted: laws, one module each; a new file is a new `acceptance.law`.

A law has `make(options, most, seed)`, which gives a function of a request's number and of the number of its
verification: how many of `most` drafts would be accepted. It draws from nothing but these and the seed
(`draws.counted`), so that any schedule sees the same. `READS`: the keys of `AcceptanceConf` that it reads, with their
defaults; `NEEDED` where there is none.

A draft counts only if those before it do: with m_i the chance that the first i drafts are accepted, a row yields
1 + m_1 + ... + m_k tokens on average.
"""

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from sim.documents import nearest
from sim.workload import draws
from sim.workload.acceptance.conf import AcceptanceConf


NEEDED = ...
"""The default of a key that has to be given."""

KEY = "engine.speculation.acceptance"
_NOT_LAWS = {"conf"}
_OF_LAWS = tuple(name for name in AcceptanceConf.__dataclass_fields__ if name != "law")

Law = Callable[[int, int], int]
"""(request, verification from 0) -> drafts accepted."""


def names() -> list[str]:
    """The laws."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_LAWS)


def check_acceptance(conf: AcceptanceConf, most: int) -> None:
    """Raise `ValueError`, one sentence, for a law of `most` drafts that cannot be."""
    options(conf)
    law_of(conf, most, 0)


def options(conf: AcceptanceConf) -> dict[str, Any]:
    """The keys that the law reads, filled with its defaults.

    **Raises:** `ValueError` for a law that is not known, a key that it does not read or that it lacks.
    """
    law = _named(conf)
    reads = _law(law).READS
    for key in _OF_LAWS:
        if getattr(conf, key) is not None and key not in reads:
            takers = [law for law in names() if key in _law(law).READS]
            raise ValueError(
                f"{KEY}.{key} has no effect with {KEY}.law={law}: it is read by {', '.join(takers)}; leave it out, or "
                "change the law."
            )
    found = {key: default if getattr(conf, key) is None else getattr(conf, key) for key, default in reads.items()}
    missing = [key for key, value in found.items() if value is NEEDED]
    if missing:
        raise ValueError(
            f"speculative decoding wants to know how many drafts are accepted: set {KEY}.{missing[0]}, or another "
            f"{KEY}.law ({', '.join(names())})."
        )
    return found


def law_of(conf: AcceptanceConf, most: int, seed: int) -> Law:
    """The law of up to `most` drafts a row. **Raises:** `ValueError` for a key out of range."""
    found: Law = _law(_named(conf)).make(options(conf), most, seed)
    return found


def chance(value: float, key: str) -> float:
    """A chance. **Raises:** `ValueError` outside [0, 1]."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{KEY}.{key} wants a chance from 0 to 1, got {value:g}.")
    return value


def powers(rate: float, most: int) -> list[float]:
    """Chances that the first 1, 2, ... drafts are accepted, each with the same chance after the one before."""
    return [rate**place for place in range(1, most + 1)]


def by_chances(chances_of: Callable[[int], Sequence[float]], seed: int) -> Law:
    """The law with these chances (never rising) that the first 1, 2, ... drafts of a request are accepted.

    One draw decides a row: as many as have a chance above it.
    """

    def accepted(request: int, number: int) -> int:
        drawn, found = draws.counted(seed, request, number), 0
        for one in chances_of(request):
            if drawn >= one:
                break
            found += 1
        return found

    return accepted


def described(conf: AcceptanceConf) -> str:
    """The law in words, for people."""
    said = ", ".join(f"{key} {value}" for key, value in options(conf).items() if value not in (None, False))
    return f"{_named(conf)} ({said})"


def is_set(conf: AcceptanceConf) -> bool:
    """Whether any key says something."""
    return conf != AcceptanceConf()


def _named(conf: AcceptanceConf) -> str:
    """The law's name: as given, or that of the first law all of whose needed keys are set; `rate` if none are.

    **Raises:** `ValueError` for one that is not known.
    """
    if conf.law is None:
        needed = {law: [key for key, value in _law(law).READS.items() if value is NEEDED] for law in names()}
        fits = [law for law, keys in needed.items() if all(getattr(conf, key) is not None for key in keys)]
        most = {law: sum(getattr(conf, key) is not None for key in _law(law).READS) for law in fits}
        return max(reversed(fits), key=lambda law: most[law], default="rate")
    if conf.law not in names():
        near = nearest(conf.law, names())
        raise ValueError(f"{KEY}.law wants one of {', '.join(names())}, got {conf.law!r}{near}.")
    return conf.law


def _law(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


__all__ = [
    "KEY",
    "NEEDED",
    "AcceptanceConf",
    "Law",
    "by_chances",
    "chance",
    "check_acceptance",
    "described",
    "is_set",
    "law_of",
    "names",
    "options",
    "powers",
]
