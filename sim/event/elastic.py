"""From `deployment.elastic` to the changes of a run: whose, when, and one sentence for each that cannot be."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from sim.deployment.conf import DeploymentConf, ElasticConf
from sim.deployment.used import check_used
from sim.event.lifecycle import DRAIN, FAIL, START, Change, Elastic
from sim.units import to_ns


ACTIONS = (START, DRAIN, FAIL)
KEYS = ("at_s", "action", "replica", "pool")
POLICIES = ("retry", "lose")
MOST_S = 1e9
WHERE = "deployment.elastic"


def is_elastic(deployment: DeploymentConf) -> bool:
    """Whether replicas come or go."""
    return bool(deployment.elastic.events) or deployment.elastic.mtbf_s > 0


def may_fail(deployment: DeploymentConf, names: Collection[str]) -> bool:
    """Whether a replica of one of these pools fails, or may be drawn to."""
    conf = deployment.elastic
    return conf.mtbf_s > 0 or any(
        isinstance(entry, Mapping) and entry.get("action") == FAIL and entry.get("pool") in names
        for entry in conf.events
    )


def elastic_of(deployment: DeploymentConf, pools: Mapping[str, tuple[str, int]], seed: int) -> Elastic | None:
    """The changes in order, None without any. `pools`: role and number of replicas by name, in order.

    **Raises:** `ValueError` for an entry that is none, a replica that does not exist, times out of range, and settings
    without effect.
    """
    conf = deployment.elastic
    _check(conf)
    plain = ElasticConf()
    changed = (each.name for each in fields(plain) if getattr(conf, each.name) != getattr(plain, each.name))
    check_used(deployment, [f"{WHERE}.{key}" for key in changed])
    if not is_elastic(deployment):
        return None
    changes = [_change(number, entry, pools) for number, entry in enumerate(conf.events)]
    ordered = tuple(sorted(changes, key=lambda change: change.at_ns))
    return Elastic(ordered, conf.on_failure == "retry", conf.load_s, conf.mtbf_s, conf.repair_s, seed)


def _check(conf: ElasticConf) -> None:
    if conf.on_failure not in POLICIES:
        raise ValueError(f"{WHERE}.on_failure must be one of {', '.join(POLICIES)}, got {conf.on_failure!r}.")
    for key in ("load_s", "mtbf_s", "repair_s"):
        value = getattr(conf, key)
        if not 0 <= value <= MOST_S:
            raise ValueError(f"{WHERE}.{key} must be between 0 and {MOST_S:g} seconds, got {value:g}.")


def _change(number: int, entry: Any, pools: Mapping[str, tuple[str, int]]) -> Change:
    where = f"{WHERE}.events[{number}]"
    if not isinstance(entry, Mapping):
        raise ValueError(f"{where} wants a mapping of {', '.join(KEYS)}, got {entry!r:.60}.")
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{where} has the unknown key {key}: it has {', '.join(KEYS)}.")
    at_s, action, replica = entry.get("at_s"), entry.get("action"), entry.get("replica", 0)
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= MOST_S:
        raise ValueError(f"{where}.at_s must be a number of seconds from 0 to {MOST_S:g}, got {at_s!r}.")
    if action not in ACTIONS:
        raise ValueError(f"{where}.action must be one of {', '.join(ACTIONS)}, got {action!r}.")
    pool = entry.get("pool", next(iter(pools)) if len(pools) == 1 else None)
    if pool not in pools:
        got = f"got {pool!r}" if "pool" in entry else "and the entry has no pool"
        raise ValueError(f"{where}.pool must be one of {', '.join(pools)}, {got}.")
    count = pools[pool][1]
    if isinstance(replica, bool) or not isinstance(replica, int) or not 0 <= replica < count:
        one = f"0, the only one{f' of pool {pool}' if pool else ''}"
        wanted = one if count == 1 else f"a whole number from 0 to {count - 1}"
        raise ValueError(f"{where}.replica must be {wanted}, got {replica!r}.")
    names = list(pools)
    before = sum(pools[name][1] for name in names[: names.index(pool)])
    return Change(to_ns(float(at_s)), before + replica, action)


def elastic_rows(deployment: DeploymentConf) -> list[tuple[str, str, str]]:
    """Assumptions: what is said of replicas that come and go."""
    if not is_elastic(deployment):
        return []
    conf = deployment.elastic
    rows = [("a replica that starts", f"is in service {conf.load_s:g} s later, its cache empty", f"{WHERE}.load_s")]
    what = "sent again from their beginning" if conf.on_failure == "retry" else "lost"
    rows.append(("requests of a replica that fails", what, f"{WHERE}.on_failure"))
    if conf.mtbf_s:
        mean = f"every {conf.mtbf_s:g} s a replica in the mean, repaired {conf.repair_s:g} s later"
        rows.append(("drawn failures", mean, f"{WHERE}.mtbf_s, repair_s"))
    return rows
