"""Lengths drawn, pair by pair, from the requests of a file."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float

from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw
from sim.workload.reader import read_trace


READS = ("lengths_path",)


def law(conf: WorkloadConf) -> LengthLaw:
    """Pairs (input, output) drawn with replacement from `lengths_path`, a file of any trace format (times unused)."""
    if conf.lengths_path is None:
        raise ValueError("workload.lengths=empirical wants workload.lengths_path, a file with input and output lengths")
    trace = read_trace(replace(conf, format="auto", limit=None), conf.lengths_path, "lengths_path")
    pairs = np.stack([trace.prompt_tokens, trace.output_tokens], axis=1).astype(np.float64)

    def draw(u: Float[np.ndarray, "row 1"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        return pairs[np.floor(u[:, 0] * len(pairs)).astype(np.int64)], np.ones(len(u), dtype=bool)

    return LengthLaw(1, draw, (f"lengths: drawn from the {len(pairs)} requests of {conf.lengths_path}",))
