"""Deployments of several pools from the command line."""

import gzip
import json
import re
from pathlib import Path

import pytest


SMALL = ("model=llama-3.2-1b", "workload=fixed-512-512", "workload.output_tokens=20", "workload.num_requests=12")
PD = (*SMALL, "engine=vllm-0.33.0", "deployment=pd-1p1d")


def simulate(headway, tmp_path, *words):
    return headway("simulate", *words, f"results={tmp_path / 'run'}", "--json")


def test_prefill_and_decode(headway, tmp_path):
    """The parts of the time to the first token sum to it; the fleet's page, tables and block are written."""
    found = simulate(headway, tmp_path, *PD).json()
    assert (found["status"], found["completed"], found["gpus"], found["replicas"]) == ("ok", 12, 2, 2)
    parts = found["ttft_parts_ms"]
    assert sum(part["mean"] for part in parts.values()) == pytest.approx(found["mean_ttft_ms"])
    # 512 tokens = 32 blocks of 16: 0.26 ms each, and 0.38 ms of latency, before the first byte
    assert parts["set_up"]["mean"] == pytest.approx(32 * 0.26 + 0.38)
    assert [pool["role"] for pool in found["pools"]] == ["prefill", "decode"]
    assert found["recomputed_tokens"] == 0
    # 16 layers x 8 KV heads x 64 numbers x 2 (K, V) x 2 bytes x 512 tokens, 12 times
    assert found["links"][0]["bytes"] == 12 * 16 * 8 * 64 * 2 * 2 * 512
    assert all(found["checks"].values())
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Time to first token by part" in page
    assert "Pool prefill (prefill)" in (tmp_path / "run" / "console.txt").read_text(encoding="utf-8")


def test_a_fleet_of_unequal_replicas(headway, tmp_path):
    found = simulate(
        headway,
        tmp_path,
        *SMALL,
        "deployment.pools.fast={hardware: h100-sxm, replicas: 2}",
        "deployment.pools.slow.hardware=l4",
        "deployment.pools.slow.settings.max_num_seqs=4",
        "deployment.router=least_outstanding",
    ).json()
    assert (found["completed"], found["gpus"], found["ttft_parts_ms"], found["links"]) == (12, 3, None, None)
    assert found["device"] == "NVIDIA H100 SXM 80GB + NVIDIA L4"
    assert sum(pool["requests"] for pool in found["pools"]) == 12
    assert [pool["settings"]["max_num_seqs"] for pool in found["pools"]][1] == 4


def test_a_pool_that_does_not_fit_is_named(headway, tmp_path):
    found = simulate(headway, tmp_path, "model=llama-3.3-70b", "deployment=pd-1p1d", "workload.num_requests=2")
    assert found.code == 2
    assert found.json()["message"].startswith("pool prefill (prefill): ")


def test_unequal_blocks_cannot_be_read(headway, tmp_path):
    found = simulate(headway, tmp_path, *PD, "++deployment.pools.decode.settings.block_size=32")
    assert found.code == 2
    assert "prefill and decode pools must have equal KV blocks" in found.json()["message"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("deployment.pools.decode.tensor_parallel=3", "change deployment.pools.decode.tensor_parallel (up to 16"),
        (
            "deployment.pools.decode.engine.block_size=64",
            "wants the name of an engine, got {'block_size': 64}; settings that differ go to deployment.pools.",
        ),
        ("deployment.pools.decode.replica=2", "unknown key deployment.pools.decode.replica: did you mean replicas?"),
        ("deployment.pools.decode.replicas=many", "deployment.pools.decode.replicas wants a whole number, got 'many'"),
        ("deployment.pools.decode=4", "deployment.pools.decode wants a mapping of keys, got 4."),
        ("deployment.transfer.efficency=1", "unknown key deployment.transfer.efficency"),
        (
            "+deployment.pools.decode.settings.gpu_memory_utilization=abc",
            "deployment.pools.decode.settings.gpu_memory_utilization wants a number, got 'abc'",
        ),
        (
            "+deployment.pools.decode.settings.enable_prefix_caching=maybe",
            "deployment.pools.decode.settings.enable_prefix_caching wants true or false, got 'maybe'",
        ),
        ("+deployment.pools={a+b:{}}", "a pool's name is letters"),
        ("deployment.decode_router=fastest", "deployment.decode_router: wanted one of"),
    ],
)
def test_mistakes(headway, tmp_path, override, words):
    found = simulate(headway, tmp_path, *PD, override)
    assert found.code == 2
    assert words in found.json()["message"]
    assert not (tmp_path / "run").exists()


