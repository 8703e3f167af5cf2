"""The exact engine's price of a batch: two table look-ups and the closed form of the lengths."""

from sim.cost.lengths import FLOATS, decodes_s, lengths_s
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.deployment.graphs import EAGER, prefill_runs_as, runs_as
from sim.scheduler.base import Batch
from sim.scheduler.hooks import BatchShape


class Pricer:
    """Pads a batch to its CUDA graph and prices it, in integer nanoseconds.

    `step_ns = floor(1e9 (token_s[mode][padded] + row_s[emitting] + lengths_s(...)) + 1/2)` in float64, the rule
    that every engine follows. `shape` says what the device runs for a batch; None: what `settings` capture.
    """

    def __init__(self, table: PriceTable, settings: EngineSettings, shape: BatchShape | None = None):
        self._shape = shape
        self._token_s = table.token_s.tolist()
        self._row_s = table.row_s.tolist()
        self._terms = table.lengths
        mode, sizes = settings.graph_mode, settings.graph_sizes
        of_prefill = settings.prefill_graph_sizes
        self._largest = max([0, *sizes, *of_prefill])
        self._mixed = [
            prefill_runs_as(tokens, of_prefill) if of_prefill else runs_as(mode, tokens, False, sizes)
            for tokens in range(self._largest + 1)
        ]
        self._decodes = []
        for rows in range(settings.max_num_seqs + 1):
            padded, graph = runs_as(mode, rows, True, sizes)
            self._decodes.append((self._token_s[graph][padded] + self._row_s[rows], padded, graph))

    def __call__(self, batch: Batch) -> tuple[int, int, int]:
        """Duration in ns, padded tokens and graph mode (0 eager, 1 piecewise, 2 full) of a batch."""
        prefill_tokens, decodes = batch.prefill_tokens, batch.decodes
        if prefill_tokens or batch.emitting != decodes or self._shape is not None:
            padded, graph = self._padding(batch)
            fixed_s = self._token_s[graph][padded] + self._row_s[batch.emitting]
        else:
            fixed_s, padded, graph = self._decodes[decodes]
        if not prefill_tokens:
            lone_s = decodes_s(self._terms, decodes, batch.decode_sum, batch.decode_max, batch.decode_sumsq)
            return int(1e9 * (fixed_s + lone_s) + 0.5), padded, graph
        seconds = fixed_s + lengths_s(
            FLOATS,
            self._terms,
            prefill_tokens,
            batch.prefill_chunks,
            batch.prefill_area,
            batch.prefill_kv_tokens,
            batch.prefill_max_tokens,
            decodes,
            batch.decode_sum,
            batch.decode_max,
            batch.decode_sumsq,
        )
        return int(1e9 * seconds + 0.5), padded, graph

    def _padding(self, batch: Batch) -> tuple[int, int]:
        """Padded tokens and graph mode."""
        if self._shape is not None:
            return self._shape(batch)
        tokens = batch.tokens
        if tokens == batch.decodes:
            return self._decodes[tokens][1:]
        return self._mixed[tokens] if tokens <= self._largest else (tokens, EAGER)
