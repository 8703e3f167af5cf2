"""A key that the workload does not read is refused where a user sets it, and every law says truly what it reads."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from sim.workload import arrival, length
from sim.workload.conf import WorkloadConf
from sim.workload.used import check_read, reads


LENGTH_KEYS = frozenset().union(*(reads("length", name) for name in length.names()))


@pytest.mark.parametrize("kind", ["arrival", "length"])
def test_laws_read_what_they_say(kind):
    names, watched = (arrival.names(), {"rate"}) if kind == "arrival" else (length.names(), LENGTH_KEYS)
    for name in names:
        text = Path(import_module(f"sim.workload.{kind}.{name}").__file__).read_text(encoding="utf-8")
        assert reads(kind, name) == watched & set(re.findall(r"\bconf\.(\w+)", text)), name


PROFILE = dict(lengths="profile", profile="sharegpt")
TRACE = dict(lengths="trace", arrival="trace", path="t.csv")


@pytest.mark.parametrize(
    ("fields", "key", "said"),
    [
        (PROFILE, "input_tokens", "workload.lengths=fixed or .*, got profile"),
        (PROFILE | {"range_ratio": 0.5}, "range_ratio", "workload.lengths=uniform or uniform_below, got profile"),
        (TRACE, "output_tokens", "workload.lengths=fixed or .*, got trace"),
        (TRACE, "rate", "workload.arrival=constant or gamma or poisson or ramp, got trace"),
        (dict(arrival="closed_loop", concurrency=2), "rate", "workload.arrival=.*, got closed_loop"),
        (dict(lengths="fixed", input_cv=2.0), "input_cv", "workload.lengths=lognormal, got fixed"),
        (dict(profile="sharegpt"), "profile", "workload.lengths=profile, got fixed"),
        (dict(lengths_path="x.csv"), "lengths_path", "workload.lengths=empirical, got fixed"),
        (dict(format="azure"), "format", "workload.arrival=trace or workload.lengths=trace, got poisson and fixed"),
        (dict(over_limit="error"), "over_limit", "workload.max_input_tokens or workload.max_total_tokens, got neither"),
        (dict(rounds=3, concurrency=2, num_requests=5), "rounds", "workload.num_requests=null, got 5"),
    ],
)
def test_a_key_without_effect_is_refused(fields, key, said):
    with pytest.raises(ValueError, match=f"workload.{key} does nothing here: it wants {said}; leave it out"):
        check_read(WorkloadConf(**fields), [key])


def test_keys_with_effect_pass():
    check_read(WorkloadConf(), ["input_tokens", "rate", "num_requests", "name", "prefix_tokens", "priorities"])
    check_read(WorkloadConf(**PROFILE, max_total_tokens=9), ["profile", "over_limit", "max_total_tokens"])
    check_read(WorkloadConf(**TRACE), ["path", "format", "hash_block_tokens", "num_requests"])
    # nothing set is nothing in vain, and what is no law is said by others
    check_read(WorkloadConf(), ["profile", "lengths_path", "no_such_key"])
    check_read(WorkloadConf(arrival="nonsense"), ["rate"])


def test_a_law_of_ones_own_may_read_anything(monkeypatch):
    monkeypatch.delattr(import_module("sim.workload.length.fixed"), "READS")
    reads.cache_clear()
    check_read(WorkloadConf(), ["input_cv"])
    monkeypatch.undo()
    reads.cache_clear()
