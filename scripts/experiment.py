"""`headway experiment NAME`: a study that ships with its configurations (conf/experiment), run and printed as a table.

`KEY=VALUE` words are added to the configuration of every case. Without NAME, what there is.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from typing import Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from sim.documents import mapping, parse_yaml


@dataclass(frozen=True)
class Case:
    """One configuration of a study, and what others have published about it (by what it measures)."""

    name: str
    overrides: tuple[str, ...]
    published: Mapping[str, float]


@dataclass(frozen=True)
class Experiment:
    """A file of conf/experiment: `study` is the module that runs it, `settings` are its own."""

    name: str
    title: str
    study: str
    cases: tuple[Case, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def run(arguments: Arguments) -> Answer:
    """List the experiments, or run the one that was named."""
    names = [word for word in arguments.words if "=" not in word]
    known = experiment_names()
    if not names:
        found = [read_experiment(name) for name in known]
        lines = [f"{one.name}  {one.title} ({len(one.cases)} cases)" for one in found]
        return Answer({"status": "ok", "experiments": {one.name: one.title for one in found}}, "\n".join(lines))
    if len(names) > 1:
        raise ValueError(f"headway experiment runs one at a time, got {' and '.join(names)}.")
    if names[0] not in known:
        near = get_close_matches(names[0], known, 1, 0.0)[0]
        raise ValueError(f"there is no experiment {names[0]}: did you mean {near}? (known: {', '.join(known)})")
    experiment = read_experiment(names[0])
    own = [word for word in arguments.words if "=" in word]
    study = importlib.import_module(f"scripts.experiments.{experiment.study}")
    found_answer: Answer = study.run(experiment, own, arguments.values("--config-dir"))
    return found_answer


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
    settings = mapping(content.get("settings", {}), name)
    return Experiment(name, str(content["title"]), str(content["study"]), tuple(cases), settings)
