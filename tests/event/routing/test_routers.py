"""Routers: what each picks, by hand, and what they do to a run."""

from dataclasses import dataclass

import numpy as np
import pytest

from sim.deployment.settings import load_engine
from sim.event.pool import EnginePool
from sim.event.routing.base import Arrival
from sim.event.routing.find import make_router, router_names, sheds
from sim.event.run import Routing, run_fleet
from sim.memory.shape import GroupShape
from sim.report.result import FINISHED, SHED
from sim.workload.trace import Workload
from tests.event.conftest import make_settings, make_table


MS = 1_000_000


@dataclass
class Seen:
    outstanding: int = 0
    prompt_tokens: int = 0
    kv_usage: float = 0.0


def arrival(index=0, prompt=100, now_ms=0, content=None):
    return Arrival(index, prompt, 0, now_ms * MS, content)


def picks(name, targets, arrivals, **options):
    router = make_router(name, 0, options)
    return [router(one, targets) for one in arrivals]


def fleet(name, replicas=2, base_s=10e-3, work=None, **options):
    settings = make_settings(profile=load_engine("vllm", "0.33.0").profile, max_num_seqs=4)
    table = make_table(base_s=base_s, token_s=0.0, row_s=0.0)
    pool = EnginePool(settings, table, 200, (GroupShape("full", 16),), replicas=replicas)
    return run_fleet(work, [pool], Routing(name, options=options))


def workload(arrivals_ms, prompts, outputs, **more):
    return Workload("test", np.array(arrivals_ms) * MS, np.array(prompts), np.array(outputs), **more)


def test_the_simple_ones():
    targets = [Seen(3, 50, 0.2), Seen(1, 900, 0.9), Seen(2, 50, 0.2)]
    many = [arrival(i) for i in range(4)]
    assert picks("round_robin", targets, many) == [0, 1, 2, 0]
    assert picks("least_outstanding", targets, many[:1]) == [1]
    assert picks("least_tokens", targets, many[:1]) == [2]  # 50 tokens on two; the one with fewer requests
    assert picks("least_kv", targets, many[:1]) == [2]


def test_two_choices_never_take_the_most_loaded_of_three():
    targets = [Seen(5), Seen(9), Seen(1)]
    found = picks("power_of_two", targets, [arrival(i) for i in range(200)])
    assert set(found) == {0, 2}  # of any two the fewer: 9 loses to both
    assert picks("power_of_two", targets[:1], [arrival()]) == [0]


def test_long_prompts_have_replicas_of_their_own():
    targets = [Seen(9), Seen(3), Seen(8), Seen(2)]
    assert picks("length_aware", targets, [arrival(prompt=10), arrival(prompt=5000)]) == [1, 3]
    assert picks("length_aware", targets, [arrival(prompt=50)], split_tokens=20, share=0.1) == [3]
    assert picks("length_aware", targets[:1], [arrival(prompt=5000)]) == [0]


def test_conversations_stick():
    rng = np.random.default_rng(1)
    starts = [rng.integers(0, 1000, 300) for _ in range(40)]
    targets = [Seen() for _ in range(4)]
    first = picks("sticky", targets, [arrival(i, content=s) for i, s in enumerate(starts)])
    longer = [np.concatenate([s, rng.integers(0, 1000, 500)]) for s in starts]
    assert picks("sticky", targets, [arrival(100 + i, content=s) for i, s in enumerate(longer)]) == first
    assert set(first) == {0, 1, 2, 3}
    # rendezvous hashing: when the last replica goes, only its conversations move
    fewer = picks("sticky", targets[:3], [arrival(i, content=s) for i, s in enumerate(starts)])
    assert all(now == before for now, before in zip(fewer, first, strict=True) if before < 3)


def test_a_known_prefix_is_worth_some_imbalance():
    shared = np.arange(640)
    targets = [Seen(0), Seen(0)]
    router = make_router("prefix_aware", 0, {"imbalance": 3})
    assert router(arrival(0, 640, content=shared), targets) == 0
    targets[0].outstanding = 3
    longer = np.concatenate([shared, np.arange(5000, 5400)])
    assert router(arrival(1, len(longer), content=longer), targets) == 0  # 640 of 1,040 tokens are known there
    targets[0].outstanding = 4
    assert router(arrival(2, len(longer), content=longer), targets) == 1  # four more than the other: too many
    assert router(arrival(3, 1040, content=np.arange(9000, 10040)), targets) == 1  # unknown: the least outstanding
    assert router(arrival(4, 640), [Seen(2), Seen(1)]) == 1


