r"""Collectives by rule: closed forms of ASTRA-sim's analytical model, where messages do not wait for each other.

A rank's buffer of S bytes goes in k chunks, `active` of them under way in each dimension. A chunk along one dimension
takes $d + \sum_i (h(m_i) + d + 3 r_i / M)$ over the messages that a rank sends one after the other: m_i bytes sent and
r_i summed, d at each end, M the memory's rate, and h the time of a hop over links of latency L and bandwidth B:

| | ring, fully connected | switch |
|---|---|---|
| links without queues | L + m/B | 2 L + m/B |
| with queues | L + m/B | 2 L + (w + 1) m/B, w messages at once |

Chunks overlap across dimensions, so that the slowest sets the pace: with n = k / `active` rounds the time is the
largest of $\sum_p T_p + (n - 1) T_q$ over the phases q, and of $T_{before} + n T_d + T_{after}$ over the dimensions,
T_d being all of a chunk's phases on one, and the others those before its first and after its last. (Both are bounds;
for two dimensions they are the time.) Two chunks at a switch with queues take turns on its two links: one message's m/B
more in all. Plain arithmetic: sizes, latencies and rates may be traced arrays. Times are not cut to whole nanoseconds;
the event form (`sim/event/fabric`) cuts them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sim.hardware.collective_steps import COLLECTIVES, Steps, steps_of


KINDS = ("Ring", "FullyConnected", "Switch")


@dataclass(frozen=True)
class Dimension:
    """`size` ranks joined by links of one kind (`KINDS`); `latency_ns` and `bytes_per_ns` of a link, per direction."""

    kind: str
    size: int
    latency_ns: Any
    bytes_per_ns: Any
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.size < 2:
            raise ValueError(
                f"a dimension wants one of {', '.join(KINDS)} and 2 ranks or more, got {self.kind}, {self.size}."
            )

    def hops(self, source: int, target: int) -> int:
        """Links on the way: the shorter way round a ring, up and down at a switch."""
        apart = abs(source - target)
        return {"Ring": min(apart, self.size - apart), "FullyConnected": 1}.get(self.kind, 2)


@dataclass(frozen=True)
class Rules:
    """What a rank does beside the links, and whether links have queues; see the module."""

    splits: int = 4
    active: int = 1
    endpoint_ns: int = 10
    memory_bytes_per_ns: Any = 1600.0
    queued: bool = False


@dataclass(frozen=True)
class Phase:
    """A chunk's part along one dimension: what it is, and the bytes a rank puts in as a share of its chunk."""

    dimension: int
    op: str
    share: Fraction


def phases_of(op: str, sizes: Sequence[int]) -> list[Phase]:
    """A chunk's way through dimensions of so many ranks each.

    An all-reduce scatters sums along all but the last, reduces along the last, and gathers on the way back.
    **Raises:** `ValueError` for an operation that is not one of `COLLECTIVES`.
    """
    if op not in COLLECTIVES:
        raise ValueError(f"a collective wants one of {', '.join(COLLECTIVES)}, got {op}.")
    last = len(sizes) - 1
    if op == "all_to_all":
        return [Phase(at, op, Fraction(1)) for at in range(last + 1)]
    phases, share = [], Fraction(1)
    for at in range(last + 1) if op == "reduce_scatter" else range(last) if op == "all_reduce" else ():
        phases.append(Phase(at, "reduce_scatter", share))
        share /= sizes[at]
    if op == "all_reduce":
        phases.append(Phase(last, op, share))
    for at in range(last, -1, -1) if op == "all_gather" else range(last - 1, -1, -1) if op == "all_reduce" else ():
        phases.append(Phase(at, "all_gather", share))
        share *= sizes[at]
    return phases


def closed_form_ns(op: str, size_bytes: Any, dimensions: Sequence[Dimension], rules: Rules) -> Any:
    """Time of a collective among all ranks of `dimensions` that begin together, ns.

    **Arguments:** `size_bytes`: what a rank puts in: the tensor of an all-reduce, its own share of an all-gather, the
    input of a reduce-scatter, all it sends in an all-to-all. **Raises:** `ValueError` where messages would wait for
    each other, which the event form has.
    """
    if rules.active > 1 and rules.queued:
        fits = rules.active == 2 and len(dimensions) == 1 and (dimensions[0].kind, dimensions[0].algorithm) in PAIRABLE
        if not fits:
            raise ValueError("chunks under way at once wait for each other's links: only events tell their time.")
    chunk, phases = size_bytes / rules.splits, phases_of(op, [way.size for way in dimensions])
    taken = [_phase_ns(phase.op, chunk * float(phase.share), dimensions[phase.dimension], rules) for phase in phases]
    rounds = math.ceil(rules.splits / rules.active)
    paces = [sum(taken) + (rounds - 1) * one for one in taken]
    for at in range(len(dimensions)):
        own = [index for index, phase in enumerate(phases) if phase.dimension == at]
        paces.append(sum(taken[: own[0]]) + rounds * sum(taken[index] for index in own) + sum(taken[own[-1] + 1 :]))
    total = _largest(paces)
    if rules.active > 1 and rules.queued:
        way = dimensions[0]
        total = total + chunk * float(steps_of(op, way.algorithm, way.size).sizes[0]) / way.bytes_per_ns
    return total


PAIRABLE = (("Switch", "ring"),)
"""Where two chunks keep out of each other's way: while one goes up to the switch, the other comes down."""


def _phase_ns(op: str, size_bytes: Any, way: Dimension, rules: Rules) -> Any:
    steps = steps_of(op, way.algorithm, way.size)
    latency_ns, per_byte_ns = _hop(way, steps, rules.queued)
    turns = steps.sizes[:: steps.width]
    summed = float(sum(steps.reduced[:: steps.width]))
    endpoints_ns = (len(turns) + 1) * rules.endpoint_ns
    sent_ns = len(turns) * latency_ns + size_bytes * float(sum(turns)) * per_byte_ns
    return sent_ns + endpoints_ns + 3 * size_bytes * summed / rules.memory_bytes_per_ns


def _hop(way: Dimension, steps: Steps, queued: bool) -> tuple[Any, Any]:
    """Latency of a hop and its time per byte."""
    if way.kind == "Ring" and way.algorithm != "ring":
        raise ValueError(f"{way.algorithm} on a ring: messages wait for each other's links: only events tell its time.")
    if way.kind != "Switch":
        return way.latency_ns, 1 / way.bytes_per_ns
    return 2 * way.latency_ns, (steps.width + 1 if queued else 1) / way.bytes_per_ns


def _largest(values: Sequence[Any]) -> Any:
    """The largest of a few numbers or traced arrays."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, float | int) for value in values):
        return max(values)
    import jax.numpy as jnp

    return jnp.stack([jnp.asarray(value) for value in values]).max(axis=0)
