"""The rounds of sessions as columns: who follows whom, after what time, and what its prompt repeats."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True, eq=False)
class Sessions:
    """Sessions of a workload, whose requests are their rounds, session by session.

    - `first`: axis `session + 1`; requests `first[s]` to `first[s + 1] - 1` are the rounds of session s, in order.
    - `latency_ns`: axis `request`; from the end of the round before until this one is sent; 0 of a first round.
    - `history_tokens`: the first so many tokens of the prompt are the first of the prompt before and its output, less
      the first `dropped_tokens` of that output; 0 of a first round. The rest of the prompt is new.
    - `system`: axis `session`; the number of its system prompt, whose `system_tokens` begin the first prompt.

    Arrays that contradict this raise `ValueError`.
    """

    first: Int[np.ndarray, " session_and_one"]
    latency_ns: Int[np.ndarray, " request"]
    history_tokens: Int[np.ndarray, " request"]
    dropped_tokens: Int[np.ndarray, " request"]
    system: Int[np.ndarray, " session"]
    system_tokens: int = 0

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def rounds(self) -> Int[np.ndarray, " session"]:
        """How many each session has."""
        return np.diff(self.first)

    @property
    def begins(self) -> Bool[np.ndarray, " request"]:
        """Which requests are first rounds."""
        found = np.zeros(len(self.latency_ns), bool)
        found[self.first[:-1]] = True
        return found

    @property
    def last(self) -> Int[np.ndarray, " session"]:
        """The last round of each: the answer, of an agent."""
        return self.first[1:] - 1

    @property
    def session(self) -> Int[np.ndarray, " request"]:
        """The session of each request."""
        return np.repeat(np.arange(len(self)), self.rounds)

    def of(self, i: int) -> int:
        """The session of request i."""
        return int(np.searchsorted(self.first, i, side="right")) - 1

    @property
    def shares(self) -> bool:
        """Whether a prompt begins like something said before it."""
        return bool(self.system_tokens) or bool(self.history_tokens.any())

    def check(self, prompt_tokens: Int[np.ndarray, " request"], output_tokens: Int[np.ndarray, " request"]) -> None:
        """Raise `ValueError` unless these are sessions of a workload with such requests."""
        requests = len(prompt_tokens)
        columns = (self.latency_ns, self.history_tokens, self.dropped_tokens)
        if self.first[0] != 0 or self.first[-1] != requests or (self.rounds < 1).any():
            raise ValueError(f"sessions want at least one round each, {requests} in all, one after the other")
        if any(len(column) != requests for column in columns) or len(self.system) != len(self):
            raise ValueError(f"sessions want one entry of each column per round: {requests} rounds")
        if (self.latency_ns < 0).any():
            raise ValueError("sessions want latencies >= 0")
        if ((self.dropped_tokens < 0) | (self.dropped_tokens > output_tokens)).any():
            raise ValueError("sessions want dropped_tokens from 0 to the output of the round")
        later = np.flatnonzero(~self.begins)
        said = prompt_tokens[later - 1] + output_tokens[later - 1] - self.dropped_tokens[later - 1]
        most = np.minimum(said, prompt_tokens[later])
        history = self.history_tokens
        if history[self.first[:-1]].any() or ((history[later] < 0) | (history[later] > most)).any():
            raise ValueError("sessions want history_tokens from 0 to what was said before and to the prompt")
        if self.system_tokens > prompt_tokens[self.first[:-1]].min():
            raise ValueError("sessions want first prompts as long as system_tokens")


def firsts(session: Int[np.ndarray, " request"]) -> Int[np.ndarray, " session_and_one"]:
    """Where each session begins, and where the last ends, of the session of each request; their rows stand together."""
    return np.concatenate([[0], np.flatnonzero(np.diff(session)) + 1, [len(session)]])


def from_then_on(
    found: Bool[np.ndarray, " request"], first: Int[np.ndarray, " session_and_one"]
) -> Bool[np.ndarray, " request"]:
    """The rounds that are `found`, and all later ones of their sessions."""
    count = np.cumsum(found)
    before = (count - found)[first[:-1]]
    return count > np.repeat(before, np.diff(first))
