"""Links and what goes over them: bytes per second in use as counters, each request's KV as a slice, and its arrows.

Slices of one receiving rank that overlap stand on lanes below each other. An arrow leads from the step that prefilled
the prompt over its KV's slice to the first step at the decode instance.
"""

import numpy as np

from sim.report.result import SimulationResult
from sim.report.timeline.marks import LINKS_PID, Event, arrow, counter, names, span


def link_events(result: SimulationResult) -> list[Event]:
    """A counter for each link that was used, in GB/s."""
    links = result.links
    if links is None:
        return []
    events = []
    titles = [f"{name} ({rate / 1e9:.4g} GB/s)" for name, rate in zip(links.names, links.bytes_per_s, strict=True)]
    for link, at_ns, rate in zip(links.change_link.tolist(), links.change_ns.tolist(), links.change_rate, strict=True):
        events.append(counter(LINKS_PID, titles[link], at_ns, round(float(rate) / 1e9, 6)))
    return events


def transfer_events(result: SimulationResult, kept: np.ndarray, order: np.ndarray) -> list[Event]:
    """The KV of the requests `kept`, and its arrows between steps that are shown (rows `order`)."""
    moved = result.transfers
    if moved is None:
        return []
    rows = [
        row for row in kept.tolist() if moved.source[row] >= 0 and moved.received_ns[row] > moved.begun_ns[row] >= 0
    ]
    rows.sort(key=lambda row: (int(moved.begun_ns[row]), row))
    ends_of: dict[int, list[int]] = {}
    lanes: dict[tuple[int, int], int] = {}
    events: list[Event] = []
    shown = _Shown(result, order)
    for row in rows:
        source, target = int(moved.source[row]), int(moved.target[row])
        begun, received = int(moved.begun_ns[row]), int(moved.received_ns[row])
        busy = ends_of.setdefault(target, [])
        lane = next((lane for lane, end in enumerate(busy) if end <= begun), len(busy))
        busy[lane : lane + 1] = [received]
        tid = lanes.setdefault((target, lane), len(lanes) + 1)
        args = {
            "request": row,
            "from": result.rank_name(source),
            "to": result.rank_name(target),
            "bytes": int(moved.bytes[row]),
            "GB/s": round(float(moved.bytes[row]) / (received - begun), 3),
        }
        events.append(span(LINKS_PID, tid, f"KV of request {row}", begun, received, args))
        prefilled = int(moved.prefilled_ns[row])
        before = shown.begun(source, begun) if begun < prefilled else shown.ended(source, prefilled)
        after = shown.first(target, int(moved.seated_ns[row]))
        if before is not None and after is not None:
            events.append(arrow("s", row, source + 1, 1, before))
            events.append(arrow("t", row, LINKS_PID, tid, begun))
            events.append(arrow("f", row, target + 1, 1, after))
    threads = {
        tid: f"KV to {result.rank_name(target)}" + (f", lane {lane + 1}" if lane else "")
        for (target, lane), tid in lanes.items()
    }
    return names(LINKS_PID, "links", threads) + events


class _Shown:
    """Steps that are shown, by rank."""

    def __init__(self, result: SimulationResult, order: np.ndarray):
        steps = result.steps
        replica = np.asarray(steps.replica)[order]
        self._start = np.asarray(steps.start_ns)[order]
        self._end = np.asarray(steps.end_ns)[order]
        self._issued = np.asarray(steps.issued_ns)[order]
        self._mine = {int(rank): np.flatnonzero(replica == rank) for rank in np.unique(replica)}

    def ended(self, rank: int, by_ns: int) -> int | None:
        """Start of the latest step of a rank that had ended by then."""
        return self._latest(rank, self._end, by_ns)

    def begun(self, rank: int, by_ns: int) -> int | None:
        """Start of the latest step of a rank that had begun by then: the one that sends while it computes."""
        return self._latest(rank, self._start, by_ns)

    def _latest(self, rank: int, times: np.ndarray, by_ns: int) -> int | None:
        rows = self._mine.get(rank)
        place = -1 if rows is None else int(np.searchsorted(times[rows], by_ns, side="right")) - 1
        return None if rows is None or place < 0 else int(self._start[rows[place]])

    def first(self, rank: int, from_ns: int) -> int | None:
        """Start of the first step of a rank that was issued then or later."""
        rows = self._mine.get(rank)
        if rows is None:
            return None
        place = int(np.searchsorted(self._issued[rows], from_ns, side="left"))
        return int(self._start[rows[place]]) if place < len(rows) else None
