"""What a person calls the place of a difference: "tokens of r6" for `sched[2][1]`."""

from typing import Any

from calibration.conformance.compare import Difference


ROWS = {
    "sched": ("request", "tokens", "tokens computed before", "kind"),
    "ext": ("request", "tokens", "tokens of the prefix", "kind"),
    "out": ("request", "tokens emitted"),
    "spec": ("request", "drafts", "accepted drafts"),
    "xs": ("request", "tokens from elsewhere", "blocks to be filled"),
}
"""Fields that hold a row per request, the request first, and what the columns of a row are."""

WORDS = {
    "added": "requests that arrived",
    "abort": "requests aborted",
    "abort_mid": "requests aborted while the call waited",
    "issued": "number of the batch scheduled",
    "completed": "number of the batch completed",
    "mode": "kind of the batch",
    "dec": "requests that decode",
    "dctx": "context tokens of the decode rows",
    "tok": "tokens scheduled",
    "pre": "requests preempted",
    "retract": "requests retracted",
    "preempt": "requests preempted by priority",
    "chunked": "request with an unfinished prefill",
    "run": "running requests",
    "wait": "waiting requests",
    "full": "whether the batch counts as full",
    "ntr": "new-token ratio",
    "free": "free blocks after scheduling",
    "avail": "free tokens after scheduling",
    "evict": "evictable tokens after scheduling",
    "nb": "block ids",
    "ncb": "blocks that all running requests share",
    "sched": "rows scheduled",
    "ext": "prefill rows",
    "out": "tokens emitted",
    "nout": "tokens emitted",
    "spec": "drafts verified",
    "fin": "requests that ended",
    "drop": "rows dropped",
    "xs": "tokens from elsewhere",
    "remote": "requests whose KV is loading",
    "recv": "requests whose load was reported",
    "sent": "requests whose blocks were reported as read",
    "held": "requests whose blocks are held after their end",
    "inv": "blocks reported as invalid",
    "fail": "requests reported as failed",
    "err": "requests that ended with an error",
    "dropped": "requests that ended before their KV was asked for",
    "free_end": "free blocks after the output",
    "avail_end": "free tokens after the output",
    "evict_end": "evictable tokens after the output",
    "ntr_end": "new-token ratio after the output",
    "header.config": "what the engine was driven with, and the scenario",
    "summary.preemptions": "preemptions",
    "summary.cached_first": "cached tokens at the first admission",
    "summary.finish_step": "step of the end",
}


def request_of(difference: Difference, path: list[Any]) -> str | None:
    """The request that the entry at `path` of a difference is about, None if there is no single one."""
    field, first = difference.field, path[0] if path else None
    if field in ("summary.preemptions", "summary.cached_first", "summary.finish_step"):
        return first if isinstance(first, str) else None
    if not isinstance(first, int):
        return None
    if field == "nb":
        return difference.rows[first] if first < len(difference.rows) else None
    if field not in ROWS:
        return None
    names = {side[first][0] for side in sides(difference) if first < len(side) and is_row(side[first])}
    return names.pop() if len(names) == 1 else None


def sides(difference: Difference) -> list[list[Any]]:
    """Both values, where they are lists."""
    return [side for side in (difference.recorded, difference.simulated) if isinstance(side, list)]


def is_row(value: Any) -> bool:
    """Whether a value is a row that begins with a request's name."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def meaning(difference: Difference, path: list[Any]) -> str:
    """What differs, in words; "" for a field that nobody here knows."""
    field, request = difference.field, request_of(difference, path)
    columns = ROWS.get(field)
    if columns and path:
        column = path[1] if len(path) > 1 else None
        if isinstance(column, int) and 0 < column < len(columns):
            return f"{columns[column]} of {request}" if request else columns[column]
        return f"row of {request}" if request else f"request of row {path[0]}"
    said = WORDS.get(field, "")
    return f"{said} of {request}" if said and request else said
