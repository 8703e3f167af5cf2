"""Ctrl-C that arrives where Python would swallow it."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


SOON_S = 0.05
"""So much later it is raised again: out of the place that cannot raise it."""


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """While inside, an interruption that Python can only print is raised again a moment later.

    Callbacks of the garbage collector (JAX has one) and finalisers cannot raise: what happens in them is printed and
    forgotten, and a sweep would go on.
    """
    before, main = sys.unraisablehook, threading.get_ident()

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            threading.Timer(SOON_S, signal.pthread_kill, (main, signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
