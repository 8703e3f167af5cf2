"""A scheduler of the user's own: the example of the documentation as it stands, and one sentence for each mistake."""

import json
import os
import re
from pathlib import Path

import pytest

import sim.scheduler.find as find
from sim.deployment.engine import EngineConf


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add-a-scheduler.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path, monkeypatch):
    """A folder with the files of the page, each named in the first line of its block."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.S)
    assert [name for name, _ in blocks] == ["my_policy.py", "conf/engine/mine.yaml"]
    for name, text in blocks:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert len(blocks[0][1].splitlines()) <= 42
    return tmp_path


def test_the_example_of_the_page_runs(headway, example):
    commands = re.findall(r"^headway (.*)$", PAGE, re.M)
    found = headway(*commands[0].split(), "results=out", "--json").json()
    assert (found["status"], found["completed"]) == ("ok", 20)
    config = json.loads((example / "out" / "summary.json").read_text())
    assert config["completed"] == 20
    report = (example / "out" / "console.txt").read_text()
    assert "what my policy leaves out, for the report" in report
    assert "scheduler ./my_policy.py" in headway(*commands[0].split(), "results=again").out.split("\n")[0]


def test_the_comparison_of_the_page_runs(headway, example):
    command = re.findall(r"^headway (.*)$", PAGE, re.M)[1]
    found = headway(*command.split(), "workload.num_requests=6", "results=swept")
    assert found.code == 0, found.err
    assert "./my_policy.py" in found.out or "mine" in found.out


def test_a_module_by_its_dotted_name(example):
    package = example / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "my_policy.py").write_text((example / "my_policy.py").read_text())
    find.check_scheduler(EngineConf(scheduler="my_package.my_policy", scheduler_options={"ageing_tokens": 1}))
    assert find.not_modelled("my_package.my_policy") == ("what my policy leaves out, for the report",)


def test_a_file_that_changes_is_read_again(example):
    path = example / "my_policy.py"
    before = find.find_scheduler("./my_policy.py")
    assert find.find_scheduler("./my_policy.py") is before
    path.write_text(path.read_text().replace("ageing_tokens: int = 64", "ageing_tokens: int = 1"))
    assert find.find_scheduler("./my_policy.py").Options().ageing_tokens == 1


FILES = {
    "broken.py": "def make(:\n",
    "raises.py": "import nothing_of_this_name\n",
    "empty.py": "X = 1\n",
    "fails.py": "def make(settings, cache):\n    return 1 / 0\n",
    "late.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Late(IterationScheduler):\n"
        "    def candidates(self):\n"
        "        return self.nothing\n"
        "make = Late\n"
    ),
    "nothing.py": "def make(settings, cache):\n    return None\n",
    "words.py": "def make(settings, cache):\n    return int('x')\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
    "leaves_late.py": (
        "import sys\n"
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Leaves(IterationScheduler):\n"
        "    def schedule(self):\n"
        "        sys.exit(3)\n"
        "make = Leaves\n"
    ),
    "numbers.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Numbers(IterationScheduler):\n"
        "    request_type = int\n"
        "make = Numbers\n"
    ),
    "value.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Value(IterationScheduler):\n"
        "    def candidates(self):\n"
        "        return int('x')\n"
        "make = Value\n"
    ),
    "twice.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Twice(IterationScheduler):\n"
        "    def complete(self, batch):\n"
        "        ended = super().complete(batch)\n"
        "        return [*ended, *ended]\n"
        "make = Twice\n"
    ),
    "none.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Nothing(IterationScheduler):\n"
        "    def schedule(self):\n"
        "        return None\n"
        "make = Nothing\n"
    ),
    "halves.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Halves(IterationScheduler):\n"
        "    def tokens_for(self, request, budget):\n"
        "        return super().tokens_for(request, budget) / 2\n"
        "make = Halves\n"
    ),
    "foreign.py": (
        "from sim.scheduler.iteration import IterationRequest, IterationScheduler\n"
        "class Foreign(IterationScheduler):\n"
        "    def candidates(self):\n"
        "        return [IterationRequest(99, 10, 10)]\n"
        "make = Foreign\n"
    ),
    "policies.py": "from sim.scheduler.iteration import IterationScheduler as make\nPOLICIES = ()\n",
    "said.py": "from sim.scheduler.iteration import IterationScheduler as make\nNOT_MODELLED = 'one sentence'\n",
    "supports.py": "from sim.scheduler.iteration import IterationScheduler as make\nSUPPORTS = ('reuse',)\n",
    "chunks.py": "from sim.scheduler.iteration import IterationScheduler as make\nCHUNKS = 'x'\n",
    "options.py": "from sim.scheduler.iteration import IterationScheduler as make\nclass Options:\n    x = 1\n",
    "most.py": "from sim.scheduler.iteration import IterationScheduler as make\nmost_batch_tokens = lambda s: 'x'\n",
    "idle.py": (
        "from sim.scheduler.iteration import IterationScheduler\n"
        "class Idle(IterationScheduler):\n"
        "    def admits(self, request, tokens):\n"
        "        return False\n"
        "make = Idle\n"
    ),
}

MISTAKES = {
    "no such file": (
        ["engine.scheduler=./nowhere.py"],
        r"engine.scheduler=./nowhere.py: there is no file /.*nowhere.py",
    ),
    "no such module": (["engine.scheduler=nowhere.at_all"], "there is no module nowhere that can be imported"),
    "a near name": (["engine.scheduler=orcs"], "did you mean orca"),
    "a folder": (["engine.scheduler=./conf"], "there is no file"),
    "a pipe": (["engine.scheduler=./pipe.py"], "engine.scheduler=./pipe.py: there is no file"),
    "no Python": (["engine.scheduler=./broken.py"], "./broken.py cannot be used, SyntaxError: .*line 1"),
    "a failing import": (
        ["engine.scheduler=./raises.py"],
        "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    ),
    "no make": (["engine.scheduler=./empty.py"], r"has no function make\(settings, cache\)"),
    "a failing make": (["engine.scheduler=./fails.py"], "ZeroDivisionError: division by zero"),
    "a failing method": (
        ["engine.scheduler=./late.py"],
        "./late.py failed in line 4, AttributeError: 'Late' object has no attribute 'nothing'",
    ),
    "a make that returns nothing": (
        ["engine.scheduler=./nothing.py"],
        r"./nothing.py: make\(settings, cache\) must return a scheduler, got NoneType, which has no request_type, add,",
    ),
    "a make that raises ValueError": (
        ["engine.scheduler=./words.py"],
        "engine.scheduler=./words.py cannot be used in line 2, ValueError: invalid literal",
    ),
    "a method that raises ValueError": (
        ["engine.scheduler=./value.py"],
        "engine.scheduler=./value.py failed in line 4, ValueError: invalid literal",
    ),
    "a file that ends the program": (
        ["engine.scheduler=./leaves.py"],
        "./leaves.py cannot be used in line 2, SystemExit: 3",
    ),
    "a method that ends the program": (["engine.scheduler=./leaves_late.py"], r"ended by sys.exit\(3\)"),
    "requests of another kind": (
        ["engine.scheduler=./numbers.py"],
        "request_type must be sim.scheduler.base.Request or a subclass of it, got <class 'int'>",
    ),
    "an end told twice": (["engine.scheduler=./twice.py"], "conservation broken: every request ended once"),
    "no batch": (["engine.scheduler=./none.py"], "schedule must return a Batch, got None"),
    "half a token": (
        ["engine.scheduler=./halves.py"],
        r"tokens_for must return a whole number of at most .* here 1024, got 512.0 for Iter",
    ),
    "a request of its own": (
        ["engine.scheduler=./foreign.py"],
        "engine.scheduler=./foreign.py failed, ValueError: list",
    ),
    "no policy": (["engine.scheduler=./policies.py"], "POLICIES must name at least one policy"),
    "a sentence for sentences": (
        ["engine.scheduler=./said.py"],
        "NOT_MODELLED must be a tuple of texts, got 'one sentence'",
    ),
    "a setting nobody has": (
        ["engine.scheduler=./supports.py"],
        "SUPPORTS may name enable_prefix_caching, hybrid_kv_cache, long_prefill_token_threshold, got 'reuse'",
    ),
    "chunks of a kind": (["engine.scheduler=./chunks.py"], "CHUNKS must be True or False, got 'x'"),
    "options that are no dataclass": (["engine.scheduler=./options.py"], "Options must be a dataclass, got <class"),
    "a batch of words": (["engine.scheduler=./most.py"], "must return a whole number from 1 to 16,777,216, got 'x'"),
    "no progress": (["engine.scheduler=./idle.py"], "empty batches in a row, .*choose another with engine.scheduler"),
    "an unknown option": (
        ["engine=mlfq", "++engine.scheduler_options.queue=2"],
        "no option of .* mlfq: did you mean queues",
    ),
    "an option of another type": (
        ["engine=mlfq", "++engine.scheduler_options.queues=2.5"],
        "queues wants a whole number",
    ),
    "an option out of range": (
        ["engine=mlfq", "++engine.scheduler_options.queues=0"],
        "queues must be at least 1, got 0",
    ),
    "quanta beyond all numbers": (
        ["engine=mlfq", "++engine.scheduler_options.queues=2000"],
        r"quantum \* ratio\*\*\(queues - 1\), must be at most 1e\+30",
    ),
    "a quantum without end": (
        ["engine=mlfq", "++engine.scheduler_options.quantum=inf"],
        "quantum.* must be at most 1e",
    ),
    "an option that is no choice": (
        ["engine=orca", "++engine.scheduler_options.reserve=all"],
        "reserve must be one of oracle, pow2, max, got 'all'",
    ),
    "options of one without": (
        ["engine.scheduler=./idle.py", "++engine.scheduler_options.x=1"],
        "engine.scheduler_options.x has no meaning: the scheduler ./idle.py has no options",
    ),
    "a policy it does not have": (
        ["engine=trtllm-1.0", "engine.scheduling_policy=fcfs"],
        "wanted is one of GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH",
    ),
    "a policy of one without": (
        ["engine=orca", "engine.scheduling_policy=priority"],
        "wanted is fcfs, it has no other",
    ),
    "chunks smaller than a block": (
        ["engine=trtllm-1.0", "engine.max_num_batched_tokens=31", "engine.max_num_seqs=1"],
        "engine.max_num_batched_tokens must be at least engine.block_size=32, got 31",
    ),
    "a bound it ignores": (
        ["engine=orca", "engine.long_prefill_token_threshold=64"],
        "engine.long_prefill_token_threshold=64 has no effect with the scheduler orca",
    ),
    "prefixes it does not reuse": (
        ["engine=sarathi", "engine.enable_prefix_caching=true"],
        "engine.enable_prefix_caching=true has no effect with the scheduler sarathi",
    ),
    "chunks it does not make": (["engine=static", "engine.enable_chunked_prefill=true"], "static never cuts a prompt"),
    "whole prompts where it cuts": (
        ["engine=sarathi", "engine.enable_chunked_prefill=false"],
        "sarathi always cuts prompts at the token budget",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_sentence(headway, example, case):
    for name, text in FILES.items():
        (example / name).write_text(text)
    os.mkfifo(example / "pipe.py")
    overrides, said = MISTAKES[case]
    words = ["model=qwen2.5-0.5b", "workload=fixed-1024-128", "workload.num_requests=2", *overrides]
    found = headway("simulate", *words, "--json")
    assert found.code == 2, found.out
    message = found.json()["message"]
    assert re.search(said, message), message
    assert "\n" not in message
    assert not (example / "results").exists()


@pytest.mark.parametrize("engine", ["orca", "static", "sarathi", "mlfq", "shortest-first", "trtllm-1.0"])
def test_each_policy_runs_by_its_yaml(headway, engine):
    found = headway(
        "simulate", f"engine={engine}", "model=qwen2.5-0.5b", "workload=shared-prefix", "workload.num_requests=8",
        "results=out", "--json",
    ).json()  # fmt: skip
    assert (found["status"], found["completed"]) == ("ok", 8)


def test_content_that_is_not_reused_is_said(headway, tmp_path):
    words = ["model=qwen2.5-0.5b", "engine=vllm-0.19.0", "workload=shared-prefix", "workload.num_requests=4"]
    assert headway("simulate", *words, "engine.scheduler=sarathi", "results=out").code == 0
    said = (tmp_path / "out" / "console.txt").read_text()
    assert "prefix reuse: the scheduler sarathi computes every prompt" in " ".join(said.split())
