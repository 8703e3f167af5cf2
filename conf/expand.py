"""A multirun: every combination of the swept values, in Hydra's order, each as a checked configuration."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.compose import (
    check_pool_names,
    checked,
    composed,
    one_sentence,
    prepare,
    searchpath,
    set_keys,
    workload_keys,
)
from conf.files import as_typed
from conf.schema import SimulateConf
from sim.deployment.used import check_used, unused
from sim.report.metrics import check_slo
from sim.workload.check import check_numbers
from sim.workload.used import check_read, unread


MOST_JOBS = 1_000_000


@dataclass(frozen=True)
class SweepJob:
    """One combination: its overrides and the configuration they give.

    `swept`: what differs between the jobs, files by their path, for a person and for the table.
    """

    overrides: tuple[str, ...]
    swept: tuple[str, ...]
    conf: SimulateConf


def expand(overrides: Sequence[str], config_dirs: Sequence[str | Path] = ()) -> list[SweepJob]:
    """All jobs of `-m OVERRIDES`. `ValueError` for a mistake in any of them, before any has run."""
    with one_sentence(config_dirs):
        axes = list(sweep_axes([*searchpath(config_dirs), *prepare(overrides)]))
        count = math.prod(map(len, axes))
        if count > MOST_JOBS:
            raise ValueError(f"a multirun wants at most {MOST_JOBS:,} jobs, these values give {count:,}.")
        varying = [len(axis) > 1 for axis in axes]
        variants: dict[tuple[str, ...], Variant] = {}
        jobs = []
        for combination in itertools.product(*axes):
            later = [v and settable(c) for v, c in zip(varying, combination, strict=True)]
            fixed = tuple(c for c, put_in in zip(combination, later, strict=True) if not put_in)
            if fixed not in variants:
                variants[fixed] = Variant(fixed, config_dirs)
            conf = variants[fixed].with_values([c for c, put_in in zip(combination, later, strict=True) if put_in])
            jobs.append(SweepJob(combination, tuple(map(as_typed, itertools.compress(combination, varying))), conf))
        for key in workload_keys(overrides):
            if all(unread(job.conf.workload, key) for job in jobs):
                check_read(jobs[0].conf.workload, [key])
        for key in set_keys(overrides):
            if all(unused(job.conf.deployment, key) for job in jobs):
                check_used(jobs[0].conf.deployment, [key])
    return jobs


def sweep_axes(prepared: Sequence[str]) -> Iterator[list[str]]:
    """The values of each override as overrides; an axis of one for those that are not swept."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for override in OverridesParser.create().parse_overrides(list(prepared)):
        key = override.get_key_element()
        if not override.is_sweep_override():
            yield [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            check_range(override)
            yield [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ValueError(f"{key} wants a list of values or range(FROM,TO,STEP) to sweep over, not an interval.")


def check_range(override: Any) -> None:
    """Raise `ValueError` for a range that never ends, holds nothing, or more than one could run."""
    from hydra.core.override_parser.types import RangeSweep

    found = override.value()
    if not isinstance(found, RangeSweep):
        return
    start, stop, step = (float(number or 0) for number in (found.start, found.stop, found.step))
    said = f"{override.get_key_element()}={override.get_value_string()}"
    if not all(map(math.isfinite, (start, stop, step))) or step == 0:
        raise ValueError(f"{said}: range(FROM,TO,STEP) wants finite numbers and a step that is not 0.")
    count = (stop - start) / step
    if count <= 0:
        raise ValueError(f"{said} holds no value: range(FROM,TO,STEP) ends before TO and wants a step towards it.")
    if count > MOST_JOBS:
        raise ValueError(f"{said} holds some {count:.3g} values, and a multirun wants at most {MOST_JOBS:,} jobs.")


def settable(override: str) -> bool:
    """Whether an override sets one key below a group, and neither chooses a group nor adds or removes a key."""
    return "." in override.partition("=")[0] and override[0] not in "+~"


class Variant:
    """The jobs of a sweep that differ only in numbers and texts.

    Hydra composes once and OmegaConf converts each value once; a job is then a copy with its values put in. That is
    some 1,000 times as fast as composing each job.
    """

    def __init__(self, fixed: Sequence[str], config_dirs: Sequence[str | Path] = ()):
        self.config = composed(fixed)
        check_pool_names(fixed, self.config)
        self.base = checked(self.config, config_dirs)
        self.values: dict[str, tuple[list[str], Any]] = {}

    def with_values(self, overrides: Sequence[str]) -> SimulateConf:
        """The configuration with these keys set."""
        conf = self.base
        for override in overrides:
            if override not in self.values:
                self.values[override] = self.converted(override)
                check_range_of(put(self.base, *self.values[override]), self.values[override][0][0])
            path, value = self.values[override]
            conf = put(conf, path, value)
        return conf

    def converted(self, override: str) -> tuple[list[str], Any]:
        """Path and value of an override, of the type the schema wants."""
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from omegaconf import OmegaConf

        parsed = OverridesParser.create().parse_override(override)
        OmegaConf.update(self.config, parsed.key_or_group, parsed.value(), force_add=False)
        value = OmegaConf.select(self.config, parsed.key_or_group)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_object(value)
        return parsed.key_or_group.split("."), value


def check_range_of(conf: SimulateConf, group: str) -> None:
    """Raise `ValueError` for a number of the workload or a bound that no job could run with."""
    if group == "workload":
        check_numbers(conf.workload)
    if group == "slo":
        check_slo({key.removesuffix("_ms"): bound for key, bound in vars(conf.slo).items() if bound is not None})


def put(node: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of a dataclass (or dict) with the value at `path` replaced; everything else is shared."""
    if not path:
        return value
    if isinstance(node, dict):
        return {**node, path[0]: put(node[path[0]], path[1:], value)}
    return dataclasses.replace(node, **{path[0]: put(getattr(node, path[0]), path[1:], value)})
