"""What may go into a scan, what comes out of it, and what every status says."""

import dataclasses

import numpy as np
import pytest

from sim.deployment.engine import EngineProfile
from sim.deployment.speculation import Speculation
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED, REJECTED
from sim.scan import HELP, Status, Unbalanced, lane_job, scan
from sim.scan.jobs import expected_steps, servable
from sim.scan.loop import Ended
from sim.scan.pack import graph_table, pack
from sim.scan.recover import recover_units
from sim.workload.acceptance import AcceptanceConf
from sim.workload.trace import Workload
from tests.scan.conftest import TABLES, every_statistic_s
from tests.scan.test_decisions import assert_equal_to_oracle
from tests.scan.test_exact import settings_of


RUN = {"lanes": 8, "window": 64, "log_steps": True, "lengths_s": every_statistic_s}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_ns": np.array([0, 5, 3])}, "arrival_ns must be >= 0 and must not decrease"),
        ({"arrival_ns": np.array([-1, 5, 8])}, "arrival_ns must be >= 0"),
        (
            {"arrival_ns": np.array([0])},
            "as many arrival_ns as prompt_tokens and output_tokens, at least one, got 1, 3 and 3",
        ),
        ({"prompt_tokens": np.array([1, 0, 1])}, "prompt_tokens must be at least 1, got 0"),
        ({"output_tokens": np.array([1, 1, -2])}, "output_tokens must be at least 1, got -2"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"concurrency": 0}, "concurrency must be at least 1, or None"),
        ({"graph_mode": "SOME"}, "graph_mode must be one of NONE, .* got 'SOME'"),
        ({"table": 2}, "table must be an index of the 2 price tables, got 2"),
        ({"max_num_batched_tokens": 2000}, "price table 0 must cover 2000 tokens and 8 rows, it ends at 1024 and 64"),
    ],
)
def test_bad_jobs(job, changes, message):
    with pytest.raises(ValueError, match=message):
        scan([job(), job(**changes)], TABLES, **RUN)


def test_bad_sizes(job):
    with pytest.raises(ValueError, match="window must be between 1 and 1048576, got 0"):
        scan([job()], TABLES, **(RUN | {"window": 0}))


def test_servable(job):
    """70 tokens at most, 4 blocks of 16. A prompt of 300 leaves no room; 30 + 40 - 1 and 10 + 60 - 1 tokens (cut
    at 70) need 5 blocks; 60 + 5 - 1 need 4."""
    one = job(
        prompt_tokens=np.array([300, 30, 60, 10]),
        output_tokens=np.array([1, 40, 5, 900]),
        max_model_len=70,
        usable_blocks=4,
    )
    served, outputs = servable(one)
    assert served.tolist() == [False, False, True, False]
    assert outputs[3] == 60
    assert servable(dataclasses.replace(one, usable_blocks=5))[0].tolist() == [False, True, True, True]


def test_one_job_that_needs_the_exact_engine_stops_nobody(job):
    jobs = [
        job(),
        job(needs_exact="prefixes are reused"),
        job(max_num_seqs=16, max_num_batched_tokens=8),
        job(replicas=2, router="random"),
        job(replicas=2, concurrency=1),
        job(concurrency=1, pickup_ns=5, usable_blocks=2),
        job(replicas=2),
    ]
    found = scan(jobs, TABLES, **RUN)
    assert found.status.tolist() == [Status.OK, *[Status.NEEDS_EXACT] * 5, Status.OK]
    reasons = [text.partition("(")[2].rstrip(")") for text in found.message]
    assert reasons == [
        "",
        "prefixes are reused",
        "max_num_batched_tokens is below max_num_seqs",
        "the router is random",
        "a closed loop couples the replicas",
        "requests are rejected in a closed loop with a pick-up delay",
        "",
    ]
    assert [run is None for run in found.runs] == [False, True, True, True, True, True, False]
    assert found.message[1].startswith(HELP[Status.NEEDS_EXACT])


def test_round_robin_over_those_that_can_be_served(job):
    """Requests 0, 2, 3 can be served; replicas take turns among them."""
    one = job(
        arrival_ns=np.zeros(4, np.int64),
        prompt_tokens=np.array([10, 600, 10, 10]),
        output_tokens=np.array([2, 2, 2, 2]),
        replicas=2,
    )
    run = scan([one], TABLES, **RUN).runs[0]
    assert run.requests.replica.tolist() == [0, -1, 1, 0]
    assert run.requests.status.tolist() == [FINISHED, REJECTED, FINISHED, FINISHED]
    assert run.requests.finish_ns[1] == -1
    assert run.steps.replica.tolist() == [0, 0, 1, 1]
    assert run.steps.prefill_tokens.tolist() == [20, 0, 10, 0]
    assert (run.step_count, run.makespan_ns) == (4, run.requests.finish_ns.max())


def test_a_rejected_request_holds_up_nobody(job):
    """Closed loop of one: request 1 is refused when request 0 ends, and request 2 is sent at that moment."""
    one = job(prompt_tokens=np.array([10, 600, 10]), concurrency=1)
    found = scan([one], TABLES, **RUN)
    table = found.runs[0].requests
    assert table.arrival_ns.tolist() == [0, table.finish_ns[0], table.finish_ns[0]]
    assert found.rejected.tolist() == [1]


