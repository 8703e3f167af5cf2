"""Which batches are measured, and the columns that stand for them (docs/operator-tables.md)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
CHUNKS, PRIORS = (64, 256, 512, 1024, 2048, 4096, 8192), (0, 1024, 4096, 16384)
DECODES, CONTEXTS = (1, 4, 8, 16, 32, 64, 128, 256), (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MIXED_CHUNKS, MIXED_DECODES, MIXED_CONTEXTS = (128, 512, 2048), (8, 32, 128), (512, 2048, 8192)


@dataclass(frozen=True)
class Batch:
    """Prompt chunks as (tokens, tokens cached before them), and contexts of decoding rows, their own token included."""

    chunks: tuple[tuple[int, int], ...] = ()
    contexts: tuple[int, ...] = ()

    @property
    def op(self) -> str:
        """prefill, decode or mixed."""
        return "mixed" if self.chunks and self.contexts else "prefill" if self.chunks else "decode"

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values the batch reads."""
        return sum(new + prior for new, prior in self.chunks) + sum(self.contexts)

    def columns(self) -> dict[str, int]:
        """Sums and maxima of the batch, by the name of their column."""
        lengths = [new + prior for new, prior in self.chunks]
        return {
            "prefill_tokens": sum(new for new, _ in self.chunks),
            "prefill_chunks": len(self.chunks),
            "prefill_area": sum(new * prior + new * (new + 1) // 2 for new, prior in self.chunks),
            "prefill_kv_tokens": sum(lengths),
            "prefill_max_tokens": max(lengths, default=0),
            "decodes": len(self.contexts),
            "decode_sum": sum(self.contexts),
            "decode_max": max(self.contexts, default=0),
            "decode_sumsq": sum(length * length for length in self.contexts),
        }


def batches(most_tokens: int, most_cached: int, ragged: bool) -> Iterator[Batch]:
    """Prefills, decodes and mixed batches of at most `most_tokens` new and `most_cached` cached tokens.

    `ragged`: also decodes of which one in four has four times the context of the others.
    """
    found = [Batch(((chunk, prior),)) for chunk in CHUNKS for prior in PRIORS]
    found += [Batch((), (context,) * rows) for rows in DECODES for context in CONTEXTS]
    if ragged:
        found += [
            Batch((), (4 * context,) * (rows // 4) + (context,) * (rows - rows // 4))
            for rows in MIXED_DECODES
            for context in MIXED_CONTEXTS
        ]
    found += [
        Batch(((chunk, 0),), (context,) * rows)
        for chunk in MIXED_CHUNKS
        for rows in MIXED_DECODES
        for context in MIXED_CONTEXTS
    ]
    for batch in found:
        new = sum(chunk for chunk, _ in batch.chunks) + len(batch.contexts)
        if new <= most_tokens and batch.cached_tokens <= most_cached:
            yield batch


def rows_per_expert(tokens: int, top_k: int, experts: int, local: int, skew: float) -> list[int]:
    """Rows of each of the first `local` experts when `tokens` are routed to `top_k` of `experts` each.

    The busiest first: expert i has a share of `(i + 1)^-skew`, at most one row per token; 0 deals rows evenly.
    What does not come out whole goes to the largest remainders; the rank holds every `experts / local`-th expert.
    """
    shares = [(index + 1) ** -skew for index in range(experts)]
    left, counts, open_experts = float(tokens * top_k), [0.0] * experts, list(range(experts))
    while open_experts and left > 1e-9:
        # an expert gets at most one row of each token; what is above goes to the others
        total = sum(shares[index] for index in open_experts)
        full = [index for index in open_experts if left * shares[index] / total >= tokens]
        if not full:
            for index in open_experts:
                counts[index] = left * shares[index] / total
            break
        for index in full:
            counts[index] = float(tokens)
        left -= tokens * len(full)
        open_experts = [index for index in open_experts if index not in full]
    whole = [int(count) for count in counts]
    missing = tokens * top_k - sum(whole)
    order = sorted(range(experts), key=lambda index: (whole[index] - counts[index], index))
    for index in order[:missing]:
        whole[index] += 1
    return whole[:: experts // local][:local]


def load(rows: Sequence[int]) -> float:
    """Rows of the busiest expert over their mean; 1 where there are none."""
    return max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0
