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

    -1 where there is none, or none is needed. `shapes`: m, n, k of each row.
    """
    found = np.full(len(kernels), -1.0)
    for one, name in enumerate(kernels):
        if not parsed(name)[-1]:
            continue
        mine = np.flatnonzero(code == one)
        clear = mine[seconds[mine] > ABOVE_HOST * np.quantile(seconds[mine], 0.05)]
        times = {tuple(key): value for key, value in zip(shapes[clear].tolist(), seconds[clear], strict=True)}
        distances = []
        for other, other_name in enumerate(kernels):
            if parsed(other_name)[-1] or format_name(other_name) != format_name(name):
                continue
            rows = np.flatnonzero(code == other)
            pairs = [
                np.log(times[tuple(key)] / seconds[row])
                for row, key in zip(rows, shapes[rows].tolist(), strict=True)
                if tuple(key) in times
            ]
            if len(pairs) >= LEAST_PAIRS:
                distances.append((float(np.median(np.abs(pairs))), other))
        if distances and min(distances)[0] < STAND_IN:
            found[one] = min(distances)[1]
    return found


def chosen(fitted: Fitted, engine: str) -> tuple[np.ndarray, np.ndarray]:
    """Kernel for each stored format as `engine` ("vllm", "vllm/0.19.0") runs it, and 1 where that was measured.

    Preference: the format itself, as many bits, the engine's own, seen in a model, launch left out, the newest version
    (up to the engine's, else the oldest), more rows. Of a launched one its stand-in is taken, if there is one.
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