def test_nothing_can_be_served(job):
    found = scan([job(usable_blocks=0)], TABLES, **RUN)
    assert (found.status[0], found.rejected[0], found.steps[0], found.iterations) == (Status.OK, 3, 0, 0)


@pytest.mark.parametrize("replicas", [1, 2])
def test_nothing_served_leaves_an_empty_step_table(job, replicas):
    """A job whose requests are all rejected, alone and beside one that runs."""
    empty = job(usable_blocks=0, replicas=replicas)
    for jobs in ([empty], [empty, job()]):
        found = scan(jobs, TABLES, **(RUN | {"log_steps": True}))
        run = found.runs[0]
        assert found.status[0] == Status.OK and (run.step_count, run.makespan_ns) == (0, 0)
        assert run.steps is not None and len(run.steps) == 0
        assert all(len(getattr(run.steps, field.name)) == 0 for field in dataclasses.fields(run.steps))
    assert scan([empty], TABLES, **(RUN | {"log_steps": False})).runs[0].steps is None


def test_statuses_of_the_loop(job):
    """A price that is not a number, one that is negative, a clock past 2**53, and a limit of iterations."""
    bad, negative, slow = (
        TABLES[0]._replace(token_s=np.full_like(TABLES[0].token_s, price)) for price in (np.nan, -1.0, 1e7)
    )
    both = [job(table=0), job(table=1)]
    assert scan(both, [bad, TABLES[1]], **RUN).status.tolist() == [Status.BAD_PRICE, Status.OK]
    found = scan(both, [negative, slow], **RUN)
    assert found.status.tolist() == [Status.BAD_PRICE, Status.CLOCK_OVERFLOW]
    assert found.message == [HELP[Status.BAD_PRICE], HELP[Status.CLOCK_OVERFLOW]]
    long = job(output_tokens=np.array([60, 60, 60]), max_num_seqs=1)
    found = scan([long, job()], TABLES, max_iterations=64, **RUN)
    assert found.status.tolist() == [Status.ITERATIONS_USED_UP, Status.OK]


def test_too_many_slots(job):
    """40 requests decode at once, in 32 slots; the job that gets the lane afterwards finds it in order."""
    many = job(
        arrival_ns=np.zeros(40, np.int64),
        prompt_tokens=np.full(40, 5),
        output_tokens=np.full(40, 50),
        max_num_seqs=40,
        max_num_batched_tokens=1000,
    )
    fewer = dataclasses.replace(many, max_num_seqs=32)
    found = scan([*[many] * 8, fewer], TABLES, slots=32, **RUN)
    assert found.status.tolist() == [*[Status.TOO_MANY_SLOTS] * 8, Status.OK]
    assert_equal_to_oracle(fewer, found.runs[8])


def test_reduce_and_progress(job):
    ended = []
    found = scan(
        [job(), job(needs_exact="x"), job()],
        TABLES,
        reduce=lambda i, run: (i, run.step_count),
        on_progress=ended.append,
        **RUN,
    )
    assert found.runs == [(0, found.steps[0]), None, (2, found.steps[2])]
    assert ended == [1, 2, 3]


def test_what_settings_rule_out(job):
    engine = settings_of(job(), 0.0)
    lengths = Workload("w", np.zeros(1, np.int64), np.ones(1, np.int64), np.ones(1, np.int64))
    content = dataclasses.replace(lengths, token_ids=(np.zeros(1),))
    cached = dataclasses.replace(engine, prefix_caching=True)
    assert lane_job(lengths, engine, 10).needs_exact == ""
    assert lane_job(lengths, cached, 10).needs_exact == ""
    assert lane_job(content, cached, 10).needs_exact == "prefixes are reused"
    assert lane_job(lengths, engine, 10, scheduler="sglang").needs_exact == "engine.scheduler is sglang"
    ahead = dataclasses.replace(engine, async_scheduling=True, batches_in_flight=2)
    assert lane_job(lengths, ahead, 10).needs_exact == "2 batches are in flight"
    drafted = dataclasses.replace(engine, speculation=Speculation("eagle", 3, AcceptanceConf(rate=0.5)))
    assert lane_job(lengths, drafted, 10).needs_exact == "rows verify drafts"
    whole = dataclasses.replace(engine, chunked_prefill=False)
    assert lane_job(lengths, whole, 10).needs_exact == "chunked prefill is off"
    staged = dataclasses.replace(engine, pipeline_parallel=4, batches_in_flight=4)
    assert lane_job(lengths, staged, 10).needs_exact == "there are 4 pipeline stages"
    assert lane_job(lengths, engine, 10, data_parallel=2).needs_exact == "a replica has 2 data-parallel ranks"
    urgent = dataclasses.replace(engine, scheduling_policy="priority")
    assert lane_job(lengths, urgent, 10).needs_exact == "engine.scheduling_policy is priority"
    bounded = dataclasses.replace(engine, long_prefill_token_threshold=64)
    assert lane_job(lengths, bounded, 10).needs_exact == "engine.long_prefill_token_threshold is 64"
    optional = dataclasses.replace(engine, scheduler_options={"watermark": 0.1})
    assert lane_job(lengths, optional, 10).needs_exact == "engine.scheduler_options are set"
    full, sliding = GroupShape("full", 16), GroupShape("swa", 16, 64)
    assert lane_job(lengths, engine, 10, groups=(full,)).needs_exact == ""
    assert lane_job(lengths, engine, 10, groups=(sliding,)).needs_exact == "layers give back KV blocks, or keep states"
    assert lane_job(lengths, engine, 10, groups=(full, full)).needs_exact == "2 groups of layers share the KV blocks"
    late = dataclasses.replace(engine, profile=EngineProfile(api_pickup_s=1.5e-3))
    assert lane_job(lengths, late, 10).pickup_ns == 1_500_000
    queueing = dataclasses.replace(engine, profile=EngineProfile(api_door_s=2e-3))
    assert lane_job(lengths, queueing, 10).needs_exact == "the API server takes requests one at a time"


