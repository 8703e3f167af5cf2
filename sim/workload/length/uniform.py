"""Lengths as vLLM's random data set draws them: uniform around the nominal ones."""

import math

import numpy as np
from jaxtyping import Bool, Float

from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw, integers


READS = ("input_tokens", "output_tokens", "range_ratio", "output_range_ratio")


def law(conf: WorkloadConf) -> LengthLaw:
    """Integers from floor(n (1 - r)) to ceil(n (1 + r)), both included, r = `range_ratio`; outputs at least 1."""
    ratios = (conf.range_ratio, conf.range_ratio if conf.output_range_ratio is None else conf.output_range_ratio)
    if max(ratios) >= 1:
        raise ValueError(
            f"workload.range_ratio wants a number from 0 to below 1 for lengths=uniform, got {max(ratios)}"
        )
    nominal = (conf.input_tokens, conf.output_tokens)
    (low_in, high_in), (low_out, high_out) = (
        (max(1, math.floor(n * (1 - r))), math.ceil(n * (1 + r))) for n, r in zip(nominal, ratios, strict=True)
    )

    def draw(u: Float[np.ndarray, "row 2"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        pairs = np.stack([integers(u[:, 0], low_in, high_in), integers(u[:, 1], low_out, high_out)], axis=1)
        return pairs, np.ones(len(u), dtype=bool)

    said = f"lengths: uniform, {low_in} to {high_in} input and {low_out} to {high_out} output tokens"
    return LengthLaw(2, draw, (f"{said} (vLLM's --random-range-ratio {ratios[0]}, {ratios[1]})",))
