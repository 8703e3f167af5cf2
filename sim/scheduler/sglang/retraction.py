"""Who loses their KV in SGLang: retraction when a decode step lacks memory, and preemption for an urgent request."""

from collections.abc import Callable, Sequence

from sim.scheduler.sglang.admission import Admission
from sim.scheduler.sglang.pool import TokenPool
from sim.scheduler.sglang.ratio import CLIP_MAX_NEW, RETRACT_DECODE_STEPS
from sim.scheduler.sglang.request import SglangRequest
from sim.scheduler.sglang.running import Running


Release = Callable[[SglangRequest, int], None]
"""Takes a request out of the running batch, of which so many requests are left."""


def fits(pool: TokenPool, need: int) -> bool:
    """Whether `need` tokens are free, after evicting for them."""
    pool.evict_to(need)
    return pool.free >= need


def retraction_order(
    rows: Sequence[SglangRequest], out: Callable[[SglangRequest], int], urgency: Callable[[SglangRequest], int] | None
) -> list[SglangRequest]:
    """The most emitted tokens first, then the shortest prompt; victims come from the end. `urgency` goes before."""
    if urgency is None:
        return sorted(rows, key=lambda r: (-out(r), r.prompt))
    return sorted(rows, key=lambda r: (urgency(r), -out(r), r.prompt))


def retract(pool: TokenPool, running: Running, ordered: list[SglangRequest], release: Release) -> list[SglangRequest]:
    """Take requests from the end of `ordered` until the rest can decode; returns the victims.

    At least one is taken, but the last one always stays.
    """
    victims: list[SglangRequest] = []
    while len(ordered) > 1 and not (victims and fits(pool, running.need_of(ordered))):
        victims.append(ordered.pop())
        release(victims[-1], len(ordered))
    return victims


def make_room(pool: TokenPool, left: int) -> None:
    """What follows each release: room for some decode steps of the requests that are left."""
    pool.evict_to(RETRACT_DECODE_STEPS * left)


def preemption_victims(
    request: SglangRequest,
    admission: Admission,
    running: Sequence[SglangRequest],
    urgency: Callable[[SglangRequest], int],
    threshold: int,
) -> list[SglangRequest]:
    """Running requests that make room for an urgent one, in the order of selection; none if that is not enough.

    The least urgent first, of equals the latest; each must be less urgent by more than `threshold`. The request is
    measured as it was when last tried (as if it were empty if it never was).
    """
    need = request.tried_tokens - request.tried_hit + min(request.max_new, CLIP_MAX_NEW) - admission.total_left
    victims = []
    unfinished = [candidate for candidate in running if candidate.out < candidate.outputs]
    for candidate in sorted(unfinished, key=lambda r: (-urgency(r), -r.enqueued)):
        if urgency(candidate) - urgency(request) <= threshold:
            break
        victims.append(candidate)
        need -= admission.reserve(candidate)
        if need <= 0:
            break
    return victims if need <= 0 else []
