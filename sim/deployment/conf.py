"""The schema of the Hydra group `deployment`, apart from the plan so that reading a configuration needs no jax."""

from dataclasses import dataclass


@dataclass
class DeploymentConf:
    """Schema of `conf/deployment/*.yaml`: how many ranks, and who gets the next request."""

    name: str = "single"
    replicas: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    router: str = "round_robin"
