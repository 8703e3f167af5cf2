"""Tokens that go only to where their experts are (`sim.hardware.exchange_form`): what a step exchanges, and its price.

Every rank sends its own tokens, so the one with the most is waited for. DeepEP quantises a token to 8 bits with a scale
per 128 numbers where the experts are stored so, and to nothing else; the one-sided exchange sends what the engine
quantises before it sends. Outputs come back in 16 bits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sim.deployment.all_to_all import DIRECT, modes_of
from sim.deployment.domains import Domains
from sim.deployment.exchange import ACTIVATION_BYTES, collective, collective_slots, dispatches, number_bytes
from sim.deployment.plan import GATHERS, MOST, CollectiveSlots, ExchangeRule
from sim.deployment.rules import ParallelRules
from sim.hardware.collectives import CollectiveConstants
from sim.hardware.exchange import exchange_constants
from sim.hardware.exchange_form import ONE_SIDED, group_copies
from sim.hardware.spec import DeviceConf
from sim.model.spec import Layer, ModelSpec


DEEPEP_FORMATS = ("fp8_block",)


class Direct(NamedTuple):
    """One direction of like layers, `layers` of them; `sent_bytes`: by a device for each of its tokens."""

    op: str
    layers: int
    sent_bytes: float
    constants: CollectiveConstants


def direct_exchanges(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    mode: str,
) -> Iterator[Direct]:
    """Dispatch and combine of every kind of layer with routed experts."""
    ranks, kinds = domains.ranks, Counter[tuple[int, float, int, int]]()
    formats = rules.quantised_dispatch if mode == ONE_SIDED else DEEPEP_FORMATS
    for layer, count in layers.items():
        routed = layer.ffn.routed(model.hidden, ranks, domains.ep_ffn)
        if routed is not None and dispatches(layer, domains):
            number = number_bytes(routed, device, formats)
            kinds[int(routed.hidden), number, int(routed.top_k), int(routed.experts)] += count
    for (hidden, number, top_k, experts), count in kinds.items():
        copies = group_copies(mode, top_k, experts, ranks)
        for op, width in (("dispatch", number), ("combine", ACTIVATION_BYTES)):
            constants = exchange_constants(device, mode, op, hidden, width, top_k, experts, ranks)
            yield Direct(op, count, copies * hidden * width, constants)


def direct_slots(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    mode: str,
) -> CollectiveSlots:
    """Dispatch and combine of `mode`. Rows are the tokens of all ranks, evenly spread over the devices."""
    found = direct_exchanges(model, layers, device, domains, rules, mode)
    return collective_slots(
        [collective(one.constants, one.layers, one.sent_bytes / domains.ranks, 0.0) for one in found]
    )


def exchange_rule(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    exchange: str,
) -> ExchangeRule:
    """How the exchange of a deployment is priced."""
    if exchange not in DIRECT:
        return GATHERS
    others, prefill = modes_of(exchange)
    slots = None if prefill == others else direct_slots(model, layers, device, domains, rules, prefill)
    return ExchangeRule(MOST, slots)
