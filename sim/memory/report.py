"""The memory sum as the report's plain rows: parts of the device that add up to all of it."""

from sim.memory.terms import MemoryBudget
from sim.report.result import MemoryReport, MemoryTerm


KV_CACHE = "KV cache"


def memory_report(budget: MemoryBudget) -> MemoryReport:
    """One rank of the deciding stage: what the engine counts, the KV cache, and what stays free."""
    kv_bytes = float(budget.num_blocks * budget.bytes_per_block)
    used = [row for row in budget.terms[1:] if row.counted]
    terms = [MemoryTerm(row.name.replace("_", " "), row.value_bytes, row.formula, row.source) for row in used]
    blocks = f"{budget.num_blocks:,} blocks of {budget.block_size} tokens"
    terms.append(MemoryTerm(KV_CACHE, kv_bytes, blocks, "what the sum leaves, in whole blocks"))
    free = budget.total_bytes - kv_bytes - sum(row.value_bytes for row in used)
    outside = ", ".join(row.name.replace("_", " ") for row in budget.terms[1:] if not row.counted)
    note = "kept out of the budget" + (f", holds {outside}" if outside else "")
    terms.append(MemoryTerm("not budgeted", free, note, "device memory less the rows above"))
    return MemoryReport(tuple(terms), budget.total_bytes, KV_CACHE, budget.verdict)
