"""Logs of engines: what their lines say, and which windows are used, as what."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibration.from_run import sglang_log, trtllm_log, vllm_log
from calibration.from_run.priced import BATCH
from calibration.from_run.windows import windows_of


V1_LINE = (
    "(APIServer pid=3) INFO 12-11 13:08:30 [loggers.py:236] Engine {engine:03d}: Avg prompt throughput: {prompt:.1f} "
    "tokens/s, Avg generation throughput: {output:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV "
    "cache usage: {usage:.1f}%, Prefix cache hit rate: {hits:.1f}%"
)
V0_LINE = (
    "INFO 07-24 09:55:30 metrics.py:334] Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: "
    "{output:.1f} tokens/s, Running: {running} reqs, Swapped: 0 reqs, Pending: 740 reqs, GPU KV cache usage: "
    "{usage:.1f}%, CPU KV cache usage: 0.0%"
)


def line(form=V1_LINE, *, engine=0, prompt=0.0, output=100.0, running=10, usage=10.0, hits=0.0):
    return form.format(engine=engine, prompt=prompt, output=output, running=running, usage=usage, hits=hits)


def settings_of(**changes):
    plain = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 4096, "block_size": 16}
    graphs = {"graph_mode": "NONE", "graph_sizes": (), "full_graph_top": 0}
    graphs |= {"prefill_graph_sizes": (), "prefill_context_parallel": 1}
    return SimpleNamespace(**plain | graphs | changes)


def read_vllm(*lines, head=""):
    return vllm_log.read("\n".join([head, *lines]), "server.log", "0" * 64)


# ---- what the lines say


def test_lines_of_vllm_1_of_two_engines_in_one_log():
    head = (
        "vLLM API server version 0.11.1\nInitializing a V1 LLM engine (v0.11.1) with config: model='org/name', "
        "tensor_parallel_size=2, max_seq_len=8192, enforce_eager=True\nGPU KV cache size: 216,720 tokens"
    )
    log = read_vllm(
        line(running=8, usage=1.0), line(engine=1, running=2), line(running=10, usage=1.4, output=399.4), head=head
    )
    # engine 1 has one line, so no span
    np.testing.assert_array_equal(log.running, [[8, 10]])
    np.testing.assert_allclose(log.kv, [[0.010, 0.014]])
    assert log.output_tokens_per_s[0] == 399.4 and log.decodes[0] == 9
    assert log.cache_tokens == 216_720 and log.blocks is None
    assert log.settings == {
        "version": "0.11.1",
        "model": "org/name",
        "deployment.tensor_parallel": "2",
        "engine.max_model_len": "8192",
        "engine.enforce_eager": "true",
    }


def test_lines_of_vllm_before_1():
    log = read_vllm(
        line(V0_LINE, usage=99.7, running=247), line(V0_LINE, usage=99.6, running=241), head="# GPU blocks: 2,000"
    )
    np.testing.assert_array_equal(log.running, [[247, 241]])
    np.testing.assert_allclose(log.kv, [[0.997, 0.996]])
    assert (log.blocks, log.cache_tokens, log.hit_rate[0]) == (2000, None, 0.0)


DECODE = "[2026-04-05 20:02:51{rank}] Decode batch{dot} #running-req: {n}, #token: {kv}, token usage: 0.08, {graph}gen "
DECODE += "throughput (token/s): {rate}, #queue-req: 0"
PREFILL = (
    "[2026-04-05 20:02:51{rank}] Prefill batch{dot} #new-seq: {new}, #new-token: {tokens}, #cached-token: {cached}, "
)
PREFILL += "token usage: 0.08, #running-req: {n}, #queue-req: 0"


@pytest.mark.parametrize(("dot", "graph"), [(".", ""), (",", "cuda graph: True, ")])
def test_lines_of_sglang(dot, graph):
    """Two spans of 20 decode batches (each request gained 20 tokens in the first), the second with two prefills."""

    def decode(n, kv, rate, rank=" TP0"):
        return DECODE.format(rank=rank, dot=dot, graph=graph, n=n, kv=kv, rate=rate)

    def prefill(**more):
        return PREFILL.format(rank=" TP0", dot=dot, **more)

    lines = [decode(4, 1000, 90.0), decode(4, 1080, 80.0), decode(4, 1080, 80.0, " TP1")]
    lines += [
        prefill(new=1, tokens=300, cached=20, n=4),
        prefill(new=2, tokens=500, cached=0, n=5),
        decode(7, 2000, 65.0),
    ]
    text = "\n".join(["decode_log_interval=20, max_total_num_tokens=50000", *lines])
    log = sglang_log.read(text, "server.log", "0" * 64)
    np.testing.assert_array_equal(log.running, [[4, 4], [4, 7]])
    np.testing.assert_array_equal(log.kv, [[1000, 1080], [1080, 2000]])
    # straight lines 4-4, 5-5, 7-7: 16/3 on average; 20 batches of 4 tokens at 80 tokens/s take 1 s
    np.testing.assert_allclose(log.decodes, [4.0, 16 / 3])
    np.testing.assert_allclose(log.seconds, [1.0, 20 * 16 / 3 / 65.0])
    np.testing.assert_array_equal(log.prefills.span, [1, 1])
    np.testing.assert_array_equal(log.prefills.tokens, [300, 500])
    np.testing.assert_array_equal(log.prefills.prior_tokens, [20, 0])
    assert log.cache_tokens == 50_000 and not log.joint and not log.idle.any()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("server_args=ServerArgs(enable_dp_attention=True)", "is of data-parallel attention"),
        ("server_args=ServerArgs(speculative_algorithm='EAGLE')", "is of speculative decoding"),
    ],
)
def test_logs_of_sglang_that_cannot_be_read(head, message):
    with pytest.raises(ValueError, match=message):
        sglang_log.read(head, "server.log", "0" * 64)


def test_sglang_tells_its_interval_by_the_tokens_that_requests_gain():
    form = {"rank": "", "dot": ",", "graph": "", "rate": 80.0}
    lines = [DECODE.format(n=4, kv=1000 + 4 * 30 * i, **form) for i in range(5)]
    log = sglang_log.read("\n".join(lines), "server.log", "0" * 64)
    assert set(log.decode_steps) == {30.0} and log.notes == ()
    short = sglang_log.read("\n".join(lines[:2]), "server.log", "0" * 64)
    assert set(short.decode_steps) == {40.0} and "40 taken" in short.notes[0]


def test_lines_of_tensorrt_llm():
    """33 steps, of which the first waits for its request: one span of 32 steps of 10 ms, of which two have prefill."""

    def step(i, prompts, tokens, cached):
        return (
            f"[TRT-LLM] [I] iter = {i}, global_rank = 0, rank = 0, currank_total_requests = 0/0, "
            "host_step_time = 10.0ms, prev_device_step_time = 9.0ms, timestamp = 2026-08-04 19:08:13, "
            f"num_scheduled_requests: {8 + prompts}, "
            f"states = {{'num_ctx_requests': {prompts}, 'num_ctx_tokens': {tokens}, 'num_generation_tokens': 8, "
            f"'cached_kv_tokens': {cached}}}"
        )

    lines = [step(i, int(i in (5, 9)), 100 * (i in (5, 9)), 4000) for i in range(33)]
    text = "\n".join([*lines, lines[0].replace("global_rank = 0", "global_rank = 1")])
    log = trtllm_log.read(text, "server.log", "0" * 64)
    assert log.seconds[0] == pytest.approx(0.32) and log.decode_steps[0] == 30
    assert log.decodes[0] == 8 and log.output_tokens_per_s[0] == pytest.approx(800.0)
    np.testing.assert_array_equal(log.kv, [[4008, 4008]])  # each row's new token is read too
    np.testing.assert_array_equal(log.prefills.tokens, [100, 100])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            line().replace("GPU KV cache usage", "CPU KV cache usage") + "\n" + line().split(", GPU")[0],
            "no KV cache usage",
        ),
        (line() + "\nSpecDecoding metrics: Mean acceptance length: 2.5", "is of speculative decoding"),
    ],
)
def test_logs_that_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        read_vllm(*text.splitlines(), line().split(", GPU")[0])


# ---- which windows are used, and as what


def test_a_window_without_prefill_is_a_batch_of_decodes():
    """160 tokens/s of 10 running requests are 16 steps/s; 10 % of 20,000 tokens over 10, less half a block each."""
    lines = [line(running=10, usage=10.0, output=160.0)] * 7
    found = windows_of(read_vllm(*lines, head="GPU KV cache size: 20,000 tokens"), settings_of(), 1)
    assert len(found.noise) == 6 and found.held_out.tolist() == [False, False, True] * 2
    np.testing.assert_allclose(found.batches.steps, 16.0)
    np.testing.assert_allclose(found.context_tokens, 200.0 - 7.5)
    batch = dict(zip(BATCH, found.batches.rows[0], strict=True))
    assert (batch["decodes"], batch["decode_sum"], batch["prefill_tokens"]) == (10, 1925.0, 0)
    # outputs without prompts: contexts between 0 and 385, so their variance is 385^2/12
    assert batch["decode_sumsq"] == pytest.approx(10 * (192.5**2 + 385**2 / 12))


def test_a_window_with_prefill_has_steps_of_both_kinds():
    """300 prompt and 100 output tokens/s, mean context 350 = p + o/2: o = 350/(3 + 1/2) = 100, p = 300, one a second.

    9 running make 100 tokens/s in (100 - 1)/9 = 11 steps (who ends is no longer counted, who begins gives a token), of
    which one has the prompt.
    """
    lines = [line(running=9, usage=10.0, output=100.0, prompt=300.0)] * 7
    size = 9 * (350 + 7.5) / 0.1
    found = windows_of(read_vllm(*lines, head=f"GPU KV cache size: {size:.0f} tokens"), settings_of(), 1)
    rows = [dict(zip(BATCH, row, strict=True)) for row in found.batches.rows[:2]]
    np.testing.assert_allclose(found.batches.steps[:2], [10.0, 1.0], rtol=1e-3)
    np.testing.assert_allclose([rows[1]["prefill_tokens"], rows[1]["prefill_area"]], [300, 300 * 301 / 2], rtol=2e-3)
    assert rows[1]["decodes"] == 9 and rows[1]["emitting"] == pytest.approx(10) and rows[0]["prefill_tokens"] == 0
    # spread evenly: all 11 steps have 27.3 prompt tokens
    np.testing.assert_allclose(found.other.steps[:2], [0.0, 11.0], atol=2e-2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"running": 0}, "nothing ran"),
        ({"running": 20}, "changed by more than 25%"),
        ({"usage": 60.0}, "more KV in use"),
        ({"running": 3, "prompt": 50.0, "usage": 3.0}, "perhaps idle"),
        ({"prompt": 50.0, "hits": 30.0}, "prefix hits"),
    ],
)
def test_windows_that_are_left_out(changes, reason):
    plain = {"running": 10, "usage": 10.0}
    if changes.get("running") == 3:
        plain = {"running": 3, "usage": 3.0}
    lines = [line(**plain)] * 8 + [line(**plain | changes)] * 2
    found = windows_of(read_vllm(*lines), settings_of(max_model_len=600), 20_000)
    assert any(reason in text for text in found.left_out), found.left_out
    assert any("does not tell the size of the KV cache: 20,000 tokens" in note for note in found.notes)
    with pytest.raises(ValueError, match=f"6 steady windows are wanted at least, got [0-2] .*{reason}"):
        windows_of(
            read_vllm(*lines[7:], lines[-1] if reason != "nothing ran" else ""), settings_of(max_model_len=600), 20_000
        )


def test_kv_that_running_requests_cannot_hold():
    lines = [line(usage=60.0)] * 20
    with pytest.raises(ValueError, match="in 19 windows more KV is in use than the running requests can hold"):
        windows_of(read_vllm(*lines), settings_of(max_model_len=600), 20_000)
