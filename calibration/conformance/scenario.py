"""A scenario: the configuration and the requests that a real engine was driven with, as recorded.

One JSON object: `name`, `config`, `requests`. A request has `id`, `arrival_step`, `prompt` (segments `[kind, seed,
length]`), `out_seed`, its length, and what an engine's own recordings add. Content is named, not stored: a token is
(kind, seed, index); output j of a request is `("o", out_seed, j)`, so a later prompt can hold an earlier output.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibration.conformance.lines import Malformed, not_json, read_text


SEED_STRIDE = 1 << 24
OUTPUT_BASE = 1 << 62
MOST_SEEDS = OUTPUT_BASE // SEED_STRIDE
MOST_TOKENS = SEED_STRIDE
"""Contents are told apart for seeds below the one, in segments of up to the other."""


class Unsupported(Exception):
    """What a recording needs and no scheduler here does; the text is the reason."""


@dataclass(frozen=True)
class Scenario:
    """`config` and `requests` as in the file; `content` is all of it, for kinds that have other keys."""

    name: str
    config: dict[str, Any]
    requests: list[dict[str, Any]]
    path: str = ""
    content: dict[str, Any] = field(default_factory=dict, repr=False)

    def arrivals(self) -> list[dict[str, Any]]:
        """The requests in order of arrival; those of one step as in the file."""
        return sorted(self.requests, key=lambda request: request["arrival_step"])


def prompt_tokens(request: dict[str, Any]) -> int:
    """Length of a request's prompt."""
    return sum(length for _, _, length in request["prompt"])


def token_ids(request: dict[str, Any]) -> np.ndarray:
    """The prompt's content as integers: equal content, equal numbers."""
    parts = [
        np.arange(length, dtype=np.int64) + (seed * SEED_STRIDE + (OUTPUT_BASE if kind == "o" else 0))
        for kind, seed, length in request["prompt"]
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def output_base(request: dict[str, Any]) -> int:
    """The integer of a request's output 0; output j is that plus j."""
    return OUTPUT_BASE + request["out_seed"] * SEED_STRIDE


def read_scenario(path: Path) -> Scenario:
    """Read one `.json` or `.json.gz`; `Malformed` names the file and the line of what is wrong."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise Malformed(f"{path}, line {line}: this is not JSON ({not_json(error)}).") from None
    except RecursionError:
        raise Malformed(f"{path}, line 1: this is nested too deeply.") from None
    if not isinstance(content, dict):
        raise Malformed(f"{path}, line 1: a scenario is one JSON object, got {content!r:.60}.")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed(f"{path}, line 1: the scenario has no name, a text, got {name!r:.60}.")
    config = content.get("config", {} if "config_p" in content else None)
    if not isinstance(config, dict):
        raise Malformed(f"{path}, line {line_of(text, 'config')}: config must be an object, got {config!r:.60}.")
    requests = content.get("requests")
    if not isinstance(requests, list) or not requests:
        raise Malformed(
            f"{path}, line {line_of(text, 'requests')}: requests must be a list of at least one, got {requests!r:.60}."
        )
    seen: set[str] = set()
    for number, request in enumerate(requests):
        wrong = mistake(request, seen)
        if wrong:
            given = request.get("id") if isinstance(request, dict) else None
            line = line_of(text, given) if isinstance(given, str) else line_of(text, "requests")
            raise Malformed(f"{path}, line {line}: request {number} ({given}) {wrong}.")
    return Scenario(name, config, requests, str(path), content)


def line_of(text: str, word: str) -> int:
    """The line on which a JSON string first stands, 1 if it does nowhere."""
    return text.count("\n", 0, max(text.find(json.dumps(word)), 0)) + 1


def mistake(request: Any, seen: set[str]) -> str:
    """What is wrong with one request, "" if nothing is; `seen` collects the ids."""
    if not isinstance(request, dict):
        return f"must be an object, got {request!r:.60}"
    identity = request.get("id")
    if not isinstance(identity, str) or not identity:
        return f"must have an id, a text, got {identity!r:.60}"
    if identity in seen:
        return "has the id of an earlier one"
    seen.add(identity)
    for key in ("arrival_step", "out_seed"):
        if not is_count(request.get(key)):
            return f"must have {key}, a whole number from 0, got {request.get(key)!r:.60}"
    if request["out_seed"] >= MOST_SEEDS:
        return f"must have an out_seed below {MOST_SEEDS:,}, got {request['out_seed']!r:.60}"
    prompt = request.get("prompt")
    if not isinstance(prompt, list) or not prompt or not all(map(is_segment, prompt)):
        return f'must have a prompt of segments ["p" or "o", seed, length], got {prompt!r:.60}'
    if sum(length for _, _, length in prompt) > MOST_TOKENS or any(seed >= MOST_SEEDS for _, seed, _ in prompt):
        return (
            f"must have a prompt of at most {MOST_TOKENS:,} tokens and seeds below {MOST_SEEDS:,}, got {prompt!r:.60}"
        )
    return ""


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 0."""
    return is_whole(value) and value >= 0


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_segment(segment: Any) -> bool:
    """Whether a value is a prompt segment."""
    return (
        isinstance(segment, list)
        and len(segment) == 3
        and segment[0] in ("p", "o")
        and is_count(segment[1])
        and is_count(segment[2])
        and segment[2] > 0
    )


def require(scenario: Scenario, config: Collection[str], request: Collection[str]) -> None:
    """`Malformed` naming the first whole number from 1 that the configuration or a request of a scenario lacks."""
    for key in config:
        value = scenario.config.get(key)
        if not is_count(value) or value == 0:
            raise Malformed(f"{scenario.path}: config.{key} must be a whole number from 1, got {value!r:.60}.")
    for each in scenario.requests:
        for key in request:
            value = each.get(key)
            if not is_count(value) or value == 0:
                raise Malformed(
                    f"{scenario.path}: {key} of request {each['id']} must be a whole number from 1, got {value!r:.60}."
                )


def refuse(scenario: Scenario, key: str, wanted: str, got: Any) -> Malformed:
    """The error of a key whose value is none of what is `wanted`."""
    return Malformed(f"{scenario.path}: {key} must be {wanted}, got {got!r:.60}.")
