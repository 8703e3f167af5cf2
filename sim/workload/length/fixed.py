"""Every request has the nominal lengths."""

import numpy as np

from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw


READS = ("input_tokens", "output_tokens")


def law(conf: WorkloadConf) -> LengthLaw:
    """`input_tokens` in, `output_tokens` out."""
    pair = (float(conf.input_tokens), float(conf.output_tokens))
    return LengthLaw(
        uniforms=0,
        draw=lambda u: (np.tile(pair, (len(u), 1)), np.ones(len(u), dtype=bool)),
        provenance=(f"lengths: fixed, {conf.input_tokens} input and {conf.output_tokens} output tokens",),
    )
