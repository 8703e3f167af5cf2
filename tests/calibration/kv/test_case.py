"""Both formats of measured KV caches, read."""

import pytest

from calibration.kv.case import DIED, REFUSED, STARTED, printed, read_cases


HEAD = (
    "id,source,category,model,hardware,tp,pp,dtype,engine,engine_version,gpu_memory_utilization,max_model_len,"
    "max_num_seqs,isl,osl,concurrency_or_qps,metric,value,unit,quote_short"
)


def row(name, metric, value, unit="GiB/GPU", category="kv_budget", utilization="0.9"):
    return (
        f"{name}.{metric},log,{category},org/Model,H100-80GB,1,1,bf16,vllm,0.19.0,{utilization},8192,1024,,,,"
        f"{metric},{value},{unit},a quote"
    )


def cases_of(tmp_path, *rows, head=HEAD):
    path = tmp_path / "cases.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return {case.name: case for case in read_cases(path)}


def test_the_rows_of_one_log_are_one_case(tmp_path):
    found = cases_of(
        tmp_path,
        row("A", "weights", "14.99"),
        row("A", "num_gpu_blocks", "29751", "blocks"),
        row("B", "available_kv", "3.0"),
        row("C", "behaviour", "livelock", "outcome", category="preemption"),
    )
    assert list(found) == ["A", "B"]
    case = found["A"]
    assert case.counts and case.outcome == STARTED
    # half of the last printed digit; whole numbers of blocks are exact
    assert case.reported["weights"].value == 14.99 and case.reported["weights"].half == pytest.approx(0.005)
    assert case.reported["num_gpu_blocks"].half == 0
    # what is left for the cache is no count of blocks, but a server that got so far has started
    assert not found["B"].counts and found["B"].outcome == STARTED


def test_how_a_start_ended(tmp_path):
    found = cases_of(
        tmp_path,
        row("refused", "startup", "fails_no_kv", "outcome"),
        row("died", "startup", "OOM_in_graph_capture", "outcome"),
        row("fine", "startup", "ok", "outcome"),
        row("other", "startup", "rejected", "outcome", category="other"),
        row("other", "free", "60.87", "GiB", category="other"),
        row("higher", "startup_at_0.98", "OOM_in_graph_capture", "outcome", utilization="0.98"),
        row("higher", "startup_at_0.97", "ok", "outcome", utilization="0.98"),
        row("needs", "kv_needed_one_seq", "16.0"),
        row("needs", "available_kv", "0.71"),
    )
    ends = {name: case.outcome for name, case in found.items()}
    assert ends == {
        "refused": REFUSED, "died": DIED, "fine": STARTED, "other": REFUSED, "higher": DIED, "needs": REFUSED,
    }  # fmt: skip
    assert found["other"].reported["free"].value == 60.87


def test_one_server_a_row(tmp_path):
    head = "exp,model,hardware,tp,max_num_seqs,max_num_batched_tokens,total_kv_blocks_16tok,cpu_kv_blocks,workload"
    path = tmp_path / "blocks.csv"
    path.write_text(
        f"{head}\n17,org/A,H100,2,128,2048,8253,0,{{}}\n20260217-155451,org/B,H100,1,128,2048,7463,9,{{}}\n"
    )
    first, second = read_cases(path)
    assert (first.tensor_parallel, first.max_num_batched_tokens) == (2, 2048)
    assert first.reported["num_gpu_blocks"].value == 8253
    # a run that does not tell its day is of the day of the others
    assert first.engine_version == second.engine_version == "2026-02-17"


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("1.7", "GiB", 0.05),
        ("12", "GiB/GPU", 0.5),
        ("12", "tokens", 0.0),
        ("ok", "outcome", None),
        ("-1.44", "GiB", 0.005),
    ],
)
def test_what_the_last_digit_leaves_open(text, unit, expected):
    found = printed(text, unit)
    assert (None if found is None else found.half) == (expected if expected is None else pytest.approx(expected))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="lacks the columns? cpu|lacks the columns exp, hardware"):
        cases_of(tmp_path, "1", head="model")
    with pytest.raises(ValueError, match="holds no case"):
        cases_of(tmp_path, row("A", "weights", "14.99"))
    with pytest.raises(ValueError, match="line 2: 'tp' must be a whole number of at least 1, got 'two'"):
        cases_of(tmp_path, row("A", "kv_tokens", "10", "tokens").replace(",1,1,bf16", ",two,1,bf16"))
    with pytest.raises(ValueError, match="line 2: 'id' must be CASE.METRIC"):
        cases_of(tmp_path, row("A", "kv_tokens", "10", "tokens").replace("A.kv_tokens", "A"))
