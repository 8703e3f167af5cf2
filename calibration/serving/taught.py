"""The constants with which simulated servers meet measured ones, for each engine and device of a serving table.

For each pair the misfit of all its rows is descended by Gauss-Newton steps:

    sum over rows of weight [rho(log(TTFT/measured)/LEFT_TTFT) + rho(log(TPOT/measured)/LEFT_TPOT)]
    + sum over constants of ((constant - start)/prior)^2,   rho(x) = log(1 + x^2)

A row that is far off (a server that was still compiling, a load that its table misstates) hardly counts (Cauchy's rho).

Factors are fitted by their logarithm. The latencies of a row follow from its response
(`calibration.serving.responses`), so that the descent costs no simulation. What a pair's rows do not tell stays at its
prior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from calibration.serving.responses import SUBMITTED, Response


HOST = ("request_s",)
"""What is asked of a device whose kernels were measured: no table tells of the server. Factors on its kernels' time and
on submitting, found all the same, made other rows worse: servers differ from release to release."""
KERNELS = ("products", "prefill_attention", "decode_attention", "experts", "elementwise", "links", "eager", "host_s")
"""Asked too of a device that the analytic model prices, and of the host beside it."""
PRIOR = {
    "products": 0.15,
    "prefill_attention": 0.25,
    "decode_attention": 0.25,
    "experts": 0.25,
    "elementwise": 0.25,
    "links": 0.3,
    "eager": 0.3,
    "host_s": 3e-3,
    "request_s": 30e-3,
}
"""Standard deviation a priori: of a factor's logarithm, or in seconds."""
LEFT_TTFT, LEFT_TPOT = 0.2, 0.08
"""What is left of a row's misfit however good the constants."""
STEPS, LONGEST = 100, 0.5
"""Most steps, and how long one may be in units of the priors."""


@dataclass(frozen=True)
class Taught:
    """`values` as `predictors.run_fit.adjusted` reads them; `spread` of each; relative errors of all rows by metric."""

    engine: str
    device: str
    values: dict[str, float]
    spread: dict[str, float]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]


def taught(
    responses: Sequence[Response],
    measured_s: Float[np.ndarray, "row 2"],
    weights: Float[np.ndarray, " row"],
) -> Taught:
    """The constants of one engine on one device.

    **Arguments:**

    - `measured_s`: TTFT and TPOT of each row.
    - `weights`: how many rows of the table each stands for.
    """
    knobs = (*(KERNELS if responses[0].estimated else ()), *HOST)
    point = np.zeros(len(knobs))
    prior = np.array([PRIOR[name] for name in knobs])
    pickup_s = min(one.pickup_s for one in responses)
    least = np.array([{"host_s": 0.0, "request_s": -pickup_s}.get(name, -np.inf) for name in knobs])
    scale = np.array([LEFT_TTFT, LEFT_TPOT])
    for _ in range(STEPS):
        error, slope = _misfit(responses, measured_s, knobs, point)
        weight = weights[:, None] / (scale**2 + error**2)
        gram = np.einsum("rm,rmi,rmj->ij", weight, slope, slope) + np.diag(prior**-2.0)
        moment = np.einsum("rm,rm,rmi->i", weight, error, slope) + point / prior**2
        free = (point > least) | (moment < 0.0)  # the others are at their bound and would go beyond it
        step = np.zeros(len(knobs))
        step[free] = np.linalg.solve(gram[np.ix_(free, free)], -moment[free])
        step *= min(1.0, LONGEST / np.abs(step / prior).max(initial=1e-9))
        change = np.maximum(point + step, least) - point
        point = point + change
        if np.abs(change / prior).max() < 1e-4:
            break
    spread = np.sqrt(np.diag(np.linalg.inv(gram)))
    values = {
        name: float(value if name.endswith("_s") else np.exp(value)) for name, value in zip(knobs, point, strict=True)
    }
    if "links" in values:
        values["links"] = 1.0 / values["links"]  # a rate
    before, after = (np.expm1(_misfit(responses, measured_s, knobs, at)[0]) for at in (0.0 * point, point))
    names = ("ttft", "tpot")
    return Taught(
        responses[0].engine,
        responses[0].device,
        values,
        dict(zip(knobs, spread.tolist(), strict=True)),
        {name: before[:, index] for index, name in enumerate(names)},
        {name: after[:, index] for index, name in enumerate(names)},
    )


def _misfit(
    responses: Sequence[Response],
    measured_s: Float[np.ndarray, "row 2"],
    knobs: Sequence[str],
    point: Float[np.ndarray, " knob"],
) -> tuple[Float[np.ndarray, "row 2"], Float[np.ndarray, "row 2 knob"]]:
    """log(simulated/measured) of TTFT and TPOT, and its slopes."""
    at: Mapping[str, float] = dict(zip(knobs, point.tolist(), strict=True))
    found = np.empty((len(responses), 2))
    slopes = np.zeros((len(responses), 2, len(knobs)))
    factors = np.array([0.0, *SUBMITTED[:1], 1.0, *SUBMITTED[1:]])
    for row, one in enumerate(responses):
        for metric, (start_s, by) in enumerate(((one.ttft_s, one.ttft), (one.tpot_s, one.tpot))):
            total = start_s
            for knob, name in enumerate(knobs):
                if name == "eager":
                    half, *more = (pair[metric] for pair in one.eager)
                    curve = np.array([2.0 * half, half, 0.0, *more])
                    factor = float(np.exp(at[name]))
                    total += float(np.interp(factor, factors, curve))
                    near = [factor * 0.98, factor * 1.02]
                    slopes[row, metric, knob] = float(np.diff(np.interp(near, factors, curve))[0]) / 0.04
                elif name.endswith("_s"):
                    total += by[name] * at[name]
                    slopes[row, metric, knob] = by[name]
                else:
                    total += by[name] * np.expm1(at[name])
                    slopes[row, metric, knob] = by[name] * np.exp(at[name])
            found[row, metric] = max(total, 0.05 * start_s, 1e-6)
    return np.log(found / measured_s), slopes / found[..., None]
