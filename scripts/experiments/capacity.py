"""What the study `best_deployment` finds: bounds, points, and the greatest rate of each deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Bound:
    """What every request must get: TTFT at the percentile, and TPOT in the mean."""

    ttft_ms: float
    tpot_ms: float

    @property
    def name(self) -> str:
        """`TTFT 500 ms, TPOT 20 ms`."""
        return f"TTFT {self.ttft_ms:g} ms, TPOT {self.tpot_ms:g} ms"

    def holds(self, point: "Point") -> bool:
        """Whether all requests ended, in time."""
        if point.failed or point.ttft_ms is None:
            return False
        return point.ttft_ms <= self.ttft_ms and (point.tpot_ms or 0.0) <= self.tpot_ms


@dataclass(frozen=True)
class Point:
    """One deployment at one rate."""

    rate: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float
    failed: int

    def scaled(self, scale: int) -> "Point":
        """The same of `scale` equal cells."""
        return replace(
            self,
            rate=scale * self.rate,
            output_throughput=scale * self.output_throughput,
            failed=scale * self.failed,
        )


@dataclass(frozen=True)
class Capacity:
    """The greatest rate of one deployment within one bound; `point` None: none was found."""

    case: str
    bound: Bound
    devices: Mapping[str, int]
    usd_per_hour: float | None
    point: Point | None

    @property
    def per_dollar(self) -> float | None:
        """Output tokens per US dollar."""
        if self.point is None or not self.usd_per_hour:
            return None
        return 3600.0 * self.point.output_throughput / self.usd_per_hour

    def scaled(self, scale: int) -> "Capacity":
        """The same of `scale` equal cells."""
        return replace(
            self,
            devices={name: scale * count for name, count in self.devices.items()},
            usd_per_hour=None if self.usd_per_hour is None else scale * self.usd_per_hour,
            point=None if self.point is None else self.point.scaled(scale),
        )


@dataclass(frozen=True)
class Found:
    """All of a study: a row for each case and bound, what was tried for each case (by rate), what is not modelled."""

    bounds: Sequence[Bound]
    rows: list[Capacity]
    tried: dict[str, list[Point]]
    not_modelled: list[str]

    def of(self, bound: Bound) -> list[Capacity]:
        """A row for each case within one bound."""
        return [row for row in self.rows if row.bound == bound]
