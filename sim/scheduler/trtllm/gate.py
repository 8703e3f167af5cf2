"""TensorRT-LLM's balance of prompts over data-parallel attention ranks: they wait until every rank has one.

A rank without a prompt would idle through the step in which others prefill. So while all ranks decode, prompts wait
until each has one, or for `timeout` steps. Source: PyExecutor of TensorRT-LLM's PyTorch backend
(`attention_dp_config.enable_balance`, `timeout_iters`), recalled; that the steps are counted from the first prompt on
is
taken from measured servers, whose first tokens come that many steps later.
"""

from collections.abc import Sequence
from typing import Protocol


class Rank(Protocol):
    """What the gate looks at."""

    @property
    def has_prompt(self) -> bool:
        """Whether any of its requests has a prompt to compute."""

    @property
    def decodes_any(self) -> bool:
        """Whether any of its requests decodes."""


class PromptGate:
    """One decision per step for all of `ranks`, made when the first of them asks."""

    def __init__(self, ranks: Sequence[Rank], timeout: int):
        self._ranks = ranks
        self._timeout = timeout
        self._asked: set[int] = set()
        self._waited = 0
        self._open = True

    def opens(self, rank: Rank) -> bool:
        """Whether `rank` may compute prompts in this step."""
        if id(rank) in self._asked or not self._asked:
            self._asked.clear()
            self._open = self._decide()
        self._asked.add(id(rank))
        return self._open

    def _decide(self) -> bool:
        prompts = [rank.has_prompt for rank in self._ranks]
        if not any(prompts):
            return True
        self._waited += 1
        if all(prompts) or self._waited >= self._timeout or not all(rank.decodes_any for rank in self._ranks):
            self._waited = 0
            return True
        return False
