"""What ranks send each other in a step: sums, gathers, tokens to the experts and back, activations between stages.

Tokens reach the experts of other data-parallel ranks, and their outputs come back, in one of the ways of
`sim.deployment.all_to_all`. Where they are gathered, the numbers and weights of its experts go with a token; where each
goes only to its experts, see `sim.deployment.direct`.

Where tensor-parallel devices divide a rank's tokens among themselves first, all devices take part, and the outputs are
gathered inside the rank; otherwise one device of each rank does, and the outputs are summed inside the rank.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.deployment.domains import Domains
from sim.deployment.formats import FORMATS, format_code, format_of
from sim.deployment.plan import COLLECTIVE_SLOTS, PROTOCOLS, CollectiveSlots
from sim.deployment.rules import ParallelRules
from sim.deployment.slots import filled, kernel_facts
from sim.hardware.collective_points import POINTS
from sim.hardware.collectives import LIBRARIES, CollectiveConstants, collective_constants
from sim.hardware.spec import DeviceConf
from sim.model.spec import Layer, Mamba, ModelSpec, MoE, RoutedExperts


ACTIVATION_BYTES = 2.0
TOKEN_ID_BYTES = 8.0
ROUTE_BYTES = 8.0
"""Number and weight of one chosen expert."""
SCALE_BYTES = {"fp8_block": 4 / 128, "mxfp8": 1 / 32, "nvfp4": 1 / 16}
"""A number's share of its scale, in formats where few of them have one in common."""


def library(engine: str) -> str:
    """Whose collectives `engine` runs: its own where they were measured, else NCCL's."""
    return engine if engine in LIBRARIES else "nccl"


def sliced(domains: Domains, rules: ParallelRules) -> bool:
    """Whether the devices of a rank divide its tokens among themselves before they go to the experts."""
    return domains.lockstep and domains.tp_attn > 1 and domains.ep_ffn > 1 and rules.slices_sequence


def exchange_group(domains: Domains, rules: ParallelRules) -> int:
    """Devices that tokens are exchanged among: all of them, or one of each data-parallel rank."""
    return domains.ranks if sliced(domains, rules) or domains.gathers_dense else domains.dp_attn


def inner_slots(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    library: str,
    first: bool,
    last: bool,
    further: Sequence[dict[str, Any]] = (),
) -> CollectiveSlots:
    """Inside a tensor-parallel group: sums of the hidden state, gathers of it and of the logits; none on one rank.

    Rows are the tokens of the group's own batch. `further` rows of the same.
    """
    ranks = domains.tp_attn
    rows: list[dict[str, Any]] = []
    if ranks > 1:
        hidden = model.hidden * ACTIVATION_BYTES
        sums: Counter[float] = Counter({hidden: int(first)})
        gathers = 0
        for layer, count in layers.items():
            feeds = any(x.name in ("down", "router") for x in layer.linears(model.hidden, 1))
            if feeds and dispatches(layer, domains) and (domains.gathers_dense or sliced(domains, rules)):
                gathers += 0 if domains.gathers_dense else count
                feeds = False
            sums[hidden] += count * (1 + feeds)
            if isinstance(layer.mixer, Mamba):  # B, C and dt are partial sums
                sums[(layer.mixer.dt_rank + 2 * layer.mixer.state) * ACTIVATION_BYTES] += count
        constants = collective_constants(device, "all_reduce", ranks, library)
        rows += [collective(constants, count, size, 0.0) for size, count in sums.items()]
        gather = collective_constants(device, "all_gather", ranks, library)
        if gathers:
            rows.append(collective(gather, gathers, hidden, 0.0))
        if last:
            rows.append(collective(gather, 1.0, model.padded_vocab * ACTIVATION_BYTES, 1.0))
    return collective_slots([*rows, *further])


