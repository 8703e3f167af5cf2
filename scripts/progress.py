"""Progress on standard error: a bar where a person watches it, lines where a long command's errors go to a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int, text: str, wanted: bool, lines: bool = False) -> Iterator[Callable[[int], None] | None]:
    """Yields what to call with the number done so far, or None where nothing is shown (`--json`, no terminal).

    With `lines`, a line for each tenth of `total` takes the place of the bar where there is no terminal.
    """
    if wanted and lines and not sys.stderr.isatty():
        yield each_tenth(total, text)
        return
    if not (wanted and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


def each_tenth(total: int, text: str) -> Callable[[int], None]:
    """Prints how many are done, once for each tenth of `total`."""
    tenths = 0

    def tell(done: int) -> None:
        nonlocal tenths
        if 10 * done // max(total, 1) > tenths:
            tenths = 10 * done // max(total, 1)
            print(f"headway: {text}, {done:,} of {total:,}", file=sys.stderr, flush=True)

    return tell
