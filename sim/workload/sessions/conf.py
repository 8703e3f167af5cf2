"""The part of a workload's configuration that is about sessions."""

from dataclasses import dataclass, field


NONE = "none"
"""The name of a law that is not there."""


@dataclass
class LawConf:
    """How one number is drawn: `law` names a module of `sim.workload.sessions.law`, or is `none`.

    `mean` (fixed, exponential, geometric, lognormal), `cv`: standard deviation / mean (lognormal). `least`, `most`: the
    bounds of uniform; of the others, what lies outside is set to them.
    """

    law: str = NONE
    mean: float = 1.0
    cv: float = 1.0
    least: float | None = None
    most: float | None = None


@dataclass
class SessionsConf:
    """Sessions of rounds, drawn; with `rounds.law=none` every request stands alone, or is what a trace says.

    - `rounds`: how many a session has.
    - `first_tokens`: new prompt tokens of the first round (a task, a document); `none`: as those of any other. Those of
      each round, and its output, are `workload.lengths`: a prompt is all that was said before and these.
    - `latency_s`: from the end of a round until the next is sent, the time of a tool or of thinking; `none`: at once,
      or as a trace says.
    - `reasoning_share`: of each output, its first part that later prompts leave out.
    - `system_prompts`: how many different ones there are, `workload.prefix_tokens` long; a session begins with one.
    """

    rounds: LawConf = field(default_factory=LawConf)
    first_tokens: LawConf = field(default_factory=LawConf)
    latency_s: LawConf = field(default_factory=LawConf)
    reasoning_share: float = 0.0
    system_prompts: int = 1
