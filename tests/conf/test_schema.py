"""Every key has a description, and every description a key."""

import dataclasses
from pathlib import Path

import yaml

import scripts
from conf.mistakes import keys, nearest
from conf.schema import SCHEMAS, SimulateConf
from scripts.help import default_of


DESCRIBED = yaml.safe_load((Path(scripts.__file__).parent / "keys.yaml").read_text())


def test_all_keys_are_described_and_nothing_else():
    for group, schema in {**SCHEMAS, "general": SimulateConf}.items():
        assert set(DESCRIBED[group]) == {field.name for field in dataclasses.fields(schema)}, group
    assert set(DESCRIBED) == {*SCHEMAS, "general"}


def test_defaults_are_those_of_the_schema():
    assert default_of("", "seed") == "0"
    assert default_of("", "model") == "llama-3.1-8b"
    assert default_of("", "percentiles") == "[50,90,95,99]"
    assert default_of("workload", "rate") == "10"
    assert default_of("workload", "sort") == "false"
    assert default_of("engine", "max_num_seqs") == "-"


def test_keys_are_dotted_paths_of_the_schema():
    known = list(keys())
    assert {"seed", "engine.max_num_seqs", "engine.profile.graph_list", "hardware.nic.latency_s"} <= set(known)
    assert len(known) == len(set(known))


def test_nearest_prefers_what_begins_alike():
    assert nearest("h100", ["h800", "h100-sxm", "a100"])[0] == "h100-sxm"
    assert nearest("zzz", ["h800"]) == []
