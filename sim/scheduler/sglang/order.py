"""The order in which SGLang's queue is served: its policies, and what they touch in the tree."""

from sim.memory.radix import TOKEN_BYTES, Node
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.request import SglangRequest


AGNOSTIC = ("fcfs", "lof")
AWARE = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
POLICIES = AGNOSTIC + AWARE

MATCHED_AT_MOST = 128
"""Waiting requests above which lpm and hrrn do not look at the tree; so many are refreshed."""
SHARED_TOKENS = 32
"""Up to this hit a request that shares as many tokens with one before it is put off: it will find more later."""
LAST = float("inf")
"""The rank of a request that was put off, whatever it found."""


class QueueOrder:
    """Puts the waiting queue in order, in place, before each pass of admission.

    **Arguments:** `policy`: one of `POLICIES`; `priority`: urgency comes first; `low_first`: a small value is urgent;
    `refresh_passes`: in every so many passes that do not look at the tree, the first of the queue are looked up, to
    renew what they will find (0: never).
    """

    def __init__(self, policy: str, pool: TokenPool, *, priority: bool, low_first: bool, refresh_passes: int):
        self.policy = policy if pool.reuse or policy == "lof" else "fcfs"
        self._pool = pool
        self._priority = priority
        self._sign = 1 if low_first else -1
        self._refresh_passes = refresh_passes
        self._passes = 0

    def urgency(self, request: SglangRequest) -> int:
        """Smaller is more urgent."""
        return self._sign * request.priority

    def sort(self, waiting: list[SglangRequest], counted: int) -> None:
        """Order the queue; `counted` tokens were computed so far."""
        if not waiting:
            return
        policy = self.policy
        if policy in AGNOSTIC or (policy in ("lpm", "hrrn") and len(waiting) > MATCHED_AT_MOST):
            self._sort_unseen(waiting)
            self._refresh(waiting)
            return
        ends = self._match(waiting)
        if policy == "lpm":
            waiting.sort(key=lambda r: LAST if r.later else -r.matched)
        elif policy == "hrrn":
            waiting.sort(key=lambda r: _response_ratio(r, counted))
        elif policy == "shortest-prefill-first":
            waiting.sort(key=lambda r: (r.later, max(1, r.known - r.matched), r.enqueued))
        else:
            waiting[:] = _depth_first(waiting, ends, self._pool.tree.root)

    def _sort_unseen(self, waiting: list[SglangRequest]) -> None:
        if self.policy == "lof":
            if self._priority:
                waiting.sort(key=lambda r: (self.urgency(r), -r.max_new))
            else:
                waiting.sort(key=lambda r: -r.max_new)
        elif self.policy == "fcfs" and self._priority:
            waiting.sort(key=lambda r: (self.urgency(r), r.enqueued))

    def _refresh(self, waiting: list[SglangRequest]) -> None:
        if not self._refresh_passes or not self._pool.reuse:
            return
        if self._passes % self._refresh_passes == 0:
            for request in reversed(waiting[:MATCHED_AT_MOST]):
                self._pool.look(request, request.known)
        self._passes += 1

    def _match(self, waiting: list[SglangRequest]) -> list[Node]:
        """Look everybody up in the order of the queue; the nodes where the matches end."""
        seen: set[bytes] = set()
        ends = []
        tree = self._pool.tree
        for request in waiting:
            end, hit = tree.match(request.content, request.known)
            ends.append(end)
            request.matched = min(hit, request.known - 1)
            request.later = False
            if hit <= SHARED_TOKENS and request.known >= SHARED_TOKENS:
                start = request.content[: SHARED_TOKENS * TOKEN_BYTES]
                request.later = start in seen
                seen.add(start)
        return ends


def _response_ratio(request: SglangRequest, counted: int) -> tuple[float, int | str]:
    """Growth of the work done while it waited, over its own; what costs nothing comes first."""
    if request.later:
        return LAST, request.name
    uncached = request.prompt - request.matched
    return (-(counted - request.counted) / uncached if uncached > 0 else -LAST), request.name


def _depth_first(waiting: list[SglangRequest], ends: list[Node], root: Node) -> list[SglangRequest]:
    """Requests by the tree walked depth first, the child with the most requests below it first, a node after them."""
    at: dict[Node, list[SglangRequest]] = {}
    weight: dict[Node, int] = {}
    for request, end in zip(waiting, ends, strict=True):
        at.setdefault(end, []).append(request)
        node: Node | None = end
        while node is not None:
            weight[node] = weight.get(node, 0) + 1
            node = node.parent
    ordered: list[SglangRequest] = []
    stack = [(root, False)]
    while stack:
        top, seen = stack.pop()
        if seen:
            ordered.extend(at.get(top, ()))
            continue
        stack.append((top, True))
        below = sorted((child for child in top.children.values() if child in weight), key=lambda c: -weight[c])
        stack.extend((child, False) for child in reversed(below))
    return ordered