def test_commands_for_one_pool_refuse_several(headway):
    found = headway("calibrate", "--from", "nothing.json", "deployment=pd-1p1d")
    assert found.code == 2


def test_plan_is_a_tree(headway):
    found = headway("plan", "model=llama-3.3-70b", "hardware=h100-sxm", "deployment=pd-2p2d")
    assert found.code == 0
    assert "├─ prefill (prefill): 2 x 4 NVIDIA H100 SXM 80GB" in found.out
    assert "attention: 16 of 64 heads, 2 of 8 KV heads, in 80 layers" in found.out
    assert "KV from prefill to decode" in found.out
    fields = headway("plan", "model=qwen3-30b-a3b", "hardware=h200-sxm", "deployment=dp2ep2", "--json").json()
    assert (fields["gpus"], fields["plan"][0]["data_parallel"], fields["plan"][0]["fits"]) == (2, 2, True)
    assert headway("plan", "model=llama-3.3-70b", "hardware=h100-sxm").code == 2


def test_memory_of_every_pool(headway):
    found = headway("memory", "model=llama-3.2-1b", "deployment=pd-1p1d", "--json").json()
    assert [(pool["name"], pool["role"]) for pool in found["pools"]] == [("prefill", "prefill"), ("decode", "decode")]
    assert "pool decode (decode)" in headway("memory", "model=llama-3.2-1b", "deployment=pd-1p1d").out


def test_a_sweep_over_deployments(headway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = headway("simulate", "-m", *SMALL, "deployment=single,replicas2,pd-1p1d", "--json")
    assert found.code == 0
    assert [run["status"] for run in found.json()["runs"]] == ["ok"] * 3


def test_the_router_of_the_documentation(headway, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "deployments.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(# my_router.py\n.*?)```", text, re.DOTALL)
    (tmp_path / "my_router.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = headway("simulate", *SMALL, "deployment=replicas2", "deployment.router=./my_router.py", "--json")
    assert found.json()["completed"] == 12


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 99", "must return a position from 0 to 1 (None, to turn it away, needs SHEDS = True), got 99"),
        ("return -1", "got -1"),
        ("return True", "got True"),
        ("return None", "got None"),
        ("return '0'", "got '0'"),
        ("raise KeyError('who')", "raised KeyError at request 0: 'who'"),
    ],
)
def test_a_users_router_that_errs(headway, tmp_path, body, words):
    path = tmp_path / "mine.py"
    path.write_text(f"def make(options, seed):\n    def pick(arrival, targets):\n        {body}\n    return pick\n")
    found = simulate(headway, tmp_path, *SMALL, "deployment=replicas2", f"deployment.router={path}")
    assert found.code == 2
    message = found.json()["message"]
    assert message.startswith(f"deployment.router={path}") and words in message


def test_an_option_without_a_default(headway, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Options:\n    n: int\n\n"
        "def make(options, seed):\n    return lambda arrival, targets: options.n\n"
    )
    words = (*SMALL, "deployment=replicas2", f"deployment.router={path}")
    found = simulate(headway, tmp_path, *words)
    assert found.code == 2 and "deployment.router_options.n must be given" in found.json()["message"]
    assert simulate(headway, tmp_path, *words, "+deployment.router_options.n=1").code == 0


def test_pools_of_unequal_engine_versions(headway, tmp_path):
    found = simulate(headway, tmp_path, *PD, "deployment.pools.decode.engine=vllm-0.20.1").json()
    assert (found["status"], found["completed"]) == ("ok", 12)


def test_a_small_decode_pool_more_takes_nothing_away(headway, tmp_path):
    """520 + 20 tokens are 34 blocks: the second pool serves none of them, and none of them goes there."""
    more = ("+deployment.pools.d2.role=decode", "+deployment.pools.d2.settings.num_gpu_blocks_override=20")
    found = simulate(headway, tmp_path, *PD, *more, "engine.max_model_len=1024").json()
    assert (found["status"], found["completed"]) == ("ok", 12)
    assert [(pool["name"], pool["requests"]) for pool in found["pools"]] == [("prefill", 12), ("decode", 12), ("d2", 0)]


