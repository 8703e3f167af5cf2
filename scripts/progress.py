"""Progress on standard error: a bar where a person watches it, else a line now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


EVERY_S = 10.0
"""Where there is no bar, a line comes this often, so that a long run can be told from one that hangs."""


class Tell(Protocol):
    """What to call with the number done so far, and in words how far the work is otherwise."""

    def __call__(self, done: int, besides: str = "") -> None:
        """Show it, if it is time to."""


@contextmanager
def progress(total: int, text: str, bar: bool, tenths: bool = False) -> Iterator[Tell]:
    """Yields what to call with the number done so far.

    With `bar`, and a terminal to show it on, a bar; otherwise a line every ten seconds, or with `tenths` one for each
    tenth of `total`. Until the first call (price tables are compiled) the line says so.
    """
    if not (bar and sys.stderr.isatty()):
        tell = each_tenth(total, text) if tenths else now_and_then(total, text)
        with until_first(text) as first:

            def told(done: int, besides: str = "") -> None:
                first()
                tell(done, besides)

            yield told
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[besides]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total, besides="preparing")
        yield lambda done, besides="": shown.update(task, completed=done, besides=besides)


@contextmanager
def until_first(text: str, every_s: float = EVERY_S) -> Iterator[Callable[[], None]]:
    """Prints every so often that nothing is done yet, until what it yields is called, or the end."""
    over, started = threading.Event(), time.monotonic()

    def wait() -> None:
        while not over.wait(every_s):
            passed = f"{time.monotonic() - started:,.0f} s"
            print(f"headway: {text}: preparing (compiling), {passed} so far", file=sys.stderr, flush=True)

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield over.set
    finally:
        over.set()


def now_and_then(total: int, text: str, clock: Callable[[], float] = time.monotonic) -> Tell:
    """Prints how many are done, at most once in `EVERY_S` and not before that much has passed."""
    due = clock() + EVERY_S

    def tell(done: int, besides: str = "") -> None:
        nonlocal due
        if clock() >= due:
            due = clock() + EVERY_S
            say(text, done, total, besides)

    return tell


def each_tenth(total: int, text: str) -> Tell:
    """Prints how many are done, once for each tenth of `total`."""
    tenths = 0

    def tell(done: int, besides: str = "") -> None:
        nonlocal tenths
        if 10 * done // max(total, 1) > tenths:
            tenths = 10 * done // max(total, 1)
            say(text, done, total, besides)

    return tell


def say(text: str, done: int, total: int, besides: str) -> None:
    """One line."""
    more = f", {besides}" if besides else ""
    print(f"headway: {text}, {done:,} of {total:,}{more}", file=sys.stderr, flush=True)
