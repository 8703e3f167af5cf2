"""`headway conformance PATH`: replays recorded schedules of real engines and prints where Headway decides otherwise.

PATH is a recorded set (a folder with `scenarios/` and `traces/`), a folder of sets at any depth, or a folder or file
in a set. Engine and version come from each trace, the mode from its scenario. With `--run DIR`, PATH is a server's own
log of its steps, and DIR the results folder of a simulated run of the same work; `--from N` begins at Iteration(N).
"""

import dataclasses
from pathlib import Path

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.progress import progress
from sim.documents import user_path


def run(arguments: Arguments) -> Answer:
    """One line per trace, one per set, then the sum. Exit code 1 if any decision differs."""
    if len(arguments.words) != 1:
        got = " ".join(arguments.words) or "none"
        raise ValueError(f"headway conformance wants one PATH, a folder with scenarios/ and traces/ in it, got {got}.")
    path = user_path(arguments.words[0], "PATH")
    folder = arguments.value("--run")
    first = first_iteration(arguments.value("--from"), folder is not None)
    if folder is not None:
        return step_log(path, user_path(folder, "--run"), first)
    from calibration.conformance.replay import check_headers, replay_set
    from calibration.conformance.report import fields, last_line, set_lines, trace_lines, unsupported_lines
    from calibration.conformance.sets import find_sets

    sets = find_sets(path)
    if not any(found.pairs or found.orphans for found in sets):
        raise ValueError(f"{path}: no traces here to replay, only scenarios; wanted are folders with traces/, too.")
    headers = check_headers(sets)
    outcomes = []
    with progress(len(headers), "replaying", not arguments.switch("--json")) as tell:
        for recorded in sets:
            for outcome in replay_set(recorded, headers):
                outcomes.append(outcome)
                tell(len(outcomes))
    sums = [*unsupported_lines(outcomes), last_line(outcomes)]
    text = "\n".join([*trace_lines(outcomes), "", *set_lines(sets, outcomes), "", *sums])
    return Answer(fields(sets, outcomes), text, 0 if all(outcome.decisions_identical for outcome in outcomes) else 1)


def first_iteration(given: str | None, of_log: bool) -> int:
    """The argument of `--from`, 0 without; `ValueError` for what is no whole number, or without a log to read."""
    if given is None:
        return 0
    if not given.isdecimal():
        raise ValueError(f"--from must be a whole number from 0, the first Iteration(N) to compare, got {given!r}.")
    if not of_log:
        raise ValueError("--from chooses from a server's log: it wants --run DIR, too.")
    return int(given)


def step_log(path: Path, folder: Path, first: int) -> Answer:
    """A server's log, from an iteration on, against a simulated run."""
    from calibration.conformance.step_log import compare_logs, log_text, read_simulated, read_step_log

    if not path.is_file():
        raise ValueError(f"{path}: with --run, PATH is the log of a server, a file; this is none.")
    found = compare_logs(read_step_log(path, first), read_simulated(folder))
    identical = all(one.identical for one in found)
    rows = [dataclasses.asdict(one) | {"identical": one.identical} for one in found]
    status = "ok" if identical else "different"
    return Answer({"status": status, "log": str(path), "cores": rows}, log_text(found), 0 if identical else 1)
