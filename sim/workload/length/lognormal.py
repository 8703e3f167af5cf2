"""Independent log-normal lengths, given by mean and coefficient of variation."""

import math

import numpy as np
from jaxtyping import Bool, Float

from sim.workload import draws
from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw


READS = ("input_tokens", "output_tokens", "input_cv", "output_cv")


def law(conf: WorkloadConf) -> LengthLaw:
    """exp(mu + sigma z), sigma^2 = ln(1 + cv^2), mu = ln(mean) - sigma^2 / 2, the nominal length being the mean."""
    shapes = []
    nominal, cvs = (conf.input_tokens, conf.output_tokens), (conf.input_cv, conf.output_cv)
    for mean, cv in zip(nominal, cvs, strict=True):
        variance = math.log(1 + cv * cv)
        shapes.append((math.log(mean) - variance / 2, math.sqrt(variance)))

    def draw(u: Float[np.ndarray, "row 4"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        columns, ok = [], np.ones(len(u), dtype=bool)
        for column, (mu, sigma) in enumerate(shapes):
            z, inside = draws.polar_normal(u[:, 2 * column], u[:, 2 * column + 1])
            columns.append(np.floor(draws.exp(mu + sigma * z) + 0.5))
            ok &= inside
        return np.stack(columns, axis=1), ok

    prompt, output = (f"mean {n}, cv {cv}" for n, cv in zip(nominal, cvs, strict=True))
    return LengthLaw(4, draw, (f"lengths: lognormal, input tokens {prompt}, output tokens {output}",))
