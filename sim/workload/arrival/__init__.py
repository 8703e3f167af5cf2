"""Arrival processes, one module each with `times_s(conf, count, rng)`; a new file is a new `workload.arrival`.

`READS`: whether `rate` is read, so that one set in vain can be refused (`sim.workload.used`).
"""

import pkgutil
from importlib import import_module
from typing import Protocol

import numpy as np
from jaxtyping import Float

from sim.documents import nearest
from sim.workload.conf import WorkloadConf


class ArrivalProcess(Protocol):
    """Times of the first `count` arrivals in seconds, non-decreasing, from uniforms of `rng` only."""

    def __call__(self, conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
        """Draw the times."""
        ...


def names() -> list[str]:
    """The arrival processes there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def arrival_process(name: str) -> ArrivalProcess:
    """The process called `name`; `ValueError` with the known names otherwise."""
    if name not in names():
        known = [*names(), "trace"]
        raise ValueError(f"workload.arrival wants one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    process: ArrivalProcess = import_module(f"{__name__}.{name}").times_s
    return process
