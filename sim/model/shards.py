"""How many ranks share each part of a layer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shards:
    """Ranks that share each part of a layer; every rank of a stage has the same shares.

    - `mixer`: ranks that share each attention or state layer, the embedding and the head.
    - `dense`: ranks that share each matrix of a dense feed-forward part, and each shared expert.
    - `experts`: ranks that share the routed experts of a layer, in `expert_groups` groups of equal size. A group holds
      whole experts, and inside a group every expert is divided.
    - `redundant`: further copies of experts that the groups hold, in each layer.
    """

    mixer: int = 1
    dense: int = 1
    experts: int = 1
    expert_groups: int = 1
    redundant: int = 0

    @classmethod
    def tensor(cls, tensor_parallel: int, expert_parallel: int = 1) -> "Shards":
        """One tensor-parallel group that shares everything."""
        return cls(tensor_parallel, tensor_parallel, tensor_parallel, expert_parallel)
