"""Steps of attention instances that share FFN devices: padded and priced together, like those of ranks in lockstep."""

from collections.abc import Sequence

from sim.cost.attention_ffn import AttentionFfnPrices, shares
from sim.cost.lengths import FLOATS, lengths_s
from sim.cost.ping_pong import Hops, cycles, ping_pong_s
from sim.deployment.engine import EngineSettings
from sim.event.padding import StepPadding
from sim.scheduler.base import Batch


class AttentionFfnPricer:
    """Pads the micro-batches of one step alike and prices it, in integer nanoseconds.

    Every instance cuts its batch in the same number of micro-batches. The price is that of `sim.cost.attention_ffn`.
    """

    def __init__(self, prices: AttentionFfnPrices, settings: EngineSettings):
        self._parts = prices.micro_batches
        self._pattern = cycles(prices.layers)
        self._ends_s = prices.ends_s.tolist()
        self._mixers_s = prices.mixers_s.tolist()
        self._feeds_s = prices.feeds_s.tolist()
        self._ways = [
            (way.latency_s, way.attention_s.tolist(), way.ffn_s.tolist()) for way in (prices.there, prices.back)
        ]
        self._row_s = prices.row_s.tolist()
        self._launch_s = [self._parts * launch_s for launch_s in prices.launch_s.tolist()]
        self._fixed_s = [gap_s + prices.host_s for gap_s in prices.gap_s.tolist()]
        self._lengths = prices.lengths
        self.padded = StepPadding(settings, self._parts)

    def __call__(self, batches: Sequence[Batch | None]) -> tuple[int, list[int], int]:
        """Duration in ns, padded tokens of each instance, and graph mode; None is a dummy batch."""
        padded, mode = self.padded(batches)
        parts = [shares(tokens, self._parts) for tokens in padded]
        most = [max(sizes) for sizes in zip(*parts, strict=True)]
        everyone = [sum(sizes) for sizes in zip(*parts, strict=True)]
        attention_s = self._attention_s(batches, parts)
        there, back = (
            Hops([max(own_s[one], all_s[whole]) for one, whole in zip(most, everyone, strict=True)], latency_s)
            for latency_s, own_s, all_s in self._ways
        )
        ffn_s = [[table[tokens] for tokens in everyone] for table in self._feeds_s]
        body_s = self._ends_s[max(padded)] + ping_pong_s(self._pattern, attention_s, ffn_s, there, back)
        row_s = max(0.0 if batch is None else self._row_s[batch.emitting] for batch in batches)
        step_s = max(body_s, self._launch_s[mode]) + self._fixed_s[mode] + row_s
        return int(1e9 * step_s + 0.5), padded, mode

    def _attention_s(self, batches: Sequence[Batch | None], parts: Sequence[Sequence[int]]) -> list[list[float]]:
        """One layer of each mixer over each micro-batch of the slowest instance."""
        found = [[0.0] * self._parts for _ in self._mixers_s]
        for batch, padded in zip(batches, parts, strict=True):
            tokens = 0 if batch is None else batch.tokens
            each, more = divmod(tokens, self._parts)
            for kind, table in enumerate(self._mixers_s):
                small_s = self._length_s(batch, kind, each) if each else 0.0
                large_s = self._length_s(batch, kind, each + 1) if more else 0.0
                slowest = found[kind]
                for j, size in enumerate(padded):
                    own_s = table[size] + (large_s if j < more else small_s)
                    if own_s > slowest[j]:
                        slowest[j] = own_s
        return found

    def _length_s(self, batch: Batch | None, kind: int, size: int) -> float:
        """What the lengths of `size` of a batch's tokens add to one layer."""
        assert batch is not None
        terms, tokens = self._lengths[kind], batch.tokens
        sums = (
            batch.decodes * size / tokens,
            batch.decode_sum * size / tokens,
            batch.decode_max,
            batch.decode_sumsq * size / tokens,
        )
        return float(
            lengths_s(
                FLOATS,
                terms,
                batch.prefill_tokens * size / tokens,
                batch.prefill_chunks * size / tokens,
                batch.prefill_area * size / tokens,
                batch.prefill_kv_tokens * size / tokens,
                batch.prefill_max_tokens,
                *sums,
            )
        )
