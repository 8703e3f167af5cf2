"""What a run is told of itself: why it is not faster, and what to change."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """`kind` for programs, `sentence` for people, `change`: the setting to try, `evidence`: shares of 1."""

    kind: str
    sentence: str
    change: str
    evidence: dict[str, float] = field(default_factory=dict)
