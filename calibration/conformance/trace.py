"""A trace: what the real engine decided, call by call.

JSON lines: a header (`engine`, `version`, `scenario`), one object per step or call with its index in `step`, and a
summary. Read as it is asked for, for a trace may be long.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.conformance.lines import Malformed, not_json, read_lines


@dataclass(frozen=True)
class Header:
    """Who made a trace, of which scenario, and with which configuration, if it says so."""

    engine: str
    version: str
    scenario: str
    config: dict[str, Any] | None = field(default=None, compare=False)


def read_header(path: Path) -> Header:
    """The first line of a trace."""
    for number, line in read_lines(path):
        content = parse(path, number, line).get("header")
        if not isinstance(content, dict):
            raise Malformed(f'{path}, line {number}: the first line of a trace must be {{"header": ...}}.')
        for key in ("engine", "version", "scenario"):
            if not isinstance(content.get(key), str):
                raise Malformed(
                    f"{path}, line {number}: the header's {key} must be a text, got {content.get(key)!r:.60}."
                )
        config = content.get("config")
        if config is not None and not isinstance(config, dict):
            raise Malformed(f"{path}, line {number}: the header's config must be an object, got {config!r:.60}.")
        return Header(content["engine"], content["version"], content["scenario"], config)
    raise Malformed(f"{path}, line 1: the trace is empty; its first line must be a header.")


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """The steps of a trace in order, and last `{"summary": ...}`. `Malformed` names the line of what is wrong."""
    before = -1
    number, ended = 0, False
    for number, line in read_lines(path):
        if number == 1 or not line.strip():
            continue
        content = parse(path, number, line)
        if ended:
            raise Malformed(f"{path}, line {number}: the summary, the line before, must be the last.")
        if "summary" in content:
            if not isinstance(content["summary"], dict):
                raise Malformed(
                    f"{path}, line {number}: the summary must be an object, got {content['summary']!r:.60}."
                )
            ended = True
        else:
            step = content.get("step")
            if not isinstance(step, int) or isinstance(step, bool):
                raise Malformed(f"{path}, line {number}: a step must have its index in step, got {step!r:.60}.")
            if step < before:
                raise Malformed(f"{path}, line {number}: step {step} comes after step {before}.")
            before = step
        yield content
    if not ended:
        raise Malformed(f'{path}, line {number}: the trace ends without {{"summary": ...}}.')


def parse(path: Path, number: int, line: str) -> dict[str, Any]:
    """One line as an object."""
    try:
        content = json.loads(line)
    except ValueError as error:
        raise Malformed(f"{path}, line {number}: this is not JSON ({not_json(error)}).") from None
    except RecursionError:
        raise Malformed(f"{path}, line {number}: this is nested too deeply.") from None
    if not isinstance(content, dict):
        raise Malformed(f"{path}, line {number}: a line of a trace is a JSON object, got {content!r:.60}.")
    return content
