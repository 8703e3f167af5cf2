"""The messages of a collective among ranks in a circle, by algorithm: who sends how much to whom, and what is summed.

- `ring`: every rank passes parts on to its neighbour; an all-to-all goes all the way round, N (N - 1) / 2 messages.
- `direct`: every rank sends to all others at once.
- `halvingDoubling`: with partners at distance 1, 2, 4, ..., half as many bytes each time; an all-gather comes back.

Source: the collectives of astra-sim (MIT), system layer.
"""

from dataclasses import dataclass
from fractions import Fraction


ALGORITHMS = ("ring", "direct", "halvingDoubling")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Steps:
    """What each rank sends, message by message; bytes as shares of what a rank puts in.

    - `to`, `source`: the partner of each message as a distance ahead in the circle, or what the rank's place is
      combined with (exclusive or) where `paired`.
    - `sizes`: of each message. `reduced`: what is summed when that many messages have come in, 0 for none.
    - `width`: messages sent together. `gate`: messages that must have come in before more than `width` are sent.
    """

    to: tuple[int, ...]
    source: tuple[int, ...]
    sizes: tuple[Fraction, ...]
    reduced: tuple[Fraction, ...]
    width: int = 1
    gate: int = 0
    paired: bool = False

    def partner(self, place: int, distance: int, ranks: int) -> int:
        """The partner's place in the circle."""
        return place ^ distance if self.paired else (place + distance) % ranks


def steps_of(op: str, algorithm: str, ranks: int) -> Steps:
    """The steps of `op` (`COLLECTIVES`). What a rank puts in is, of an all-gather, its own share of the result.

    **Raises:** `ValueError` for what is not known, or halving and doubling among a number of ranks that is no power of
    two or for an all-to-all.
    """
    if op not in COLLECTIVES or algorithm not in ALGORITHMS or ranks < 2:
        raise ValueError(
            f"a collective wants an operation of {', '.join(COLLECTIVES)}, an algorithm of {', '.join(ALGORITHMS)} "
            f"and 2 ranks or more, got {op}, {algorithm}, {ranks}."
        )
    if algorithm == "halvingDoubling":
        return _halving(op, ranks)
    others = ranks - 1
    part = Fraction(1) if op == "all_gather" else Fraction(1, ranks)
    summed = part if op in ("all_reduce", "reduce_scatter") else Fraction(0)
    count = others * (2 if op == "all_reduce" else 1)
    if algorithm == "ring" and op == "all_to_all":
        count = ranks * others // 2
    reduced = tuple(summed if index < others else Fraction(0) for index in range(count))
    if algorithm == "ring":
        return Steps((1,) * count, (-1,) * count, (part,) * count, reduced)
    ahead = tuple(1 + index % others for index in range(count))
    behind = tuple(-one for one in ahead)
    return Steps(ahead, behind, (part,) * count, reduced, width=others, gate=others if op == "all_reduce" else 0)


def _halving(op: str, ranks: int) -> Steps:
    rounds = ranks.bit_length() - 1
    if ranks != 1 << rounds or op == "all_to_all":
        raise ValueError(f"halvingDoubling wants 2, 4, 8, ... ranks and no all_to_all, got {op} of {ranks}.")
    distances = [1 << index for index in range(rounds)]
    if op == "all_gather":
        back = tuple(reversed(distances))
        return Steps(back, back, tuple(map(Fraction, distances)), (Fraction(0),) * rounds, paired=True)
    halves = [Fraction(1, 2 << index) for index in range(rounds)]
    reduced = [*halves[1:], Fraction(0)]
    if op == "all_reduce":
        distances, halves = distances + distances[::-1], halves + halves[::-1]
        reduced += [Fraction(0)] * rounds
    return Steps(tuple(distances), tuple(distances), tuple(halves), tuple(reduced), paired=True)