def shared_slots(
    model: ModelSpec,
    layers: Mapping[Layer, int],
    device: DeviceConf,
    domains: Domains,
    rules: ParallelRules,
    exchange: str,
    library: str,
) -> CollectiveSlots:
    """Between data-parallel ranks that gather: tokens to the experts and outputs back. Rows are the tokens of all."""
    there: Counter[float] = Counter()
    back: Counter[float] = Counter()
    for layer, count in layers.items():
        if not dispatches(layer, domains):
            continue
        sent = model.hidden * ACTIVATION_BYTES
        routed = layer.ffn.routed(model.hidden, domains.ranks, domains.ep_ffn, domains.redundant)
        width = model.hidden if routed is None or domains.gathers_dense else routed.hidden
        if routed is not None and not domains.gathers_dense:
            sent = width * number_bytes(routed, device, rules.quantised_dispatch) + ROUTE_BYTES * routed.top_k
        there[sent] += count
        back[width * ACTIVATION_BYTES] += count
    group = exchange_group(domains, rules)
    rows: list[dict[str, Any]] = []
    if exchange == "naive":
        found = collective_constants(device, "all_gather", group, library)._replace(factor=1.0)
        rows += [collective(found, count * group, size / group, 0.0) for size, count in there.items()]
        summed = collective_constants(device, "all_reduce", group, library)
        rows += [collective(summed, count, size, 0.0) for size, count in back.items()]
    else:
        gather = collective_constants(device, "all_gather", group, library)
        scatter = collective_constants(device, "reduce_scatter", group, library)
        rows += [collective(gather, count, size, 0.0) for size, count in there.items()]
        rows += [collective(scatter, count, size, 0.0) for size, count in back.items()]
    return collective_slots(rows)


def number_bytes(routed: RoutedExperts, device: DeviceConf, quantised: Sequence[str]) -> float:
    """Bytes of a number of a token on its way to experts, in a format of `quantised` with its share of the scale."""
    form, stored = format_of(routed.dtype, device), FORMATS[format_code(routed.dtype, routed.bytes_per_param)]
    if form.quantises_input and stored in quantised:
        return form.input_bytes + SCALE_BYTES.get(stored, 0.0)
    return ACTIVATION_BYTES


def dispatches(layer: Layer, domains: Domains) -> bool:
    """Whether the feed-forward part of a layer works on the tokens of all data-parallel ranks."""
    if not domains.lockstep:
        return False
    return isinstance(layer.ffn, MoE) or (domains.gathers_dense and bool(layer.ffn.inter))


def hand_over(model: ModelSpec, device: DeviceConf, tensor_parallel: int = 1) -> CollectiveSlots:
    """From one pipeline stage to the next: hidden states and residual of every token.

    Each rank sends its `1 / tensor_parallel` of them to its neighbour of the next stage, where they are gathered.
    """
    tensors = float(kernel_facts()["hand_over"]["tensors"])
    size = model.hidden * ACTIVATION_BYTES
    sent = collective_constants(device, "send_recv", tensor_parallel + 1)
    rows = [collective(sent, tensors, size / tensor_parallel, 0.0)]
    if tensor_parallel > 1:
        rows.append(collective(collective_constants(device, "all_gather", tensor_parallel), tensors, size, 0.0))
    return collective_slots(rows)


def tokens_back(device: DeviceConf, ranks: int) -> CollectiveSlots:
    """From the last of `ranks` ranks to the first: one sampled token id."""
    return collective_slots([collective(collective_constants(device, "send_recv", ranks), 1.0, TOKEN_ID_BYTES, 0.0)])


def collective_slots(rows: list[dict[str, Any]]) -> CollectiveSlots:
    """Rows of `collective`, padded."""
    found: CollectiveSlots = filled(CollectiveSlots, rows, COLLECTIVE_SLOTS, unused_collective(), "collectives")
    return found


def unused_collective() -> dict[str, Any]:
    """The values of a slot without collectives."""
    nothing = np.zeros(PROTOCOLS)
    neutral = {"bytes_per_token": 0, "factor": 0, "emitting": 0, "a_s": nothing, "bytes_per_s": nothing}
    return neutral | measured_points((), ()) | {"rel_error": 0, "estimated": 0, "largest": np.inf}


def collective(constants: CollectiveConstants, count: float, bytes_per_token: float, emitting: float) -> dict[str, Any]:
    """`count` collectives of one size in a step; see `CollectiveSlots`."""
    return {
        "count": count,
        "bytes_per_token": bytes_per_token,
        "factor": constants.factor,
        "a_s": constants.a_s,
        "bytes_per_s": constants.bytes_per_s,
        "emitting": emitting,
        **measured_points(constants.log_sent, constants.log_ratio),
        "rel_error": constants.rel_error,
        "estimated": float(constants.estimated),
        "largest": math.exp(constants.log_sent[-1]) if constants.log_sent else math.inf,
    }


def measured_points(log_sent: tuple[float, ...], log_ratio: tuple[float, ...]) -> dict[str, Any]:
    """`log_sent` and `log_ratio` of a slot: measured points, then ones that change nothing."""
    last, ratio = (log_sent[-1], log_ratio[-1]) if log_sent else (0.0, 0.0)
    spare = POINTS - len(log_sent)
    return {
        "log_sent": np.array([*log_sent, *(last + 1.0 + index for index in range(spare))]),
        "log_ratio": np.array([*log_ratio, *[ratio] * spare]),
    }
