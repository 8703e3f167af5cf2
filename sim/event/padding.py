"""What a batch is padded to, looked up: the captured sizes of an engine's settings."""

from collections.abc import Sequence

from sim.deployment.engine import EngineSettings
from sim.deployment.graphs import EAGER, prefill_runs_as, runs_as
from sim.scheduler.base import Batch


class Padding:
    """Padded tokens and graph mode (0 eager, 1 piecewise, 2 full) of a batch.

    `decodes[rows]` is that of a batch that only decodes, up to `max_num_seqs` rows; `mixed[tokens]` that of others.
    Ranks that divide the tokens of a prefill each run their share of them, and all rows that decode.
    """

    def __init__(self, settings: EngineSettings):
        mode, sizes, top = settings.graph_mode, settings.graph_sizes, settings.full_graph_top
        self.ranks = settings.prefill_context_parallel
        of_prefill = settings.prefill_graph_sizes
        self.largest = max([0, *sizes, *of_prefill])
        self.mixed = [
            prefill_runs_as(tokens, of_prefill) if of_prefill else runs_as(mode, tokens, False, sizes, top)
            for tokens in range(self.largest + 1)
        ]
        self.decodes = [runs_as(mode, rows, True, sizes, top) for rows in range(settings.max_num_seqs + 1)]

    def __call__(self, batch: Batch) -> tuple[int, int]:
        """Padded tokens and graph mode."""
        prefills = batch.tokens - batch.decodes
        return self.of(batch.decodes - -prefills // self.ranks, not prefills)

    def of(self, tokens: int, only_decodes: bool) -> tuple[int, int]:
        """The same of so many tokens on one rank."""
        if only_decodes:
            return self.decodes[tokens]
        return self.mixed[tokens] if tokens <= self.largest else (tokens, EAGER)


class DraftPadding(Padding):
    """The same where rows verify drafts: only rows with all of theirs make a batch that decodes.

    A row without drafts, or with some, is one of several lengths to the engine. `decodes[rows]`: each with all drafts.
    """

    def __init__(self, settings: EngineSettings, draft_tokens: int):
        super().__init__(settings)
        self._drafts = draft_tokens
        mode, sizes, top = settings.graph_mode, settings.graph_sizes, settings.full_graph_top
        self.decodes = [
            runs_as(mode, rows * (1 + draft_tokens), True, sizes, top) for rows in range(settings.max_num_seqs + 1)
        ]

    def __call__(self, batch: Batch) -> tuple[int, int]:
        """Padded tokens and graph mode."""
        if not batch.prefill_tokens and batch.draft_tokens == self._drafts * batch.decodes:
            return self.decodes[batch.decodes]
        return self.of(batch.tokens, False)


class StepPadding:
    """Of one step of several ranks, each of whose batches (None: a dummy) is cut in `parts`.

    The step runs in the graph mode that all ranks can run in (eager before piecewise before full). In a graph, or with
    `pads_eager` in every step of an engine that has graphs, all are padded to the largest part; otherwise each runs its
    own tokens, one a part at least.
    """

    def __init__(self, settings: EngineSettings, parts: int = 1):
        self._padding = Padding(settings)
        self._parts = parts
        self._pads_eager = settings.profile.parallel.pads_eager and settings.graph_mode != "NONE"

    def __call__(self, batches: Sequence[Batch | None]) -> tuple[list[int], int]:
        """Padded tokens of each rank, all its parts together, and the graph mode of the step."""
        parts = self._parts
        dummy, of = self._padding.decodes[1], self._padding.of
        found = [
            dummy if batch is None else of(-(-batch.tokens // parts), batch.tokens == batch.decodes)
            for batch in batches
        ]
        mode = min(graph for _, graph in found)
        if mode != EAGER or self._pads_eager:
            return [max(tokens for tokens, _ in found) * parts] * len(found), mode
        return [parts if batch is None else max(batch.tokens, parts) for batch in batches], mode
