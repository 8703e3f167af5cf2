"""Equally likely between two bounds."""

import numpy as np
from jaxtyping import Float

from sim.workload.sessions.conf import LawConf


READS = ("least", "most")


def sample(conf: LawConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """`least + (most - least) u`."""
    assert conf.least is not None and conf.most is not None
    drawn: np.ndarray = conf.least + (conf.most - conf.least) * rng.random(count)
    return drawn
