"""The profiler that needs torch alone: shapes and batches by hand, clocks that tick by hand, tables that read back."""

import contextlib
import csv
import importlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from calibration.tables import plain
from predictors.table import FAMILIES
from scripts.profiling.grid import Batch, batches, load, rows_per_expert
from scripts.profiling.kernels import Row
from scripts.profiling.run import main, parser, write_row
from scripts.profiling.shapes import Experts, Heads, Product, read_shapes
from scripts.profiling.timing import LEAST_LOOP_S, GpuClock, HostClock, Times, in_a_row
from sim.model.read import load_model


PROFILER = Path(__file__).resolve().parents[2] / "scripts" / "profile.py"

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
EXPERTS = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
    "num_experts_per_tok": 8,
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "vocab_size": 129280, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
TINY = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 500,
    "num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip


def test_one_rank_of_a_dense_model():
    shapes = read_shapes(LLAMA, "llama", tp=2)
    # 16 of 32 query heads, 4 of 8 KV heads of 128; half of 14,336 units
    assert shapes.heads == Heads(16, 4, 128)
    assert shapes.products == (
        Product("qkv_proj", (16 + 2 * 4) * 128, 4096),
        Product("o_proj", 4096, 16 * 128),
        Product("gate_up_proj", 2 * 7168, 4096),
        Product("down_proj", 4096, 7168),
    )
    assert (shapes.vocab, shapes.whole_vocab, shapes.inter) == (64128, 128256, 7168)
    # more ranks than KV heads: every rank has a copy of one
    assert read_shapes(LLAMA, "llama", tp=16).heads == Heads(2, 1, 128)


def test_the_simulator_has_the_same_products():
    """Shapes of the plain profiler against those of the model room, rank by rank."""
    model = load_model("llama-3.1-8b")
    names = {"qkv": "qkv_proj", "o": "o_proj", "gate_up": "gate_up_proj", "down": "down_proj"}
    for tp in (1, 2, 4, 8):
        ours = {product.op: (product.n, product.k) for product in read_shapes(LLAMA, "llama", tp).products}
        theirs = {matrix.name: (matrix.n, matrix.k) for matrix in model.layers[0].linears(model.hidden, tp)}
        assert {names[name]: shape for name, shape in theirs.items()} == ours


def test_one_rank_of_experts():
    shapes = read_shapes(EXPERTS, "moe", tp=4, ep=2)
    assert shapes.experts == Experts(128, 8, 2048, 768, tp=2, ep=2) and shapes.experts.local == 64
    assert (shapes.dense, shapes.routed) == (0, 48)
    assert Product("router", 128, 2048) in shapes.products
    assert not any(product.op == "gate_up_proj" for product in shapes.products)


