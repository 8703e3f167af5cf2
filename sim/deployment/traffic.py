r"""KV between many replicas in closed form: what a fabric carries, and how long a transfer takes on a loaded one.

Every source sends to every target alike. Of R bytes per second in all, link l carries $R s_l$, so that the fabric
carries at most $\min_l C_l / s_l$. A link that flows share equally and reach at random times takes $1 / (C (1 - \rho))$
a byte, whatever their sizes ($\rho_l = R s_l / C_l$): beyond its own $1 / C$ that is what others cost. A transfer takes
$1 / \min C$ a byte, and what others cost it on its way out and on its way in, the worse link of each. Exact without
load; `tests/event/test_traffic.py` has its error against events.

Source: Kleinrock, Queueing Systems, volume 2, section 4.4 (processor sharing).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sim.deployment.topology import Topology


MOST_PAIRS = 20_000


@dataclass(frozen=True)
class Traffic:
    """`share` of all bytes on each link, by its number; `bytes_per_s`: what the links carry; the `paths`."""

    share: dict[int, float]
    bytes_per_s: dict[int, float]
    paths: tuple[tuple[int, ...], ...]

    @property
    def most_bytes_per_s(self) -> float:
        """What all transfers together can reach."""
        return min(rate / self.share[link] for link, rate in self.bytes_per_s.items())

    def transfer_s(self, size_bytes: float, offered_bytes_per_s: float = 0.0) -> float:
        """Mean time of a transfer while so much is sent in all; infinite where that is more than the links carry."""
        if offered_bytes_per_s >= self.most_bytes_per_s:
            return float("inf")
        waits = {
            link: 1 / (rate - offered_bytes_per_s * self.share[link]) - 1 / rate
            for link, rate in self.bytes_per_s.items()
        }
        per_byte = sum(self._alone(path) + self._others(path, waits) for path in self.paths) / len(self.paths)
        return size_bytes * per_byte

    def _alone(self, path: tuple[int, ...]) -> float:
        return 1 / min(self.bytes_per_s[link] for link in path)

    def _others(self, path: tuple[int, ...], waits: dict[int, float]) -> float:
        """The first half of a path leads out, the second in."""
        half = len(path) // 2
        return max(waits[link] for link in path[:half]) + max(waits[link] for link in path[half:])


def traffic(topology: Topology, sources: Sequence[int], targets: Sequence[int]) -> Traffic:
    """Transfers from endpoints `sources` to endpoints `targets`, each pair as often as any other.

    Of more than `MOST_PAIRS` some are looked at: of each source every so manieth target, beginning with its own number.
    """
    every = math.ceil(len(sources) * len(targets) / MOST_PAIRS)
    paths = tuple(
        topology.path(source, targets[(place + ahead) % len(targets)])
        for place, source in enumerate(sources)
        for ahead in range(0, len(targets), every)
    )
    crossing = Counter(link for path in paths for link in path)
    return Traffic(
        {link: count / len(paths) for link, count in crossing.items()},
        {link: topology.bytes_per_s[link] for link in crossing},
        paths,
    )
