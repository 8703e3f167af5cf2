"""Random numbers with the same bytes on every machine.

Only uniforms are taken from numpy (PCG64 seeded through `SeedSequence`, whose streams numpy keeps fixed); logarithm and
exponential are written with exactly rounded operations (+ - * /), because library versions differ in the last bit and
an arrival at 10^12 ns shows it. Candidates are drawn row by row and kept in order, so that n requests are
always the first n of a longer run.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float


ARRIVALS, LENGTHS, CONTENT, PRIORITIES, EXPERTS = range(5)
ACCEPTANCE = 6  # EXPERTS has two streams
ROUNDS, FIRST_PROMPTS, LATENCIES, SYSTEM_PROMPTS = range(7, 11)
CHUNKS, RETRIEVAL_TIMES = 11, 12
"""Separate streams: another rate or process leaves the lengths as they are."""

MASK = (1 << 64) - 1
GOLDEN, MIX, STIR, FIELD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD1342543DE82EF95

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # their sum is ln 2, k * high is exact
_LOG_TERMS = 12
_EXP_TERMS = 14


def stream(seed: int, purpose: int) -> np.random.Generator:
    """The generator for one purpose (`ARRIVALS`, `LENGTHS` ...) of one seed; independent of the others."""
    if seed < 0:
        raise ValueError(f"seed wants an integer >= 0, got {seed}")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose,))))


def counted(seed: int, request: int, number: int) -> float:
    """A number in [0, 1) for event `number` of a request, whatever happened before: SplitMix64 of the three.

    Source: Steele, Lea, Flood (2014).
    """
    key = ((seed * FIELD + request) * FIELD + number + GOLDEN) & MASK
    key = ((key ^ (key >> 30)) * MIX) & MASK
    key = ((key ^ (key >> 27)) * STIR) & MASK
    return ((key ^ (key >> 31)) >> 11) * 2.0**-53


def log(x: Float[np.ndarray, " *n"]) -> Float[np.ndarray, " *n"]:
    """Natural logarithm of positive x: ln x = k ln 2 + 2 artanh((m - 1) / (m + 1)) with x = m 2^k, about 1 ulp."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, 2 * mantissa, mantissa)
    k = np.where(low, exponent - 1, exponent).astype(np.float64)
    t = (mantissa - 1) / (mantissa + 1)
    square, series = t * t, np.zeros_like(t)
    for term in range(_LOG_TERMS - 1, 0, -1):
        series = square * (1 / (2 * term + 1) + series)
    return k * _LN2_HIGH + (2 * t + (2 * t * series + k * _LN2_LOW))


def exp(x: Float[np.ndarray, " *n"]) -> Float[np.ndarray, " *n"]:
    """e^x by e^x = 2^k e^r with |r| <= ln 2 / 2, about 1 ulp."""
    k = np.rint(x / (_LN2_HIGH + _LN2_LOW))
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.ones_like(r)
    for term in range(_EXP_TERMS, 0, -1):
        series = 1 + series * r / term
    return np.ldexp(series, k.astype(np.int32))


def exponentials(rng: np.random.Generator, count: int) -> Float[np.ndarray, " request"]:
    """Unit-mean exponentials, -ln(1 - u)."""
    return -log(1.0 - rng.random(count))


def accepted(
    rng: np.random.Generator,
    count: int,
    columns: int,
    propose: Callable[
        [Float[np.ndarray, "row column"]], tuple[Float[np.ndarray, "row value"], Bool[np.ndarray, " row"]]
    ],
    what: str,
) -> Float[np.ndarray, "request value"]:
    """The first `count` accepted candidates, in order of drawing.

    `propose` maps rows of `columns` uniforms to rows of values and says which are accepted. Raises `ValueError` with
    `what` when fewer than one candidate in 10,000 is.
    """
    kept: list[np.ndarray] = []
    have, tried = 0, 0
    while have < count:
        rows = rng.random((max(64, (count - have) * 3 // 2), columns))
        values, ok = propose(rows)
        kept.append(values[ok])
        have += int(ok.sum())
        tried += len(rows)
        if tried > 10_000 * (have + 10):
            raise ValueError(what)
    return np.concatenate(kept)[:count]


def polar_normal(
    u: Float[np.ndarray, " row"], v: Float[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """A standard normal deviate by Marsaglia's polar method, and where the point (u, v) lay inside the circle."""
    a, b = 2 * u - 1, 2 * v - 1
    square = a * a + b * b
    inside = (square < 1) & (square > 0)
    safe = np.where(inside, square, 0.5)
    return a * np.sqrt(-2 * log(safe) / safe), inside
