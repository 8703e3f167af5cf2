"""Which kernel stands for which: one of few shapes for one of many, and what an engine runs for a format."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from predictors.family import Fitted
from predictors.gemm.rows import DTYPES, format_name, parsed
from predictors.variants import age, bits
from sim.deployment.formats import FORMATS


LEAST_SHAPES = 40
"""A kernel of fewer shapes is not given to a network: it would learn the shapes by heart."""
STAND_IN, ABOVE_HOST, LEAST_PAIRS = 0.2, 2.5, 50
"""How close (in log time) a stand-in must be to a launched kernel, at times this much above the host's."""


QUANTISING = {("trtllm", "fp8")}
"""Rows that quantise their input on the fly too (H200, B200: 7-8 us and a pass over it more than another engine's bare
kernel, in every shape). Servers with static scales do that in the kernel before, and plans count it there: so the bare
kernel that is nearest but for a constant stands in (SGLang's on Hopper and B200, 13-15 %; vLLM's is 25-30 % off)."""


def followed(one: int, kernels: tuple[str, ...], shapes: np.ndarray, counts: np.ndarray) -> int:
    """The kernel whose form and network price kernel `one`: itself, or, for one of few shapes, one of many.

    That is of the same stored format, not launched; if there are several, the engine's own, then the one of most rows.
    """
    engine, _, _, _, launched = parsed(kernels[one])
    if shapes[one] >= LEAST_SHAPES or launched:
        return one
    others = []
    for other, name in enumerate(kernels):
        other_engine, _, _, _, other_launched = parsed(name)
        if shapes[other] >= LEAST_SHAPES and not other_launched and format_name(name) == format_name(kernels[one]):
            others.append((other_engine == engine, counts[other], -other))
    return -max(others)[2] if others else one


def stand_ins(
    code: np.ndarray, shapes: Float[np.ndarray, "row 3"], seconds: Float[np.ndarray, " row"], kernels: Sequence[str]
) -> Float[np.ndarray, " kernel"]:
    """For each launched kernel one that was measured without the host and is as fast where the host does not show.

    And for each that quantises (`QUANTISING`) the bare one that is nearest but for a constant. -1 where there is none, or
    none is needed. `shapes`: m, n, k of each row.
    """
    found = np.full(len(kernels), -1.0)
    for one, name in enumerate(kernels):
        engine, _, dtype, _, launched = parsed(name)
        quantises = (engine, dtype) in QUANTISING
        if not (launched or quantises):
            continue
        mine = np.flatnonzero(code == one)
        if launched:
            mine = mine[seconds[mine] > ABOVE_HOST * np.quantile(seconds[mine], 0.05)]
        times = {tuple(key): value for key, value in zip(shapes[mine].tolist(), seconds[mine], strict=True)}
        distances = []
        for other, other_name in enumerate(kernels):
            owner, _, other_dtype, _, other_launched = parsed(other_name)
            if other_launched or (owner, other_dtype) in QUANTISING or format_name(other_name) != format_name(name):
                continue
            rows = np.flatnonzero(code == other)
            keys = [tuple(key) for key in shapes[rows].tolist()]
            both = [(times[key], seconds[row]) for row, key in zip(rows, keys, strict=True) if key in times]
            if len(both) >= LEAST_PAIRS:
                distances.append((_distance(*np.array(both).T, quantises), other))
        if distances and (quantises or min(distances)[0] < STAND_IN):
            found[one] = min(distances)[1]
    return found


def _distance(seconds: Float[np.ndarray, " pair"], others: Float[np.ndarray, " pair"], more: bool) -> float:
    """Median distance in log time; `more`: of what is left of `seconds` without a constant, the median difference."""
    left = np.maximum(seconds - np.median(seconds - others), 0.1 * seconds) if more else seconds
    return float(np.median(np.abs(np.log(left / others))))


def chosen(fitted: Fitted, engine: str) -> tuple[np.ndarray, np.ndarray]:
    """Kernel for each stored format as `engine` ("vllm", "vllm/0.19.0") runs it, and 1 where that was measured.

    Preference: the format itself, as many bits, the engine's own, seen in a model, launch left out, the newest version
    (up to the engine's, else the oldest), more rows. Of one that has a stand-in, that is taken.
    """
    engine, _, version = engine.partition("/")
    rows, stand_in = np.asarray(fitted.arrays["rows"]), np.asarray(fitted.arrays["stand_in"])
    choice, measured = np.zeros(len(FORMATS), np.int64), np.zeros(len(FORMATS))
    for index, wanted in enumerate(FORMATS):
        ranked = []
        for code, name in enumerate(fitted.kernels):
            owner, built, dtype, inside, launched = parsed(name)
            stored = DTYPES[dtype][0]
            alike = bits(stored) == bits(wanted)
            same, computed_as_stored = stored == wanted, not dtype.endswith("_wo")
            rank = (same, alike, computed_as_stored, owner == engine, inside, not launched, *age(built, version))
            ranked.append((rank, rows[code], -code))
        code = -max(ranked)[2]
        measured[index] = float(format_name(fitted.kernels[code]) == wanted)
        choice[index] = int(stand_in[code]) if stand_in[code] >= 0.0 else code
    return choice, measured
