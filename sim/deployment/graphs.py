"""CUDA graphs: which token counts are captured, and how many tokens a step then runs with.

A captured size is a number of tokens. A step that runs in a graph is padded up to the next captured size; above the
largest, or where its mode has no graph for it, it runs eager, unpadded. Two kinds of graph exist: *piecewise*
(attention stays outside, sees real tokens) and *full* (one graph for the whole forward pass, only for batches where
every row decodes, and up to the sizes that such a batch can have).
"""

from bisect import bisect_left
from collections.abc import Sequence


EAGER, PIECEWISE, FULL = 0, 1, 2
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def capture_sizes(
    rule: str,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    *,
    query_len: int = 1,
    top: int = 512,
    sizes: Sequence[int] | None = None,
    max_size: int | None = None,
    old_sizes: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Captured token counts, ascending.

    `rule` names the version whose list it is: `0.10.2`, `0.19.0`, `0.33.0`, `sglang-0.5`, `trtllm-1.0` or `none`.
    `query_len` is 1 + draft tokens of a decode row, `top` the list's ceiling. The user's own: `sizes` (a list),
    `max_size` (the largest), or `old_sizes` (`cuda_graph_sizes` of 0.10.2: one number is a largest size, several are
    the list). Source: recorded lists of vLLM 0.10.2, 0.19.0 and 0.33.0.
    """
    if rule not in _RULES:
        raise ValueError(
            f"the graph list rule must be one of {', '.join(_RULES)}, got {rule!r}: change engine.profile.graph_list"
        )
    for key, values in (("cudagraph_capture_sizes", sizes), ("cuda_graph_sizes", old_sizes)):
        if values is not None and (len(values) == 0 or min(values) < 1):
            raise ValueError(f"captured sizes must be positive token counts, got {list(values)}: change engine.{key}")
    if max_size is not None and max_size < 1:
        raise ValueError(
            f"the largest captured size must be a positive token count, got {max_size}: "
            "change engine.max_cudagraph_capture_size, or set engine.enforce_eager=true"
        )
    return tuple(
        sorted(set(_RULES[rule](max_num_seqs, max_num_batched_tokens, query_len, top, sizes, max_size, old_sizes)))
    )


def _sizes_0_10_2(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    """1, 2, 4 and every 8th up to twice the sequences; draft tokens play no part."""
    if sizes is not None:
        return sizes
    if old_sizes is not None and len(old_sizes) > 1:
        return [size for size in old_sizes if size <= tokens]
    largest = old_sizes[0] if old_sizes else max_size or min(2 * seqs, top)
    return [size for size in (1, 2, 4, *range(8, largest + 1, 8)) if size <= tokens]


def _steps(cap: int) -> list[int]:
    """1, 2, 4, then every 8th below 256 and every 16th from there, up to `cap`."""
    return [n for n in (1, 2, 4) if n <= cap] + [*range(8, min(cap + 1, 256), 8), *range(256, cap + 1, 16)]


def _sizes_0_19_0(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    if sizes is not None:
        return [size for size in sizes if size <= tokens]
    return _steps(min(max_size or min(2 * seqs * query_len, top), tokens))


def _sizes_0_33_0(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    """As 0.19.0, plus the budget itself and the exact sizes of full decode batches, where they fit."""
    if sizes is not None:
        return [size for size in sizes if size <= tokens]
    ceiling = max_size or min(2 * seqs * query_len, top)
    chosen = _steps(min(ceiling, tokens))
    if tokens <= ceiling:
        chosen.append(tokens)
    if max_size is not None:
        return chosen
    rows = [seqs] if query_len == 1 else [*_steps(min(seqs, top)), min(seqs, top)]
    return chosen + [query_len * n for n in rows if query_len * n <= min(ceiling, tokens)]


def _sizes_sglang_0_5(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    """Decode rows: 1, 2, 4, 8, 12, then steps of 8, 16 and 32; the largest is appended, the sequences cut it."""
    if sizes is not None:
        return sizes
    largest = min(max_size or top, seqs)
    grid = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, 4097, 32))
    return [*(n for n in grid if n <= largest), largest]


def _sizes_trtllm_1_0(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    """With `enable_padding`: 1, 2, 4, every 8th up to 128, then powers of two; the largest is appended."""
    if sizes is not None:
        return sizes
    largest = min(max_size or top, seqs)
    grid = (1, 2, 4, *range(8, 129, 8), *(1 << power for power in range(8, 16)))
    return [*(n for n in grid if n <= largest), largest]


def prefill_sizes(chunk: int) -> tuple[int, ...]:
    """SGLang's captured prefill sizes by total tokens, up to the chunk size (0.5.23, read)."""
    bands = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, chunk, 512))
    return tuple(n for first, last, step in bands for n in range(first, min(last, chunk) + 1, step))


