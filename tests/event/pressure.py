"""Workloads under memory pressure, drawn from a mode and a seed: small pools, few seats, every scheduler."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np

from conf.compose import compose
from sim.cost.stages import StagePrices
from sim.deployment.engine import EngineProfile, EngineSettings
from sim.event.run import ExactRun, run_exact
from sim.event.servable import servable_tokens
from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.find import make_scheduler, scheduler_names
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table


TABLE = make_table(base_s=1e-3, token_s=2e-5)
VLLM = ("0.10.2", "0.19.0", "0.33.0")


def mode_names() -> list[str]:
    """`scheduler/what`, every scheduler that is shipped, with each of its loops, policies and block managers."""
    vllm = []
    for version in VLLM:
        loops = ["sync", "pp2", "pp4"] if version == "0.10.2" else ["sync", "async", "pp2", "pp4", "pp2-async"]
        for loop in loops:
            vllm += [f"vllm/{version}/{loop}/{kind}" for kind in ("fcfs", "priority", "threshold")]
        vllm += [f"vllm/{version}/{loops[0]}/{groups}" for groups in HYBRIDS]
        vllm += [f"vllm/{version}/{loop}/whole" for loop in loops[:2]]
    policies = ("fcfs", "lpm", "dfs-weight", "lof", "priority", "mixed", "whole")
    sglang = [f"sglang/{loop}/{policy}" for loop in ("normal", "overlap") for policy in policies]
    trtllm = [f"trtllm/{policy}" for policy in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")]
    with_modes = {"vllm", "sglang", "trtllm"}
    return [*vllm, *sglang, *trtllm, *(f"{name}/" for name in scheduler_names() if name not in with_modes)]


HYBRIDS = {
    "sliding": lambda size: (GroupShape("full", size), GroupShape("swa", size, 3 * size)),
    "chunked": lambda size: (GroupShape("full", size), GroupShape("chunk", size, 4 * size)),
    "recurrent": lambda size: (GroupShape("full", size), GroupShape("mamba", 8 * size)),
}


@dataclass
class Case:
    """One drawn workload and the engine it is given to."""

    scheduler: str
    settings: EngineSettings
    workload: Workload
    blocks: int
    groups: tuple[GroupShape, ...] | None = None
    stages: int = 1
    replicas: int = 1

    def servable(self) -> list[int | None]:
        """Tokens that each request can get, None where it never fits: what the engine says before it starts."""
        groups = self.groups or (GroupShape("full", self.settings.block_size),)
        cache = CacheShape(self.blocks, False, groups)
        own = getattr(make_scheduler(self.scheduler, self.settings, cache), "servable_tokens", None)
        asked = zip(self.workload.prompt_tokens.tolist(), self.workload.output_tokens.tolist(), strict=True)
        if own is not None:
            return [own(*each) for each in asked]
        return [servable_tokens(*each, self.settings.max_model_len, cache) for each in asked]

    def run(self) -> ExactRun:
        """Simulate it: conservation is checked there."""
        prices = TABLE if self.stages == 1 else StagePrices((TABLE,) * self.stages, np.full(4097, 1e-5), 1e-5)
        return run_exact(
            self.workload,
            self.settings,
            prices,
            num_gpu_blocks=self.blocks + 1,
            groups=self.groups,
            replicas=self.replicas,
            scheduler=self.scheduler,
            router="least_outstanding",
        )


def draw(mode: str, seed: int) -> Case:
    """The case of that number in a mode."""
    rng = np.random.default_rng((crc32(mode.encode()), seed))
    scheduler, *parts = mode.split("/")
    size = int(rng.choice((4, 8, 16)))
    seats = int(rng.integers(1, 11))
    longest = int(rng.integers(4, 14)) * size
    workload = _workload(rng, longest, parts[-1] == "priority")
    changes: dict[str, Any] = {
        "block_size": size,
        "max_num_seqs": seats,
        "max_num_batched_tokens": int(rng.integers(seats, seats + 4 * size)),
        "max_model_len": longest,
        "prefix_caching": bool(rng.integers(2)),
    }
    case = Case(scheduler, make_settings(), workload, int(longest / size * rng.uniform(0.9, 2.5)) + 1)
    if scheduler == "vllm":
        _draw_vllm(rng, parts, changes, case)
    elif scheduler == "sglang":
        _draw_sglang(rng, parts, changes, case)
    else:
        _draw_other(rng, scheduler, parts[0], changes)
    if not changes.get("chunked_prefill", True):
        changes["max_num_batched_tokens"] = longest + int(rng.integers(longest))
    case.settings = make_settings(**changes)
    case.replicas = int(rng.integers(1, 3)) if case.stages == 1 else 1
    return case


def _draw_vllm(rng: np.random.Generator, parts: list[str], changes: dict[str, Any], case: Case) -> None:
    version, loop, kind = parts
    ahead = loop.endswith("async")
    case.stages = int(loop[2]) if loop.startswith("pp") else 1
    profile = _profile(f"vllm-{version}")
    extra = int(ahead) if profile.async_adds_depth or case.stages == 1 else 0
    changes |= {
        "version": version,
        "profile": profile,
        "reserve_full_input": profile.reserve_full_input,
        "async_scheduling": ahead,
        "pipeline_parallel": case.stages,
        "batches_in_flight": case.stages + extra,
        "chunked_prefill": kind != "whole",
    }
    if kind == "priority":
        changes["scheduling_policy"] = "priority"
    elif kind == "threshold":
        changes["long_prefill_token_threshold"] = int(rng.integers(1, 3 * changes["block_size"]))
    elif kind in HYBRIDS:
        case.groups = HYBRIDS[kind](changes["block_size"])
        # engines wait for ever for a request whose whole input does not fit in all groups
        case.blocks = max(2 * case.blocks, 2 * -(-changes["max_model_len"] // changes["block_size"]))


def _draw_sglang(rng: np.random.Generator, parts: list[str], changes: dict[str, Any], case: Case) -> None:
    loop, policy = parts
    size = int(rng.choice((1, 4, 16)))
    # the engine takes requests that need all but a few tokens of the pool, and waits for ever for the page it reserves
    case.blocks = max(-(-case.blocks * changes["block_size"] // size), -(-changes["max_model_len"] // size) + 3)
    changes["block_size"] = size
    changes["max_num_batched_tokens"] = size * int(rng.integers(1, 8))
    changes |= {"name": "sglang", "profile": _profile("sglang-0.5"), "batches_in_flight": 1 + (loop == "overlap")}
    changes["async_scheduling"] = loop == "overlap"
    options: dict[str, Any] = {"schedule_conservativeness": float(rng.choice((0.0, 0.1, 0.5)))}
    changes["max_num_seqs"] += 4
    if rng.integers(4):
        options |= {"ignore_eos": False, "max_new_tokens": int(rng.integers(1, changes["max_model_len"]))}
    if policy == "priority":
        options |= {
            "enable_priority_scheduling": True,
            "priority_scheduling_preemption_threshold": int(rng.integers(3)),
        }
    elif policy == "mixed":
        options["enable_mixed_chunk"] = True
    elif policy == "whole":
        changes["chunked_prefill"] = False
        options["max_prefill_tokens"] = int(rng.integers(1, 2 * changes["max_model_len"]))
    else:
        changes["scheduling_policy"] = policy
    changes["scheduler_options"] = options


def _draw_other(rng: np.random.Generator, scheduler: str, policy: str, changes: dict[str, Any]) -> None:
    options: dict[str, Any] = {}
    changes["prefix_caching"] = False
    if scheduler == "trtllm":
        changes["scheduling_policy"] = policy
        changes["max_num_batched_tokens"] += changes["block_size"]  # chunks are whole blocks
        options["max_output_tokens"] = int(rng.integers(0, 30))
    elif scheduler == "orca":
        options["reserve"] = str(rng.choice(("oracle", "pow2", "max")))
    elif scheduler == "static":
        options["padded"] = bool(rng.integers(2))
    elif scheduler == "shortest_first":
        options |= {"preemptive": bool(rng.integers(2)), "error": float(rng.choice((0.0, 1.0)))}
    elif scheduler == "mlfq":
        options |= {"queues": int(rng.integers(1, 5)), "promote_after": int(rng.integers(0, 60))}
    elif scheduler == "sarathi":
        options["watermark"] = float(rng.choice((0.0, 0.1, 0.5)))
    changes["scheduler_options"] = options
    never_cuts = scheduler in ("orca", "static")
    changes["chunked_prefill"] = not never_cuts and (scheduler == "sarathi" or bool(rng.integers(2)))


def _workload(rng: np.random.Generator, longest: int, with_priority: bool) -> Workload:
    """5 to 40 requests of up to `longest` tokens, in bursts, some with the prefix of others, some too long."""
    count = int(rng.integers(5, 41))
    total = rng.integers(2, longest + 1, count)
    prompt = np.clip((total * rng.uniform(0, 1, count)).astype(int), 1, total - 1)
    outputs = total - prompt
    if not rng.integers(5):
        outputs[rng.integers(count)] += longest
    if not rng.integers(5):
        prompt[rng.integers(count)] += longest
    bursts = np.cumsum(rng.exponential(1.0, count) * (rng.random(count) < 0.5))
    content = None
    if rng.integers(3):
        stems = rng.integers(0, 50, (int(rng.integers(1, 4)), 2 * longest + 1))
        content = []
        for length in prompt.tolist():
            ids = stems[rng.integers(len(stems))][:length].copy()
            ids[int(length * rng.uniform(0.2, 1.2)) :] = rng.integers(1000, 2000)
            content.append(ids)
    return Workload(
        "pressure",
        (bursts * rng.choice((0, 1e6, 2e7))).astype(np.int64),
        prompt,
        outputs,
        concurrency=int(rng.integers(1, 20)) if rng.integers(2) else None,
        token_ids=None if content is None else tuple(content),
        priority=rng.integers(-3, 4, count) if with_priority else None,
    )


@lru_cache
def _profile(engine: str) -> EngineProfile:
    profile: EngineProfile = compose([f"engine={engine}"]).engine.profile
    return replace(profile, host_step_s=1e-4)
