"""The page of predictions against measurements stands alone and holds what it was given."""

import json

from sim.report.page.scatter import Panel, ScatterPage, scatter_page
from sim.report.page.sections import Section


def panel(title="TTFT", measured=(1.0, 200.0), predicted=(1.5, 100.0), names=("one", "</script><b>"), groups="ba"):
    return Panel(title, "time to first token", "ms", measured, predicted, names, groups)


def embedded(page):
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_points_names_and_colours():
    page = scatter_page(ScatterPage("points", "a < b", ["2 points"], "Fine.", [panel()]))
    data = embedded(page)
    assert data["groups"] == ["a", "b"]
    assert data["panels"][0]["x"] == [1.0, 200.0] and data["panels"][0]["y"] == [1.5, 100.0]
    assert data["panels"][0]["name"][1] == "</script><b>" and data["panels"][0]["group"] == [1, 0]
    assert "a &lt; b" in page and "<b>" not in page.partition('id="data">')[2].partition("</script>")[0]


def test_it_asks_nothing_of_the_network():
    page = scatter_page(ScatterPage("points", "x", [], "", [panel()]))
    assert "src=" not in page and "@import" not in page and "https://" not in page


def test_sections_and_empty_panels():
    sections = [Section("Errors", "<p>none</p>", "in %")]
    page = scatter_page(ScatterPage("points", "x", [], "", [panel(measured=(), predicted=(), names=())], sections))
    assert "<h2>Errors</h2>" in page and "<p>none</p>" in page and "in %" in page
    assert "nothing to plot" in page and embedded(page)["panels"] == []
