"""What a command hands back: the object for `--json`, the text for a person, and the exit code."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """`fields` always hold a `status`; `text` is printed instead where `--json` was not given."""

    fields: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    code: int = 0
