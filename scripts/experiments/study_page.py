"""Parts that the page of every study has: what was asked and found, published figures, assumptions, how to run it."""

from collections.abc import Sequence
from html import escape

from scripts.experiments.study import Experiment
from sim.report.page.build import bullets
from sim.report.page.parts import table
from sim.report.page.sections import Section


def lead(question: str, verdict: str) -> str:
    """The question and the answer, as paragraphs."""
    asked = f'<p class="note">{escape(question)}</p>' if question else ""
    return f'{asked}<p class="verdict">{escape(verdict)}</p>'


def against(experiment: Experiment, compared: Sequence[tuple[str, str, str, str]]) -> Section:
    """Published figures (what, published, ours, difference), who published them, and the explanation."""
    rows = [[escape(cell) for cell in row] for row in compared]
    html = table(["figure", "published", "here", "difference"], rows, "numbers") if rows else ""
    html += "".join(f"<p>{escape(part)}</p>" for part in experiment.published.explanation)
    if not html:
        html = "<p>Nothing was published about these cases.</p>"
    source = f"Published: {experiment.published.source}." if experiment.published.source else ""
    return Section("Against what was published", html, source)


def closing(
    experiment: Experiment, assumed: Sequence[str], not_modelled: Sequence[str], own: Sequence[str]
) -> list[Section]:
    """Assumptions, what is not modelled, and the configurations."""
    words = " ".join(["headway experiment", experiment.name, *own])
    each = "\n".join(f"{case.name}:\n  " + "\n  ".join(case.overrides) for case in experiment.cases)
    run = (
        f"<pre>{escape(words)}</pre>"
        f"<details><summary>Configuration of each case</summary><pre>{escape(each)}</pre></details>"
    )
    return [
        Section("Assumed", bullets(assumed)),
        Section("Not modelled", bullets(not_modelled)),
        Section("Run again", run),
    ]
