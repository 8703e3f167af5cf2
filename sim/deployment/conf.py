"""The schema of the Hydra group `deployment`, apart from the plan so that reading a configuration needs no jax."""

from dataclasses import dataclass


@dataclass
class DeploymentConf:
    """Schema of `conf/deployment/*.yaml`: how many ranks, and who gets the next request.

    A replica has `data_parallel` x `tensor_parallel` x `pipeline_parallel` devices. Each of its `data_parallel` ranks
    has attention, KV cache and queue of its own, `tensor_parallel` devices wide; they share a model's experts.
    `expert_parallel`: whole experts on each device, instead of a slice of every expert. `all_to_all`: how tokens get
    to the experts of other ranks, `auto` being what the engine's version does (`sim.deployment.exchange`).
    """

    name: str = "single"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    all_to_all: str = "auto"
    router: str = "round_robin"
