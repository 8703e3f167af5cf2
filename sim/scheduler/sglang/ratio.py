"""SGLang's new-token ratio: which share of the tokens still allowed is reserved for running requests."""

INITIAL = 0.7
LEAST = 0.14
DECAY_STEPS = 600
CLIP_MAX_NEW = 4096
"""Outputs of one request are reserved up to so many tokens."""
RETRACT_DECODE_STEPS = 20
"""Decode steps that a retraction makes room for."""


class NewTokenRatio:
    """Falls in each decode step from 0.7 x conservativeness to 0.14 of that in 600; a retraction sets it anew."""

    def __init__(self, conservativeness: float = 1.0):
        self.initial = min(INITIAL * conservativeness, 1.0)
        self.least = min(LEAST * self.initial, 1.0)
        self.decay = (self.initial - self.least) / DECAY_STEPS
        self.value = self.initial

    def step(self) -> None:
        """A decode step that had memory enough."""
        value = self.value - self.decay
        self.value = value if value > self.least else self.least

    def retracted(self, rows: int, emitted: int, allowed: int) -> None:
        """After a retraction: `rows` are left, which have emitted so many of the tokens they are allowed."""
        self.value = min(1.0, (emitted + RETRACT_DECODE_STEPS * rows) / (allowed + 1))

    def reset(self) -> None:
        """When nothing is left to do."""
        self.value = self.initial
