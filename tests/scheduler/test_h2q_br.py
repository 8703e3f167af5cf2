"""Two queues by session history: each rule by hand; that nothing is lost is tested with all schedulers."""

import numpy as np
import pytest

from sim.memory.shape import CacheShape, GroupShape
from sim.scheduler.find import make_scheduler
from sim.scheduler.h2q_br import CUT, LONG, SHORT
from sim.workload.sessions.columns import Sessions
from sim.workload.trace import Workload
from tests.event.conftest import make_settings


def scheduler(seats=8, budget=512, blocks=1000, **options):
    settings = make_settings(
        max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=20_000, scheduler_options=options
    )
    return make_scheduler("h2q_br", settings, CacheShape(blocks, True, (GroupShape("full", 16),)))


def add(to, *rows, first=0):
    """Requests of (prompt, outputs), numbered from `first` on."""
    made = [to.request_type(first + i, prompt, outputs) for i, (prompt, outputs) in enumerate(rows)]
    for request in made:
        to.add(request)
    return made


def call(of):
    """One call and its completion: (request, tokens) of its rows."""
    batch = of.schedule()
    of.complete(batch)
    return [(row.request.index, row.tokens) for row in batch.rows]


def test_the_fewest_new_tokens_first():
    """One seat: 10, then 30, then 50 tokens of prompt, whoever came first."""
    one = scheduler(seats=1)
    add(one, (50, 1), (10, 1), (30, 1))
    assert [call(one) for _ in range(3)] == [[(1, 10)], [(2, 30)], [(0, 50)]]


def test_a_long_prompt_leaves_short_ones_their_part():
    """5,000 tokens are long from the start; of the next call's 512 tokens the short one gets its 100."""
    one = scheduler(new_tokens=1000)
    (long,) = add(one, (5000, 1))
    assert call(one) == [(0, 512)]
    (short,) = add(one, (100, 1), first=1)
    assert (long.place, short.place) == (LONG, SHORT)
    assert call(one) == [(0, 412), (1, 100)]


def test_what_waits_of_long_ones_reserves_nothing():
    one = scheduler(new_tokens=1000)
    add(one, (5000, 1), (3000, 1))
    assert [call(one) for _ in range(2)] == [[(0, 512)], [(0, 512)]]


def test_a_session_is_long_when_it_has_been_served_enough():
    """Rounds of 40 and then 60 tokens, 25 of them new, after 12 outputs: 40 + 11 rows are 51, above 50."""
    one = scheduler(served_tokens=50)
    sessions = Sessions(
        first=np.array([0, 2, 3]),
        latency_ns=np.zeros(3, np.int64),
        history_tokens=np.array([0, 35, 0]),
        dropped_tokens=np.zeros(3, np.int64),
        system=np.zeros(2, np.int64),
    )
    one.know(Workload("w", np.zeros(3), np.array([40, 60, 60]), np.array([12, 1, 1]), sessions=sessions))
    add(one, (40, 12))
    for _ in range(12):
        call(one)
    second, other = add(one, (60, 1), (60, 1), first=1)
    assert (second.session, second.new, second.place) == (0, 25, LONG)
    assert (other.session, other.new, other.place) == (1, 60, SHORT)
    assert call(one)[0] == (2, 60)


@pytest.mark.parametrize("quota", [3, 6])
def test_the_oldest_long_one_is_not_starved(quota):
    """One seat, and short ones of one row each without end: after `quota` of them the long one has its turn."""
    one = scheduler(seats=1, new_tokens=200, liveness_quota=quota)
    add(one, (300, 1))
    add(one, *[(10, 1)] * 20, first=1)
    served = [call(one)[0][0] for _ in range(quota + 1)]
    assert served[-1] == 0 and 0 not in served[:-1]


def test_carry_over_is_once():
    """Budget 64. A prompt of 200 is cut; it came before the short head, and goes first once; then behind it."""
    one = scheduler(seats=2, budget=64, new_tokens=1000)
    (cut,) = add(one, (200, 1))
    assert call(one) == [(0, 64)]
    add(one, (60, 1), first=1)
    assert call(one) == [(0, 4), (1, 60)] and cut.released  # 60 of the budget are reserved for the short one
    add(one, (60, 1), first=2)
    assert call(one) == [(0, 4), (2, 60)]
    assert cut.place == CUT


@pytest.mark.parametrize(
    ("options", "words"),
    [({"liveness_quota": 0}, "liveness_quota must be at least 1"), ({"watermark": 0.1}, "watermark")],
)
def test_mistakes(options, words):
    with pytest.raises(ValueError, match=words):
        scheduler(**options)