def test_graph_table():
    """Captured 1, 4, 8: 5 tokens pad to 8, above 8 nothing is captured; full graphs only for pure decode."""
    graphs = graph_table("FULL_AND_PIECEWISE", (1, 4, 8), 8, 9)
    assert graphs.padded.tolist() == [[0, 1, 4, 4, 4, 8, 8, 8, 8, 9]] * 2
    assert graphs.mode.tolist() == [[0, *[1] * 8, 0], [0, *[2] * 8, 0]]
    decode_only = graph_table("FULL_DECODE_ONLY", (1, 4, 8), 8, 9)
    assert decode_only.padded.tolist() == [list(range(10)), graphs.padded[1].tolist()]


def test_equal_workloads_and_capture_lists_are_kept_once(job):
    jobs = [job(max_num_seqs=seats, graph_sizes=sizes, table=1) for seats in (4, 8) for sizes in ((), (1, 8))]
    packed = pack(jobs, [servable(one) for one in jobs], range(4), TABLES, lanes=8, slots=None, window=64)
    assert packed.columns["workload"].tolist() == [0, 0, 0, 0]
    assert packed.columns["table"].tolist() == [0, 1, 0, 1]
    assert packed.columns["plan"].tolist() == [1, 1, 1, 1]
    other = job(prompt_tokens=np.array([20, 5, 34]))
    packed = pack(
        [*jobs, other], [servable(one) for one in [*jobs, other]], range(5), TABLES, lanes=8, slots=None, window=64
    )
    assert packed.columns["workload"].tolist() == [0, 0, 0, 0, 5]


def test_expected_steps(job):
    """100 requests of 50 tokens. Closed loop of 10: 5,000 / 10. Open loop, one in 10 s, 1 ms a token: one after the
    other, 5,000. Cache of 8 blocks of 16 for 10 + 25 tokens each: 3.66 at once."""
    arrival, prompt, outputs = np.arange(100) * 10**10, np.full(100, 10), np.full(100, 50)
    token_s = np.full(1000, 1e-3)
    prefill = 1000 / 64
    closed = expected_steps(arrival, prompt, outputs, job(concurrency=10, max_num_seqs=64, usable_blocks=1000), token_s)
    assert closed == pytest.approx(500 + prefill)
    opened = expected_steps(arrival, prompt, outputs, job(max_num_seqs=64, usable_blocks=1000), token_s)
    assert opened == pytest.approx(5000 + prefill)
    tight = expected_steps(arrival, prompt, outputs, job(concurrency=10, max_num_seqs=64, usable_blocks=8), token_s)
    assert tight == pytest.approx(5000 * 35 / 128 + prefill)


def test_lost_blocks_and_tokens_are_noticed(job):
    """One request of 2 + 1 tokens: a prefill, a decode. A log whose end state doesn't add up is refused."""
    one = job(arrival_ns=np.zeros(1, np.int64), prompt_tokens=np.array([2]), output_tokens=np.array([2]))
    packed = pack([one], [servable(one)], [0], TABLES, lanes=8, slots=None, window=64)
    good = Ended(0, Status.OK, np.array([10.0, 20.0]), np.array([3, 16]), None, 100, 1, 3.0)
    run = recover_units([good], packed.units, [one], packed.graphs)[0]
    assert run.requests["first_token_ns"].tolist() == [10] and run.requests["finish_ns"].tolist() == [20]
    for change, message in (
        ({"free_blocks": 99}, "free blocks at the end of job 0, replica 0: wanted 100, got 99"),
        ({"computed": 4.0}, "computed tokens .* wanted 3, got 4"),
        ({"finished": 0}, "finished requests .* wanted 1, got 0"),
        ({"event": np.array([1, 16])}, "1 of 1 requests never emitted a token"),
    ):
        with pytest.raises(Unbalanced, match=message):
            recover_units([good._replace(**change)], packed.units, [one], packed.graphs)
