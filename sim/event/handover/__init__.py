"""From a prefill to a decode instance: who hands over to whom, when, and the KV's way there.

A scheduler's `ROLES` say how its engine does it; there are two ways.

- `pull`: the prefill instance computes the prompt and holds its blocks. Its answer goes through the proxy to the decode
  side's server, whose scheduler takes blocks when it can; then the KV is asked for.
- `push`: the decode instance takes blocks when the request comes; only then the prefill begins, and what it has
  computed is sent chunk by chunk.

`layerwise` changes the first: what would be pulled is sent layer by layer while the prompt is computed.
Transfers take a set-up, then bytes over links that others may use too. Both sides hear of the end of it.
`interruptions` has what becomes of all that when an instance fails or a client leaves.
"""

from sim.event.handover.base import (
    FREE as FREE,
    HandOver as HandOver,
    HandOverCosts as HandOverCosts,
    KVPort as KVPort,
)
from sim.event.handover.failures import Failures as Failures
from sim.event.handover.interruptions import Interruptions as Interruptions, Lease as Lease
from sim.event.handover.layerwise import Layerwise as Layerwise, Progress as Progress
from sim.event.handover.pull import Pull
from sim.event.handover.push import Push
from sim.scheduler.hooks import Roles


def hand_over_of(roles: Roles, by_layer: bool = False) -> type[HandOver]:
    """The way of an engine; `by_layer`: what it would pull is sent as it is computed."""
    if by_layer:
        return Layerwise
    return Push if roles.decode_first else Pull
