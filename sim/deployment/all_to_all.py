"""The ways that tokens get to the experts of other ranks, by name, and which one a deployment uses.

- `allgather_reducescatter`: every rank gathers all N tokens, and the sums of N outputs are scattered.
- `naive`: every rank broadcasts its tokens in turn, and the N outputs are all-reduced.
- the direct ones send a token only to where its experts are (`sim.hardware.exchange_form`): DeepEP's low latency and
  high throughput kernels (`normal` in its own words), and TensorRT-LLM's one-sided exchange over NVLink.
- `deepep_auto`: high throughput in steps in which some rank prefills, low latency in the others, as SGLang's
  `--deepep-mode auto` (sgl-project/sglang#4767, 2025-03).
"""

from dataclasses import replace

from sim.deployment.conf import DeploymentConf
from sim.deployment.rules import ParallelRules
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, ONE_SIDED


GATHERED = ("allgather_reducescatter", "naive")
AUTO = "deepep_auto"
DIRECT = (LOW_LATENCY, HIGH_THROUGHPUT, AUTO, ONE_SIDED)
EXCHANGES = (*GATHERED, *DIRECT)


def exchange_of(deployment: DeploymentConf, rules: ParallelRules) -> str:
    """How tokens get to the experts of other ranks: as asked for, or as the engine's version does."""
    return rules.all_to_all if deployment.all_to_all == "auto" else deployment.all_to_all


def effective_rules(deployment: DeploymentConf, rules: ParallelRules) -> ParallelRules:
    """The engine's rules, as they are where this deployment sends tokens directly.

    Tensor-parallel devices then divide a rank's tokens among themselves first, and dense parts and shared experts are
    each rank's own (SGLang's `--moe-dense-tp-size 1`, its advice with DeepEP).
    """
    if deployment.all_to_all not in DIRECT:
        return rules
    return replace(rules, all_to_all=deployment.all_to_all, slices_sequence=True, gathers_dense=False)


def modes_of(exchange: str) -> tuple[str, str]:
    """The direct mode of steps without and with a prefill; both empty where tokens are gathered."""
    if exchange == AUTO:
        return LOW_LATENCY, HIGH_THROUGHPUT
    return (exchange, exchange) if exchange in DIRECT else ("", "")
