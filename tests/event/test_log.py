"""The step log keeps each number in the column of its name."""

from sim.event.log import COLUMNS, StepLog
from sim.scheduler.base import Batch, Request


def test_every_number_is_in_its_column():
    batch = Batch()
    given = {name: 100 + i for i, name in enumerate(COLUMNS)}
    for name in COLUMNS:
        if name != "preempted" and hasattr(batch, name):
            setattr(batch, name, given[name])
    batch.preempted = [Request(0, 1, 1), Request(1, 1, 1)]
    log = StepLog()
    outside = {"replica": 3, "start_ns": 5, "end_ns": 9, "padded_tokens": 64, "graph_mode": 2, "preempted": 2}
    log.append(3, 5, 9, batch, 64, 2)
    table = log.table()
    assert {name: int(getattr(table, name)[0]) for name in COLUMNS} == given | outside


def test_rows_are_ordered_by_replica_and_an_empty_log_is_a_table():
    log = StepLog()
    assert len(log.table()) == 0
    for replica, start in ((1, 0), (0, 1), (1, 2)):
        log.append(replica, start, start + 1, Batch(), 0, 0)
    table = log.table()
    assert table.replica.tolist() == [0, 1, 1] and table.start_ns.tolist() == [1, 0, 2]
