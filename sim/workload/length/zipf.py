"""Independent Zipf lengths: many short requests, few long ones."""

import numpy as np
from jaxtyping import Bool, Float

from sim.workload import draws
from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw


READS = ("input_tokens", "output_tokens", "zipf_exponent")


def law(conf: WorkloadConf) -> LengthLaw:
    """P(n) proportional to n^-s for n = 1 .. `input_tokens` (`output_tokens`), s = `zipf_exponent`."""
    ends = [_cumulative(top, conf.zipf_exponent) for top in (conf.input_tokens, conf.output_tokens)]

    def draw(u: Float[np.ndarray, "row 2"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        columns = [np.searchsorted(end, u[:, i] * end[-1], side="right") + 1.0 for i, end in enumerate(ends)]
        return np.stack(columns, axis=1), np.ones(len(u), dtype=bool)

    said = f"1 to {conf.input_tokens} input and 1 to {conf.output_tokens} output tokens, exponent {conf.zipf_exponent}"
    return LengthLaw(2, draw, (f"lengths: zipf, {said}",))


def _cumulative(top: int, exponent: float) -> Float[np.ndarray, " n"]:
    return np.cumsum(draws.exp(-exponent * draws.log(np.arange(1.0, top + 1))))
