"""Whether the keys that a user set are read by the deployment they set them for: one that is not would do nothing."""

from collections.abc import Iterable

from sim.deployment.conf import DeploymentConf


SIZES = (
    "replicas",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "prefill_context_parallel",
    "decode_context_parallel",
)
SHAPE = (*SIZES, "expert_parallel", "all_to_all", "redundant_experts", "expert_placement", "ffn")
HANDED_OVER = ("decode_router", "decode_router_options", "pairing", "transfer")


def check_used(deployment: DeploymentConf, keys: Iterable[str]) -> None:
    """Raise `ValueError`, one sentence, for the first of `keys` (as `engine.block_size`) that does nothing."""
    for key in keys:
        if why := unused(deployment, key):
            raise ValueError(f"{key} does nothing here: {why}.")


def unused(deployment: DeploymentConf, key: str) -> str:
    """Why nobody reads `key`, and what to do; empty where somebody does."""
    group, _, name = key.partition(".")
    pools = deployment.pools
    if group in ("hardware", "engine"):
        return _of_pools(deployment, group, name)
    part, _, below = name.partition(".")
    if group != "deployment":
        return ""
    if part in SHAPE and pools:
        # feed-forward parts of prefill instances stay with attention
        may = [own for own, pool in pools.items() if part != "ffn" or pool.role != "prefill"]
        own = next(iter(may or pools))
        return f"where pools are listed each has its own; set deployment.pools.{own}.{part}, or leave it out"
    if part in HANDED_OVER and not any(pool.role == "prefill" for pool in pools.values()):
        return "it wants a pool of role prefill in deployment.pools; leave it out"
    transfer = deployment.transfer
    elastic = deployment.elastic
    fails = transfer.failure_rate or transfer.lease_s or elastic.events or elastic.mtbf_s
    if name == "transfer.load_failure_policy" and not fails:
        return (
            "it wants deployment.transfer.failure_rate or lease_s, or deployment.elastic with a prefill instance that "
            "fails; leave it out"
        )
    if part == "elastic" and below in ("on_failure", "load_s") and not (elastic.events or elastic.mtbf_s):
        return "it wants deployment.elastic.events or deployment.elastic.mtbf_s; leave it out"
    if part == "elastic" and below == "repair_s" and not elastic.mtbf_s:
        return "it wants deployment.elastic.mtbf_s; leave it out"
    return ""


def _of_pools(deployment: DeploymentConf, group: str, name: str) -> str:
    """Why no pool reads the run's device or engine, or one setting of it."""
    pools = deployment.pools
    if not pools:
        return ""
    if all(getattr(pool, group) for pool in pools.values()):
        what = "a device" if group == "hardware" else "an engine"
        return f"every pool has {what} of its own (deployment.pools.*.{group}); leave it out, or leave one of those out"
    if group == "engine" and name and all(pool.engine or name in pool.settings for pool in pools.values()):
        return f"every pool has its own (deployment.pools.*.settings.{name}); leave it out"
    return ""
