"""Collectives of a device by rule: its links as dimensions of ranks, and the closed form's times at many sizes.

Ranks of one island (scale-up domain or node) are the first dimension, islands behind a switch of NICs the second. A
device's latency is from device to device: through a switch, half of it on each of two links. A mesh has one link per
peer, with its share of the rate; round a torus goes one ring with all ports that the group spans.
"""

from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from sim.hardware.collective_rules import Dimension, Rules, closed_form_ns
from sim.hardware.node import Node, usable_bytes_per_s
from sim.hardware.spec import DeviceConf, LinkConf


RULED = "astra-sim"
"""The `collectives` of a device that are priced so."""
SIZES = tuple(float(1 << log) for log in range(10, 33))
"""Bytes of a rank's full buffer at which times are told; straight lines between."""


class Ruled(NamedTuple):
    """`a_s + s_per_byte m` for a small buffer of m bytes, and `time_s` at each of `SIZES`."""

    a_s: float
    s_per_byte: float
    time_s: tuple[float, ...]
    source: str


def ruled(device: DeviceConf, op: str, group: int) -> Ruled:
    """`op` among `group` neighbouring ranks of `device`, which a link joins; m as in `sim.hardware.collectives`."""
    node = Node(device)
    if op == "send_recv":
        link = node.link_for(group)
        times = (link.latency_s + size / link.bytes_per_s for size in (0.0, *SIZES))
        a_s, *time_s = times
        return Ruled(a_s, 1 / link.bytes_per_s, tuple(time_s), f"ASTRA-sim's rule over {_name(link)}: one message")
    local = int(min(group, node.island))
    facts = _facts()
    ways, names = [], []
    if local > 1:
        ways.append(_dimension(node.link_for(local), local, op))
        names.append(f"{local} on {_name(node.link_for(local))}")
    if node.nodes_for(group) > 1:
        ways.append(_dimension(device.nic, node.nodes_for(group), op))
        names.append(f"{node.nodes_for(group)} nodes on {_name(device.nic)}")
    rules = Rules(
        splits=facts["splits"],
        endpoint_ns=facts["endpoint_ns"],
        memory_bytes_per_ns=device.memory_bytes_per_s * 1e-9,
        queued=op in facts["queued"],
    )
    put_in = 1 / group if op == "all_gather" else 1.0
    a_s, first_s, *time_s = (
        1e-9 * float(closed_form_ns(op, size * put_in, ways, rules)) for size in (0.0, SIZES[0], *SIZES)
    )
    how = f"ASTRA-sim's rules, {' and '.join(way.algorithm for way in ways)}: {', '.join(names)}; {facts['source']}"
    return Ruled(a_s, (first_s - a_s) / SIZES[0], tuple(time_s), how)


def _dimension(link: LinkConf, size: int, op: str) -> Dimension:
    """A link's group of `size` ranks."""
    facts = _facts()["topologies"][link.topology]
    rate, latency_s = usable_bytes_per_s(link, size), link.latency_s
    if facts["kind"] == "FullyConnected":
        rate /= size - 1
    if facts["kind"] == "Switch":
        latency_s /= 2
    algorithm = facts["all_to_all" if op == "all_to_all" else "algorithm"]
    return Dimension(facts["kind"], size, latency_s * 1e9, rate * 1e-9, algorithm)


def _name(link: LinkConf) -> str:
    return f"{link.kind} {link.bytes_per_s / 1e9:g} GB/s, {link.latency_s * 1e6:g} us"


@cache
def _facts() -> dict[str, Any]:
    content = OmegaConf.create((resources.files("sim.hardware") / "collective_rules.yaml").read_text(encoding="utf-8"))
    found = OmegaConf.to_container(content)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
