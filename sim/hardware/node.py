"""Nodes and topology: which link joins two ranks, and how much of it a group can use."""

import math
from dataclasses import dataclass

from sim.hardware.spec import DeviceConf, LinkConf


@dataclass(frozen=True)
class Node:
    """Ranks of one device type, numbered so that they fill a scale-up domain, then a node, then the next.

    A scale-up domain (NVLink, xGMI, ICI, ...) may be smaller than a node (bridged pairs) or larger (a rack of 72).
    """

    device: DeviceConf

    @property
    def devices(self) -> int:
        """Devices behind one host."""
        return self.device.devices_per_node

    @property
    def domain(self) -> float:
        """Devices that share the scale-up link; 1 without one, infinite without a limit."""
        link = self.device.scale_up
        if not link.exists:
            return 1
        return link.max_group or math.inf

    @property
    def island(self) -> float:
        """Ranks that reach each other without the network: the larger of node and scale-up domain."""
        return max(self.domain, self.devices)

    def link_between(self, rank: int, other: int) -> LinkConf:
        """The link that two different ranks talk over.

        **Raises:** `ValueError` for a negative rank or a rank and itself.
        """
        if rank < 0 or other < 0 or rank == other:
            raise ValueError(f"link_between wants two different ranks from 0 on, got {rank} and {other}.")
        if rank // self.domain == other // self.domain:
            return self.device.scale_up
        if rank // self.devices == other // self.devices:
            return self.device.pcie
        return self.device.nic

    def link_for(self, group_size: int) -> LinkConf:
        """The slowest kind of link inside a group of neighbouring ranks 0 ... group_size - 1."""
        if group_size < 1:
            raise ValueError(f"link_for wants a group of at least 1 rank, got {group_size}.")
        if group_size == 1:
            return LinkConf()
        return self.link_between(0, group_size - 1)

    def check_link(self, group_size: int, key: str = "deployment.tensor_parallel") -> None:
        """Raise `ValueError`, which names the link to give and the `key` to lower, if the group has no link."""
        if group_size == 1 or self.link_for(group_size).exists:
            return
        name, island = self.device.name, self.island
        if group_size > island:
            within, link = f"more than the {island:g} of one node or scale-up domain, and no network joins them", "nic"
        else:
            shared = f", whose scale-up link joins {self.domain}," if self.domain > 1 else ""
            within, link = f"and the devices of a node{shared} have no link that joins so many", "pcie"
        widen = "" if link == "nic" else " (or scale_up, with max_group)"
        raise ValueError(
            f"{group_size} ranks of {name} have to talk, {within}: "
            f"give hardware.{link}.kind and hardware.{link}.bytes_per_s{widen}, or lower {key}."
        )

    def nodes_for(self, group_size: int) -> int:
        """Network islands that a group of neighbouring ranks touches."""
        return 1 if group_size <= self.island else math.ceil(group_size / self.island)


def usable_bytes_per_s(link: LinkConf, group_size: int) -> float:
    r"""What one rank can send to a group of g ranks over a link, per direction.

    - `switch`: the whole rate.
    - `mesh`: one of `max_group - 1` equal shares per peer, $B (g - 1)/(G - 1)$ (two MI300X of eight use one seventh).
    - `torus`: the ports along the axes the group spans, $B \min(1, \lceil \log_2 g \rceil / P)$.
    """
    if group_size < 2:
        return link.bytes_per_s
    if link.topology == "mesh" and link.max_group > 1:
        return link.bytes_per_s * min(1.0, (group_size - 1) / (link.max_group - 1))
    if link.topology == "torus":
        return link.bytes_per_s * min(1.0, math.ceil(math.log2(group_size)) / link.ports)
    return link.bytes_per_s