@pytest.mark.parametrize(
    "words",
    [
        ("deployment.pools.prefill.settings.max_model_len=256",),
        ("deployment.router=slo_aware", "+deployment.router_options.ttft_s=1e-9"),
    ],
)
def test_no_request_gets_through(headway, tmp_path, words):
    found = simulate(headway, tmp_path, *PD, *words).json()
    assert (found["status"], found["completed"], found["links"]) == ("ok", 0, None)


@pytest.mark.parametrize("pool", ["decode", "prefill"])
def test_a_transfer_of_many_seconds_is_waited_for(headway, tmp_path, pool):
    """The loop of an instance that has nothing but a transfer to hear of does not count its empty turns.

    Decode: the second prompt is short, so the instance has worked before it waits for the first one's 30 s.
    Prefill: with two batches in flight, and blocks for one prompt only, the second waits until the first is read.
    """
    trace = tmp_path / "two.csv"
    if pool == "decode":
        trace.write_text("arrival_s,input_tokens,output_tokens\n0,16000,10\n1.5,100,10\n")
        own = (
            "engine=vllm-0.33.0",
            "+deployment.pools.prefill.settings.max_model_len=20000",
            "deployment.transfer.block_s=0.03",
        )
    else:
        trace.write_text("arrival_s,input_tokens,output_tokens\n0,2000,5\n0,2000,5\n")
        own = (
            "engine=vllm-0.10.2",
            "deployment.pools.prefill.pipeline_parallel=2",
            "+deployment.pools.prefill.settings.num_gpu_blocks_override=200",
            "+deployment.pools.prefill.settings.max_model_len=3000",
        )
    found = simulate(headway, tmp_path, "model=llama-3.2-1b", f"workload={trace}", "deployment=pd-1p1d", *own).json()
    assert (found["status"], found["completed"]) == ("ok", 2), found


def test_the_timeline_has_transfers_and_parts(headway, tmp_path):
    simulate(headway, tmp_path, *PD)
    with gzip.open(tmp_path / "run" / "trace.json.gz") as packed:
        events = json.load(packed)["traceEvents"]
    moved = [event["args"] for event in events if event["ph"] == "X" and event["name"].startswith("KV of request")]
    assert sorted(args["request"] for args in moved) == list(range(12))
    assert {(args["from"], args["to"]) for args in moved} == {("prefill", "decode")}
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"KV transfer", "hand-over", "wait for a seat", "first token", "decode"} <= names


ELASTIC = (*SMALL, "deployment=replicas2", "workload.rate=20")


def test_replicas_come_and_go(headway, tmp_path):
    events = "deployment.elastic.events=[{at_s: 0.1, action: fail, replica: 1}, {at_s: 0.2, action: start, replica: 1}]"
    found = simulate(headway, tmp_path, *ELASTIC, events, "deployment.elastic.load_s=0.1").json()
    assert (found["completed"], found["failed_by_status"]) == (12, {})
    assert any(row["what"] == "a replica that starts" for row in found["assumptions"])
    lost = simulate(headway, tmp_path, *ELASTIC, events, "deployment.elastic.on_failure=lose").json()
    assert lost["completed"] + lost["failed_by_status"].get("lost", 0) == 12


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("events=[{at_s: 1, action: stop}]", "events[0].action must be one of start, drain, fail, got 'stop'"),
        ("events=[{at_s: 1, action: fail, replica: 2}]", "replica must be a whole number from 0 to 1, got 2"),
        ("events=[{at: 1, action: fail}]", "events[0] has the unknown key at: it has at_s"),
        ("events=[{at_s: -1, action: fail}]", "events[0].at_s must be a number of seconds from 0"),
        ("events=[{at_s: 1, action: fail, pool: x}]", "events[0].pool must be one of"),
        ("events=[3]", "events[0] wants a mapping"),
        ("events={at_s: 5}", "deployment.elastic.events wants a list, got a mapping of keys"),
        ("on_failure=lose", "deployment.elastic.on_failure does nothing here: it wants deployment.elastic.events"),
        ("mtbf_s=-1", "deployment.elastic.mtbf_s must be between 0 and"),
    ],
)
def test_elastic_mistakes(headway, tmp_path, override, words):
    found = simulate(headway, tmp_path, *ELASTIC, f"deployment.elastic.{override}")
    assert found.code == 2
    assert words in found.json()["message"]


