"""The summary of a run, counted from its steps."""

from collections import Counter
from typing import Any


class Summary:
    """What a vLLM trace says of the whole run, step by step."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.batches = self.dropped = 0
        self.preemptions: Counter[str] = Counter()
        self.cached_first: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.free = 0
        self._admitted: set[str] = set()

    def count(self, step: dict[str, Any]) -> None:
        """One step, as it is recorded."""
        self.steps += 1
        self.tokens += step.get("tok", 0)
        self.batches += step.get("issued") is not None
        self.dropped += len(step.get("drop", ()))
        self.preemptions.update(step.get("pre", ()))
        self.free = step["free_end"]
        for name, _, cached, kind in step.get("sched", ()):
            if kind == "n" and name not in self._admitted:
                self._admitted.add(name)
                if cached:
                    self.cached_first[name] = cached
        self.end(step)

    def end(self, step: dict[str, Any]) -> None:
        """The requests that ended at a step, which need not have scheduled anything."""
        for key in ("abort", "abort_mid", "fin", "err"):
            for name in step.get(key, ()):
                self.ends[name] = step["step"]

    def short(self) -> dict[str, Any]:
        """What is said of one instance of several."""
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "preemptions": dict(self.preemptions),
            "cached_first": self.cached_first,
            "finish_step": self.ends,
            "free_final": self.free,
        }

    def result(self, stuck: bool) -> dict[str, Any]:
        """What ends a trace."""
        return {"stuck": stuck, "batches": self.batches, "dropped_rows": self.dropped, **self.short()}
