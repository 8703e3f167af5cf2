"""What dispatch and combine of experts cost by device and shape, measured where somebody measured.

A measured shape takes its measured times; any other the closed form of `sim.hardware.exchange_form` with the constants
fitted to its device. Among a number of ranks that nobody measured, the constants of the nearest one count. Devices
without measurements take those of H100 (one-sided: GB200), with the rates scaled by their links.
"""

import math
from collections.abc import Sequence

import numpy as np

from sim.hardware.collective_points import monotone
from sim.hardware.collectives import CARRIED_OVER, UNMEASURED, CollectiveConstants, family_of
from sim.hardware.exchange_form import MODES, ONE_SIDED, OPS, Constants, Shape, copies, exchange_s, latency_s, token_s
from sim.hardware.exchange_table import NUMBER_BYTES, ExchangeRow, shipped_points, shipped_rows
from sim.hardware.node import Node, usable_bytes_per_s
from sim.hardware.spec import DeviceConf


STANDS_FOR_ALL = {ONE_SIDED: "gb200"}
OTHERS = "h100_sxm"
NIC_BYTES_PER_S = 50e9
"""Of the measured groups of several nodes: 400 Gb/s InfiniBand per device (`conf/hardware/h100-sxm.yaml`)."""
SAMPLES = tuple(float(1 << power) for power in range(18))
"""Tokens at which the closed form is tabulated."""


def exchange_constants(
    device: DeviceConf, mode: str, op: str, hidden: int, number_bytes: float, top_k: int, experts: int, ranks: int
) -> CollectiveConstants:
    """Constants of one dispatch or combine among `ranks` neighbouring ranks of `device`, as of a collective.

    The buffer of a rank is all that it sends, its own share included: copies x hidden x `number_bytes` a token.

    **Raises:** `ValueError` for an unknown mode or direction, more ranks than experts, and ranks that no link joins.
    """
    if mode not in MODES or op not in OPS or not 1 <= ranks <= experts:
        raise ValueError(
            f"exchange_constants wants a mode of {', '.join(MODES)}, op of {', '.join(OPS)} and 1 to {experts} ranks, "
            f"got {mode}, {op} and {ranks}."
        )
    if ranks == 1:
        return CollectiveConstants((0.0,) * 3, (1.0,) * 3, 0.0, "one rank: nothing to move", False, rel_error=0.0)
    node = Node(device)
    node.check_link(ranks, "the size of the group")
    nodes = node.nodes_for(ranks)
    shape = Shape(hidden, hidden * number_bytes, top_k, experts, ranks, nodes)
    row, constants, notes = _constants(device, mode, op, shape)
    sent = copies(mode, shape)[0] * shape.token_bytes
    series = [
        one
        for one in shipped_points().get((row.family, mode, op, ranks, nodes), ())
        if (one.hidden, one.top_k, one.experts) == (hidden, top_k, experts)
    ]
    as_measured = not notes and math.isclose(number_bytes, NUMBER_BYTES[mode, op])
    tokens: Sequence[float] = SAMPLES
    if series and as_measured:
        tokens, times, error = series[0].tokens, monotone(series[0].time_s), row.between_error
    else:
        times, error = tuple(exchange_s(mode, constants, shape, np.array(SAMPLES)).tolist()), row.held_out_error
        if not as_measured:
            notes = notes or [f"measured with {NUMBER_BYTES[mode, op]:.3g} bytes a number, here {number_bytes:.3g}"]
    form_s = [latency_s(constants, shape) + count * token_s(mode, constants, shape) for count in tokens]
    return CollectiveConstants(
        (latency_s(constants, shape), 0.0, 0.0),
        (sent / token_s(mode, constants, shape), 0.0, 0.0),
        (ranks - 1) / ranks,
        "; ".join([row.source, *notes]),
        not as_measured,
        tuple(math.log(count * sent) for count in tokens),
        tuple(math.log(time / form) for time, form in zip(times, form_s, strict=True)),
        max(error, UNMEASURED if row.family != device.collectives else CARRIED_OVER) if notes else error,
    )


def _constants(device: DeviceConf, mode: str, op: str, shape: Shape) -> tuple[ExchangeRow, Constants, list[str]]:
    """The row that stands for a shape on a device, its constants with the device's rates, and what is assumed."""
    rows = [row for row in shipped_rows() if (row.mode, row.op) == (mode, op)]
    family = device.collectives
    if family not in {row.family for row in rows}:
        family = STANDS_FOR_ALL.get(mode, OTHERS)
    inside = _nearest([row for row in rows if row.family == family and row.nodes == 1], shape.ranks)
    row, constants, notes = inside, inside.constants, []
    if shape.nodes > 1:
        across = [row for row in rows if row.nodes > 1]
        own = [row for row in across if row.family == family]
        row = _nearest(own or [one for one in across if one.family == OTHERS], shape.ranks)
        constants = row.constants
        if not own:  # what the network adds to another device
            base = _nearest([one for one in rows if one.family == OTHERS and one.nodes == 1], shape.ranks)
            added_s = row.constants.base_s - base.constants.base_s
            constants = inside.constants._replace(
                base_s=inside.constants.base_s + added_s, nic_bytes_per_s=row.constants.nic_bytes_per_s
            )
            notes.append(f"network of {OTHERS}")
        faster = device.nic.bytes_per_s / NIC_BYTES_PER_S
        constants = constants._replace(nic_bytes_per_s=constants.nic_bytes_per_s * faster)
        if faster != 1.0:
            notes.append(f"NIC x {faster:.3g}")
    measured = family_of(family)
    link = Node(device).link_for(int(min(shape.ranks, Node(device).island)))
    scale = usable_bytes_per_s(link, shape.ranks) / measured["bytes_per_s"]
    if device.name not in measured["devices"] or scale != 1.0 or link.kind != measured["link"]:
        notes.append(f"measured on {', '.join(measured['devices'])}, link x {scale:.3g}")
    if (row.ranks, row.nodes) != (shape.ranks, shape.nodes):
        notes.append(f"measured among {row.ranks} ranks")
    constants = constants._replace(bytes_per_s=constants.bytes_per_s * scale)
    return row, constants, notes


def _nearest(rows: Sequence[ExchangeRow], ranks: int) -> ExchangeRow:
    """That of the number of ranks nearest by ratio; the smaller of two."""
    return min(sorted(rows, key=lambda row: row.ranks), key=lambda row: abs(math.log(row.ranks / ranks)))