def test_prefill_and_decode_instances_come_and_go(headway, tmp_path):
    """Both fail and start again, and everybody is served; what is lost instead, or given up, is counted apart."""
    events = (
        "deployment.elastic.events=[{at_s: 0.6, action: fail, pool: decode}, "
        "{at_s: 0.65, action: start, pool: decode}, {at_s: 0.805, action: fail, pool: prefill}, "
        "{at_s: 0.82, action: start, pool: prefill}]"
    )
    words = (*PD, events, "deployment.elastic.load_s=0.1", "deployment.transfer.load_failure_policy=recompute")
    found = simulate(headway, tmp_path, *words).json()
    assert (found["completed"], found["aborted"], found["failed_by_status"]) == (12, 0, {})
    assert found["retried_requests"] > 0 and found["cut_transfers"] >= 0
    assert not any("instances that" in sentence for sentence in found["not_modelled"])
    with gzip.open(tmp_path / "run" / "trace.json.gz") as packed:
        moments = [event["name"] for event in json.load(packed)["traceEvents"] if event["ph"] == "i"]
    assert moments.count("fail") == moments.count("in service") == 2
    lost = headway("simulate", *words, "deployment.elastic.on_failure=lose", "--json").json()
    assert lost["completed"] + sum(lost["failed_by_status"].values()) == 12 > lost["completed"]
    left = headway("simulate", *PD, "workload.abort_after_s=0.12", "--json").json()
    assert left["completed"] + left["aborted"] == 12 > left["completed"] and left["failed"] == 0


@pytest.mark.parametrize("engine", ["sglang-0.5.23", "trtllm-1.0"])
def test_other_engines_hand_over_in_their_own_way(headway, tmp_path, engine):
    """The parts sum to the time to the first token; the parts of SGLang begin with the hand-over."""
    found = simulate(headway, tmp_path, *SMALL, f"engine={engine}", "deployment=pd-1p1d").json()
    assert (found["status"], found["completed"], all(found["checks"].values())) == ("ok", 12, True)
    parts = found["ttft_parts_ms"]
    assert sum(part["mean"] for part in parts.values()) == pytest.approx(found["mean_ttft_ms"])
    assert ("set_up" in parts) is (engine == "trtllm-1.0")
    assert found["links"][0]["bytes"] == 12 * 16 * 8 * 64 * 2 * 2 * 512
    assert any("not recordings" in sentence for sentence in found["not_modelled"])


def test_roles_that_a_scheduler_does_not_have(headway, tmp_path):
    found = simulate(headway, tmp_path, *SMALL, "engine=orca", "deployment=pd-1p1d")
    assert found.code == 2
    assert "simulated with the schedulers sglang, trtllm, vllm only, got orca" in found.json()["message"]
    mixed = simulate(headway, tmp_path, *PD, "deployment.pools.decode.engine=sglang-0.5.23")
    assert "between instances of one engine; give them one" in mixed.json()["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("deployment.pools.decode.settings.block_size=32",),
            "prefill and decode pools must have equal KV blocks, but engine.block_size makes them differ (prefill 16, "
            "decode 32)",
        ),
        (("deployment.decode_router=slo_aware",), "turns requests away, which is too late after their prefill"),
        (("deployment.router=fastest",), "deployment.router: wanted one of"),
        (("engine.scheduler_options.speed=3",), "pool prefill (prefill): engine.scheduler_options.speed is no option"),
        (("deployment.elastic.mtbf_s=-1",), "deployment.elastic.mtbf_s must be between 0 and"),
        (
            ("deployment.elastic.events=[{at_s: 1, action: fail}]",),
            "events[0].pool must be one of prefill, decode, and the entry has no pool.",
        ),
        (
            ("deployment.elastic.events=[{at_s: 1, action: fail, pool: decode, replica: 1}]",),
            "events[0].replica must be 0, the only one of pool decode, got 1.",
        ),
        (("deployment.pools.decode.tensor_parallel=3",), "pool decode (decode): llama-3.2-1b: tensor parallel size 3"),
        (("deployment.pools.decode.hardware=h2000",), "deployment.pools.decode.hardware=h2000 is not a known device"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "plan", "memory"])
