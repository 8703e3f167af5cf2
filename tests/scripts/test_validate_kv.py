"""`headway validate kv=FILE`: the answer's shape, the files it writes, and its mistakes."""

import csv

import pytest


HEAD = (
    "id,source,category,model,hardware,tp,pp,dtype,engine,engine_version,gpu_memory_utilization,max_model_len,"
    "max_num_seqs,isl,osl,concurrency_or_qps,metric,value,unit,quote_short"
)


@pytest.fixture
def logs(tmp_path):
    def row(name, metric, value, unit, model="meta-llama/Llama-3.1-8B-Instruct"):
        return (
            f"{name}.{metric},a log,kv_budget,{model},H100-80GB (79.19 GiB),1,1,bf16,vllm,0.19.0,0.95,8192,1024,,,,"
            f"{metric},{value},{unit},"
        )

    path = tmp_path / "logs.csv"
    rows = [
        row("A", "weights", "14.99", "GiB/GPU"),
        row("A", "peak_activation", "1.89", "GiB/GPU"),
        row("A", "non_torch", "0.25", "GiB/GPU"),
        row("A", "num_gpu_blocks", "29751", "blocks"),
        row("B", "kv_tokens", "1000", "tokens", "org/unheard-of"),
        row("C", "startup", "fails_no_kv", "outcome", "meta-llama/Llama-3.1-70B-Instruct"),
    ]
    path.write_text("\n".join([HEAD, *rows]) + "\n")
    return path


def test_the_answer_and_its_files(headway, logs, tmp_path):
    found = headway("validate", f"kv={logs}", f"results={tmp_path / 'out'}", "--json").json()
    assert (found["cases"], found["failed"]) == (2, 1)
    # 29,751 measured; half way to an infinite error there is none
    assert found["median_error"] is None and found["p90_error"] is None
    assert found["within_one_block"] == 0.5
    assert found["refusals_right"] == pytest.approx(2 / 3)
    given = found["given_breakdown"]
    assert given["cases"] == 1 and given["within_one_block"] == 1.0 and given["median_error"] < 1e-4
    assert "unheard-of" in found["reasons"]["B"]
    assert found["by"]["version"]["vllm 0.19.0"] == {"cases": 2, "failed": 1, "median_error": None, "p90_error": None}
    rows = list(csv.DictReader((tmp_path / "out" / "cases.csv").read_text().splitlines()))
    assert [row["case"] for row in rows] == ["A", "B", "C"]
    assert rows[0]["measured_blocks"] == "29751" and abs(int(rows[0]["predicted_blocks"]) - 29751) <= 1
    assert rows[2]["predicted_start"] == rows[2]["started"] == "refused"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Breakdown known" in page and "unheard-of" in page
    # the same folder again, and several files at once
    text = headway("validate", f"kv={logs},{logs}", f"results={tmp_path / 'out'}").out
    assert "4 servers that tell their KV blocks or tokens, 2 of them not described" in text


def test_mistakes_are_sentences(headway, logs, tmp_path):
    assert "there is no such file" in headway("validate", "kv=nowhere.csv").err
    assert "did you mean results?" in headway("validate", f"kv={logs}", "result=x").err
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert "lacks the column" in headway("validate", f"kv={other}").err
    assert "wants a new or an empty folder" in headway("validate", f"kv={logs}", f"results={tmp_path}").err
