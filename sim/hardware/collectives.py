"""What collectives cost by device, operation and group size, measured where somebody measured.

One collective over a buffer of m bytes takes about the (soft) minimum over LL, LL128 and Simple of
`a + factor m / bandwidth`, times a ratio that makes it what was measured at the measured sizes. m is the full buffer of
one rank: the tensor of an all-reduce, the gathered output of an all-gather, the input of a reduce-scatter, all that a
rank sends in an all-to-all, the message of a send.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from sim.hardware.collective_points import Measured, log_ratios, measured
from sim.hardware.collective_table import ANY_GROUP, SHARPNESS, CollectiveRow, Triple, shipped_rows, triple
from sim.hardware.collectives_ruled import RULED, SIZES, ruled
from sim.hardware.node import Node, usable_bytes_per_s
from sim.hardware.spec import DeviceConf, LinkConf


OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
LIBRARIES = ("vllm", "sglang", "trtllm", "nccl")


UNMEASURED = 0.25
"""Error claimed of the formula over a link: on six measured families it is off by 4-43 %, in the mean by 22 %."""
CARRIED_OVER = 0.12
"""Least error claimed of a family on another device: as much as the form is off for a group size it has not seen."""
STRAIGHT = 1e-9
"""Log ratio below which a rule's times are a straight line."""
ORIGIN = "aiconfigurator-core 0.12.0 tables"


class CollectiveConstants(NamedTuple):
    """What a plan needs of one communicator.

    - `a_s`, `bytes_per_s`: latency and bandwidth by protocol; `factor`: bytes a rank sends over those of its buffer.
    - `log_sent`, `log_ratio`: of the measured sizes, the logarithm of the bytes a rank sends, and of the measured time
      over that of the three protocols; empty where nothing was measured.
    - `rel_error`: mean error to expect inside the measured sizes, or everywhere without any.
    - `estimated`: whether it is no measurement of this operation, group and device.
    """

    a_s: Triple
    bytes_per_s: Triple
    factor: float
    source: str
    estimated: bool
    log_sent: tuple[float, ...] = ()
    log_ratio: tuple[float, ...] = ()
    rel_error: float = UNMEASURED


def algorithm_steps(op: str, group: int) -> int:
    """Ring steps: 2 (n - 1) for an all-reduce, n - 1 for its halves and all-to-all, 1 for a send."""
    return {"all_reduce": 2 * (group - 1), "send_recv": 1}.get(op, group - 1)


def algorithm_factor(op: str, group: int) -> float:
    """Bytes each rank sends over the bytes of its buffer: 2 (n - 1)/n for an all-reduce, (n - 1)/n, or 1 for a send."""
    share = (group - 1) / group
    return {"all_reduce": 2 * share, "send_recv": 1.0}.get(op, share)


