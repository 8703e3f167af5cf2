"""Replays recordings: for each, the engine's own trace beside what Headway's scheduler makes of the same scenario."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from calibration.conformance.compare import Comparison, Difference, compare
from calibration.conformance.keys import Keys, check_keys, given_values
from calibration.conformance.lines import Malformed
from calibration.conformance.scenario import Scenario, Unsupported, read_scenario
from calibration.conformance.sets import Pair, RecordedSet
from calibration.conformance.trace import Header, read_header, read_steps
from sim.deployment.settings import engine_names


Play = Callable[[Scenario, str], Iterator[dict[str, Any]]]


@dataclass(frozen=True)
class Outcome:
    """What became of one recording.

    `status`: identical, stuck (both runs end as livelocks, after equal steps), different, unsupported, failed (the
    scheduler broke down) or unpaired. `reason` says why there is no comparison.
    """

    set_name: str
    trace: str
    status: str
    engine: str = ""
    version: str = ""
    comparison: Comparison | None = None
    reason: str = ""

    @property
    def decisions_identical(self) -> bool:
        """Whether every decision is equal."""
        return self.comparison is not None and self.comparison.decision is None

    @property
    def blocks_identical(self) -> bool:
        """Whether all is equal, block ids too."""
        return self.comparison is not None and self.comparison.blocks is None


def check_headers(sets: list[RecordedSet]) -> dict[Pair, Header]:
    """The headers of all traces. `Malformed` for an engine or a version that nobody knows, naming the known ones."""
    found = {}
    known = known_engines()
    for recorded in sets:
        for pair in recorded.pairs:
            header = read_header(pair.trace)
            versions = known.get(header.engine)
            if versions is None:
                engines = ", ".join(filter(playable, known))
                raise Malformed(
                    f"{pair.trace}, line 1: the engine {header.engine!r:.60} is unknown, known are {engines}."
                )
            if header.version not in versions and playable(header.engine):
                raise Malformed(
                    f"{pair.trace}, line 1: version {header.version!r:.60} of {header.engine} is unknown, known are "
                    f"{', '.join(versions)}."
                )
            found[pair] = header
    return found


def known_engines() -> dict[str, list[str]]:
    """The engines, and the versions of each that have a profile of their own."""
    found: dict[str, list[str]] = {}
    for name in engine_names():
        engine, _, version = name.partition("-")
        found.setdefault(engine, []).append(version)
    return found


def playable(engine: str) -> bool:
    """Whether somebody plays the scenarios of an engine: a module of its name beside this one."""
    return importlib.util.find_spec(f"{__package__}.{engine}") is not None


def player(engine: str) -> tuple[Play, Keys]:
    """Who plays them, and the keys that their scenarios may have."""
    if not playable(engine):
        raise Unsupported(f"schedules of {engine} are not simulated yet")
    module = importlib.import_module(f"{__package__}.{engine}")
    return module.play, module.KEYS


def replay_set(recorded: RecordedSet, headers: dict[Pair, Header]) -> Iterator[Outcome]:
    """The outcomes of one set, in order of its traces; `Malformed` where a file is not what it should be."""
    for pair in recorded.pairs:
        header = headers[pair]
        scenario = read_scenario(pair.scenario)
        if scenario.name != header.scenario:
            raise Malformed(
                f"{pair.trace}, line 1: the trace is of scenario {header.scenario!r}, but {pair.scenario} holds "
                f"{scenario.name!r}."
            )
        yield replay(recorded.name, pair, header, scenario)
    for path in recorded.orphans:
        yield Outcome(recorded.name, path.name, "unpaired", reason="there is no scenario for this trace")


def replay(set_name: str, pair: Pair, header: Header, scenario: Scenario) -> Outcome:
    """One recording. Its trace is read to the end, whatever becomes of the comparison."""
    about = (header.engine, header.version)
    recorded = read_steps(pair.trace)
    try:
        play, keys = player(header.engine)
        check_keys(scenario, keys)
        found = compare(recorded, play(scenario, header.version))
    except Malformed:
        raise
    except Unsupported as error:
        found, status, reason = None, "unsupported", str(error)
    except Exception as error:  # one broken schedule must not hide the others
        found, status, reason = None, "failed", f"{type(error).__name__}: {error}"
    for _ in recorded:
        pass  # the rest of the trace has to be in order too
    if found is None:
        return Outcome(set_name, pair.name, status, *about, reason=reason)
    other = other_config(header, scenario)
    if other is not None:
        found = replace(found, decision=other, blocks=other)
    status = "different" if found.decision or found.blocks else "stuck" if found.stuck else "identical"
    return Outcome(set_name, pair.name, status, *about, comparison=found)


def other_config(header: Header, scenario: Scenario) -> Difference | None:
    """The difference of a trace that was made with another configuration than its scenario has, as far as it says."""
    if header.config is None or "config" not in scenario.content:
        return None
    recorded, simulated = given_values(header.config), given_values(scenario.config)
    return Difference(None, "header.config", recorded, simulated) if recorded != simulated else None
