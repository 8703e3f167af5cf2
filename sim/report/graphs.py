"""CUDA graphs in a run: which steps ran in one, what padding to captured sizes cost, and which size is missing."""

from typing import Any

import numpy as np

from sim.report.result import SimulationResult
from sim.report.tables import GRAPH_MODES


WORTH = 0.01
"""A further size is worth naming from this share of the tokens that graphs ran with on."""

MOST_SIZES = 3
"""So many further sizes are named at most."""


def graph_fields(result: SimulationResult) -> dict[str, Any] | None:
    """`cuda_graphs` of a summary; None for a run without steps, or one whose settings are not known.

    `padding_share`: tokens that graphs ran with beyond those scheduled, over the scheduled ones of the same steps;
    `decode_padding_share`: of steps in which every row decodes. `eager_decode_share`: of those steps, the ones that ran
    without a graph.
    """
    steps, mode = result.steps, result.settings.get("graph_mode")
    if mode is None or not len(steps):
        return None
    tokens, padded, ran = _tokens(result)
    decode_only = np.asarray(steps.prefill_tokens) == 0
    in_graph = ran > 0
    eager_decodes = decode_only & ~in_graph
    return {
        "mode": mode,
        "sizes": list(result.settings.get("graph_sizes", ())),
        "steps": {name: int((ran == code).sum()) for code, name in enumerate(GRAPH_MODES)},
        "time_share": _time_shares(result, ran),
        "padded_tokens": int((padded - tokens)[in_graph].sum()),
        "padding_share": _beyond(tokens[in_graph], padded[in_graph]),
        "decode_padding_share": _beyond(tokens[in_graph & decode_only], padded[in_graph & decode_only]),
        "eager_decode_share": _share(eager_decodes, decode_only),
        "eager_decode_tokens": [int(n) for n in _ends(tokens[eager_decodes])],
        "sizes_to_add": sizes_to_add(result),
    }


def sizes_to_add(result: SimulationResult) -> list[int]:
    """Token counts that, captured too, would serve the decode batches of this run best: at most `MOST_SIZES`.

    First the largest batch that ran eager because no captured size holds it; then, one after the other, the size that
    saves the most padded tokens, while that is at least `WORTH` of all tokens that decode batches have in graphs.
    """
    sizes = [int(size) for size in result.settings.get("graph_sizes", ())]
    if not sizes or not len(result.steps):
        return []
    tokens, _, ran = _tokens(result)
    decode_only = np.asarray(result.steps.prefill_tokens) == 0
    over = tokens[decode_only & (ran == 0) & (tokens > max(sizes))]
    added = [int(over.max())] if len(over) else []
    held = tokens[decode_only & ((ran > 0) | (tokens > max(sizes)))]
    counts = np.bincount(held) if len(held) else np.zeros(1, np.int64)
    while len(added) < MOST_SIZES:
        size, saved = _best(counts, sorted({*sizes, *added}))
        if saved < WORTH * held.sum() or not saved:
            break
        added.append(size)
    return sorted(added)


def _best(counts: np.ndarray, sizes: list[int]) -> tuple[int, int]:
    """The further size that saves the most padded tokens, and how many; `counts`: batches by their tokens."""
    below, best, most = np.cumsum(counts), 0, 0
    for last, size in zip([0, *sizes], sizes, strict=False):
        between = np.arange(last + 1, min(size, len(counts)))
        if len(between):
            saved = (size - between) * (below[between] - below[last])
            if saved.max() > most:
                best, most = int(between[saved.argmax()]), int(saved.max())
    return best, most


def _tokens(result: SimulationResult) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scheduled tokens, tokens run with, and graph mode of each step."""
    steps = result.steps
    return (
        steps.tokens.astype(np.int64),
        np.asarray(steps.padded_tokens, np.int64),
        np.asarray(steps.graph_mode, np.int64),
    )


def _time_shares(result: SimulationResult, ran: np.ndarray) -> dict[str, float]:
    span = result.busy_ns.astype(float)
    whole = span.sum() or 1.0
    return {name: float(span[ran == code].sum() / whole) for code, name in enumerate(GRAPH_MODES)}


def _beyond(tokens: np.ndarray, padded: np.ndarray) -> float | None:
    return float(padded.sum() / tokens.sum() - 1) if tokens.sum() else None


def _share(part: np.ndarray, whole: np.ndarray) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _ends(tokens: np.ndarray) -> list[int]:
    """The least and the most, or nothing."""
    return [tokens.min(), tokens.max()] if len(tokens) else []
