"""Which rank holds which expert, and who has copies of popular ones.

Each of R ranks has the same number of places, `(experts + redundant)/R`. `linear`: the experts in order, and then the
first ones again. `balanced`, as expert-parallel load balancers do (EPLB of DeepSeek, 2025): the further copies go one
by one to the expert with the most tokens per copy, and then all copies, heaviest first, to the rank with the least
tokens that has a place left. It goes by the mean popularity; what changes over time it does not know.

Tokens that choose an expert with several copies go to them in turn.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


PLACEMENTS = ("linear", "balanced")


class Placement(NamedTuple):
    """`copy`: the number of the c-th copy of an expert (the last ones repeat the first where there are fewer), `copies`
    how many it has, `rank` where a copy is."""

    copy: Int[np.ndarray, "layer expert copy"]
    copies: Int[np.ndarray, "layer expert"]
    rank: Int[np.ndarray, "layer place"]


def place(shares: Float[np.ndarray, "layer expert"], ranks: int, redundant: int, rule: str) -> Placement:
    """Places of all copies; ranks of an uneven number of experts differ by one, the first have more."""
    layers, experts = shares.shape
    total = experts + redundant
    expert = np.broadcast_to(np.arange(total) % experts, (layers, total)).copy()
    held = np.array([len(part) for part in np.array_split(np.arange(total), ranks)])
    rank = np.broadcast_to(np.repeat(np.arange(ranks), held), (layers, total)).copy()
    if rule == "balanced":
        expert[:, experts:] = _most_loaded(shares, redundant)
        rank = _packed(shares, expert, held)
    copies = np.zeros((layers, experts), np.int64)
    row = np.arange(layers)
    most = np.array([np.bincount(line, minlength=experts).max() for line in expert]).max()
    copy = np.full((layers, experts, most), -1, np.int64)
    for place_ in range(total):
        of = expert[:, place_]
        copy[row, of, copies[row, of]] = place_
        copies[row, of] += 1
    cycle = np.arange(most) % copies[..., None]
    return Placement(np.take_along_axis(copy, cycle, axis=-1), copies, rank)


def _most_loaded(shares: Float[np.ndarray, "layer expert"], redundant: int) -> Int[np.ndarray, "layer redundant"]:
    """Whose the further copies are."""
    copies = np.ones_like(shares)
    row = np.arange(len(shares))
    chosen = np.empty((len(shares), redundant), np.int64)
    for index in range(redundant):
        chosen[:, index] = np.argmax(shares / copies, axis=-1)
        copies[row, chosen[:, index]] += 1
    return chosen


def _packed(
    shares: Float[np.ndarray, "layer expert"], expert: Int[np.ndarray, "layer place"], held: Int[np.ndarray, " rank"]
) -> Int[np.ndarray, "layer place"]:
    """The rank of each copy, heaviest first to the least loaded."""
    layers, row = len(shares), np.arange(len(shares))
    copies = np.stack([np.bincount(line, minlength=shares.shape[1]) for line in expert])
    each = np.take_along_axis(shares / copies, expert, axis=-1)
    order = np.argsort(-each, axis=-1, kind="stable")
    load, free = np.zeros((layers, len(held))), np.broadcast_to(held, (layers, len(held))).copy()
    rank = np.empty_like(expert)
    for index in range(expert.shape[1]):
        heaviest = order[:, index]
        to = np.argmin(np.where(free > 0, load, np.inf), axis=-1)
        rank[row, heaviest] = to
        load[row, to] += each[row, heaviest]
        free[row, to] -= 1
    return rank
