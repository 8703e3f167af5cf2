"""How unevenly spread experts change the price of a step, and of many steps in a report.

Prices are tabulated with the load that the plan's cost model expects. Where the experts of a step take `extra` seconds
more (or less), launches hide behind as much more: with `device` the time of the kernels that they hide behind,

    step = as tabulated + extra + max(0, launch - device - extra) - max(0, launch - device)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sim.cost.experts.draw import step_draw, step_draws
from sim.cost.experts.times import RoutedExperts


SUMS = ("decode_sum", "decodes", "prefill_area", "prefill_tokens")
"""What of a batch its draw depends on, in this order."""


class RoutingPrices(NamedTuple):
    """`experts` under the law; by tokens of a step `even_s`, the tabulated time of them, and `device_s`; `launch_s` by
    graph mode."""

    experts: RoutedExperts
    even_s: list[float]
    device_s: list[float]
    launch_s: list[float]

    def extra_s(self, tokens: int, decode_sum: int, decodes: int, prefill_area: int, prefill_tokens: int) -> float:
        """Seconds that the experts of a step with these sums take beyond what is tabulated."""
        draw = step_draw(self.experts.seed, decode_sum, decodes, prefill_area, prefill_tokens)
        return self.experts(tokens, draw, prefill_tokens > 0) - self.even_s[tokens]

    def change_s(self, extra_s: float, tokens: int, mode: int) -> float:
        """By how much that changes a step whose launches hide behind its own kernels only."""
        late_s = self.launch_s[mode] - self.device_s[tokens]
        return extra_s + max(0.0, late_s - extra_s) - max(0.0, late_s)


def extra_seconds(
    experts: RoutedExperts, even_s: Float[np.ndarray, " step"], tokens: Float[np.ndarray, " step"], *sums: np.ndarray
) -> Float[np.ndarray, " step"]:
    """`RoutingPrices.extra_s` of many steps; `sums` in the order of `SUMS`."""
    found = np.zeros(len(tokens))
    some = tokens > 0
    draw = step_draws(experts.seed, *(values[some] for values in sums))
    found[some] = experts.step_seconds(tokens[some], draw, sums[-1][some] > 0) - even_s[some]
    return found
