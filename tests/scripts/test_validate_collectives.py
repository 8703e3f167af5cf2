"""`headway validate collectives=FILE`: tables of collectives, files of graphs, and mistakes."""

from pathlib import Path


RECORDED = Path(__file__).parents[1] / "event" / "fabric"


def test_a_table_of_collectives(headway):
    found = headway("validate", f"collectives={RECORDED / 'runs.csv'}", "--json").json()
    assert found["status"] == "ok"
    assert found["runs"] == found["events_exact"] == sum(group["runs"] for group in found["groups"])
    assert found["closed_form"]["rows"] == found["runs"]
    assert found["closed_form"]["within_half_percent"] >= found["runs"] - 1
    text = headway("validate", f"collectives={RECORDED / 'runs.csv'}").out
    assert f"{found['runs']} exact to the nanosecond" in text


def test_graphs(headway):
    found = headway("validate", f"collectives={RECORDED / 'graphs.json'}", "--json").json()
    assert {graph["name"]: graph["error"] for graph in found["graphs"]}["skew"] == 0
    assert all(graph["ranks"] == graph["ranks_exact"] for graph in found["graphs"])
    assert "skew" in headway("validate", f"collectives={RECORDED / 'graphs.json'}").out


def test_mistakes_are_sentences(headway, tmp_path):
    assert "there is no such file" in headway("validate", "collectives=nowhere.csv").err
    table = tmp_path / "table.csv"
    table.write_text("backend,topology\nunaware,Ring\n")
    assert "lacks the columns npus, collective" in headway("validate", f"collectives={table}").err
    lines = (RECORDED / "runs.csv").read_text().splitlines()[2:4]
    table.write_text("\n".join(lines).replace("aware,", "blind,", 1) + "\n")
    assert "wants unaware or aware" in headway("validate", f"collectives={table}").err
    graphs = tmp_path / "graphs.json"
    graphs.write_text('[{"name": "a"}]')
    answer = headway("validate", f"collectives={graphs}")
    assert answer.code == 2 and "wanted a list of graphs" in answer.err
