"""Laws of one number, one module each: `sample(conf, count, rng)`; a new file here is a new value of `...law`.

`READS` names what the law reads of a `LawConf`. A law draws from uniforms of `rng` only, and n numbers are always the
first n of more.
"""

import math
import pkgutil
from importlib import import_module

import numpy as np
from jaxtyping import Float

from sim.documents import nearest
from sim.workload.sessions.conf import NONE, LawConf


MOST = 1e9
"""Of any number: longer than any session, prompt or pause."""

MOST_CV = 1000.0


def names() -> list[str]:
    """The laws there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def reads(name: str) -> tuple[str, ...]:
    """What the law called `name` reads; nothing of none."""
    found: tuple[str, ...] = () if name == NONE else import_module(f"{__name__}.{name}").READS
    return found


def check_law(conf: LawConf, key: str, least: float) -> None:
    """Raise `ValueError`, one sentence with the key (`workload.sessions.rounds`), for numbers that make no law.

    `least`: of the numbers drawn.
    """
    known = [NONE, *names()]
    if conf.law not in known:
        near = nearest(conf.law, known)
        raise ValueError(f"{key}.law wants one of {', '.join(known)}, got {conf.law!r}{near}")
    wanted = reads(conf.law)
    for name in ("mean", "least", "most"):
        value = getattr(conf, name)
        if name not in wanted or value is None:
            continue
        if not least <= value <= MOST:
            raise ValueError(f"{key}.{name} wants a number from {least:g} to {MOST:g}, got {value}")
    if "cv" in wanted and not 0 < conf.cv <= MOST_CV:
        raise ValueError(f"{key}.cv wants a number above 0 and at most {MOST_CV:g}, got {conf.cv}")
    if conf.law == "uniform" and (conf.least is None or conf.most is None):
        raise ValueError(f"{key}.law=uniform wants {key}.least and {key}.most")
    if "mean" in wanted and conf.law != "fixed" and not conf.mean > 0:
        raise ValueError(f"{key}.mean wants a number > 0 for the law {conf.law}, got {conf.mean}")
    low, high = conf.least, conf.most
    if low is not None and high is not None and not low <= high:
        raise ValueError(f"{key}.most={high:g} wants to be no smaller than {key}.least={low:g}")


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """`count` numbers of the law of `conf`, within its bounds."""
    values: np.ndarray = import_module(f"{__name__}.{conf.law}").sample(conf, count, rng)
    low = -math.inf if conf.least is None else conf.least
    return np.clip(values, low, math.inf if conf.most is None else conf.most)


def described(conf: LawConf) -> str:
    """`lognormal (mean 3, cv 1, most 60)`."""
    given = [(name, getattr(conf, name)) for name in reads(conf.law)]
    return f"{conf.law} ({', '.join(f'{name} {value:g}' for name, value in given if value is not None)})"
