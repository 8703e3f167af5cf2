"""What a study is: an experiment's file, and what a study hands back."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from sim.documents import mapping, parse_yaml


@dataclass(frozen=True)
class Case:
    """One configuration of a study, and what others have published about it (by what it measures)."""

    name: str
    overrides: tuple[str, ...]
    published: Mapping[str, float]


@dataclass(frozen=True)
class Published:
    """Who published the figures of the cases, and paragraphs on why ours are like them or not."""

    source: str = ""
    explanation: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For the console; "" where nothing was published."""
        lines = [f"Published: {self.source}."] if self.source else []
        return "\n\n".join(textwrap.fill(part, 118) for part in [*lines, *self.explanation])


@dataclass(frozen=True)
class Experiment:
    """A file of conf/experiment: `study` is the module that runs it, `settings` are its own."""

    name: str
    title: str
    study: str
    cases: tuple[Case, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""
    assumed: tuple[str, ...] = ()
    published: Published = Published()


@dataclass(frozen=True)
class Findings:
    """What a study found: `fields` for programs, `text` for the console, `head` and `rows` of its csv, its page."""

    fields: dict[str, Any]
    text: str
    head: tuple[str, ...]
    rows: list[list[Any]]
    page: str


def experiment_names() -> list[str]:
    """The shipped experiments, in order of name."""
    files = (resources.files("conf") / "experiment").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def read_experiment(name: str) -> Experiment:
    """A file of conf/experiment; the overrides of the file come before those of each case."""
    text = (resources.files("conf") / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    content: Mapping[str, Any] = mapping(parse_yaml(text, name), name)
    shared = [str(word) for word in content.get("overrides", [])]
    cases = [
        Case(str(case["name"]), (*shared, *map(str, case["overrides"])), dict(case.get("published", {})))
        for case in content["cases"]
    ]
    told = content.get("published", {})
    return Experiment(
        name=name,
        title=str(content["title"]),
        study=str(content["study"]),
        cases=tuple(cases),
        settings=mapping(content.get("settings", {}), name),
        question=str(content["question"]),
        assumed=tuple(map(str, content.get("assumed", []))),
        published=Published(str(told.get("source", "")), tuple(map(str, told.get("explanation", [])))),
    )
