"""Which of several deployments carries the most load within bounds on latency: the greatest rate of each.

A rate holds a bound if a percentile of TTFT and the mean TPOT of all requests are within it and none failed. Rates are
doubled or halved until one holds and the next does not, and then halved between on a logarithmic scale. The load is
Poisson for `window_s` seconds. `scale`: the fleet is that many equal cells, of which one is simulated; rates, devices
and throughput are shown for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from conf.compose import compose
from scripts.experiments.best_deployment_report import report
from scripts.experiments.capacity import Bound, Capacity, Found, Point
from scripts.experiments.study import Case, Experiment, Findings
from scripts.progress import Tell


OWN = ("workload.rate", "workload.num_requests", "workload.duration_s")
LEAST_REQUESTS, MOST_REQUESTS = 200, 40_000
HALVINGS = 4
LOWEST_RATE, HIGHEST_RATE = 2.0**-6, 2.0**14


class Trials:
    """The runs of one case, by rate."""

    def __init__(self, case: Case, own: Sequence[str], config_dirs: Sequence[str], settings: Mapping[str, Any]):
        self._overrides = [*case.overrides, *own]
        self._config_dirs = config_dirs
        self._window_s = float(settings.get("window_s", 30.0))
        self._percentile = float(settings.get("ttft_percentile", 95.0))
        self.devices: dict[str, int] = {}
        self.not_modelled: list[str] = []
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
            self.devices, self.not_modelled = _devices(result), list(result.not_modelled)
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

    @property
    def points(self) -> list[Point]:
        """All that was tried, by rate."""
        return [self._points[rate] for rate in sorted(self._points)]

    def holds(self, rate: float, bound: Bound) -> bool:
        """Whether all requests end, in time."""
        return bound.holds(self.at(rate))

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


def run(experiment: Experiment, own: Sequence[str], config_dirs: Sequence[str], tell: Tell) -> Findings:
    """Every case within every bound; `tell` is called with the number of cases that are done."""
    for word in own:
        key = word.lstrip("+").partition("=")[0]
        if key in OWN:
            raise ValueError(f"{experiment.name} sets {key} itself: leave it out.")
    settings = experiment.settings
    bounds = [Bound(float(bound["ttft_ms"]), float(bound["tpot_ms"])) for bound in settings["bounds"]]
    scale, prices = int(settings.get("scale", 1)), dict(settings.get("usd_per_hour", {}))
    found = Found(bounds, [], {}, [])
    for done, case in enumerate(experiment.cases, 1):
        trials = Trials(case, own, config_dirs, settings)
        for bound in bounds:
            point = trials.capacity(bound, float(settings.get("start_rate", 1.0)))
            price = _price(trials.devices, prices)
            found.rows.append(Capacity(case.name, bound, trials.devices, price, point).scaled(scale))
        found.tried[case.name] = [point.scaled(scale) for point in trials.points]
        found.not_modelled.extend(line for line in trials.not_modelled if line not in found.not_modelled)
        tell(done, case.name)
    return report(experiment, found, own)


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
