"""The command line as a user meets it: help, answers, JSON, and one sentence for every kind of bad input."""

import json
import re
import subprocess
import sys

import pytest

from scripts.bench import BENCHMARKS
from scripts.cli import failure
from scripts.commands import COMMANDS


SMALL = ("workload=fixed-1024-128", "workload.num_requests=6")


def test_help_is_one_screen(headway):
    for words in ((), ("--help",), ("-h",)):
        found = headway(*words)
        assert found.code == 0
        lines = found.out.rstrip().split("\n")
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100
        assert all(f"\n  {name} " in found.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(headway, name):
    found = headway(name, "--help")
    assert found.code == 0
    assert COMMANDS[name].example in found.out
    assert "--json" in found.out
    assert max(map(len, found.out.split("\n"))) <= 160


def test_help_of_simulate_lists_keys_with_defaults(headway):
    found = headway("simulate", "--help").out
    assert any(line.split()[:2] == ["workload.rate", "10"] for line in found.split("\n"))
    assert "deployment=NAME, one of" in found


def test_version(headway):
    assert headway("--version").out.startswith("headway 0.")
    assert headway("--version", "--json").json()["status"] == "ok"


def test_help_and_the_catalogues_need_no_jax():
    """A command that prints a list must not wait for the compiler to load."""
    code = (
        "import sys\nfrom scripts.cli import main\n"
        "assert main(sys.argv[1:]) == 0\nassert 'jax' not in sys.modules, 'jax was imported'\n"
    )
    for words in (["--help"], ["models", "qwen3-8b"], ["hardware"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulat",), "there is no command simulat: did you mean simulate?"),
        (("sweep", "-m"), "there is no command sweep: a sweep is `headway simulate -m KEY=A,B ...`."),
        (("qqq",), "there is no command qqq: known are simulate, memory"),
        (("workload.rate=3",), "the command comes first, `headway simulate workload.rate=3`"),
        (("simulate", "--jsn"), "headway: simulate has no option --jsn: did you mean --json?"),
        (("simulate", "workload.raet=3"), "unknown key workload.raet: did you mean workload.rate?"),
        (("simulate", "hardware=h1000"), "hardware=h1000 is not one of the"),
        (("simulate", "--serve", "vllm"), "--serve wants a whole command in quotes"),
        (("memory", "engine.max_num_seq=3"), "did you mean engine.max_num_seqs?"),
        (("memory", "predictor=nonsense"), "predictor must be auto, kernels, analytic or a folder or .json file"),
        (("simulate", "--cfg"), "--cfg wants WHAT, and the command ends there."),
        (("simulate", "--cfg", "jib"), "--cfg wants job, got 'jib'."),
        (("memory", "--cfg", "seed=1"), "--cfg wants job, got 'seed=1'."),
        (("bench", "--repeat"), "--repeat wants N, and the command ends there."),
        (("simulate", "--engine", ""), "--engine wants NAME-VERSION"),
        (("simulate", "--bench", "3"), "--bench wants the flags of `vllm bench serve`"),
        (("simulate", "workload=f/nope"), "workload=f/nope: there is no file"),
        (("simulate", "results=[a]"), "results wants the path of one folder"),
        (("models", ""), "model wants a name or a path, got ''."),
        (("models", "foo"), "`headway models` lists the catalogue"),
        (("models", "llama3"), "the nearest names are llama-3"),
        (("hardware", ""), "hardware= is not a known device"),
        (("collect", ""), "headway: collect wants a name or a path, got ''."),
        (("validate", "run="), "run wants a name or a path, got ''."),
        (("hardware", "chip.csv"), "hardware=chip.csv: a device file is wanted, whose name ends in .yaml"),
        (("models", "a", "b"), "headway: models wants one name, got a b."),
        (("collect",), "headway: collect wants one folder, got 0."),
        (("collect", "nowhere"), "nowhere"),
        (("validate",), "headway: validate wants one of run=DIR"),
        (("validate", "run=nowhere"), "run=nowhere: there is no such folder."),
        (("bench", "event-contd"), "there is no benchmark event-contd: did you mean event-counted"),
        (("bench", "startup", "--repeat", "0"), "--repeat wants a whole number above 0, got '0'."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(headway, tmp_path, words, said):
    found = headway(*words)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("headway: ") and found.err.count("\n") == 1
    assert said in found.err
    as_json = headway(*words, "--json")
    assert as_json.code == 2
    assert as_json.json() == {"status": "error", "message": found.err.removeprefix("headway: ").rstrip("\n")}
    assert list(tmp_path.iterdir()) == []


def csv(text: str):
    """A maker of `workload=FILE` overrides."""

    def make(folder):
        (folder / "input").mkdir(exist_ok=True)
        path = folder / "input" / "trace.csv"
        path.write_text(text)
        return f"workload={path}"

    return make


def config_json(**values):
    """A maker of `model=FILE` overrides: a small Llama with some keys changed; None removes one."""

    def make(folder):
        config = {
            "model_type": "llama",
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "vocab_size": 1024,
            "max_position_embeddings": 2048,
        }
        path = folder / "input" / "config.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({key: value for key, value in {**config, **values}.items() if value is not None}))
        return f"model={path}"

    return make


HEAD = "arrival_s,input_tokens,output_tokens\n"

BAD_INPUT = {
    "vocabulary TP does not divide": (
        ["model=qwen3-8b", "deployment.tensor_parallel=5"],
        "divi|multiple|tensor_parallel",
    ),
    "heads TP does not divide": (
        ["model=llama-3.1-8b", "deployment.tensor_parallel=3"],
        "divi|multiple|tensor_parallel",
    ),
    "a length over the model's limit": (["model=phi-2", "engine.max_model_len=8192"], "2,048 .* engine.max_model_len"),
    "weights that do not fit": (["model=llama-3.1-70b"], "does not fit: .* deployment.tensor_parallel=4"),
    "zero blocks": (["engine.kv_cache_memory_bytes=1000"], "does not fit|block"),
    "a negative rate": (["workload.rate=-1"], "workload.rate"),
    "a rate that is no number": (["workload.rate=nan"], "workload.rate"),
    "no requests": (["workload.num_requests=0"], "workload.num_requests"),
    "an unknown scheduler": (["engine.scheduler=lottery"], "engine.scheduler"),
    "an unknown router": (["deployment.router=lottery", "deployment.replicas=2"], "router"),
    "no replicas": (["deployment.replicas=0"], "replicas"),
    "a misspelt model key": (
        [config_json(num_attention_heads=None, num_atention_heads=4)],
        "'num_attention_heads'.* missing.*num_atention_heads",
    ),
    "an unknown model type": ([config_json(model_type="lama")], "model_type.*'lama'.*llama"),
    "negative arrivals": ([csv(HEAD + "-1,10,10\n0,10,10\n")], "trace.csv.*negative|line 2"),
    "unsorted arrivals": ([csv(HEAD + "5,10,10\n1,10,10\n")], "workload.sort"),
    "NaN": ([csv(HEAD + "0,10,10\nnan,10,10\n")], "line 3"),
    "an empty trace": ([csv("")], "empty|at least one|no request"),
    "a trace without requests": ([csv(HEAD)], "at least one request"),
    "a truncated csv": ([csv(HEAD + "0,10,10\n1,10\n")], "line 3"),
    "a missing file": (["workload=nowhere.csv"], "there is no file"),
    "a rate below all clocks": (["workload.rate=1e-30"], "workload.rate wants a number from 1e-08"),
    "more requests than memory": (["workload.num_requests=99999999999999999999"], "num_requests wants at most"),
    "longer than any model": (
        ["workload=fixed-128-128", "workload.input_tokens=99999999999999999999"],
        "input_tokens wants at most",
    ),
    "a file below a file": (
        [csv(HEAD + "0,1,1\n"), "results=input/trace.csv/x"],
        "results folder input/trace.csv/x cannot",
    ),
    "a file in place of the folder": ([csv(HEAD + "0,1,1\n"), "results=input/trace.csv"], "is a file; choose another"),
    "an SLO that is none": (["slo.ttft_ms=-5"], "slo"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_leaves_no_results(headway, tmp_path, case):
    overrides, said = BAD_INPUT[case]
    words = [override(tmp_path) if callable(override) else override for override in overrides]
    found = headway("simulate", *words, "--json")
    assert found.code == 2, found.out
    answer = found.json()
    assert answer["status"] == "error"
    assert re.search(said, answer["message"]), answer["message"]
    assert "\n" not in answer["message"]
    assert not (tmp_path / "results").exists()


def test_a_run_prints_the_block_and_leaves_a_folder(headway, tmp_path):
    found = headway("simulate", *SMALL, "results=out")
    assert found.code == 0, found.err
    assert "============ Serving Benchmark Result ============" in found.out
    assert "page: out/report.html" in found.out
    assert {"summary.json", "report.html", "requests.parquet"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert (tmp_path / "out" / "overrides.yaml").read_text().split("\n")[0] == "- workload=fixed-1024-128"
    assert "was replaced" not in found.out
    assert "note: the earlier result in out was replaced" in headway("simulate", *SMALL, "results=out").out


def test_json_is_the_summary_and_nothing_else(headway, tmp_path):
    found = headway("simulate", *SMALL, "results=out", "--json").json()
    assert (found["status"], found["completed"], found["results"]) == ("ok", 6, "out")
    assert found["overrides"] == [*SMALL, "results=out"]
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {key: found[key] for key in written} == written


def test_flags_of_vllm_run_and_what_is_left_out_is_said(headway):
    words = ("--serve", "vllm serve Qwen/Qwen3-32B -tp 2 --port 1", "--bench", "--num-prompts 4 --random-output-len 4")
    found = headway("simulate", *words, "--json").json()
    assert (found["completed"], found["gpus"], found["model"]) == (4, 2, "qwen3-32b")
    assert [row["flag"] for row in found["ignored_flags"]] == ["--port"]
    assert "not used: --port" in headway("simulate", *words).out


def test_the_configuration_can_be_looked_at(headway, tmp_path):
    found = headway("simulate", *SMALL, "--cfg", "job")
    assert "  num_requests: 6\n" in found.out
    assert headway("memory", "--cfg", "job", "--json").json()["config"]["deployment"]["name"] == "single"
    assert list(tmp_path.iterdir()) == []


def test_memory_prints_the_sum(headway):
    found = headway("memory", "model=llama-3.1-8b")
    assert found.code == 0
    assert "Available KV cache memory:" in found.out and "GPU KV cache size:" in found.out
    assert headway("memory", "--json").json()["fits"] is True


def test_memory_that_does_not_fit_says_what_would(headway):
    found = headway("memory", "model=llama-3.1-70b", "--json")
    assert found.code == 2
    answer = found.json()
    assert (answer["status"], answer["fits"], answer["smallest_tensor_parallel"]) == ("infeasible", False, 4)


def test_sglang_by_its_own_command_line(headway):
    command = "sglang serve --model-path Qwen/Qwen3-32B --tp 2 --schedule-policy lpm"
    found = headway("memory", "--serve", command, "--json").json()
    assert (found["engine"], found["tensor_parallel"]) == ("sglang", 2)
    found = headway(
        "simulate", "--serve", command, "workload=fixed-128-128", "workload.num_requests=5", "--json"
    ).json()
    assert (found["completed"], found["engine_label"]) == (5, "sglang 0.5.23")
    uncut = ("engine=sglang-0.5.23", "engine.enable_chunked_prefill=false", "model=qwen2.5-0.5b")
    found = headway("simulate", *uncut, "workload=fixed-8192-1024", "workload.num_requests=2", "--json").json()
    assert found["completed"] == 2
    refused = headway("simulate", "--serve", command.replace("lpm", "sjf"), "--json")
    assert refused.code == 2
    assert "engine.scheduling_policy=sjf" in refused.json()["message"]


def test_the_catalogues(headway):
    models = headway("models", "--json").json()["models"]
    assert models["qwen3-32b"]["hf_id"] == "Qwen/Qwen3-32B"
    assert len(models) >= 25
    devices = headway("hardware", "--json").json()["devices"]
    assert devices["h100-sxm"]["memory_bytes"] > 8e10
    assert "llama-3.1-8b" in headway("models").out
    assert "h100-sxm" in headway("hardware").out
    assert "memory_bytes_per_s" in headway("hardware", "h100-sxm").out
    assert "64 full" in headway("models", "qwen3-32b").out


def test_a_run_in_which_every_request_is_rejected_says_why(headway):
    found = headway("simulate", "model=qwen2.5-0.5b", *SMALL, "workload.input_tokens=60000", "workload.num_requests=3")
    assert found.code == 0
    assert "all 3 requests were rejected: the longest has 60," in found.out
    assert "engine.max_model_len is 32,768" in found.out
    assert "rejected:" not in headway("simulate", *SMALL).out


def test_too_little_memory_is_no_bug(headway, monkeypatch):
    import scripts.hardware

    def none_left(*_, **__):
        raise MemoryError("Unable to allocate 7 TiB")

    monkeypatch.setattr(scripts.hardware, "table", none_left)
    found = headway("hardware")
    assert (found.code, found.out) == (2, "")
    assert "more memory than this machine has (Unable to allocate 7 TiB)" in found.err


def test_a_bug_is_called_one(headway, monkeypatch):
    import scripts.hardware

    monkeypatch.setattr(scripts.hardware, "table", lambda *_, **__: 1 / 0)
    found = headway("hardware")
    assert (found.code, found.out) == (1, "")
    assert "a bug in headway, ZeroDivisionError" in found.err and "HEADWAY_DEBUG=1" in found.err
    assert "Traceback" not in found.err
    monkeypatch.setenv("HEADWAY_DEBUG", "1")
    assert "Traceback" in headway("hardware").err
    assert headway("hardware", "--json").json()["status"] == "bug"


def test_a_reader_that_goes_away_is_no_error():
    code = "import sys; from scripts.cli import main; sys.exit(main(['hardware']))"
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "{code}" | true'], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("said", "printed"),
    [("headway x wants one", "x wants one."), ("no such\n file.", "no such file."), ("really?", "really?")],
)
def test_mistakes_end_with_a_full_stop_and_name_the_program_once(said, printed):
    found = failure(ValueError(said))
    assert (found.text, found.fields["message"]) == (printed, printed)


@pytest.mark.parametrize("extra", [[], ["-m", "seed=0,1"]])
def test_outputs_that_are_cut_are_said(headway, tmp_path, extra):
    words = ["model=llama-3.2-1b", "hardware=h100-sxm", "workload=fixed-1024-128", "workload.num_requests=3"]
    words += ["engine.max_model_len=1100", f"results={tmp_path / 'run'}", *extra]
    found = headway("simulate", *words)
    assert found.code == 0
    assert re.search(r"outputs end\s+at\s+engine.max_model_len", found.out), found.out
    fields = json.loads((next((tmp_path / "run").rglob("summary.json"))).read_text())
    assert (fields["cut_requests"], fields["cut_tokens"]) == (3, 3 * (1024 + 128 - 1100))
    assert any("answers 400" in row["source"] for row in fields["assumptions"])


def test_help_lists_what_a_command_takes(headway):
    """The benchmarks by name; of a command without a workload the groups that it has, and no other key."""
    assert all(name in " ".join(headway("bench", "--help").out.split()) for name in BENCHMARKS)
    for name in ("memory", "plan"):
        lines = headway(name, "--help").out.split("\ngeneral:\n")[1].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == ["model", "hardware", "engine", "deployment"]
    assert "\n  seed " in headway("simulate", "--help").out


def test_catalogues_are_in_natural_order(headway):
    names = list(headway("models", "--json").json()["models"])
    for first, second in (("gemma-2-9b", "gemma-2-27b"), ("deepseek-v3", "deepseek-v3.2"), ("gpt3-7b", "gpt3-13b")):
        assert names.index(first) < names.index(second)
    text = headway("models").out
    assert "active: of models with experts" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["llama-3.1-8b"].count(" B ") == 1 and rows["mixtral-8x7b"].count(" B ") == 2
