r"""Links that are shared: flows that run at once divide them max-min fairly.

A flow uses all its links at one rate. Rates are found by progressive filling: the link whose equal share
`(capacity - what is fixed) / flows not fixed` is smallest fixes its flows at that share, and so on. They change only
when a flow begins or ends, and then only for flows that share a link with it, directly or over others.

Source: Bertsekas and Gallager, Data Networks, section 6.5.2 (max-min fair flow control).
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from sim.event.agenda import NEVER, Action, Agenda


MOST_CHANGES = 20_000


class Flow:
    """Bytes on their way over `links`; `done(now_ns)` is called when the last one is there."""

    __slots__ = ("number", "links", "size_bytes", "left_bytes", "bytes_per_ns", "since_ns", "done", "version")

    def __init__(self, number: int, links: Sequence[int], size_bytes: float, done: Action):
        self.number = number
        self.links = links
        self.size_bytes = self.left_bytes = size_bytes
        self.bytes_per_ns = 0.0
        self.since_ns = 0
        self.done = done
        self.version = 0


class Network:
    """All links by number, with what they can carry per nanosecond, and the flows on them.

    Counted per link: `bytes`, `busy_ns` with at least one flow, the `most_flows` at once. `changes`: link, time and
    bytes per second from then on, three columns, of the first `MOST_CHANGES`; `changes_left_out` counts the others.
    """

    def __init__(self, agenda: Agenda, bytes_per_s: Sequence[float] = ()):
        self.capacity: list[float] = []
        self.bytes: list[float] = []
        self.busy_ns: list[int] = []
        self.most_flows: list[int] = []
        self._flows: list[dict[int, Flow]] = []
        self._busy_since: list[int] = []
        self._agenda = agenda
        self.grow(bytes_per_s)
        self.changes: tuple[list[int], list[int], list[float]] = ([], [], [])
        self.changes_left_out = 0
        self._begun = 0
        self._ends: list[tuple[int, int, int, Flow]] = []
        self._alarm_ns = NEVER

    def grow(self, bytes_per_s: Sequence[float]) -> None:
        """Links that have been added since: the same ones, and more."""
        for rate in bytes_per_s[len(self.capacity) :]:
            self.capacity.append(rate * 1e-9)
            self.bytes.append(0.0)
            for column in (self.busy_ns, self.most_flows, self._busy_since):
                column.append(0)
            self._flows.append({})

    def offers(self, links: Sequence[int]) -> float:
        """Bytes per second that one more flow would have on these links, were all shares of each link equal."""
        return 1e9 * min(self.capacity[link] / (len(self._flows[link]) + 1) for link in links)

    def start(self, links: Sequence[int], size_bytes: float, done: Action) -> Flow:
        """A flow of so many bytes begins now."""
        now_ns = self._agenda.now_ns
        self._begun += 1
        flow = Flow(self._begun, links, size_bytes, done)
        flow.since_ns = now_ns
        for link in links:
            if not self._flows[link]:
                self._busy_since[link] = now_ns
            self._flows[link][flow.number] = flow
            self.bytes[link] += size_bytes
            self.most_flows[link] = max(self.most_flows[link], len(self._flows[link]))
        self._share(now_ns, [flow])
        self._set_alarm()
        return flow

    def stop(self, flow: Flow) -> float:
        """A flow under way is broken off now: what is left of it does not count; the bytes that were sent."""
        now_ns = self._agenda.now_ns
        left = max(0.0, flow.left_bytes - flow.bytes_per_ns * (now_ns - flow.since_ns))
        flow.left_bytes = left
        for link in flow.links:
            self.bytes[link] -= left
        self._leave(now_ns, [flow])
        self._set_alarm()
        return flow.size_bytes - left

    def _alarm(self, now_ns: int) -> None:
        """End the flows whose last byte has arrived."""
        self._alarm_ns = NEVER
        ended = []
        while self._ends and self._ends[0][0] <= now_ns:
            _, _, version, flow = heappop(self._ends)
            if version != flow.version:
                continue
            flow.version = -1
            ended.append(flow)
        self._leave(now_ns, ended)
        for flow in ended:
            flow.done(now_ns)
        self._set_alarm()

    def _leave(self, now_ns: int, ended: Sequence[Flow]) -> None:
        """Flows use their links no more; others have new rates."""
        for flow in ended:
            flow.version = -1
            for link in flow.links:
                del self._flows[link][flow.number]
                if not self._flows[link]:
                    self.busy_ns[link] += now_ns - self._busy_since[link]
        self._note(now_ns, dict.fromkeys(link for flow in ended for link in flow.links if not self._flows[link]))
        neighbours = {f.number: f for flow in ended for link in flow.links for f in self._flows[link].values()}
        self._share(now_ns, neighbours.values())

    def _set_alarm(self) -> None:
        ends = self._ends
        while ends and ends[0][2] != ends[0][3].version:
            heappop(ends)
        if ends and ends[0][0] < self._alarm_ns:
            self._alarm_ns = ends[0][0]
            self._agenda.at(self._alarm_ns, self._alarm_if_due)

    def _alarm_if_due(self, now_ns: int) -> None:
        """Alarms that an earlier one has replaced find nothing to do."""
        if now_ns >= self._alarm_ns:
            self._alarm(now_ns)

    def _share(self, now_ns: int, flows: Iterable[Flow]) -> None:
        """New rates for these flows and all that share links with them, over any number of steps."""
        found = {flow.number: flow for flow in flows}
        links: dict[int, None] = {}
        queue = list(found.values())
        while queue:
            flow = queue.pop()
            for link in flow.links:
                if link not in links:
                    links[link] = None
                    for other in self._flows[link].values():
                        if other.number not in found:
                            found[other.number] = other
                            queue.append(other)
        if not found:
            return
        rates = fair_rates({link: self.capacity[link] for link in links}, {n: f.links for n, f in found.items()})
        for number, flow in found.items():
            flow.left_bytes = max(0.0, flow.left_bytes - flow.bytes_per_ns * (now_ns - flow.since_ns))
            flow.since_ns, flow.bytes_per_ns = now_ns, rates[number]
            flow.version += 1
            end_ns = now_ns + _ceil(flow.left_bytes / flow.bytes_per_ns)
            heappush(self._ends, (end_ns, number, flow.version, flow))
        self._note(now_ns, links)

    def _note(self, now_ns: int, links: Iterable[int]) -> None:
        """What is sent over these links from now on."""
        numbers, times, rates = self.changes
        for link in links:
            if len(numbers) < MOST_CHANGES:
                numbers.append(link)
                times.append(now_ns)
                rates.append(1e9 * sum(flow.bytes_per_ns for flow in self._flows[link].values()))
            else:
                self.changes_left_out += 1


def fair_rates(capacity: dict[int, float], paths: dict[int, Sequence[int]]) -> dict[int, float]:
    """Max-min fair rate of each flow, by its number, from the capacity of each link and the links of each flow.

    What a link has for each flow that is not fixed only grows as others are fixed, so an old value on the heap is a
    bound from below, and is looked at again before it counts.
    """
    left = dict(capacity)
    on: dict[int, set[int]] = {link: set() for link in capacity}
    for number, links in paths.items():
        for link in links:
            on[link].add(number)
    shares = [(left[link] / len(flows), link) for link, flows in on.items() if flows]
    heapify(shares)
    rates: dict[int, float] = {}
    while len(rates) < len(paths):
        seen, tightest = heappop(shares)
        flows = on[tightest]
        if not flows:
            continue
        share = left[tightest] / len(flows)
        if share > seen:
            heappush(shares, (share, tightest))
            continue
        for number in list(flows):
            rates[number] = share
            for link in paths[number]:
                on[link].discard(number)
                left[link] = max(0.0, left[link] - share)
    return rates


def _ceil(value: float) -> int:
    whole = int(value)
    return whole if whole >= value else whole + 1
