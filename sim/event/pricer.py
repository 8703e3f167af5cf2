"""The exact engine's price of a batch: two table look-ups and the closed form of the lengths."""

from sim.cost.drafting import DraftedPrices, draft_s
from sim.cost.experts.prices import RoutingPrices
from sim.cost.lengths import batch_s
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineSettings
from sim.event.padding import DraftPadding, Padding
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
        self._padded = shape or Padding(settings)
        self._decodes = [
            (self._token_s[graph][padded] + self._row_s[rows], padded, graph)
            for rows, (padded, graph) in enumerate(Padding(settings).decodes)
        ]

    def __call__(self, batch: Batch) -> tuple[int, int, int]:
        """Duration in ns, padded tokens and graph mode (0 eager, 1 piecewise, 2 full) of a batch."""
        decodes = batch.decodes
        if batch.prefill_tokens or batch.emitting != decodes or self._shape is not None:
            padded, graph = self._padded(batch)
            fixed_s = self._token_s[graph][padded] + self._row_s[batch.emitting]
        else:
            fixed_s, padded, graph = self._decodes[decodes]
        return int(1e9 * (fixed_s + batch_s(self._terms, batch)) + 0.5), padded, graph


class RoutedPricer(Pricer):
    """The same where tokens are spread unevenly over experts: who gets how many is drawn for every batch."""

    def __init__(
        self, table: PriceTable, routing: RoutingPrices, settings: EngineSettings, shape: BatchShape | None = None
    ):
        super().__init__(table, settings, shape)
        self._routing = routing

    def __call__(self, batch: Batch) -> tuple[int, int, int]:
        """As `Pricer`, with what the experts of this batch take beyond what is tabulated."""
        padded, graph = self._padded(batch)
        seconds = self._token_s[graph][padded] + self._row_s[batch.emitting]
        if padded:
            extra_s = self._routing.extra_s(
                padded, batch.decode_sum, batch.decodes, batch.prefill_area, batch.prefill_tokens
            )
            seconds += self._routing.change_s(extra_s, padded, graph)
        return int(1e9 * (seconds + batch_s(self._terms, batch)) + 0.5), padded, graph


class DraftingPricer:
    """The price of a batch whose rows verify drafts, and of the passes that draft the next ones behind it.

    As `Pricer`; the LM head and the sampler run over all drafts too.
    """

    def __init__(self, prices: DraftedPrices, settings: EngineSettings, draft_tokens: int):
        self._token_s = prices.verify.token_s.tolist()
        self._row_s = prices.verify.row_s.tolist()
        self._terms = prices.verify.lengths
        self._draft = prices.draft
        self._padded = DraftPadding(settings, draft_tokens)

    def __call__(self, batch: Batch) -> tuple[int, int, int]:
        """Duration in ns, padded tokens and graph mode of a batch."""
        padded, graph = self._padded(batch)
        seconds = self._token_s[graph][padded] + self._row_s[batch.emitting + batch.draft_tokens]
        seconds += batch_s(self._terms, batch)
        if self._draft is not None:
            seconds += draft_s(self._draft, batch)
        return int(1e9 * seconds + 0.5), padded, graph


def pricer(prices: PriceTable | DraftedPrices, settings: EngineSettings) -> Pricer | DraftingPricer:
    """The pricer of a table, or of tables with drafts."""
    if isinstance(prices, DraftedPrices):
        assert settings.speculation is not None
        return DraftingPricer(prices, settings, settings.speculation.tokens)
    table = prices
    return Pricer(table, settings) if table.routing is None else RoutedPricer(table, table.routing, settings)
