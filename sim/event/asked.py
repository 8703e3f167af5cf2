"""What a deployment asks of its engines, before anything is compiled: schedulers, routers, replicas that come and go.

And, once the memory of its pools is known, whether they can read each other's KV.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sim.deployment.conf import DeploymentConf, TransferConf
from sim.deployment.engine import EngineSettings
from sim.deployment.pools import PoolSpec
from sim.deployment.speculation import KEY, NONE
from sim.event.elastic import elastic_of, may_fail
from sim.event.routing.find import make_router, sheds
from sim.memory.terms import MemoryBudget
from sim.scheduler.find import check_scheduler, roles_of, with_roles


class KVSide(NamedTuple):
    """A pool as those that read its KV, or whose KV it reads, see it."""

    spec: PoolSpec
    engine: EngineSettings
    budget: MemoryBudget


def check_asked(deployment: DeploymentConf, specs: Sequence[PoolSpec], seed: int) -> None:
    """Raise `ValueError`, naming the pool, for a scheduler, router or change of replicas that cannot be simulated."""
    make_router(deployment.router, seed, deployment.router_options)
    if any(spec.role == "prefill" for spec in specs):
        make_router(deployment.decode_router, seed, deployment.decode_router_options, "decode_router")
        if sheds(deployment.decode_router, "decode_router"):
            raise ValueError(
                f"deployment.decode_router={deployment.decode_router} turns requests away, which is too late after "
                "their prefill; give it to deployment.router."
            )
    _check_roles(specs)
    if deployment.transfer.layerwise:
        _check_layerwise(deployment, specs)
    _check_policy(deployment, specs)
    elastic_of(deployment, {spec.name: (spec.role, spec.deployment.replicas) for spec in specs}, seed)
    for spec in specs:
        if deployment.pools and spec.engine.speculation.method != NONE:
            raise ValueError(
                f"speculative decoding is not simulated in a deployment of several pools, got {KEY}.method="
                f"{spec.engine.speculation.method} in pool {spec.name}: leave it out."
            )
        try:
            check_scheduler(spec.engine)
        except ValueError as error:
            raise ValueError(spec.refusal(error)) from error


def _check_policy(deployment: DeploymentConf, specs: Sequence[PoolSpec]) -> None:
    transfer, prefilling = deployment.transfer, [spec.name for spec in specs if spec.role == "prefill"]
    fails = transfer.failure_rate or transfer.lease_s or may_fail(deployment, prefilling)
    if transfer.load_failure_policy == "recompute" and prefilling and not fails:
        raise ValueError(
            "deployment.transfer.load_failure_policy does nothing here: no load fails; set deployment.transfer."
            "failure_rate or lease_s, let a prefill instance fail in deployment.elastic, or leave it out."
        )


def _check_roles(specs: Sequence[PoolSpec]) -> None:
    for spec in specs:
        if spec.role != "both" and roles_of(spec.engine.scheduler) is None:
            raise ValueError(
                f"deployment.pools.{spec.name} has the role {spec.role}, which is simulated with the schedulers "
                f"{', '.join(with_roles())} only, got {spec.engine.scheduler}; choose another engine."
            )


def _check_layerwise(deployment: DeploymentConf, specs: Sequence[PoolSpec]) -> None:
    if deployment.pairing != "at_arrival":
        raise ValueError(
            "deployment.transfer.layerwise=true sends KV while the prompt is computed, so the decode instance must be "
            f"known by then: set deployment.pairing=at_arrival, got {deployment.pairing}."
        )
    other = next((spec.engine.scheduler for spec in specs if spec.engine.scheduler != "vllm"), None)
    if other is not None:
        raise ValueError(
            "deployment.transfer.layerwise=true is simulated with the scheduler of vllm only, got "
            f"{other}; leave it out (sglang sends each chunk as it is computed anyway)."
        )


def _check_failures(transfer: TransferConf, sides: Sequence[KVSide]) -> None:
    """Raise `ValueError` for loads that fail where the engine does not know what to do then."""
    key = next((key for key in ("failure_rate", "lease_s") if getattr(transfer, key)), None)
    if key is None and transfer.load_failure_policy == "recompute":
        key = "load_failure_policy"  # of prefill instances that fail
    if key is None:
        return
    if transfer.layerwise and transfer.lease_s:
        raise ValueError(
            "deployment.transfer.lease_s is of KV that waits for its reader, and with deployment.transfer.layerwise="
            "true none does: leave one of them out."
        )
    for side in sides:
        if not side.engine.profile.connector.reports_failed_loads:
            raise ValueError(
                f"deployment.transfer.{key}: {side.engine.name} {side.engine.version} of pool {side.spec.name} does "
                "nothing known with a load that fails as a whole; leave it out, or choose engine=vllm-0.33.0 or later."
            )


def check_kv(pools: Sequence[KVSide], transfer: TransferConf) -> None:
    """Raise `ValueError` where prefill and decode pools could not read each other's blocks, saying what differs.

    Layer by layer, KV is sent before the decode instance has blocks, and then of one group of layers only.
    """
    sides = [pool for pool in pools if pool.spec.role != "both"]
    if not sides:
        return
    _check_failures(transfer, sides)
    _check_divided(sides)
    if any(group.kind == "mamba" for side in sides for stage in side.budget.stages for group in stage.layout.groups):
        raise ValueError(
            f"the transfer of recurrent states is not simulated, got {sides[0].budget.model} with deployment.pools of "
            "role prefill; choose pools of role both."
        )
    for key, values in (
        ("block_size", [side.engine.block_size for side in sides]),
        ("kv_cache_dtype", [side.engine.kv_bytes_per_element for side in sides]),
    ):
        if len(set(values)) > 1:
            said = ", ".join(f"{side.spec.name} {value:g}" for side, value in zip(sides, values, strict=True))
            alike = f"give deployment.pools.*.settings.{key} one value"
            if key == "block_size" and len({side.spec.deployment.decode_context_parallel for side in sides}) > 1:
                alike += (
                    ", or, as a block is block_size tokens on each of the ranks that divide the KV cache, such that "
                    "block_size x decode_context_parallel is one value"
                )
            raise ValueError(
                f"prefill and decode pools must have equal KV blocks, but engine.{key} makes them differ ({said}): "
                f"{alike}."
            )
    layouts = [[(g.kind, g.block_size, g.window) for g in side.budget.layout.groups] for side in sides]
    if all(found == layouts[0] for found in layouts):
        if transfer.layerwise and len(layouts[0]) > 1:
            raise ValueError(
                f"deployment.transfer.layerwise=true is simulated for one group of layers, {sides[0].budget.model} has "
                f"{len(layouts[0])}: leave it out, or set engine.hybrid_kv_cache=false."
            )
        return
    counts = ", ".join(f"{side.spec.name} {len(found)}" for side, found in zip(sides, layouts, strict=True))
    raise ValueError(
        f"prefill and decode pools must divide the layers of {sides[0].budget.model} into equal groups of KV blocks "
        f"(groups: {counts}), but {_cause(sides)}."
    )


def _check_divided(sides: Sequence[KVSide]) -> None:
    """Raise `ValueError` where ranks divide the tokens of a KV cache that their engine cannot hand over so."""
    for side in sides:
        deployment, rules = side.spec.deployment, side.engine.profile.context
        ranks = deployment.decode_context_parallel
        where = f"deployment.pools.{side.spec.name}.decode_context_parallel={ranks}"
        if ranks > 1 and not rules.transfers:
            raise ValueError(
                f"{where}: {side.engine.name} {side.engine.version} cannot hand over a KV cache whose tokens are "
                "divided over ranks; set it to 1, or choose engine=vllm-0.28.0 or later."
            )
        if 1 < ranks < deployment.tensor_parallel and rules.transfers == "all":
            raise ValueError(
                f"{where}: {side.engine.name} {side.engine.version} hands over a KV cache that all tensor-parallel "
                f"ranks divide, or none; set it to 1 or {deployment.tensor_parallel}."
            )


def _cause(sides: Sequence[KVSide]) -> str:
    """Which key makes the groups of layers differ, and what to do."""
    for key, what in (("hybrid_kv_cache", "settings.hybrid_kv_cache"), ("groups_rule", "engine")):
        values = [getattr(side.engine if key == "hybrid_kv_cache" else side.engine.profile, key) for side in sides]
        if len(set(values)) > 1:
            return f"deployment.pools.*.{what} differs: give them one value"
    if len({side.budget.pipeline_parallel for side in sides}) > 1:
        stages = ", ".join(f"{side.spec.name} {side.budget.pipeline_parallel}" for side in sides)
        return (
            f"their pipeline stages hold other layers (deployment.pools.*.pipeline_parallel: {stages}): give them one "
            "number of stages, or set engine.hybrid_kv_cache=false"
        )
    return (
        "their sizes make them differ: give them equal deployment.pools.*.tensor_parallel, or one block table, "
        "engine.hybrid_kv_cache=false"
    )
