"""docs/cli.md and the help say what the commands do: formats of traces, versions of engines that have no profile."""

import re
from pathlib import Path

from sim.deployment.settings import engine_names
from sim.workload.conf import WorkloadConf
from sim.workload.reader import names, read_trace


PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
TRACES = PAGE[PAGE.index("## Traces") : PAGE.index("## Flags of the engines")]


def test_every_trace_format_is_told():
    assert sorted(re.findall(r"^\| `(\w+)` \| (?:csv|JSON|the same)", TRACES, re.M)) == names()


def test_the_example_of_a_plain_trace_is_one(headway, tmp_path):
    (block,) = re.findall("```\n(.*?)```", TRACES, re.DOTALL)
    (tmp_path / "mine.csv").write_text(block)
    found = read_trace(WorkloadConf(), "mine.csv")
    assert found.prompt_tokens.tolist() == [512, 2048] and found.arrival_ns.tolist() == [0, 350_000_000]
    told = headway("simulate", "workload=mine.csv", "--cfg", "job", "--json").json()["config"]["workload"]
    assert told["arrival"] == told["lengths"] == "trace"


def test_versions_older_than_any_profile(headway):
    """`--engine` and `engine=` take the oldest profile and say so, and the page says which that is."""
    oldest: dict[str, str] = {}
    for name, _, version in (stem.partition("-") for stem in engine_names()):
        oldest.setdefault(name, version)
    assert f"({', '.join(f'{name} {oldest[name]}' for name in ('vllm', 'sglang', 'trtllm'))})" in PAGE
    where = ("model=llama-3.1-8b", "hardware=h100-sxm")
    for words in (("--engine", "vllm-0.9.0"), ("engine=vllm-0.9.0",), ("engine=vllm-0.9",)):
        assert "that of 0.10.2 is used, the oldest known" in headway("memory", *where, *words).out
    for words in (("--engine", "vllm-0.24"), ("engine=vllm-0.24",), ("engine=vllm-0.24.0",)):
        assert "that of 0.23.0 is used, the nearest earlier one" in headway("memory", *where, *words).out
