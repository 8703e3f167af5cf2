"""The step log keeps each number in the column of its name."""

from dataclasses import fields

from sim.event.log import COLUMNS, StepLog
from sim.memory.hits import HitStats
from sim.report.result import LOOKUPS, StepTable
from sim.scheduler.base import Batch, Request


def append(log, replica, start, hits=None):
    log.append(replica, start, start, start + 1, Batch(), 0, 0, hits or HitStats())


def test_every_number_is_in_its_column():
    batch = Batch()
    given = {name: 100 + i for i, name in enumerate(COLUMNS)}
    for name in COLUMNS:
        if name != "preempted" and hasattr(batch, name):
            setattr(batch, name, given[name])
    batch.preempted = [Request(0, 1, 1), Request(1, 1, 1)]
    log = StepLog()
    outside = {"replica": 3, "start_ns": 5, "end_ns": 9, "padded_tokens": 64, "graph_mode": 2, "preempted": 2}
    hits = HitStats(200, 201, 202, 203, 204, 205)
    hits.changed = True
    log.append(3, 4, 5, 9, batch, 64, 2, hits)
    log.ended(3, 9, 7, 8)
    table = log.table()
    assert {name: int(getattr(table, name)[0]) for name in COLUMNS} == given | outside | {"issued_ns": 4}
    assert [int(getattr(table, name)[0]) for name in LOOKUPS] == [200, 201, 202, 203, 204, 205]
    assert (table.ended.tolist(), table.freed_blocks.tolist()) == ([7], [8])


def test_rows_are_ordered_by_replica_and_an_empty_log_is_a_table():
    log = StepLog()
    assert all(len(getattr(log.table(), field.name)) == 0 for field in fields(StepTable))
    for replica, start in ((1, 0), (0, 1), (1, 2)):
        append(log, replica, start)
    table = log.table()
    assert table.replica.tolist() == [0, 1, 1] and table.start_ns.tolist() == [1, 0, 2]


def test_look_ups_stay_as_they_are_until_something_is_counted():
    """Two replicas in turn; each row has its own replica's numbers as of its decision, changed or not."""
    log = StepLog()
    first, second = HitStats(), HitStats()
    append(log, 0, 0, first)
    second.count(10, 4, False)
    append(log, 1, 1, second)
    first.count(7, 0, False)
    append(log, 0, 2, first)
    append(log, 1, 3, second)
    append(log, 0, 4, first)
    first.count(7, 3, True, times=2)
    append(log, 0, 6, first)
    table = log.table()
    assert table.replica.tolist() == [0, 0, 0, 0, 1, 1]
    assert table.lookups.tolist() == [0, 1, 1, 1, 1, 1]
    assert table.queries.tolist() == [0, 7, 7, 7, 10, 10]
    assert table.hits.tolist() == [0, 0, 0, 0, 4, 4]
    assert table.preempted_lookups.tolist() == [0, 0, 0, 2, 0, 0]
    assert table.preempted_queries.tolist() == [0, 0, 0, 14, 0, 0]
    assert table.preempted_hits.tolist() == [0, 0, 0, 6, 0, 0]


def test_a_look_up_that_asks_for_more_is_written_too():
    """A chunk of a request looked up before: more tokens asked for, no look-up more."""
    log, hits = StepLog(), HitStats()
    hits.count(10, 4, False)
    append(log, 0, 0, hits)
    hits.ask_more(6, False)
    append(log, 0, 2, hits)
    hits.ask_more(5, True)
    append(log, 0, 4, hits)
    table = log.table()
    assert table.lookups.tolist() == [1, 1, 1]
    assert table.queries.tolist() == [10, 16, 16]
    assert table.preempted_queries.tolist() == [0, 0, 5]


def test_ends_belong_to_the_step_whose_output_was_processed():
    """Steps of replica 0 end at 1, 3 and 5; the output of the second is processed at 4, when the host gets to it."""
    log = StepLog()
    for replica, start in ((0, 0), (0, 2), (1, 2), (0, 4)):
        append(log, replica, start)
    log.ended(0, 4, 2, 30)
    log.ended(0, 5, 1, 4)
    log.ended(1, 3, 1, 9)
    table = log.table()
    assert table.ended.tolist() == [0, 2, 1, 1]
    assert table.freed_blocks.tolist() == [0, 30, 4, 9]
