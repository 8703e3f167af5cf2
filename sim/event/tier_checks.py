"""Where KV behind the devices' caches is simulated, and where it is refused."""

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineSettings
from sim.deployment.tiers import KEY
from sim.memory.shape import GroupShape
from sim.scheduler.find import find_scheduler
from sim.workload.trace import Workload


def check_tiers(
    deployment: DeploymentConf,
    engine: EngineSettings,
    scheduler: str,
    groups: tuple[GroupShape, ...],
    workload: Workload,
) -> None:
    """Raise `ValueError` where `cache_tiers` are set and can do nothing, or are not simulated."""
    if not deployment.cache_tiers:
        return
    wrong = [
        (not workload.has_content, "do nothing here: they want a workload whose prompts have content to find again"),
        (not engine.prefix_caching, "do nothing here: they want engine.enable_prefix_caching"),
        (
            not hasattr(find_scheduler(scheduler), "make_tiered"),
            f"are simulated with vLLM's scheduler, got {scheduler}",
        ),
        *((bad, f"are {what}") for bad, what in unsimulated(deployment, engine, groups)),
    ]
    for bad, sentence in wrong:
        if bad:
            raise ValueError(f"{KEY} ({', '.join(deployment.cache_tiers)}) {sentence}; set cache_tiers=none.")


def unsimulated(
    deployment: DeploymentConf, engine: EngineSettings, groups: tuple[GroupShape, ...]
) -> list[tuple[bool, str]]:
    """What KV that lies in the host's memory does not go with: whether it is asked for, and what to say."""
    elastic = bool(deployment.elastic.events) or deployment.elastic.mtbf_s > 0
    full = len(groups) == 1 and groups[0].kind in ("full", "mla")
    return [
        (engine.speculation is not None, "not simulated with speculative decoding"),
        (not full, "simulated for models whose layers all have full attention"),
        (deployment.data_parallel > 1, "not simulated with data-parallel ranks"),
        (deployment.pipeline_parallel > 1, "not simulated with pipeline stages"),
        (deployment.ffn.devices > 0, "not simulated with deployment.ffn"),
        (elastic, "not simulated with deployment.elastic"),
        (deployment.session_hold_s > 0, "not simulated with deployment.session_hold_s"),
    ]
