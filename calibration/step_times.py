"""Step times of a measured run, interval by interval, against the price of the very same batches.

Two neighbouring instants of one component (`calibration.step_links`) bound a known number of steps. Between them
nobody begins or ends, so who decodes is known too, and what they attend to follows from the numbers of their first
tokens. Where prompts of one chunk get their first token at the end, the last of the steps carries them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibration.step_links import Links
from sim.report.result import RequestTable


BINS = (1, 4, 16, 32, 48, 64, 96, 128, 256)
"""Where the classes of running requests begin, in `by_running`."""


@dataclass(frozen=True)
class Intervals:
    """Axis `interval`: `steps` that took `measured_ns` together and are priced `priced_s`, after `start_ns`.

    `decodes` rows in each, and `prefill_tokens` (none: 0) in the last of them.
    """

    start_ns: np.ndarray
    steps: np.ndarray
    measured_ns: np.ndarray
    priced_s: np.ndarray
    decodes: np.ndarray
    prefill_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def error(self) -> np.ndarray:
        """Priced / measured - 1 of each interval."""
        return self.priced_s * 1e9 / self.measured_ns - 1


def intervals(
    requests: RequestTable,
    links: Links,
    cached_tokens: np.ndarray,
    price: Callable[[dict[str, np.ndarray]], np.ndarray],
    runs: Callable[[int, bool], tuple[int, int]],
) -> Intervals:
    """The clean intervals of one replica's run, priced.

    Left out: intervals in which a prompt of perhaps several chunks is computed, for its share of each step is unknown,
    and those in which nobody runs. `cached_tokens` [request] are taken to have been found in the prefix cache;
    `price` turns columns named as the fields of `BatchStats` into seconds, `[step]`; `runs` has padded tokens and graph
    mode of so many tokens, which all decode or not. How far a request of another component has got is interpolated:
    between instants of the largest component, else between those of its own.
    """
    members = [np.flatnonzero(links.component == one) for one in range(int(links.component.max(initial=-1)) + 1)]
    main = members[0] if members else np.empty(0, dtype=np.int64)
    first, last, prompt = links.first, links.last, np.asarray(requests.prompt_tokens)
    scheduled = np.searchsorted(links.at_ns, requests.scheduled_ns, side="right") - 1
    chunked = (first >= 0) & ~links.single
    none = np.empty(0, dtype=np.int64)
    batches: list[dict[str, float]] = []
    rows: list[tuple[int, ...]] = []
    for i in range(len(links.at_ns) - 1):
        if links.component[i] != links.component[i + 1]:
            continue
        steps = int(links.step[i + 1] - links.step[i])
        decoding = np.flatnonzero((first >= 0) & (first <= i) & (last > i))
        if steps < 1 or not len(decoding) or (chunked & (scheduled <= i) & (first > i)).any():
            continue
        starting = np.flatnonzero(first == i + 1)
        prior = cached_tokens[starting]
        chunks = prompt[starting] - prior
        since = np.empty(len(decoding))  # steps from its first token to now
        component = links.component[first[decoding]]
        for one in np.unique(component):
            some = component == one
            begun = first[decoding[some]]
            across = one != links.component[i] and main[0] <= begun.min() and i <= main[-1]
            known = main if across else members[one]
            now, then = (np.interp(links.at_ns[at], links.at_ns[known], links.step[known]) for at in (i, begun))
            since[some] = np.round(now - then)
        context = prompt[decoding] + since + 1
        for step in range(steps - 1):
            batches.append(_batch(context + step, none, none, runs))
        batches.append(_batch(context + steps - 1, chunks, prior, runs))
        rows.append((links.at_ns[i], steps, links.at_ns[i + 1] - links.at_ns[i], len(decoding), chunks.sum()))
    if not rows:
        return Intervals(none, none, none, np.empty(0), none, none)
    start_ns, count, measured_ns, decodes, prefill = np.array(rows, dtype=np.int64).T
    step_s = price({name: np.array([batch[name] for batch in batches]) for name in batches[0]})
    priced_s = np.add.reduceat(step_s, np.cumsum(count) - count)
    return Intervals(start_ns, count, measured_ns, priced_s, decodes, prefill)


def by_running(found: Intervals) -> list[dict[str, float | int | str]]:
    """Mean step times, measured and priced, by number of decoding rows, with and without a prefill."""
    rows: list[dict[str, float | int | str]] = []
    for low, high in zip(BINS, (*BINS[1:], np.inf), strict=True):
        inside = (found.decodes >= low) & (found.decodes < high)
        for kind, of_kind in (("decode", found.prefill_tokens == 0), ("prefill", found.prefill_tokens > 0)):
            chosen = inside & of_kind
            steps = int(found.steps[chosen].sum())
            if steps:
                measured_s, priced_s = (
                    float(found.measured_ns[chosen].sum()) * 1e-9,
                    float(found.priced_s[chosen].sum()),
                )
                rows.append(
                    {
                        "kind": kind,
                        "running": f"{low}-{high - 1:.0f}" if np.isfinite(high) else f"{low}-",
                        "intervals": int(chosen.sum()),
                        "steps": steps,
                        "measured_ms": measured_s * 1e3 / steps,
                        "priced_ms": priced_s * 1e3 / steps,
                        "error": priced_s / measured_s - 1,
                    }
                )
    return sorted(rows, key=lambda row: row["kind"] == "prefill")


def _batch(
    context: np.ndarray, chunks: np.ndarray, prior: np.ndarray, runs: Callable[[int, bool], tuple[int, int]]
) -> dict[str, float]:
    """The statistics of one step."""
    tokens = int(chunks.sum()) + len(context)
    padded, graph = runs(tokens, not len(chunks))
    ends = prior + chunks
    return {
        "prefill_tokens": float(chunks.sum()),
        "prefill_chunks": len(chunks),
        "prefill_area": float((chunks * prior + chunks * (chunks + 1) // 2).sum()),
        "prefill_kv_tokens": float(ends.sum()),
        "prefill_max_tokens": float(ends.max(initial=0)),
        "decodes": len(context),
        "decode_sum": float(context.sum()),
        "decode_max": float(context.max(initial=0)),
        "decode_sumsq": float((context * context).sum()),
        "emitting": len(context) + len(chunks),
        "padded_tokens": padded,
        "graph_mode": graph,
    }
