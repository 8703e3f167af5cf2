"""Length laws, one module each: `law(conf) -> LengthLaw`; a new file here is a new value of `workload.lengths`.

`READS` names the keys of lengths that the law reads, so that one set in vain can be refused (`sim.workload.used`).
"""

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from jaxtyping import Bool, Float

from sim.workload.conf import WorkloadConf


@dataclass(frozen=True)
class LengthLaw:
    """How (input, output) lengths follow from uniforms.

    `draw` maps `uniforms` numbers in [0, 1) per request to columns input and output, and says which rows count (a
    rejection method may refuse some). `provenance` says where the law's numbers come from.
    """

    uniforms: int
    draw: Callable[[Float[np.ndarray, "row column"]], tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]]
    provenance: tuple[str, ...]


def names() -> list[str]:
    """The length laws there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def length_law(conf: WorkloadConf) -> LengthLaw:
    """The law that `conf.lengths` names, with its numbers; `ValueError` where those make no law."""
    law: LengthLaw = import_module(f"{__name__}.{conf.lengths}").law(conf)
    return law


def integers(u: Float[np.ndarray, " row"], low: int, high: int) -> Float[np.ndarray, " row"]:
    """Integers from low to high, both included, equally likely."""
    return low + np.floor(u * (high - low + 1))