def test_latent_attention_has_products_and_no_kernel():
    shapes = read_shapes(LATENT, "mla", tp=8)
    assert shapes.heads is None and "latent attention" in shapes.notes[0]
    found = {product.op: (product.n, product.k) for product in shapes.products}
    # 16 heads: 128 + 64 of the query, 128 + 128 of keys and values; the down projections are on every rank
    assert found["q_b_proj"] == (16 * 192, 1536) and found["qkv_a_proj"] == (1536 + 576, 7168)
    assert found["kv_b_proj"] == (16 * 256, 512) and found["o_proj"] == (7168, 16 * 128)
    assert found["shared_gate_up_proj"] == (2 * 2048 // 8, 7168)
    assert (shapes.dense, shapes.routed) == (3, 58)


@pytest.mark.parametrize(
    ("config", "tp", "ep", "message"),
    [
        (LLAMA, 3, 1, "3 ranks do not divide the 32 attention heads: change --tp"),
        (EXPERTS, 4, 3, "--ep must divide --tp"),
        ({**LLAMA, "hidden_size": None}, 1, 1, "'hidden_size' must be a whole number of at least 1, got None"),
        ({**LLAMA, "intermediate_size": 0}, 1, 1, "'intermediate_size' is missing"),
    ],
)
def test_what_cannot_be_divided(config, tp, ep, message):
    with pytest.raises(ValueError, match=message):
        read_shapes(config, "m", tp, ep)


def test_columns_of_a_batch_by_hand():
    """The example of docs/operator-tables.md: 512 tokens on 1,024 cached beside two decodes at 100 and 300."""
    batch = Batch(((512, 1024),), (100, 300))
    assert batch.op == "mixed" and batch.cached_tokens == 1536 + 400
    assert list(batch.columns().values()) == [512, 1, 512 * 1024 + 512 * 513 // 2, 1536, 1536, 2, 400, 300, 100_000]


def test_batches_stay_in_their_bounds():
    found = list(batches(512, 10_000, ragged=True))
    assert {batch.op for batch in found} == {"prefill", "decode", "mixed"}
    assert all(batch.cached_tokens <= 10_000 for batch in found)
    assert any(len(set(batch.contexts)) == 2 for batch in found)
    assert all(len(set(batch.contexts)) <= 1 for batch in batches(512, 10_000, ragged=False))


@given(tokens=st.integers(1, 300), top_k=st.integers(1, 8), groups=st.sampled_from([1, 2, 4]), skew=st.floats(0, 3))
def test_rows_of_experts(tokens, top_k, groups, skew):
    """Nobody visits an expert twice, the busiest comes first, and all ranks together have every visit."""
    whole = rows_per_expert(tokens, top_k, 16, 16, skew)
    assert sum(whole) == tokens * top_k and max(whole) <= tokens
    assert all(first >= second - 1 for first, second in zip(whole, whole[1:], strict=False))
    mine = rows_per_expert(tokens, top_k, 16, 16 // groups, skew)
    assert mine == whole[::groups] and load(mine) >= 1


def test_even_routing_by_hand():
    assert rows_per_expert(6, 2, 8, 8, 0.0) == [2, 2, 2, 2, 1, 1, 1, 1]
    # shares 1, 1/2, 1/3, 1/4 of 8 visits would give the first 3.84, and it gets at most 4 tokens
    assert rows_per_expert(4, 2, 4, 4, 1.0) == [4, 2, 1, 1]


class Ticking:
    """A clock that moves on only when a call is made."""

    def __init__(self, seconds):
        self.time, self.calls, self.seconds = 0.0, 0, seconds

    def now(self):
        return self.time

    def call(self):
        self.time += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1


def test_medians_after_a_warm_up():
    # two slow calls first, one slow call in the middle: neither shows
    ticking = Ticking([9.0, 9.0, 0.25, 7.0, 0.25])
    times = HostClock(warmup=2, repeats=3, now=ticking.now).measure(ticking.call)
    assert times == Times(0.25, 0.25)
    # 2 warm-ups, 3 alone, and 3 times one in a row, as a call takes longer than the clock needs
    assert ticking.calls == 8


def test_short_calls_are_put_in_a_row():
    seconds = 2.0**-13  # sums of it are exact
    ticking = Ticking([seconds])
    times = HostClock(warmup=1, repeats=2, now=ticking.now).measure(ticking.call)
    assert times.kernel_s == seconds
    assert ticking.calls == 1 + 2 + 2 * in_a_row(seconds) and in_a_row(seconds) * seconds >= LEAST_LOOP_S
    assert in_a_row(1e-9) == 200 and in_a_row(1.0) == 1


class Device:
    """As much of torch as the GPU clock asks for: a device whose calls take `seconds`, in a graph or not."""

    int8 = "int8"

    def __init__(self, seconds, records=True):
        self.cuda, self.seconds, self.records = self, seconds, records
        self.time, self.calls, self.flushes, self.recording = 0.0, 0, 0, None

    def call(self):
        self.calls += 1
        if self.recording is not None:
            self.recording.append(self.seconds)
        else:
            self.time += self.seconds

    def empty(self, count, dtype, device):
        return self

    def zero_(self):
        self.flushes += 1
        self.time += 100.0

    def Stream(self):
        return self

    def wait_stream(self, other):
        pass

    def current_stream(self):
        return self

    def stream(self, other):
        return contextlib.nullcontext()

    def synchronize(self):
        pass

    def CUDAGraph(self):
        device, held = self, []

        class Graph:
            calls = held

            def replay(self):
                device.time += sum(held)

        return Graph()

    @contextlib.contextmanager
    def graph(self, graph):
        if not self.records:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recording = graph.calls
        yield
        self.recording = None

    def Event(self, enable_timing):
        device = self

        class Event:
            def record(self):
                self.at = device.time

            def synchronize(self):
                pass

            def elapsed_time(self, other):
                return 1e3 * (other.at - self.at)

        return Event()


def test_a_graph_is_timed_by_the_device(monkeypatch):
    device = Device(2.0**-13)
    monkeypatch.setattr("scripts.profiling.timing.time.perf_counter", lambda: device.time)
    times = GpuClock(device, warmup=3, repeats=5).measure(device.call)
    assert times == Times(2.0**-13, 2.0**-13)
    # warm-ups, one by one, and as many into the graph as the clock needs
    assert device.calls == 3 + 5 + in_a_row(2.0**-13) and device.flushes == 0


def test_a_flush_stands_outside_what_is_timed(monkeypatch):
    device = Device(2.0**-13)
    monkeypatch.setattr("scripts.profiling.timing.time.perf_counter", lambda: device.time)
    times = GpuClock(device, warmup=1, repeats=4, flush_bytes=8).measure(device.call)
    # 100 s of writing before each of four calls and four replays of one call; the clock reads differences of seconds
    assert device.flushes == 8 and device.calls == 1 + 4 + 1
    assert times == Times(pytest.approx(2.0**-13, rel=1e-6), pytest.approx(2.0**-13, rel=1e-6))


def test_what_cannot_be_recorded_has_no_time_of_its_own(monkeypatch):
    device = Device(0.5, records=False)
    monkeypatch.setattr("scripts.profiling.timing.time.perf_counter", lambda: device.time)
    assert GpuClock(device, warmup=1, repeats=2).measure(device.call) == Times(None, 0.5)


def test_rows_read_back(tmp_path):
    """What is written is what the reader of a user's own tables wants, and means the same."""
    labels = {
        "device": "h100-sxm", "source": "p", "engine": "torch", "engine_version": "2", "dtype": "bf16", "model": "m",
    }  # fmt: skip
    columns = dict.fromkeys(FAMILIES["attention"], 1.0) | {"window": None}
    row = Row("attention", "decode", "a kernel", columns, lambda: None)
    stream = io.StringIO()
    assert write_row(stream, row, labels, Times(2e-5, 3e-5), first=True) == 2
    assert write_row(stream, row, labels, Times(None, 4e-5), first=False) == 1
    path = tmp_path / "attention.csv"
    path.write_text(stream.getvalue())
    (part,) = plain.parts(path)
    table = part.read()
    assert table.seconds.tolist() == [2e-5, 3e-5, 4e-5]
    assert table["timing"].tolist() == ["kernel", "launch", "launch"]
    assert np.isinf(table["window"]).all() and set(table["kernel"].tolist()) == {"a kernel"}


def test_the_options_are_those_of_the_page():
    page = (PROFILER.parents[1] / "docs" / "profile.md").read_text()
    for command in ("operators", "memory"):
        words = [command, "--model", "m"] + (["--device", "d"] if command == "operators" else [])
        for name in vars(parser().parse_args(words)):
            assert name == "command" or f"`--{name.replace('_', '-')}" in page, name


def test_it_runs_as_a_plain_file(tmp_path):
    """Copied alone with its folder, without this project, under a name that the standard library has too."""
    folder = tmp_path / "scripts"
    shutil.copytree(PROFILER.parent / "profiling", folder / "profiling", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROFILER, folder)
    # the folder of a script comes first on the path: nothing in it may take the place of the standard library
    (folder / "csv.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run(
        [sys.executable, str(folder / "profile.py"), "--help"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "operators" in done.stdout, done.stderr
    for file in folder.rglob("*.py"):
        assert "import torch" not in file.read_text(), f"{file.name} must not need torch to be read"


def test_without_torch_it_says_so(capsys, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert main(["memory", "--model", "m"]) == 2
    assert "torch is not installed" in capsys.readouterr().err


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def test_tables_of_a_tiny_model(config, tmp_path):
    """On a CPU, every family of a model with a dense layer and one of experts, two ranks."""
    words = f"operators --model {config} --device l4 --tp 2 --ep 2 --dtype fp32 --on cpu --out {tmp_path / 'out'}"
    assert main([*words.split(), "--tokens", "1,70", "--most-cached", "1500", "--warmup", "1", "--repeats", "2"]) == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.stem for file in files] == ["attention", "elementwise", "gemm", "moe", "sequence"]
    tables = {part.family: part.read() for part in plain.parts(tmp_path / "out")}
    assert all((table.seconds > 0).all() for table in tables.values())
    assert {tuple(row) for row in zip(tables["gemm"]["n"], tables["gemm"]["k"], strict=True)} == {
        (64, 64), (64, 32), (128, 64), (64, 64), (8, 64),
    }  # fmt: skip
    assert set(tables["attention"]["op"].tolist()) == {"prefill", "decode"}
    assert set(tables["attention"]["q_heads"].tolist()) == {2.0}
    moe = tables["moe"]
    assert set(moe["ep"].tolist()) == {2.0} and set(moe["skew"].tolist()) == {0.0, 1.0}
    assert set(tables["sequence"]["op"].tolist()) == {"lm_head", "sampler"}
    assert all(table["timing"].tolist().count("kernel") == len(table) / 2 for table in tables.values())


def test_memory_of_a_tiny_model(config, capsys):
    assert main(["memory", "--model", str(config), "--tokens", "32", "--rows", "4", "--on", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # layer 1: qkv 128 x 64, o 64 x 64, gate and up 256 x 64, down 64 x 128; layer 2: qkv, o, router 8 x 64, and eight
    # experts of 64 x 64 and 64 x 32; two norms each, an embedding and a head of 512 x 64, one norm; 2 bytes
    attention, norms = 128 * 64 + 64 * 64, 2 * 64
    first = attention + 256 * 64 + 64 * 128 + norms
    second = attention + 8 * 64 + 8 * (64 * 64 + 64 * 32) + norms
    assert found["weights_bytes"] == 2 * (first + second + 2 * 512 * 64 + 64)
    assert found["torch_peak_bytes"] is None and found["available_bytes"] is None


def test_bad_input_is_a_sentence(config, capsys):
    for words, message in (
        ("--tokens 0", "--tokens wants numbers of at least 1"),
        ("--tokens a", "--tokens wants numbers with commas"),
        ("--families gem", "--families takes some of gemm"),
        ("--repeats 0", "--warmup and --repeats want at least 1"),
    ):
        assert main(["operators", "--model", str(config), "--device", "l4", "--on", "cpu", *words.split()]) == 2
        assert message in capsys.readouterr().err
    assert main(["memory", "--model", "nowhere", "--on", "cpu"]) == 2
    assert "there is no such config.json" in capsys.readouterr().err


def test_all_rows_of_a_file_have_its_header(config, tmp_path):
    words = f"operators --model {config} --device l4 --dtype fp32 --on cpu --out {tmp_path / 'out'} --families gemm"
    assert main([*words.split(), "--tokens", "2", "--warmup", "1", "--repeats", "1"]) == 0
    with (tmp_path / "out" / "gemm.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 5 and all(None not in row and None not in row.values() for row in rows)
