"""The exact engine's price of a batch: two table look-ups and the closed form of the lengths."""

from sim.cost.lengths import FLOATS, lengths_s
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.deployment.graphs import EAGER, graph_mode_of, padding_table
from sim.scheduler.base import Batch


class Pricer:
    """Pads a batch to its CUDA graph and prices it, in integer nanoseconds.

    `step_ns = floor(1e9 (token_s[mode][padded] + row_s[emitting] + lengths_s(...)) + 1/2)` in float64, the rule
    that every engine follows.
    """

    def __init__(self, table: PriceTable, settings: EngineSettings):
        self._token_s = table.token_s.tolist()
        self._row_s = table.row_s.tolist()
        self._terms = table.lengths
        sizes = settings.graph_sizes
        self._largest = sizes[-1] if sizes else 0
        self._padded = padding_table(self._largest, sizes)
        self._mixed_mode = graph_mode_of(settings.graph_mode, 1, False, sizes)
        decode_mode = graph_mode_of(settings.graph_mode, 1, True, sizes)
        self._decodes = [self._without_lengths(rows, rows, decode_mode) for rows in range(settings.max_num_seqs + 1)]

    def __call__(self, batch: Batch) -> tuple[int, int, int]:
        """Duration in ns, padded tokens and graph mode (0 eager, 1 piecewise, 2 full) of a batch."""
        prefill_tokens, decodes = batch.prefill_tokens, batch.decodes
        if prefill_tokens:
            fixed_s, tokens, mode = self._without_lengths(prefill_tokens + decodes, batch.emitting, self._mixed_mode)
        else:
            fixed_s, tokens, mode = self._decodes[decodes]
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
        return int(1e9 * seconds + 0.5), tokens, mode

    def _without_lengths(self, tokens: int, emitting: int, mode: int) -> tuple[float, int, int]:
        """The tabulated seconds of a batch, its padded tokens and graph mode (`mode` if it is within the graphs)."""
        if mode and tokens <= self._largest:
            tokens = self._padded[tokens]
        else:
            mode = EAGER
        return self._token_s[mode][tokens] + self._row_s[emitting], tokens, mode
