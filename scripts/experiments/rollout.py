"""What a rollout takes that changes its layout when few trajectories are left: a run for each threshold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from conf.compose import compose
from scripts.experiments.rollout_report import report
from scripts.experiments.study import Experiment, Findings
from scripts.progress import Tell
from sim.units import NS_PER_S, to_ns


if TYPE_CHECKING:
    from sim.report.result import SimulationResult


MOST_POINTS = 400
"""Of a curve of live trajectories."""

NOT_MODELLED = (
    "KV moved from one layout to the other: it is computed again",
    "a second switch, and trajectories that are cut off or carried into the next iteration",
)


@dataclass(frozen=True)
class Outcome:
    """One threshold, summed over the iterations: `share` 0 never switches, 1 (or more) runs in the second layout alone.

    Seconds in the first and the second layout, of the switches, of the updates of the weights, and in all; `live`:
    trajectories that went on, `again_tokens`: computed again for them.
    """

    share: float
    first_s: float
    second_s: float
    switch_s: float
    update_s: float
    live: int
    again_tokens: int
    iterations_s: list[float] = field(default_factory=list)
    live_over_time: list[tuple[float, float]] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        """To the end of the last update."""
        return self.first_s + self.second_s + self.switch_s + self.update_s


def run(experiment: Experiment, own: Sequence[str], config_dirs: Sequence[str], tell: Tell) -> Findings:
    """Every iteration in the first layout to its end, then what each threshold leaves for the second one."""
    from sim import api
    from sim.event.survivors import stopped, switch_ns

    if len(experiment.cases) != 2:
        raise ValueError(f"{experiment.name} wants two cases, the layout it begins with and the other.")
    settings = experiment.settings
    switch_s, update_s = float(settings["switch_s"]), float(settings["update_s"])
    shares = [float(share) for share in settings["shares"]]
    if not shares or not all(0 < share < 1 for share in shares) or min(switch_s, update_s) < 0:
        raise ValueError(f"{experiment.name} wants shares between 0 and 1, and switch_s and update_s of 0 at least.")
    parts: dict[float, list[Outcome]] = {share: [] for share in (0.0, *shares, 1.0)}
    if any(word.lstrip("+").startswith("seed=") for word in own):
        raise ValueError(f"{experiment.name} sets seed itself, one for each iteration: leave it out.")
    not_modelled = list(NOT_MODELLED)
    for number in range(int(settings["iterations"])):
        words = [*own, f"seed={number}"]
        first, second = (compose([*case.overrides, *words], config_dirs) for case in experiment.cases)
        whole, other = api.run(api.prepare(first)), api.run(api.prepare(second))
        not_modelled = list(dict.fromkeys([*not_modelled, *whole.not_modelled, *other.not_modelled]))
        parts[0.0].append(_one(0.0, whole, None, 0, update_s, 0.0, 0, 0))
        parts[1.0].append(_one(1.0, None, other, 0, update_s, 0.0, 0, 0))
        for share in shares:
            at_ns = switch_ns(whole.workload, whole.requests, share)
            if at_ns is None:
                parts[share].append(_one(share, whole, None, 0, update_s, 0.0, 0, 0))
                continue
            stop = stopped(whole.workload, whole.requests, whole.steps, at_ns, to_ns(switch_s))
            tail = None if stop.rest is None else api.run(api.prepare(second, stop.rest))
            made = stop.done_tokens + (0 if tail is None else int(tail.requests.output_tokens.sum()))
            asked = int(whole.workload.output_tokens.sum())
            if made != asked:
                raise ValueError(f"{experiment.name}: {made:,} tokens came out of {asked:,}: not each exactly once.")
            cost_s = switch_s if tail is not None else 0.0
            parts[share].append(_one(share, whole, tail, stop.stop_ns, update_s, cost_s, stop.live, stop.again_tokens))
        tell(number + 1, f"iteration {number}")
    return report(experiment, [_summed(outcomes) for outcomes in parts.values()], own, not_modelled)


def _one(
    share: float, whole: "SimulationResult | None", tail: "SimulationResult | None", stop_ns: int, update_s: float,
    switch_s: float, live: int, again: int,
) -> Outcome:  # fmt: skip
    """One iteration: `whole` to `stop_ns` (to its end without a `tail`), then `tail`."""
    from sim.event.survivors import ends_ns

    before = [] if whole is None else sorted((ends_ns(whole.workload, whole.requests) / NS_PER_S).tolist())
    after = [] if tail is None else sorted((ends_ns(tail.workload, tail.requests) / NS_PER_S).tolist())
    first_s = 0.0 if whole is None else before[-1] if tail is None else stop_ns / NS_PER_S
    before = before[: len(before) - len(after)] if whole is not None and tail is not None else before
    ends = [*before, *(first_s + switch_s + end for end in after)]
    second_s = after[-1] if after else 0.0
    step = max(1, len(ends) // MOST_POINTS)
    curve = [(end, float(len(ends) - 1 - k)) for k, end in enumerate(ends) if k % step == 0 or k == len(ends) - 1]
    total = first_s + second_s + switch_s + update_s
    return Outcome(
        share, first_s, second_s, switch_s, update_s, live, again, [total], [(0.0, float(len(ends))), *curve]
    )


def _summed(outcomes: Sequence[Outcome]) -> Outcome:
    """All iterations, one after the other; the curve is that of the first."""
    names = ("first_s", "second_s", "switch_s", "update_s", "live", "again_tokens")
    sums = {name: sum(getattr(one, name) for one in outcomes) for name in names}
    times = [one.iterations_s[0] for one in outcomes]
    return Outcome(outcomes[0].share, **sums, iterations_s=times, live_over_time=outcomes[0].live_over_time)
