"""Events of Chrome's trace format that everything on the timeline is made of, times in ns; the format's are in us."""

from typing import Any


Event = dict[str, Any]

REQUESTS_PID = 1_000_000
LINKS_PID = 2_000_000
"""Processes of the timeline; the ranks' are their numbers from 1 on."""


def names(pid: int, process: str, threads: dict[int, str], label: str = "") -> list[Event]:
    """What a process and its threads are called; `label` stands behind the process' name."""
    events: list[Event] = [{"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}]
    events.append({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}})
    if label:
        events.append({"ph": "M", "pid": pid, "name": "process_labels", "args": {"labels": label}})
    return events + thread_names(pid, threads)


def thread_names(pid: int, threads: dict[int, str]) -> list[Event]:
    """What tracks are called."""
    return [
        {"ph": "M", "pid": pid, "tid": t, "name": "thread_name", "args": {"name": name}} for t, name in threads.items()
    ]


def span(pid: int, tid: int, name: str, start_ns: float, end_ns: float, args: dict[str, Any]) -> Event:
    """A slice of a track."""
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": args,
    }


def instant(pid: int, name: str, at_ns: float, args: dict[str, Any]) -> Event:
    """A moment, across all tracks of a process."""
    return {"ph": "i", "s": "p", "pid": pid, "tid": 1, "name": name, "ts": at_ns / 1000, "args": args}


def counter(pid: int, name: str, at_ns: float, value: float) -> Event:
    """A counter's value from now on."""
    return {"ph": "C", "pid": pid, "name": name, "ts": at_ns / 1000, "args": {"value": value}}


def arrow(phase: str, number: int, pid: int, tid: int, at_ns: float) -> Event:
    """A point of the arrow of that number: `s`, `t` or `f`: first, middle, last; it belongs to the slice around it."""
    event = {"ph": phase, "cat": "KV", "name": "KV", "id": number, "pid": pid, "tid": tid, "ts": at_ns / 1000}
    return event | ({"bp": "e"} if phase == "f" else {})
