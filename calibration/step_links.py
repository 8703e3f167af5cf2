"""Numbers the steps of an engine from the times of its requests, and so finds how many batches it has in flight.

All tokens of a step are delivered at one instant, so equal first- and last-token times are one engine step. Two facts
link instants:

- a request that emits n tokens without being preempted has its last one n - 1 steps after its first;
- a request that is scheduled at the output of step k while others decode runs as step k + depth, depth being the number
  of batches in flight. If its whole prompt is in that step, its first token is depth steps after the output.

Each fact fixes a difference of two step numbers. With the right depth they all agree, and later instants have higher
numbers; with a wrong one they contradict each other. Source: the replay of published vLLM 0.19 runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sim.report.result import FINISHED, RequestTable


PICKUP_NS = 400_000
"""From the output of a step to the schedule call after it: 0.12 ms in the median, under 0.4 ms, in vLLM 0.19."""

DEPTHS = (1, 2, 3)


@dataclass(frozen=True)
class Links:
    """Axis `instant`, in time order, and axis `request`, as in the table given (requests not finished: -1).

    - `at_ns` [instant]: when a step's output was delivered; `step` [instant]: its number, counted from the first
      instant of its `component` [instant] (linked instants share one; 0 is the largest).
    - `first`, `last` [request]: the instants of its first and last token.
    - `single` [request]: its prompt is known to have been one chunk.
    - `differences`: facts used; `contradictions`: how many of them disagree with those before; `order_violations`:
      neighbours of a component whose numbers do not rise with time.
    """

    depth: int
    at_ns: np.ndarray
    step: np.ndarray
    component: np.ndarray
    first: np.ndarray
    last: np.ndarray
    single: np.ndarray
    differences: int
    contradictions: int
    order_violations: int

    @property
    def linked(self) -> int:
        """Instants of the largest component."""
        return int((self.component == 0).sum())

    @property
    def steps(self) -> int:
        """Engine steps that the largest component spans."""
        numbers = self.step[self.component == 0]
        return int(numbers.max() - numbers.min()) if len(numbers) else 0


def link_steps(requests: RequestTable, depth: int, budget_tokens: int, same_ns: int = 0) -> Links:
    """Link the instants of one engine's requests, with `depth` batches in flight and `budget_tokens` a batch.

    Instants at most `same_ns` apart are one step: 0 for one replica; the ranks of a data-parallel engine in lockstep
    stamp the same step's tokens some microseconds apart.
    """
    done = np.flatnonzero((requests.status == FINISHED) & (requests.first_token_ns >= 0))
    scheduled, first, last = (
        np.asarray(column)[done] for column in (requests.scheduled_ns, requests.first_token_ns, requests.finish_ns)
    )
    single = _one_chunk(scheduled, first, last, np.asarray(requests.prompt_tokens)[done], budget_tokens)
    outputs = np.unique(np.concatenate([first, last]))
    before = np.searchsorted(outputs, scheduled, side="right") - 1
    lag_ns = (
        np.where(before >= 0, scheduled - outputs[np.maximum(before, 0)], PICKUP_NS + 1) if len(done) else scheduled
    )
    seen = lag_ns <= PICKUP_NS
    # An output at which nobody began or ended still shows, in the call that scheduled after it.
    usual_lag_ns = int(np.median(lag_ns[seen])) if seen.any() else 0
    pickup = np.where(seen, outputs[np.maximum(before, 0)], scheduled - usual_lag_ns) if len(done) else scheduled
    busy = _decoding_across(scheduled, first, last)
    times = np.unique(np.concatenate([outputs, pickup[busy]]))
    group = np.cumsum(np.diff(times, prepend=times[:1]) > same_ns)
    at_ns = times[np.flatnonzero(np.diff(group, prepend=-1))]

    def instant(when_ns: np.ndarray) -> np.ndarray:
        return group[np.searchsorted(times, when_ns)]

    first_at, last_at = instant(first), instant(last)
    emitted = np.asarray(requests.output_tokens)[done]
    kept = np.asarray(requests.preemptions)[done] == 0
    whole = kept & (emitted > 1)
    known = kept & busy & single
    facts = [
        *_facts(first_at[whole], last_at[whole], emitted[whole] - 1),
        *_facts(instant(pickup[known]), first_at[known], np.full(int(known.sum()), depth)),
    ]
    step, component, contradictions = _solve(len(at_ns), facts)
    violations = sum(
        int((np.diff(step[component == one]) <= 0).sum()) for one in range(int(component.max(initial=-1)) + 1)
    )

    def by_request(values: np.ndarray, absent: int) -> np.ndarray:
        found = np.full(len(requests), absent, dtype=values.dtype)
        found[done] = values
        return found

    return Links(
        depth=depth,
        at_ns=at_ns,
        step=step,
        component=component,
        first=by_request(first_at, -1),
        last=by_request(last_at, -1),
        single=by_request(single, False),
        differences=len(facts),
        contradictions=contradictions,
        order_violations=violations,
    )


def replicas_of(requests: RequestTable) -> Iterator[RequestTable]:
    """The requests of each replica by itself."""
    for replica in np.unique(requests.replica[requests.replica >= 0]):
        mine = requests.replica == replica
        columns = {name: column for name, column in vars(requests).items() if column is not None}
        yield replace(requests, **{name: column[mine] for name, column in columns.items()})


def _facts(a: np.ndarray, b: np.ndarray, steps: np.ndarray) -> list[tuple[int, int, int]]:
    """Each (a, b, steps) once: instant b is `steps` after instant a."""
    return sorted(set(zip(a.tolist(), b.tolist(), steps.tolist(), strict=True)))


def _one_chunk(
    scheduled: np.ndarray, first: np.ndarray, last: np.ndarray, prompt: np.ndarray, budget: int
) -> np.ndarray:
    """Whether each prompt certainly was one chunk.

    A cut prompt uses the budget up, so of the requests scheduled together only the last can be cut; and it is
    not if all prompts under way, whole, and one token for each running request fit in the budget.
    """
    order = np.argsort(scheduled, kind="stable")
    calls, start, size = np.unique(scheduled[order], return_index=True, return_counts=True)
    decoding = np.searchsorted(np.sort(scheduled), calls) - np.searchsorted(np.sort(last), calls, side="right")
    upto = np.concatenate([[0], np.cumsum(prompt[order])])
    by_first = np.argsort(first, kind="stable")
    ended = np.concatenate([[0], np.cumsum(prompt[by_first])])
    under_way = upto[start + size] - ended[np.searchsorted(first[by_first], calls, side="right")]
    one = np.ones(len(scheduled), dtype=bool)
    one[order[start + size - 1]] = decoding + under_way <= budget
    return one


def _decoding_across(scheduled: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Whether somebody decoded before and after each time: then a step was just delivered, and more are under way."""
    begun = np.searchsorted(np.sort(first), scheduled, side="right")
    ended = np.searchsorted(np.sort(last), scheduled, side="right")
    return begun > ended


def _solve(count: int, facts: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, int]:
    """Numbers and components of `count` instants from differences, and how many differences disagree.

    A union-find whose nodes know their distance to the root.
    """
    parent, distance = list(range(count)), [0] * count

    def root(node: int) -> int:
        path = []
        while parent[node] != node:
            path.append(node)
            node = parent[node]
        for one in reversed(path):
            if (above := parent[one]) != node:
                distance[one] += distance[above]
                parent[one] = node
        return node

    contradictions = 0
    for a, b, steps in facts:
        above, below = root(a), root(b)
        apart = distance[a] + steps - distance[b]
        if above != below:
            parent[below], distance[below] = above, apart
        elif apart:
            contradictions += 1
    roots = np.array([root(node) for node in range(count)], dtype=np.int64)
    numbers = np.array(distance, dtype=np.int64)
    _, first, component, sizes = np.unique(roots, return_index=True, return_inverse=True, return_counts=True)
    by_size = np.argsort(-sizes, kind="stable")
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[by_size] = np.arange(len(sizes))
    return numbers - numbers[first][component], rank[component], contradictions
