"""What a step costs whose feed-forward parts run on devices of their own.

A batch is cut in m micro-batches that follow one another through attention, links and FFN (`sim.cost.ping_pong`). Each
has an equal share of the batch's tokens: of t tokens `t // m`, and one more in the first `t mod m`; one that would have
none runs a token that counts for nothing. All that the lengths' closed form reads is divided in proportion, so every
micro-batch has the batch's mean and spread of contexts, and its longest.

The FFN devices wait for the slowest attention instance of each micro-batch, and run the padded tokens of all. With
`ends` (embedding, last norm) before and after,

    step = max(ends + ping-pong, m launches of either side) + gap + host + max over instances (head and sampler)
"""

from typing import NamedTuple

import numpy as np

from sim.cost.lengths import LengthTerms
from sim.cost.model import CostModel
from sim.cost.ping_pong import Layers
from sim.cost.stages import transfer_s
from sim.cost.table import BEHIND, length_terms, price_steps
from sim.deployment.plan import FfnPlan, PlanArrays, Way


class WayPrices(NamedTuple):
    """Transfers in one direction: `latency_s`, and how long a micro-batch occupies the links beyond that.

    - `attention_s`: `[tokens + 1]`, as an attention instance sends or receives it.
    - `ffn_s`: `[instances x tokens + 1]`, as the FFN devices do.
    """

    latency_s: float
    attention_s: np.ndarray
    ffn_s: np.ndarray


class AttentionFfnPrices(NamedTuple):
    """Prices of the steps of a group of attention instances and their FFN devices, float64.

    - `ends_s`: `[tokens + 1]`; `mixers_s`: `[mixer, tokens + 1]`; `lengths`: constants of each mixer's closed form.
    - `feeds_s`: `[feed, instances x tokens + 1]`. `row_s`: `[rows + 1]`: LM head and sampler of one instance.
    - `layers`, `there`, `back`, `micro_batches`: how they follow one another.
    - `launch_s`: `[mode]`: to submit one micro-batch, on the side that needs longer; `gap_s`, `host_s` of a step.
    """

    ends_s: np.ndarray
    mixers_s: np.ndarray
    lengths: tuple[LengthTerms, ...]
    feeds_s: np.ndarray
    row_s: np.ndarray
    layers: Layers
    there: WayPrices
    back: WayPrices
    micro_batches: int
    launch_s: np.ndarray
    gap_s: np.ndarray
    host_s: float


def attention_ffn_prices(
    cost: CostModel, ffn_cost: CostModel, own: PlanArrays, ffn: FfnPlan, max_tokens: int, max_rows: int
) -> AttentionFfnPrices:
    """Tabulate both sides for instances of up to `max_tokens` padded tokens and `max_rows` emitting rows each.

    `cost`, `ffn_cost`: of the two devices; `own`: all that a rank runs.
    """
    tokens, rows = np.arange(max_tokens + 1.0), np.arange(max_rows + 1.0)
    everyone = np.arange(ffn.instances * max_tokens + 1.0)

    def by_tokens_s(model: CostModel, arrays: PlanArrays, counts: np.ndarray) -> np.ndarray:
        return device_s(price_steps(model, arrays, {"padded_tokens": counts}, ffn.parts))

    return AttentionFfnPrices(
        ends_s=by_tokens_s(cost, ffn.ends, tokens),
        mixers_s=np.stack([by_tokens_s(cost, arrays, tokens) for arrays in ffn.mixers]),
        lengths=tuple(length_terms(cost, arrays, ffn.parts) for arrays in ffn.mixers),
        feeds_s=np.stack([by_tokens_s(ffn_cost, arrays, everyone) for arrays in ffn.feeds]),
        row_s=price_steps(cost, ffn.ends, {"emitting": rows}, ffn.parts)["head_s"],
        layers=ffn.layers,
        there=way_prices(ffn.there, tokens, everyone),
        back=way_prices(ffn.back, tokens, everyone),
        micro_batches=ffn.micro_batches,
        launch_s=np.maximum(np.asarray(own.device.launch_s, np.float64), ffn.launch_s),
        gap_s=np.asarray(own.device.gap_s, np.float64),
        host_s=float(own.device.host_s),
    )


def way_prices(way: Way, tokens: np.ndarray, everyone: np.ndarray) -> WayPrices:
    """The transfers of one instance's `tokens` and of `everyone`'s; the latency is that of the slower side."""
    sides = [transfer_s(slots, counts) for slots, counts in ((way.attention, tokens), (way.ffn, everyone))]
    return WayPrices(max(float(side[0]) for side in sides), *(side - side[0] for side in sides))


def device_s(price: dict[str, np.ndarray]) -> np.ndarray:
    """What of a price depends on padded tokens alone."""
    found: np.ndarray = np.sum([price[name] for name in BEHIND], axis=0)
    return found


def shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole numbers as equal as they can be, the larger ones first."""
    each, more = divmod(total, parts)
    return [each + 1] * more + [each] * (parts - more)
