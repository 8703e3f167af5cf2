"""How long tokens take to the experts of other ranks and back where each goes only where it is wanted: a closed form.

A rank has T tokens of w bytes, each for k of E experts, which are spread evenly over `ranks` ranks on `nodes` nodes.

- `deepep_low_latency` sends a copy to every chosen expert: k copies of a token.
- `deepep_high_throughput` and `nvlink_one_sided` send one to every rank that holds a chosen expert, and over the
  network one to every node. Of G groups of E / G experts, G (1 - C(E - E/G, k) / C(E, k)) hold one, for random choices.

Of these copies (G - 1) / G leave the rank, or the node. The slowest of three limits decides, softly: the link's rate B
for the m copies that leave the rank, the NIC's for the n that leave the node, and a rate u of the kernel's own

    X = T w ((m / B)^3 + (n / NIC)^3 + s^3)^(1/3) + T m row
    s = m / (u E / ranks) low latency: blocks of the kernel by local expert; 1 / u otherwise: every token is read once
    t = (L^q + (start + X)^q)^(1/q),   L = base + experts expert + hidden number

with q = 3/2 for low latency, where the first tokens hide behind the latency, 1 otherwise.
"""

from math import comb
from typing import NamedTuple

import numpy as np


LOW_LATENCY, HIGH_THROUGHPUT, ONE_SIDED = "deepep_low_latency", "deepep_high_throughput", "nvlink_one_sided"
MODES = (LOW_LATENCY, HIGH_THROUGHPUT, ONE_SIDED)
OPS = ("dispatch", "combine")
LIMITS = 3
"""Exponent with which limits add up."""
HIDES = {LOW_LATENCY: 1.5, HIGH_THROUGHPUT: 1.0, ONE_SIDED: 1.0}


class Shape(NamedTuple):
    """What is exchanged: hidden states of `hidden` numbers in `token_bytes`, among `ranks` of `nodes` nodes."""

    hidden: int
    token_bytes: float
    top_k: int
    experts: int
    ranks: int
    nodes: int = 1


class Constants(NamedTuple):
    """Of one device, mode and direction; see the module. `nic_bytes_per_s` is 0 inside a node."""

    base_s: float
    expert_s: float
    number_s: float
    start_s: float
    bytes_per_s: float
    unit_bytes_per_s: float
    row_s: float
    nic_bytes_per_s: float


def holders(groups: int, experts: int, top_k: int) -> float:
    """Groups that hold at least one of `top_k` different experts, in the mean."""
    held = experts // groups
    return groups * (1.0 - comb(experts - held, top_k) / comb(experts, top_k))


def group_copies(mode: str, top_k: int, experts: int, groups: int) -> float:
    """Copies of one token sent to `groups` ranks or nodes, those that stay in its own among them."""
    return float(top_k) if mode == LOW_LATENCY else holders(groups, experts, top_k)


def copies(mode: str, shape: Shape) -> tuple[float, float]:
    """Copies of one token that leave its rank, and that leave its node."""
    away = [
        group_copies(mode, shape.top_k, shape.experts, groups) * (groups - 1) / groups
        for groups in (shape.ranks, shape.nodes)
    ]
    return away[0], away[1]


def token_s(mode: str, constants: Constants, shape: Shape) -> float:
    """What one more token takes, X / T."""
    sent, out = copies(mode, shape)
    local = max(shape.experts // shape.ranks, 1)
    unit = sent / local if mode == LOW_LATENCY else 1.0
    limits = [sent / constants.bytes_per_s, unit / constants.unit_bytes_per_s]
    if out:
        limits.append(out / constants.nic_bytes_per_s)
    slowest = sum(limit**LIMITS for limit in limits) ** (1.0 / LIMITS)
    return float(shape.token_bytes * slowest + sent * constants.row_s)


def latency_s(constants: Constants, shape: Shape) -> float:
    """L: of the first token."""
    return constants.base_s + shape.experts * constants.expert_s + shape.hidden * constants.number_s


def exchange_s(mode: str, constants: Constants, shape: Shape, tokens: np.ndarray) -> np.ndarray:
    """Seconds of one dispatch or combine of `tokens` tokens of each rank."""
    hides = HIDES[mode]
    moved = constants.start_s + np.asarray(tokens, np.float64) * token_s(mode, constants, shape)
    seconds: np.ndarray = (latency_s(constants, shape) ** hides + moved**hides) ** (1.0 / hides)
    return seconds
