"""Lengths as InferenceX (and vLLM's benchmark of 2024) draws them: uniform, from a share of the nominal up to it."""

import numpy as np
from jaxtyping import Bool, Float

from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw, integers


READS = ("input_tokens", "output_tokens", "range_ratio", "output_range_ratio")


def law(conf: WorkloadConf) -> LengthLaw:
    """Integers from floor(n r) to n, both included, r = `range_ratio` (InferenceX: 0.8, hence a mean near 0.9 n)."""
    ratios = (conf.range_ratio, conf.range_ratio if conf.output_range_ratio is None else conf.output_range_ratio)
    low_in, low_out = (max(1, int(n * r)) for n, r in zip((conf.input_tokens, conf.output_tokens), ratios, strict=True))

    def draw(u: Float[np.ndarray, "row 2"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        columns = [integers(u[:, 0], low_in, conf.input_tokens), integers(u[:, 1], low_out, conf.output_tokens)]
        return np.stack(columns, axis=1), np.ones(len(u), dtype=bool)

    said = (
        f"lengths: uniform, {low_in} to {conf.input_tokens} input and {low_out} to {conf.output_tokens} output tokens"
    )
    return LengthLaw(2, draw, (f"{said} (InferenceX's --random-range-ratio {ratios[0]}, {ratios[1]})",))
