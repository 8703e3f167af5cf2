"""Seconds of one call: of the device alone, and with what the host needs to launch it."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple


Call = Callable[[], Any]

LEAST_LOOP_S = 2e-3
"""Calls are put in a row until they take this long, so that the clock's resolution does not show."""

MOST_IN_A_ROW = 200


class Times(NamedTuple):
    """Median seconds. `kernel_s` is None where the calls could not be recorded without the host."""

    kernel_s: float | None
    launch_s: float


class HostClock:
    """Times on a CPU, where calls return when they are done: in a row for `kernel_s`, one by one for `launch_s`."""

    def __init__(self, warmup: int, repeats: int, now: Callable[[], float] = time.perf_counter):
        self.warmup, self.repeats, self.now = warmup, repeats, now

    def measure(self, call: Call) -> Times:
        """Warm up, then medians."""
        for _ in range(self.warmup):
            call()
        launch = statistics.median(self.once(call, 1) for _ in range(self.repeats))
        count = in_a_row(launch)
        return Times(statistics.median(self.once(call, count) for _ in range(self.repeats)), launch)

    def once(self, call: Call, count: int) -> float:
        """Seconds of each of `count` calls in a row."""
        start = self.now()
        for _ in range(count):
            call()
        return (self.now() - start) / count


def in_a_row(seconds: float) -> int:
    """How many calls of so many seconds take `LEAST_LOOP_S`, at most `MOST_IN_A_ROW`."""
    return max(1, min(MOST_IN_A_ROW, int(LEAST_LOOP_S / max(seconds, 1e-9)) + 1))


class GpuClock:
    """Times on a CUDA device. `kernel_s`: calls recorded into one CUDA graph and replayed, between two events.

    `launch_s`: one call at a time on an idle device, until the host sees it done. `flush_bytes`: before each replay
    so many bytes are written, so that the last-level cache holds nothing of the call; graphs then hold one call.
    """

    def __init__(self, torch: Any, warmup: int, repeats: int, flush_bytes: int = 0):
        self.torch, self.warmup, self.repeats = torch, warmup, repeats
        self.flushed = torch.empty(flush_bytes, dtype=torch.int8, device="cuda") if flush_bytes else None

    def measure(self, call: Call) -> Times:
        """Warm up on a stream of its own, then medians."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.warmup):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        launch = statistics.median(self.alone(call) for _ in range(self.repeats))
        return Times(self.recorded(call, 1 if self.flushed is not None else in_a_row(launch)), launch)

    def alone(self, call: Call) -> float:
        """Seconds of one call from an idle device to the end of a synchronisation."""
        self.flush()
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        self.torch.cuda.synchronize()
        return time.perf_counter() - start

    def recorded(self, call: Call, count: int) -> float | None:
        """Seconds of each of `count` calls in a graph; None where a call cannot be recorded."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(count):
                    call()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        graph.replay()
        return statistics.median(self.replay(graph) for _ in range(self.repeats)) / count

    def replay(self, graph: Any) -> float:
        """Seconds of one replay by the device's own clock."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def flush(self) -> None:
        """Write over the last-level cache, if that was asked for."""
        if self.flushed is not None:
            self.flushed.zero_()