def collective_constants(device: DeviceConf, op: str, group: int, library: str = "vllm") -> CollectiveConstants:
    """Constants of `op` among `group` neighbouring ranks of `device`.

    The all-reduce of an engine (`library` vllm, sglang, trtllm) is what that engine runs in a captured graph: its
    own kernels up to their size limit, NCCL above (an eager launch adds host time, which is not in here); the other
    operations are NCCL's. Preference: measured for this group; a like family at this group; the same library's fit
    over all groups; another library at this group; the group's all-reduce with a lower latency; a formula
    from the link's latency and rate. Across nodes NCCL's constants are taken, network hops are added, and the
    bandwidth is capped by the nodes' NICs (all NICs of a node serve a ring; an all-to-all has one per rank). A device
    with `collectives=astra-sim` has none of this, but ASTRA-sim's rules over its links.

    **Arguments:**

    - `device`: supplies links, `devices_per_node` and the measured family (`device.collectives`).
    - `op`: one of `OPERATIONS`. For `send_recv`, `group` is the span of ranks between the two, both included.
    - `group`: ranks; 1 costs nothing.
    - `library`: one of `LIBRARIES`, perhaps with a version ("vllm/0.19.0"): the newest measured build up to it counts,
      without one the newest.

    **Raises:** `ValueError` for an unknown operation, library, family, a group below 1 or one that no link joins.
    """
    if op not in OPERATIONS or library.partition("/")[0] not in LIBRARIES or group < 1:
        raise ValueError(
            f"collective_constants wants op in {', '.join(OPERATIONS)}, library in {', '.join(LIBRARIES)} "
            f"and a group of at least 1 rank, got op={op}, library={library}, group={group}."
        )
    if group == 1:
        nothing = "one rank: nothing to move"
        return CollectiveConstants((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.0, nothing, False, rel_error=0.0)
    node = Node(device)
    node.check_link(group, "the size of the group")
    if device.collectives == RULED:
        return _by_rule(device, op, group)
    nodes = node.nodes_for(group)
    if nodes == 1:
        return _inside(device, op, group, node.link_for(group), library)
    return _across(device, op, group, node, nodes)


def _inside(device: DeviceConf, op: str, group: int, link: LinkConf, library: str) -> CollectiveConstants:
    alike = "all_to_all" if op == "send_recv" else op
    ranks = 2 if op == "send_recv" else group
    factor = algorithm_factor(op, group)
    family = _family(device, link)
    library, _, version = library.partition("/")
    found = _measured(device.collectives, alike, ranks, library) if family else None
    if family is None or found is None:
        a_s, bytes_per_s, source = _formula(op, ranks, link)
        return CollectiveConstants(a_s, bytes_per_s, factor, source, True)
    row, latency_ratio, exact = found
    steps = algorithm_steps(row.op, ranks) if row.group == ANY_GROUP else 0
    scale = link.bytes_per_s / family["bytes_per_s"]
    a_s = triple((a + steps * hop) * latency_ratio for a, hop in zip(row.a_s, row.hop_s, strict=True))
    own = device.name in family["devices"] and scale == 1.0
    points = measured(row.family, row.library, row.op, ranks, version if row.library == library else "")
    points = points if latency_ratio == 1.0 else None
    notes = [row.source if points is None else f"{ORIGIN}: {row.library}/{points.build}"]
    if not own:
        notes.append(f"measured on {', '.join(family['devices'])}, bandwidth x {scale:.3g}")
    if not exact:
        notes.append(
            f"carried over to {op} of {ranks} ranks from {row.op} of {row.group or 'other groups'}, {row.family}"
        )
    log_sent: tuple[float, ...] = ()
    log_ratio: tuple[float, ...] = ()
    if points:
        log_sent, log_ratio = log_ratios(points, algorithm_factor(row.op, ranks), a_s, row.bytes_per_s)
    known = points.rel_error if points else row.held_out_error or row.fit_error
    return CollectiveConstants(
        a_s,
        triple(scale * b for b in row.bytes_per_s),
        factor,
        "; ".join(notes),
        not (own and exact and op == alike),
        log_sent,
        log_ratio,
        known if own else max(known, CARRIED_OVER),
    )


def _measured(family: str, op: str, group: int, library: str) -> tuple[CollectiveRow, float, bool] | None:
    """Best row for an operation, the ratio to apply to its latency, and whether it is a measurement of just this."""
    table = _table()
    own = library if op == "all_reduce" else "nccl"
    others = [name for name in LIBRARIES if name != own]
    like = _links()["families"][family].get("like", family)
    largest = max(
        (row.group for row in shipped_rows() if (row.family, row.library, row.op) == (family, own, op)), default=0
    )
    wide = like if group > largest else family
    preference = [(family, own, group), (like, own, group), (wide, own, ANY_GROUP)]
    for key in [*preference, *((family, name, group) for name in others)]:
        row = table.get((key[0], key[1], op, key[2]))
        if row:
            return row, 1.0, key == preference[0]
    if op == "all_reduce":
        return None
    reduced = _measured(family, "all_reduce", group, "nccl")
    return reduced and (reduced[0], float(_links()["derived"]["latency_ratio"]), False)


def _formula(op: str, ranks: int, link: LinkConf) -> tuple[Triple, Triple, str]:
    """Ring of three protocols over one link: base + steps x (protocol's hop, at least the link's latency)."""
    kind, protocols = _link_class(link), _links()["protocols"]
    steps = algorithm_steps(op, ranks)
    bus = kind["efficiency"] * usable_bytes_per_s(link, ranks)
    a_s = triple(
        base + steps * max(hop, link.latency_s) for base, hop in zip(protocols["base_s"], kind["hop_s"], strict=True)
    )
    source = f"estimated from {link.kind} {link.bytes_per_s / 1e9:g} GB/s: {protocols['source']}; {kind['source']}"
    return a_s, _with_rate(protocols["bandwidth_share"], bus), source


def _across(device: DeviceConf, op: str, group: int, node: Node, nodes: int) -> CollectiveConstants:
    network = _links()["links"]["network"]
    hops = [max(hop, device.nic.latency_s) for hop in network["hop_s"]]
    rate = network["efficiency"] * device.nic.bytes_per_s
    factor = algorithm_factor(op, group)
    link = f"{device.nic.kind} {device.nic.bytes_per_s / 1e9:g} GB/s per device"
    note = f"estimated across {nodes} nodes: {link}; {network['source']}"
    if op == "send_recv":
        protocols = _links()["protocols"]
        a_s = triple(base + hop for base, hop in zip(protocols["base_s"], hops, strict=True))
        return CollectiveConstants(a_s, _with_rate(protocols["bandwidth_share"], rate), factor, note, True)
    local = int(node.island)
    inside = collective_constants(device, op, local, "nccl")
    if local == 1:
        protocols = _links()["protocols"]
        inside = inside._replace(a_s=triple(protocols["base_s"]), bytes_per_s=triple(protocols["bandwidth_share"]))
    # All-reduce climbs a tree of nodes and comes back; the others go round a ring.
    crossings = 2 * (nodes - 1).bit_length() if op == "all_reduce" else nodes - 1
    a_s = triple(a + crossings * hop for a, hop in zip(inside.a_s, hops, strict=True))
    cap = rate * (group - 1) / (group - local) if op == "all_to_all" else rate * local
    bandwidths = (
        inside.bytes_per_s if local > 1 and _rate(inside.bytes_per_s) < cap else _with_rate(inside.bytes_per_s, cap)
    )
    source = f"{inside.source}; {note}" if local > 1 else note
    return CollectiveConstants(a_s, bandwidths, factor, source, True)


def _by_rule(device: DeviceConf, op: str, group: int) -> CollectiveConstants:
    """One protocol, made to pass through the rule's times where several dimensions bend them."""
    found, factor = ruled(device, op, group), algorithm_factor(op, group)
    a_s, bytes_per_s = (found.a_s, 0.0, 0.0), (factor / found.s_per_byte, 0.0, 0.0)
    points = Measured(SIZES, found.time_s, "", UNMEASURED)
    log_sent, log_ratio = log_ratios(points, factor, a_s[:1], bytes_per_s[:1])
    if max(map(abs, log_ratio)) < STRAIGHT:
        log_sent = log_ratio = ()
    return CollectiveConstants(a_s, bytes_per_s, factor, found.source, True, log_sent, log_ratio)


def family_names() -> tuple[str, ...]:
    """What a device's `collectives` may name: the measured families, and the rules."""
    return (*_links()["families"], RULED)


def family_of(name: str) -> dict[str, Any]:
    """A measured family: its `link`, `bytes_per_s` and `devices`."""
    found: dict[str, Any] = _links()["families"][name]
    return found


def _family(device: DeviceConf, link: LinkConf) -> dict[str, Any] | None:
    """The measured family of a device, if it was measured over this kind of link."""
    if not device.collectives:
        return None
    families = _links()["families"]
    if device.collectives not in families:
        raise ValueError(
            f"Device {device.name}: collectives must be one of {', '.join(families)} or empty, "
            f"got {device.collectives}; correct collectives in its file."
        )
    family = families[device.collectives]
    return family if family["link"] == link.kind else None


def _rate(bandwidths: Sequence[float]) -> float:
    """What three protocols reach together on large messages: the soft minimum of the times is a norm of the rates."""
    return float(sum(b**SHARPNESS for b in bandwidths) ** (1 / SHARPNESS))


def _with_rate(bandwidths: Sequence[float], rate: float) -> Triple:
    """The same proportions, scaled so that large messages reach `rate` and not more."""
    return triple(b * rate / _rate(bandwidths) for b in bandwidths)


def _link_class(link: LinkConf) -> dict[str, Any]:
    links = _links()["links"]
    return links.get(link.kind, links["other"])


@cache
def _links() -> dict[str, Any]:
    content = OmegaConf.create((resources.files("sim.hardware") / "links.yaml").read_text())
    container = OmegaConf.to_container(content)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


@cache
def _table() -> dict[tuple[str, str, str, int], CollectiveRow]:
    return {(row.family, row.library, row.op, row.group): row for row in shipped_rows()}