def test_least_outstanding_counts_what_runs():
    """One that counts only waiting requests would send all six to the first replica, where none of them waits."""
    run = fleet("least_outstanding", work=workload([0, 1, 2, 3, 4, 5], [16] * 6, [50] * 6))
    assert run.requests.replica.tolist() == [0, 1, 0, 1, 0, 1]


def test_what_would_be_late_is_turned_away():
    """Steps of 10 ms prefill one prompt of 64 tokens each: 6,400 tokens/s a replica; 20 ms allow two prompts at once.

    Eight come at once: 64 tokens more each: the bound of 25 ms at 6,400 tokens/s is 160 tokens, two requests.
    """
    work = workload([0] * 8, [64] * 8, [2] * 8)
    run = fleet("slo_aware", 1, work=work, ttft_s=25e-3, tokens_per_s=6400.0)
    assert (run.requests.status == FINISHED).sum() == 2
    assert (run.requests.status == SHED).sum() == 6
    assert run.requests.replica[run.requests.status == SHED].tolist() == [-1] * 6
    assert (
        fleet("slo_aware", 4, work=work, ttft_s=25e-3, tokens_per_s=6400.0).requests.status.tolist() == [FINISHED] * 8
    )


def test_the_estimate_learns_the_rate():
    """The first guess is far too low (100 tokens/s: all but one at a time are turned away); what is seen mends it."""
    work = workload([20 * i for i in range(200)], [64] * 200, [1] * 200)
    run = fleet("slo_aware", 1, work=work, ttft_s=0.7, tokens_per_s=100.0, memory_s=0.2)
    assert (run.requests.status == FINISHED).all()
    late = fleet("slo_aware", 1, work=work, ttft_s=0.02, tokens_per_s=100.0, memory_s=0.2)
    assert (late.requests.status == SHED).all()  # it never sees anything, for it never lets anything in


@pytest.mark.parametrize("name", router_names())
def test_every_router_conserves(name):
    rng = np.random.default_rng(3)
    prompts = rng.integers(10, 400, 60)
    content = tuple(rng.integers(0, 3, size) for size in prompts)
    work = workload(np.sort(rng.integers(0, 300, 60)), prompts, rng.integers(1, 30, 60), token_ids=content)
    run = fleet(name, 3, work=work)
    assert all(run.checks.values())
    if not sheds(name):
        assert (run.requests.status == FINISHED).all()
        assert set(run.requests.replica) <= {0, 1, 2}


def test_a_router_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Options:\n    first: int = 0\n"
        "def make(options, seed):\n    return lambda arrival, targets: min(options.first, len(targets) - 1)\n"
    )
    assert picks("./mine.py", [Seen(), Seen()], [arrival()] * 2, first=1) == [1, 1]
    with pytest.raises(ValueError, match="deployment.router_options.frist is no option .* did you mean first"):
        make_router("./mine.py", 0, {"frist": 1})
    with pytest.raises(ValueError, match=r"deployment.router=./other.py: there is no file"):
        make_router("./other.py", 0)
    (tmp_path / "bad.py").write_text("def make(options, seed)\n")
    with pytest.raises(ValueError, match=r"deployment.router=./bad.py, line 1: SyntaxError"):
        make_router("./bad.py", 0)
    with pytest.raises(
        ValueError, match="deployment.router_options.a has no meaning: the router random has no options"
    ):
        make_router("random", 0, {"a": 1})
    with pytest.raises(ValueError, match="deployment.router_options: share must be above 0 and below 1, got 2"):
        make_router("length_aware", 0, {"share": 2.0})


def test_kv_aware_weighs_the_way_against_the_cache():
    """Of ways of 50 and 25 GB/s the slower costs 0.5 (1 - 1/2) = 0.25 of a cache; without ways only that counts."""
    targets = [Seen(kv_usage=0.5), Seen(kv_usage=0.3)]
    ways = {0: 50e9, 1: 25e9}
    router = make_router("kv_aware", 0, {})
    assert router(arrival(), targets) == 1
    assert router(Arrival(0, 100, 0, 0, None, ways.__getitem__), targets) == 0  # 0.5 against 0.3 + 0.25
    assert make_router("kv_aware", 0, {"congestion": 0.3})(Arrival(0, 100, 0, 0, None, ways.__getitem__), targets) == 1
    equal = [Seen(outstanding=3, kv_usage=0.2), Seen(outstanding=2, kv_usage=0.2)]
    assert router(arrival(), equal) == 1
    with pytest.raises(ValueError, match="congestion must not be negative"):
        make_router("kv_aware", 0, {"congestion": -1.0})
