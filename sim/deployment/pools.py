"""The pools of a deployment: several kinds of replicas, each resolved to a device, an engine and sizes of its own."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from sim.deployment.conf import DeploymentConf, PoolConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import engine_names, load_engine
from sim.deployment.used import SHAPE, SIZES, check_used
from sim.documents import nearest
from sim.hardware.kv_transfer import connectors
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf


ROLES = ("both", "prefill", "decode")
PAIRINGS = ("after_prefill", "at_arrival")
PLACEMENTS = ("packed", "separate")
LIMITS_S = ("hand_over_s", "setup_s", "block_s", "latency_s")
MOST_S = 100.0
MOST_LEASE_S = 1e6
POLICIES = ("fail", "recompute")


@dataclass(frozen=True)
class PoolSpec:
    """One pool with everything that its plan is compiled from; `deployment` has its sizes and no pools."""

    name: str
    role: str
    device: DeviceConf
    engine: EngineConf
    deployment: DeploymentConf

    def refusal(self, error: ValueError) -> str:
        """What is wrong with this pool; sizes are called by the keys that set them here."""
        if not self.name:
            return str(error)
        return f"pool {self.name} ({self.role}): {self.own_keys(str(error))}"

    def own_keys(self, text: str) -> str:
        """`deployment.tensor_parallel` and other sizes as `deployment.pools.NAME.tensor_parallel`."""
        sizes = "|".join(field.name for field in fields(PoolConf))
        return re.sub(rf"\bdeployment\.({sizes})\b", rf"deployment.pools.{self.name}.\1", text) if self.name else text


def pools_of(deployment: DeploymentConf, device: DeviceConf, engine: EngineConf) -> list[PoolSpec]:
    """The pools of a deployment, in order; one, without a name, where it lists none.

    **Raises:** `ValueError`, naming the pool, for a role, size, device, engine or setting that is none, for sizes
    outside the pools, and for prefill without decode.
    """
    _check_whole(deployment)
    if not deployment.pools:
        return [PoolSpec("", "both", device, engine, deployment)]
    return resolved_pools(deployment, device, engine)


def resolved_pools(deployment: DeploymentConf, device: DeviceConf, engine: EngineConf) -> list[PoolSpec]:
    """The pools that a deployment lists, in order, each looked at by itself; `ValueError` as `pools_of`."""
    found = []
    for name, pool in deployment.pools.items():
        if not re.fullmatch(r"\w[\w.-]*", str(name)):
            raise ValueError(f"deployment.pools: a pool's name is letters, digits, _, . and -, got {name!r:.60}.")
        where = f"deployment.pools.{name}"
        if pool.role not in ROLES:
            raise ValueError(
                f"{where}.role must be one of {', '.join(ROLES)}, got {pool.role!r}{nearest(pool.role, ROLES)}."
            )
        for key in SIZES:
            if getattr(pool, key) < 1:
                raise ValueError(
                    f"{where}.{key} must be at least 1, got {getattr(pool, key)}; leave the pool out instead."
                )
        if pool.role == "prefill" and pool.ffn.devices:
            raise ValueError(
                f"{where} has the role prefill, whose feed-forward parts stay with attention: leave out {where}.ffn, "
                "or give it to a pool of role decode or both."
            )
        own = _device(where, pool.hardware) if pool.hardware else device
        shape = {key: getattr(pool, key) for key in SHAPE}
        flat = DeploymentConf(name=name, **shape)
        found.append(PoolSpec(name, pool.role, own, _engine(where, pool, engine), flat))
    _check_roles(found)
    return found


def _check_whole(deployment: DeploymentConf) -> None:
    """Raise `ValueError` for values out of range, and for keys that nobody reads."""
    transfer = deployment.transfer
    _one_of("deployment.pairing", deployment.pairing, PAIRINGS)
    if transfer.connector:
        _one_of("deployment.transfer.connector", transfer.connector, tuple(connectors()))
    _one_of("deployment.transfer.placement", transfer.placement, PLACEMENTS)
    for key in LIMITS_S:
        value = getattr(transfer, key)
        if value is not None and not 0 <= value <= MOST_S:
            raise ValueError(f"deployment.transfer.{key} must be between 0 and {MOST_S:g} seconds, got {value:g}.")
    if transfer.efficiency is not None and not 1e-4 <= transfer.efficiency <= 1:
        raise ValueError(f"deployment.transfer.efficiency must be between 1e-4 and 1, got {transfer.efficiency:g}.")
    if not 1 <= transfer.oversubscription <= 1000:
        raise ValueError(
            f"deployment.transfer.oversubscription must be between 1 and 1000, got {transfer.oversubscription:g}."
        )
    _one_of("deployment.transfer.load_failure_policy", transfer.load_failure_policy, POLICIES)
    if not 0 <= transfer.failure_rate <= 1:
        raise ValueError(f"deployment.transfer.failure_rate must be between 0 and 1, got {transfer.failure_rate:g}.")
    if transfer.lease_s is not None and not 0 < transfer.lease_s <= MOST_LEASE_S:
        raise ValueError(
            f"deployment.transfer.lease_s must be above 0 and at most {MOST_LEASE_S:,.0f} seconds, got "
            f"{transfer.lease_s:g}."
        )
    plain = DeploymentConf()
    changed = (each.name for each in fields(plain) if getattr(deployment, each.name) != getattr(plain, each.name))
    check_used(deployment, [f"deployment.{key}" for key in changed])


def _check_roles(pools: list[PoolSpec]) -> None:
    roles = {pool.role for pool in pools}
    for role, other in (("prefill", "decode"), ("decode", "prefill")):
        if role in roles and other not in roles:
            raise ValueError(f"deployment.pools has a pool of role {role} and none of role {other}; add one.")
    sides = [pool for pool in pools if pool.role != "both"]
    for pool in sides:
        if pool.engine.scheduler != sides[0].engine.scheduler:
            raise ValueError(
                f"deployment.pools.{pool.name} ({pool.role}) has the scheduler {pool.engine.scheduler} and "
                f"{sides[0].name} ({sides[0].role}) {sides[0].engine.scheduler}: KV is handed over between instances "
                "of one engine; give them one."
            )


def _device(where: str, given: str | DeviceConf) -> DeviceConf:
    """The pool's own device, by name or as a configuration file of the user's has it."""
    return given if isinstance(given, DeviceConf) else load_device(given, f"{where}.hardware")


def _engine(where: str, pool: PoolConf, engine: EngineConf) -> EngineConf:
    """The pool's engine configuration: the run's or its own, with its settings."""
    if isinstance(pool.engine, EngineConf):
        engine = pool.engine
    elif pool.engine:
        known = engine_names()
        found = re.fullmatch(r"([a-z]+)-(\d+(?:\.\d+)+)", pool.engine)
        if found is None or found[1] not in {each.partition("-")[0] for each in known}:
            raise ValueError(
                f"{where}.engine={pool.engine} is not a known engine{nearest(pool.engine, known)}: wanted NAME-VERSION "
                "as `headway simulate --help` lists them; a version without a profile has the nearest earlier one."
            )
        engine = load_engine(found[1], found[2])
    known_keys = {field.name: field for field in fields(EngineConf) if field.name not in ("profile", "name", "version")}
    changes: dict[str, Any] = {}
    for key, value in pool.settings.items():
        if key not in known_keys:
            raise ValueError(f"{where}.settings.{key} is not a setting of an engine{nearest(str(key), known_keys)}.")
        default = getattr(EngineConf(), key)
        wanted = int if key.startswith(("max_num", "max_model")) or key == "num_gpu_blocks_override" else type(default)
        if default is not None or wanted is int:
            fits = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
            if not (fits or (wanted is float and isinstance(value, int)) or (value is None and default is None)):
                raise ValueError(f"{where}.settings.{key} must be {_kind(wanted)}, got {value!r}.")
        changes[str(key)] = value
    return replace(engine, **changes)


def _kind(wanted: type) -> str:
    return {int: "a whole number", bool: "true or false", float: "a number", str: "a text"}.get(wanted, wanted.__name__)


def _one_of(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{key} must be one of {', '.join(known)}, got {value!r}{nearest(value, known)}.")
