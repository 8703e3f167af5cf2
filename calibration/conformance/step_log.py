"""A real engine's own log of its steps beside the steps of a simulated run.

vLLM writes one line per step if started with `--enable-logging-iteration-details` (0.14 on):

    Iteration(515): 0 context requests, 0 context tokens, 20 generation requests, 20 generation tokens, iteration ...

A *context* request has not emitted a token yet; everything else is *generation*, also what a preempted request computes
again. The simulated run counts that as prefill, so where it has preempted somebody before, only the sums are compared.
Empty steps are left out on both sides: the engine does not always log them.

Source: vllm-project/vllm pull requests 31193 and 46647.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.conformance.lines import Malformed, read_lines


LINE = re.compile(
    r"Iteration\((?P<step>\d+)\): (?P<counts>\d+ context requests, \d+ context tokens, "
    r"\d+ generation requests, \d+ generation tokens)\b"
)
MOST_DIGITS = 15
RANK = re.compile(r"EngineCore_DP(\d+)")
COUNTS = ("context requests", "context tokens", "generation requests", "generation tokens")


@dataclass(frozen=True)
class LoggedSteps:
    """One engine core's steps that were not empty: their index, and the four `counts` of each ([step, 4])."""

    steps: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class LogComparison:
    """One engine core against one replica: steps of both, how many agree from the start, and the first that does not.

    `equal` counts agreeing steps at equal places, also after the first difference.
    """

    replica: int
    logged: int
    simulated: int
    agree: int
    equal: int
    iteration: int | None = None
    field: str = ""
    recorded: int | None = None
    predicted: int | None = None

    @property
    def identical(self) -> bool:
        """Whether every step agrees, and there are equally many."""
        return self.agree == self.logged == self.simulated


def read_step_log(path: Path, first: int = 0) -> dict[int, LoggedSteps]:
    """The steps in a server's log from Iteration(`first`) on, by data-parallel rank (0 where the log names none).

    `Malformed` if a step comes twice, as when a log holds two starts of the server, or if there is none.
    """
    found: dict[int, list[list[int]]] = {}
    for number, line in read_lines(path):
        match = LINE.search(line)
        if match is None:
            continue
        rank = RANK.search(line)
        words = [rank[1] if rank else "0", match["step"], *re.findall(r"\d+", match["counts"])]
        if max(map(len, words)) > MOST_DIGITS:
            raise Malformed(f"{path}, line {number}: no step has a number of {max(map(len, words)):,} digits.")
        rows = found.setdefault(int(words[0]), [])
        step = int(words[1])
        if rows and step <= rows[-1][0]:
            raise Malformed(
                f"{path}, line {number}: iteration {step} comes after iteration {rows[-1][0]}; keep the log of one "
                "start of the server."
            )
        rows.append([int(word) for word in words[1:]])
    if not found:
        raise Malformed(
            f"{path}: no line of this log is an Iteration(N) of vLLM; start the server with "
            "--enable-logging-iteration-details."
        )
    tables = {rank: np.array(rows, dtype=np.int64) for rank, rows in sorted(found.items())}
    tables = {rank: table[table[:, 0] >= first] for rank, table in tables.items()}
    if not any(len(table) for table in tables.values()):
        raise Malformed(
            f"{path}: --from {first} leaves nothing of this log, its last step is Iteration({rows[-1][0]})."
        )
    return {rank: LoggedSteps(*trimmed(table[:, 0], table[:, 1:])) for rank, table in tables.items()}


def trimmed(steps: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Without the empty steps."""
    full = counts[:, [0, 2]].sum(axis=1) > 0
    return steps[full], counts[full]


def read_simulated(folder: Path) -> dict[str, np.ndarray]:
    """The steps of a results folder, `steps.parquet` of `headway simulate`."""
    path = folder / "steps.parquet"
    if not path.is_file():
        raise ValueError(
            f"--run {folder}: there is no steps.parquet in it; a results folder of headway simulate has one."
        )
    import pyarrow
    import pyarrow.parquet

    wanted = ["replica", "prefill_tokens", "prefill_chunks", "decode_requests", "preempted_requests"]
    try:
        table = pyarrow.parquet.read_table(path, columns=wanted)
        return {name: table[name].to_numpy() for name in wanted}
    except (pyarrow.ArrowException, KeyError) as error:
        raise ValueError(f"{path}: cannot be read as a table of steps ({' '.join(str(error).split())}).") from None


def compare_logs(logged: Mapping[int, LoggedSteps], simulated: Mapping[str, np.ndarray]) -> list[LogComparison]:
    """Each engine core of the log against the replica of its number."""
    return [
        compare_replica(rank, steps, {name: column[simulated["replica"] == rank] for name, column in simulated.items()})
        for rank, steps in logged.items()
    ]


def compare_replica(rank: int, logged: LoggedSteps, own: Mapping[str, np.ndarray]) -> LogComparison:
    """One engine core, step by step; the first that differs is told with the first of its counts that does."""
    decodes = own["decode_requests"]
    ours = np.stack([own["prefill_chunks"], own["prefill_tokens"], decodes, decodes], axis=1)
    full = ours.sum(axis=1) > 0
    ours, preempted = ours[full], np.cumsum(own["preempted_requests"])[full] > 0
    size = min(len(ours), len(logged.counts))
    theirs, ours_first, after = logged.counts[:size], ours[:size], preempted[:size]
    same = (theirs == ours_first).all(axis=1)
    sums = (theirs[:, :2] + theirs[:, 2:] == ours_first[:, :2] + ours_first[:, 2:]).all(axis=1)
    same |= after & sums
    different = np.flatnonzero(~same)
    agree = int(different[0]) if len(different) else size
    counted: dict[str, Any] = {
        "replica": rank,
        "logged": len(logged.counts),
        "simulated": len(ours),
        "agree": agree,
        "equal": int(same.sum()),
    }
    if len(different):
        at = agree
        field = int(np.flatnonzero(theirs[at] != ours_first[at])[0])
        where: dict[str, Any] = {
            "iteration": int(logged.steps[at]),
            "field": COUNTS[field],
            "recorded": int(theirs[at, field]),
            "predicted": int(ours_first[at, field]),
        }
        return LogComparison(**counted, **where)
    return LogComparison(**counted)


def log_text(found: Sequence[LogComparison]) -> str:
    """One line per engine core, then the sum, of the longer of both sides: a step of one alone is not identical."""
    lines = [f"engine core {one.replica}: {log_sentence(one)}" for one in found]
    steps = sum(max(one.logged, one.simulated) for one in found)
    return "\n".join([*lines, "", f"steps {sum(one.equal for one in found)}/{steps} identical"])


def log_sentence(one: LogComparison) -> str:
    """Identical, or the first step that differs with both values."""
    if one.identical:
        return f"identical in all {one.logged:,} steps"
    if one.iteration is None:
        then = "the shorter ends"
    else:
        then = f"Iteration({one.iteration}): {one.field} recorded {one.recorded}, simulated {one.predicted}"
    steps = f"{one.logged:,} steps logged, {one.simulated:,} simulated"
    return f"identical in {one.agree:,} steps, then {then}; {steps}"
