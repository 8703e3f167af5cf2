"""The KV budget that many planners use: memory x utilization - weights, and nothing else."""

from sim.memory.terms import MemoryBudget


def naive_blocks(budget: MemoryBudget) -> int:
    """Blocks of the naive budget: of each stage `floor((requested - weights) / bytes per block)`, the least of them."""
    return min(
        stage.layout.num_blocks(max(stage.terms[0].value_bytes - stage.value("weights"), 0.0))
        for stage in budget.stages
    )
