"""A self-contained page that is a heading, a few facts, what was found, and sections with charts and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sim.report.page.build import framed


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it, HTML already."""

    title: str
    html: str
    note: str = ""


@dataclass(frozen=True)
class SectionsPage:
    """All of a page; `facts` are the line below the heading, `lead` the paragraphs (HTML) that say what was found."""

    kicker: str
    heading: str
    facts: Sequence[str]
    lead: str
    sections: Sequence[Section]


def sections_page(page: SectionsPage, data: Any, script: str) -> str:
    """The page as HTML text; `script` (a file beside this one) draws `data` into the charts of the sections."""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in page.facts)
    return framed(page.kicker, page.heading, facts, "".join(map(_section, page.sections)), data, script, lead=page.lead)


def figure(title: str, note: str, chart: str) -> str:
    """The place of the chart `chart` (its id), with a caption."""
    return (
        f"<figure><figcaption>{escape(title)} <span>{escape(note)}</span></figcaption>"
        f'<div class="chart" id="{chart}"></div></figure>'
    )


def _section(section: Section) -> str:
    note = f'<p class="note">{escape(section.note)}</p>' if section.note else ""
    return f"<section><h2>{escape(section.title)}</h2>{note}{section.html}</section>"