def test_all_commands_refuse_the_same(headway, command, words, said):
    found = headway(command, "model=llama-3.2-1b", "deployment=pd-1p1d", *words)
    assert found.code == 2
    assert said in found.err


def test_stages_that_divide_the_layers_otherwise(headway):
    """Of the 34 layers of Gemma 3 4B the first 17 have 2 of full attention, all of them 5: 9 and 7 groups."""
    words = ("model=gemma-3-4b", "engine=vllm-0.33.0", "deployment=pd-1p1d")
    found = headway("plan", *words, "deployment.pools.prefill.pipeline_parallel=2")
    assert "their pipeline stages hold other layers (deployment.pools.*.pipeline_parallel: prefill 2, decode 1)" in (
        found.err
    )
    found = headway("plan", *words, "deployment.pools.prefill.settings.hybrid_kv_cache=false")
    assert "deployment.pools.*.settings.hybrid_kv_cache differs" in found.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("deployment=pd-1p1d", "deployment.tensor_parallel=1"), "deployment.tensor_parallel does nothing here"),
        (("deployment.pools.a.hardware=h20", "hardware=h20"), "hardware does nothing here: every pool has a device"),
        (
            ("deployment.pools.a.engine=vllm-0.20.0", "engine.block_size=32"),
            "engine.block_size does nothing here: every pool has an engine of its own",
        ),
        (
            ("deployment.pools.a.settings.block_size=16", "engine.block_size=32"),
            "every pool has its own (deployment.pools.*.settings.block_size)",
        ),
        (
            ("deployment.pairing=after_prefill",),
            "deployment.pairing does nothing here: it wants a pool of role prefill",
        ),
        (("deployment.transfer.connector=nixl",), "deployment.transfer.connector does nothing here"),
        (("deployment.elastic.load_s=60",), "deployment.elastic.load_s does nothing here"),
        (
            ("deployment=pd-1p1d", "deployment.pools.decod.replicas=4"),
            "the deployment has no pool decod: did you mean decode? A new one says what it does",
        ),
        (("deployment=pd-1p1d", "deployment.pools.decode.settings=[]"), "settings wants a mapping of keys, got []"),
        (("deployment=pd-1p1d", "deployment.pools.decode=null"), "decode wants a mapping of keys, got null"),
        (("deployment.pools=[a,b]",), "deployment.pools wants a mapping of keys, got a list"),
    ],
)
def test_what_would_do_nothing_or_something_else(headway, words, said):
    found = headway("plan", "model=llama-3.2-1b", *words)
    assert found.code == 2
    assert said in found.err


def test_a_new_pool_may_be_called_like_another_if_it_says_its_role(headway):
    words = ("deployment=pd-1p1d", "deployment.pools.decode2.role=decode", "deployment.pools.decode2.replicas=2")
    assert "decode2 (decode): 2 x 1" in headway("plan", "model=llama-3.2-1b", *words).out


