"""A rate that goes from `rate` to `rate_end` in a straight line, then stays."""

import numpy as np
from jaxtyping import Float

from sim.workload.arrival.gamma import unit_gaps
from sim.workload.conf import WorkloadConf


READS = ("rate",)


def times_s(conf: WorkloadConf, count: int, rng: np.random.Generator) -> Float[np.ndarray, " request"]:
    """Arrivals of a unit-rate process (gamma gaps of shape `burstiness`) carried through the integrated rate.

    The ramp lasts `duration_s`, or as long as makes it expect all the requests. With r(t) = r0 + g t and
    Lambda(t) = r0 t + g t^2 / 2, arrival i is at Lambda^-1(s_i), s_i being the unit-rate process's.
    """
    assert conf.rate_end is not None
    mean_rate = (conf.rate + conf.rate_end) / 2
    length_s = conf.duration_s if conf.duration_s is not None else count / mean_rate
    unit = np.cumsum(unit_gaps(conf.burstiness, count, rng))
    growth = (conf.rate_end - conf.rate) / length_s
    total = mean_rate * length_s
    # The root of the quadratic in the form that keeps its digits when the growth is small or zero.
    inside = np.minimum(unit, total)
    ramped = (
        2
        * inside
        / (
            conf.rate
            + np.sqrt(
                np.maximum(conf.rate * conf.rate + 2 * growth * inside, conf.rate_end * conf.rate_end * (growth < 0))
            )
        )
    )
    return np.where(unit <= total, ramped, length_s + (unit - total) / conf.rate_end)
