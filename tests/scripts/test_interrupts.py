"""An interruption is heard wherever it arrives."""

import gc
import signal
import sys
import time

import pytest

from scripts.interrupts import heard


@pytest.fixture
def interruptible():
    """Processes that a shell starts in the background ignore Ctrl-C: not this one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_one_that_a_callback_of_the_collector_gets_is_raised_again():
    def callback(phase, info):
        gc.callbacks.remove(callback)
        raise KeyboardInterrupt

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), heard():
        gc.callbacks.append(callback)
        for _ in range(500):
            if callback in gc.callbacks:
                gc.collect()  # does nothing while a collection of another thread is under way
            time.sleep(0.01)
    assert sys.unraisablehook is before


def test_other_exceptions_there_go_where_they_went(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def callback(phase, info):
        gc.callbacks.remove(callback)
        raise OSError("no")

    with heard():
        gc.callbacks.append(callback)
        gc.collect()
    assert [str(one.exc_value) for one in told] == ["no"]