def prefill_runs_as(tokens: int, sizes: Sequence[int]) -> tuple[int, int]:
    """`(padded tokens, graph)` of a batch with a prefill where prefills have captured sizes of their own (SGLang).

    The next size, unless that is more than twice the tokens; then, and above the largest, eager.
    """
    size = padded(tokens, sizes)
    fits = 0 < tokens <= (sizes[-1] if sizes else 0) and size <= 2 * tokens
    return (size, PIECEWISE) if fits else (tokens, EAGER)


def _no_sizes(seqs, tokens, query_len, top, sizes, max_size, old_sizes):
    return sizes or ()


_RULES = {
    "0.10.2": _sizes_0_10_2,
    "0.19.0": _sizes_0_19_0,
    "0.33.0": _sizes_0_33_0,
    "sglang-0.5": _sizes_sglang_0_5,
    "trtllm-1.0": _sizes_trtllm_1_0,
    "none": _no_sizes,
}


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """Tokens the token-wise operators see: the next captured size, or `tokens` itself above the largest."""
    i = bisect_left(sizes, tokens)
    return sizes[i] if tokens > 0 and i < len(sizes) else tokens


def padding_table(max_tokens: int, sizes: Sequence[int]) -> list[int]:
    """`padded(t)` for t = 0 .. max_tokens, for engines that look it up once per step."""
    return [padded(t, sizes) for t in range(max_tokens + 1)]


def full_graph_top(mode: str, sizes: Sequence[int], max_num_seqs: int, query_len: int = 1) -> int:
    """The largest full graph of a batch that decodes, in tokens; 0 without any.

    Where such batches have graphs of their own, these are made of the captured sizes that `max_num_seqs` rows can fill.
    So if that number is none of them, the largest batches are beyond the last one: with 100 rows, sizes in steps of 8
    and piecewise graphs beside full ones, 96 rows run as 96 in a full graph, 97 as 104 in pieces.

    Source: vllm-project/vllm#57355 (2026-09), whose fix is in the list of 0.33; other engines append the last size.
    """
    if mode not in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        return max(sizes, default=0) if mode == "FULL" else 0
    return max((size for size in sizes if size <= max_num_seqs * query_len), default=0)


def graph_mode_of(mode: str, tokens: int, all_decode: bool, sizes: Sequence[int], full_top: int) -> int:
    """Which graph a step runs in: 0 eager, 1 piecewise, 2 full.

    `mode` as in `EngineSettings.graph_mode`; `all_decode`: every row of the batch is a decode row; `full_top`: that of
    `full_graph_top`.
    """
    if mode == "NONE" or not sizes or not 0 < tokens <= sizes[-1]:
        return EAGER
    if mode == "FULL" or (all_decode and tokens <= full_top):
        return FULL
    return EAGER if mode == "FULL_DECODE_ONLY" else PIECEWISE


def draft_runs_as(mode: str, tokens: int, sizes: Sequence[int], graphs: bool) -> tuple[int, int]:
    """`(padded tokens, graph)` of a drafter's pass: piecewise where the engine has such graphs, never full."""
    piecewise = graphs and mode in ("PIECEWISE", "FULL_AND_PIECEWISE")
    return runs_as("PIECEWISE" if piecewise else "NONE", tokens, False, sizes, 0)


def runs_as(mode: str, tokens: int, all_decode: bool, sizes: Sequence[int], full_top: int) -> tuple[int, int]:
    """`(padded tokens, graph)` of a step: what the token-wise operators see, and 0 eager, 1 piecewise, 2 full.

    Every engine follows this rule. A step that runs eager is not padded, even where a size is captured for it: under
    `FULL_DECODE_ONLY` a batch with a prefill runs with its own tokens.
    """
    graph = graph_mode_of(mode, tokens, all_decode, sizes, full_top)
    return (tokens if graph == EAGER else padded(tokens, sizes)), graph
