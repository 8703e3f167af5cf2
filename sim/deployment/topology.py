"""Where the replicas of a fleet stand, and the links that KV takes between them.

Ranks of one replica do the same at the same time, so their NICs count as one link of the sum of their rates, in each
direction. Replicas that stand in one node (or scale-up domain) talk over its own links instead; with an oversubscribed
network, what leaves a node also goes through the node's uplink, and what comes in through its downlink.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.deployment.conf import TransferConf
from sim.hardware.node import Node
from sim.hardware.spec import DeviceConf


@dataclass(frozen=True)
class Endpoint:
    """One rank's queue of a replica as a place on the network: its devices, and the nodes they stand in."""

    name: str
    device: DeviceConf
    devices: int
    nodes: tuple[tuple[str, int], ...]


@dataclass
class Topology:
    """Links by number: `names`, and `bytes_per_s` that KV can use of each. `path` gives those between two endpoints."""

    endpoints: tuple[Endpoint, ...]
    names: list[str] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)
    _number: dict[tuple[str, ...], int] = field(default_factory=dict)
    efficiency: float = 1.0
    oversubscription: float = 1.0

    def path(self, source: int, target: int) -> tuple[int, ...]:
        """The links from one endpoint to another; made when first asked for.

        **Raises:** `ValueError` for two that no link joins.
        """
        one, other = self.endpoints[source], self.endpoints[target]
        links = []
        if one.nodes == other.nodes and len(one.nodes) == 1:
            local = _local_link(one.device)
            if local > 0:
                for place, end, way in ((source, one, "out"), (target, other, "in")):
                    links.append(
                        self._link(("local", way, str(place)), f"{end.name} {way}, in the node", local * end.devices)
                    )
                return tuple(links)
        for place, end, way in ((source, one, "out"), (target, other, "in")):
            rate = end.device.nic.bytes_per_s if end.device.nic.exists else 0.0
            if rate <= 0:
                raise ValueError(
                    f"KV of {one.name} cannot reach {other.name}: {end.device.name} has no network; give "
                    "hardware.nic.kind and hardware.nic.bytes_per_s, or put both into one node."
                )
            links.append(self._link(("nic", way, str(place)), f"{end.name} {way}", rate * end.devices))
            if self.oversubscription > 1:
                links.append(self._uplink(end, way, rate))
        return tuple(links)

    def _uplink(self, end: Endpoint, way: str, rate: float) -> int:
        """A replica of several nodes has their uplinks for itself."""
        device, at = end.nodes[0]
        island = int(min(Node(end.device).island, 1 << 20))
        devices = island if len(end.nodes) == 1 else end.devices
        key = ("fabric", way, device, str(at))
        return self._link(key, f"node {at} of {device} {way}", rate * devices / self.oversubscription)

    def _link(self, key: tuple[str, ...], name: str, bytes_per_s: float) -> int:
        if key not in self._number:
            self._number[key] = len(self.names)
            self.names.append(name)
            self.bytes_per_s.append(bytes_per_s * self.efficiency)
        return self._number[key]


def lay_out(pools: Sequence[tuple[str, DeviceConf, int, int]], transfer: TransferConf, efficiency: float) -> Topology:
    """Put the ranks of all pools into nodes, each kind of device into its own.

    `pools`: name, device, number of endpoints and devices of each. An endpoint never crosses a node that could hold it
    whole.
    """
    used: dict[str, int] = {}
    endpoints = []
    for name, device, count, devices in pools:
        island = Node(device).island
        at = used.get(device.name, 0)
        if transfer.placement == "separate":
            at = _next_node(at, island)
        for index in range(count):
            if devices <= island and at // island != (at + devices - 1) // island:
                at = _next_node(at, island)
            nodes = tuple((device.name, int(rank // island)) for rank in _firsts(at, devices, island))
            label = f"{name} {index}" if count > 1 else name
            endpoints.append(Endpoint(label, device, devices, nodes))
            at += devices
        used[device.name] = at
    return Topology(tuple(endpoints), efficiency=efficiency, oversubscription=transfer.oversubscription)


def _firsts(at: int, devices: int, island: float) -> list[int]:
    """One rank in each node that the ranks [at, at + devices) touch."""
    if math.isinf(island):
        return [at]
    size = int(island)
    return [at, *range((at // size + 1) * size, at + devices, size)]


def _next_node(at: int, island: float) -> int:
    return at if math.isinf(island) else -(-at // int(island)) * int(island)


def _local_link(device: DeviceConf) -> float:
    """What one device can send to others of its node, 0 if there is nothing but the network."""
    node = Node(device)
    link = node.link_between(0, 1) if node.island > 1 else None
    return link.bytes_per_s if link is not None and link.exists else 0.0
