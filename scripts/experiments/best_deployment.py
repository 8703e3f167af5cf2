"""Which of several deployments carries the most load within bounds on latency: the greatest rate of each.

A rate holds a bound if a percentile of TTFT and the mean TPOT of all requests are within it and none failed. Rates are
doubled or halved until one holds and the next does not, and then halved between on a logarithmic scale. The load is
Poisson for `window_s` seconds. `scale`: the fleet is that many equal cells, of which one is simulated; rates, devices
and throughput are shown for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conf.compose import compose
from scripts.answer import Answer
from scripts.experiment import Case, Experiment
from scripts.table import table


OWN = ("workload.rate", "workload.num_requests", "workload.duration_s")
LEAST_REQUESTS, MOST_REQUESTS = 200, 40_000
HALVINGS = 4
LOWEST_RATE, HIGHEST_RATE = 2.0**-6, 2.0**14


@dataclass(frozen=True)
class Bound:
    """What every request must get: TTFT at the percentile, and TPOT in the mean."""

    ttft_ms: float
    tpot_ms: float

    @property
    def name(self) -> str:
        """`TTFT 500 ms`: TPOT is the same in all bounds of a study, or stands beside it."""
        return f"TTFT {self.ttft_ms:g} ms, TPOT {self.tpot_ms:g} ms"


@dataclass(frozen=True)
class Point:
    """One deployment at one rate."""

    rate: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_throughput: float
    failed: int


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


class Trials:
    """The runs of one case, by rate."""

    def __init__(self, case: Case, own: Sequence[str], config_dirs: Sequence[str], settings: Mapping[str, Any]):
        self._overrides = [*case.overrides, *own]
        self._config_dirs = config_dirs
        self._window_s = float(settings.get("window_s", 30.0))
        self._percentile = float(settings.get("ttft_percentile", 95.0))
        self.devices: dict[str, int] = {}
        self._points: dict[float, Point] = {}

    def at(self, rate: float) -> Point:
        """Run at `rate`, once."""
        from sim import api
        from sim.report.metrics import measure

        if rate not in self._points:
            requests = round(min(max(rate * self._window_s, LEAST_REQUESTS), MOST_REQUESTS))
            load = [f"workload.rate={rate!r}", f"workload.num_requests={requests}"]
            conf = compose([*self._overrides, *load, f"percentiles=[{self._percentile:g}]"], self._config_dirs)
            result = api.run(api.prepare(conf))
            self.devices = _devices(result)
            found = measure(result)
            ttft, tpot = found.latency["ttft"], found.latency["tpot"]
            late_s = ttft.percentile_s(self._percentile) if ttft.count else None
            self._points[rate] = Point(
                rate=rate,
                ttft_ms=None if late_s is None else 1e3 * late_s,
                tpot_ms=None if tpot.mean_s is None else 1e3 * tpot.mean_s,
                output_throughput=rate * found.total_output / max(found.completed, 1),
                failed=found.failed,
            )
        return self._points[rate]

    def holds(self, rate: float, bound: Bound) -> bool:
        """Whether all requests end, in time."""
        point = self.at(rate)
        if point.failed or point.ttft_ms is None:
            return False
        return point.ttft_ms <= bound.ttft_ms and (point.tpot_ms or 0.0) <= bound.tpot_ms

    def capacity(self, bound: Bound, start: float) -> Point | None:
        """The greatest rate within `bound`, to a part of `2^(1/2^HALVINGS)`."""
        low, high = start, start
        while not self.holds(low, bound):
            low /= 2.0
            if low < LOWEST_RATE:
                return None
        while self.holds(high, bound):
            if high > HIGHEST_RATE:
                return self.at(high)
            low, high = high, 2.0 * high
        high = min(high, 2.0 * low)
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.holds(middle, bound) else (low, middle)
        return self.at(low)


def run(experiment: Experiment, own: Sequence[str], config_dirs: Sequence[str]) -> Answer:
    """Every case within every bound; nothing is written."""
    for word in own:
        key = word.lstrip("+").partition("=")[0]
        if key in OWN:
            raise ValueError(f"{experiment.name} sets {key} itself: leave it out.")
    settings = experiment.settings
    bounds = [Bound(float(bound["ttft_ms"]), float(bound["tpot_ms"])) for bound in settings["bounds"]]
    scale, prices = int(settings.get("scale", 1)), dict(settings.get("usd_per_hour", {}))
    found = []
    for case in experiment.cases:
        trials = Trials(case, own, config_dirs, settings)
        for bound in bounds:
            point = trials.capacity(bound, float(settings.get("start_rate", 1.0)))
            found.append(
                _scaled(Capacity(case.name, bound, trials.devices, _price(trials.devices, prices), point), scale)
            )
    return Answer(_fields(experiment, found), _text(experiment, found, bounds, scale, prices))


def _devices(result: Any) -> dict[str, int]:
    """How many of each kind of device a deployment has."""
    found: dict[str, int] = {}
    for one in [pool.result for pool in result.pools] or [result]:
        kinds, apart = {one.device: one.gpus}, one.attention_ffn
        if apart is not None and apart.attention_device != apart.ffn_device:
            fed = apart.replicas * apart.ffn_devices
            kinds = {apart.attention_device: one.gpus - fed, apart.ffn_device: fed}
        for name, count in kinds.items():
            found[name] = found.get(name, 0) + count
    return found


def _price(devices: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """USD per hour of all devices, None where the study gives no price for one."""
    by_name = {name.lower(): float(price) for name, price in prices.items()}
    total = 0.0
    for name, count in devices.items():
        price = next((price for known, price in by_name.items() if known in name.lower()), None)
        if price is None:
            return None
        total += price * count
    return total


def _scaled(found: Capacity, scale: int) -> Capacity:
    point = found.point
    if point is not None:
        point = Point(
            scale * point.rate, point.ttft_ms, point.tpot_ms, scale * point.output_throughput, scale * point.failed
        )
    devices = {name: scale * count for name, count in found.devices.items()}
    price = None if found.usd_per_hour is None else scale * found.usd_per_hour
    return Capacity(found.case, found.bound, devices, price, point)


def _fields(experiment: Experiment, found: Sequence[Capacity]) -> dict[str, Any]:
    rows = [asdict(row) | {"tokens_per_usd": row.per_dollar} for row in found]
    published = {case.name: dict(case.published) for case in experiment.cases if case.published}
    return {"status": "ok", "experiment": experiment.name, "rows": rows, "published": published}


def _text(
    experiment: Experiment, found: Sequence[Capacity], bounds: Sequence[Bound], scale: int, prices: Mapping[str, float]
) -> str:
    published = {case.name: case.published for case in experiment.cases}
    lines = [experiment.title]
    for bound in bounds:
        rows = [row for row in found if row.bound == bound]
        best = max((row.point.output_throughput for row in rows if row.point), default=0.0)
        cells = []
        for row in rows:
            said = published[row.case].get(f"{bound.ttft_ms:g}")
            devices = " + ".join(f"{count} {name.removeprefix('NVIDIA ')}" for name, count in row.devices.items())
            if row.point is None:
                cells.append([row.case, devices, "none holds", "", "", "", "", "", _thousands(said)])
                continue
            point = row.point
            cells.append(
                [
                    row.case + (" *" if point.output_throughput == best else ""),
                    devices,
                    f"{point.rate:,.4g}",
                    f"{point.output_throughput:,.0f}",
                    f"{point.output_throughput / sum(row.devices.values()):,.0f}",
                    f"{point.ttft_ms:,.0f}",
                    f"{point.tpot_ms or 0.0:.1f}",
                    _thousands(row.per_dollar),
                    _thousands(said),
                ]
            )
        head = ["deployment", "devices", "req/s", "tok/s", "per device", "TTFT ms", "TPOT ms", "tok/USD", "published"]
        lines += ["", f"{bound.name}:", "", table(head, cells)]
    percentile = float(experiment.settings.get("ttft_percentile", 95.0))
    ends = [f"* most output tokens/s. TTFT: percentile {percentile:g}; TPOT: mean."]
    if scale > 1:
        ends.append(f"One of {scale} equal cells is simulated; rates, devices and tokens/s are of all.")
    if prices:
        ends.append("USD per device-hour: " + ", ".join(f"{name} {price:g}" for name, price in prices.items()) + ".")
    ends += [str(note) for note in experiment.settings.get("notes", [])]
    return "\n".join([*lines, "", *ends])


def _thousands(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
