"""When requests get to the engine."""

import numpy as np
import pytest

from sim.event.client import NEVER, Client
from sim.workload.trace import Workload


def burst(count: int, concurrency: int | None = None) -> Workload:
    """`count` requests that are all sent at once."""
    one = np.ones(count, np.int64)
    return Workload("burst", arrival_ns=0 * one, prompt_tokens=one, output_tokens=one, concurrency=concurrency)


@pytest.mark.parametrize(
    ("doors", "queued_ns"),
    [(1, [25, 45, 65, 85]), (2, [25, 25, 45, 45]), (4, [25, 25, 25, 25])],
)
def test_api_servers_take_requests_one_at_a_time(doors, queued_ns):
    """Each is busy for 20 ns with a request; 5 more ns later it is in the engine's queue."""
    client = Client(burst(4), pickup_ns=5, door_ns=20, doors=doors)
    found = []
    while client.next_ns != NEVER:
        found.append(client.next_ns)
        client.placed(client.send(), 0, 1)
    assert found == queued_ns
    assert client.table().arrival_ns.tolist() == [0] * 4


def test_a_free_server_takes_the_next_request_of_a_closed_loop_at_once():
    client = Client(burst(2, concurrency=1), pickup_ns=5, door_ns=20)
    first = client.send()
    assert client.next_ns == NEVER
    client.rejected(first, 100)
    assert client.next_ns == 125