def test_a_wrong_pool_in_a_sweep_is_found_before_any_job_runs(headway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = headway("simulate", "-m", *PD, "deployment.pools.decode.settings.seqs=1,2")
    assert found.code == 2
    assert "deployment.pools.decode.settings.seqs is not a setting of an engine" in found.err
    assert not (tmp_path / "multirun").exists()


def test_engines_of_pools_by_any_name(headway, tmp_path):
    """One of a file of `conf` that is no version, one of the user's folder, one by its path."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "mine.yaml").write_text("defaults: [vllm-0.20.0, _self_]\nmax_num_seqs: 7\n", encoding="utf-8")
    words = (
        "deployment.pools.a.engine=orca",
        "deployment.pools.b.engine=mine",
        f"deployment.pools.c.engine={folder / 'mine.yaml'}",
        "--config-dir",
        str(tmp_path),
    )
    found = simulate(headway, tmp_path, *SMALL, *words).json()
    assert [pool["settings"]["max_num_seqs"] for pool in found["pools"]][1:] == [7, 7]
    assert [pool["engine_label"] for pool in found["pools"]][1:] == ["vllm 0.20.0"] * 2


def test_the_wait_for_a_seat_is_waited(headway, tmp_path):
    """One seat for 12 requests that come at once: their mean wait at the decode pool is several decodes long."""
    words = (*PD, "workload.arrival=all_at_once", "deployment.pools.decode.settings.max_num_seqs=1")
    found = simulate(headway, tmp_path, *words).json()
    prefill, decode = found["pools"]
    seat = found["ttft_parts_ms"]["seat"]["mean"]
    assert decode["mean_queue_ms"] == pytest.approx(seat + found["ttft_parts_ms"]["decode_queue"]["mean"])
    assert seat > 10 * found["ttft_parts_ms"]["first_step"]["mean"]


def test_kv_that_leaves_by_layer(headway, tmp_path):
    """As much is sent, and what is left of the transfer after a prefill is less."""
    words = (*PD, "deployment.pairing=at_arrival", "deployment.transfer.placement=separate")
    plain = simulate(headway, tmp_path, *words).json()
    layered = headway("simulate", *words, "deployment.transfer.layerwise=true", "--json").json()
    assert [link["bytes"] for link in layered["links"]] == pytest.approx([link["bytes"] for link in plain["links"]])
    parts = plain["ttft_parts_ms"], layered["ttft_parts_ms"]
    left, whole = (sum(part[name]["mean"] for name in ("set_up", "transfer")) for part in reversed(parts))
    assert left < whole
    assert not any("layers while others" in sentence for sentence in layered["not_modelled"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model=llama-3.2-1b",), "set deployment.pairing=at_arrival, got after_prefill"),
        (("model=llama-3.2-1b", "deployment.pairing=at_arrival", "engine=sglang-0.5.23"), "vllm only, got sglang"),
        (
            ("model=gpt-oss-20b", "deployment.pairing=at_arrival", "engine=vllm-0.33.0"),
            "for one group of layers, gpt-oss-20b has 2",
        ),
    ],
)
def test_layers_that_cannot_leave_alone(headway, words, said):
    found = headway("plan", "deployment=pd-1p1d", "deployment.transfer.layerwise=true", *words)
    assert found.code == 2
    assert said in found.err


DRAINS = "deployment.elastic.events=[{at_s: 0.3, action: drain, pool: prefill}]"


def test_transfers_that_fail_are_counted(headway, tmp_path):
    words = (*PD, "deployment.transfer.failure_rate=0.5")
    found = simulate(headway, tmp_path, *words).json()
    assert 0 < found["failed_transfers"] == found["failed_by_status"]["failed"] == 12 - found["completed"] < 12
    again = headway("simulate", *words, "deployment.transfer.load_failure_policy=recompute", "--json").json()
    assert (again["completed"], again["failed_transfers"]) == (12, found["failed_transfers"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("deployment.transfer.failure_rate=0.1", "engine=vllm-0.19.0"),
            "vllm 0.19.0 of pool prefill does nothing",
        ),
        (("deployment.transfer.lease_s=3", "engine=vllm-0.10.2"), "deployment.transfer.lease_s: vllm 0.10.2"),
        (("deployment.transfer.failure_rate=2",), "failure_rate must be between 0 and 1, got 2"),
        (("deployment.transfer.load_failure_policy=recompute",), "load_failure_policy does nothing here"),
        (
            ("deployment.transfer.load_failure_policy=recompute", DRAINS),
            "no load fails; set deployment.transfer.failure_rate",
        ),
        (
            (
                "deployment.transfer.load_failure_policy=recompute",
                DRAINS.replace("drain", "fail"),
                "engine=sglang-0.5.23",
            ),
            "deployment.transfer.load_failure_policy: sglang",
        ),
        ((DRAINS.replace("prefill", "middle"),), "events[0].pool must be one of prefill, decode, got 'middle'"),
        (
            (
                "deployment.transfer.lease_s=3",
                "deployment.transfer.layerwise=true",
                "deployment.pairing=at_arrival",
                "engine=vllm-0.33.0",
            ),
            "leave one of them out",
        ),
    ],
)
def test_failures_that_cannot_be(headway, words, said):
    found = headway("plan", "model=llama-3.2-1b", "deployment=pd-1p1d", *words)
    assert found.code == 2
    assert said in found.err
