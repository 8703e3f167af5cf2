"""The experts that a row of tokens chooses in every layer, drawn once; a step reads a window of them.

A token chooses k different experts, each with its chance of inclusion (`inclusion`): with the chances laid end to end
in a random order, the k experts at u, u + 1, ..., u + k - 1 for one uniform u (systematic sampling; Madow, 1949). So
every expert is chosen as often as it should be, exactly k are, and none twice.

`BLOCK` tokens share an order, and are of one domain and one popularity. Shorter runs of `run_tokens` tokens are then
shuffled among those of the same popularity.
"""

import math
from dataclasses import astuple
from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

from sim.workload import draws
from sim.workload.experts import FLUCTUATION_TOKENS, options, popularity
from sim.workload.experts.conf import ExpertsConf
from sim.workload.experts.inclusion import inclusion


BLOCK = 64
LEAST_TOKENS, MOST_TOKENS = 512, 4096
MOST_COUNTS = 1 << 24
"""Counts by token, layer and rank that are kept: fewer tokens where there are many ranks."""


def drawn_tokens(layers: int, ranks: int) -> int:
    """How many tokens are drawn: a power of two."""
    fits = MOST_COUNTS // max(layers * ranks, 1)
    return min(max(1 << max(fits.bit_length() - 1, 0), LEAST_TOKENS), MOST_TOKENS)


def choices(
    conf: ExpertsConf, tokens: int, layers: int, experts: int, top_k: int, seed: int
) -> Int[np.ndarray, "token layer choice"]:
    """Experts of `tokens` tokens (a multiple of `BLOCK`); the same for the same arguments, on any machine.

    **Raises:** `ValueError` for a trace that does not describe this model.
    """
    return _drawn(astuple(conf), tokens, layers, experts, top_k, seed)


@lru_cache(maxsize=8)
def _drawn(
    keys: tuple, tokens: int, layers: int, experts: int, top_k: int, seed: int
) -> Int[np.ndarray, "token layer choice"]:
    conf = ExpertsConf(*keys)
    rng = draws.stream(seed, draws.EXPERTS + 1)
    shares = popularity(conf, layers, experts, seed)
    blocks = tokens // BLOCK
    run = options(conf).get("run_tokens") or 1
    domain = _domains(len(shares), blocks, run, rng)
    lasts = blocks
    moves: np.ndarray = np.ones((1, 1, 1))
    if conf.fluctuation:
        lasts = min(math.ceil((conf.fluctuation_tokens or FLUCTUATION_TOKENS) / BLOCK), blocks)
        moves = _lognormal(conf.fluctuation, (-(-blocks // lasts), layers, experts), rng)
    found = np.empty((tokens, layers, top_k), np.int16)
    for block in range(blocks):
        chances = inclusion(shares[domain[block]] * moves[min(block // lasts, len(moves) - 1)], top_k)
        found[block * BLOCK : (block + 1) * BLOCK] = _systematic(chances, top_k, rng)
    for first in range(0, tokens if run < BLOCK else 0, lasts * BLOCK):
        part = found[first : first + lasts * BLOCK]
        runs = part.reshape(-1, run, layers, top_k)
        part[:] = runs[np.argsort(rng.random(len(runs)))].reshape(part.shape)
    return found


def _domains(domains: int, blocks: int, run: int, rng: np.random.Generator) -> Int[np.ndarray, " block"]:
    """The domain of each block: drawn once per run, or once per block where runs are shorter."""
    each = max(run // BLOCK, 1)
    drawn = np.floor(rng.random(-(-blocks // each)) * domains).astype(np.int64)
    return np.repeat(drawn, each)[:blocks]


def _lognormal(variation: float, shape: tuple[int, ...], rng: np.random.Generator) -> Float[np.ndarray, "..."]:
    """Factors of mean 1 and this coefficient of variation."""
    sigma = math.sqrt(math.log1p(variation * variation))

    def propose(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        normal, inside = draws.polar_normal(u[:, 0], u[:, 1])
        return normal[:, None], inside

    normal = draws.accepted(rng, math.prod(shape), 2, propose, "no normal variate was accepted")
    return draws.exp(sigma * normal[:, 0] - 0.5 * sigma * sigma).reshape(shape)


def _systematic(
    chances: Float[np.ndarray, "layer expert"], top_k: int, rng: np.random.Generator
) -> Int[np.ndarray, "token layer choice"]:
    """The choices of one block of tokens."""
    layers, experts = chances.shape
    order = np.argsort(rng.random((layers, experts)), axis=-1)
    ends = np.cumsum(np.take_along_axis(chances, order, axis=-1), axis=-1)
    ends *= top_k / ends[:, -1:]
    first = rng.random((BLOCK, layers, 1))
    # one search for all layers: each has a stretch of its own of length k + 1
    stretch = (top_k + 1.0) * np.arange(layers)
    at = np.searchsorted((ends + stretch[:, None]).ravel(), first + np.arange(top_k) + stretch[:, None], side="right")
    place = np.minimum(at - experts * np.arange(layers)[:, None], experts - 1)
    chosen: np.ndarray = np.take_along_axis(order[None], place, axis=-1)
    return chosen
