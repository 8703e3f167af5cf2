"""Simulates many configurations in processes of their own; what goes wrong with one stays with it."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from calibration.serving.score import Prediction


if TYPE_CHECKING:
    from conf.schema import SimulateConf


CHUNK = 400
"""Configurations handed out at a time: what a process that dies takes with it is tried again one by one."""

ENVIRONMENT = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
"""Of the processes: they share the cores, so that one thread each is fastest."""

DIED = "the simulating process was ended, perhaps for lack of memory."

LOAD = tuple(f"workload.{key}" for key in ("concurrency", "rounds", "num_requests", "input_tokens", "output_tokens"))

Overrides = tuple[str, ...]


def predictions(
    wanted: Sequence[Overrides], config_dirs: Sequence[str], jobs: int
) -> Iterator[tuple[Overrides, Prediction]]:
    """Overrides and what a simulation of them says, in the order in which they end."""
    died = Prediction("died", DIED)
    return each(partial(predict, config_dirs=tuple(config_dirs)), wanted, jobs, died)


def each[Item, Result, Died](
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int, died: Died
) -> Iterator[tuple[Item, Result | Died]]:
    """`work` of every item in processes, in the order in which they end; `died` of one that its process ended with."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for start in range(0, len(items), CHUNK * jobs):
        left = list(items[start : start + CHUNK * jobs])
        try:
            for pair in _in_pool(work, left.copy(), jobs):
                left.remove(pair[0])
                yield pair
        except BrokenProcessPool:
            for item in left:
                yield item, _alone(work, item, died)


def _in_pool[Item, Result](
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[Item, Result]]:
    context = get_context("spawn")
    listening, alive = context.Pipe(duplex=False)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent, initargs=(listening,)) as pool:
        futures: dict[Future[Result], Item] = {pool.submit(work, item): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            alive.close()  # whoever is at work ends now, not with its item
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _alone[Item, Result, Died](work: Callable[[Item], Result], item: Item, died: Died) -> Result | Died:
    """In a process of its own: if it dies, it was this item."""
    try:
        return next(result for _, result in _in_pool(work, [item], 1))
    except BrokenProcessPool:
        return died


def end_with_parent(listening: Connection) -> None:
    """End this process when the one that started it has ended, or wants no more of it and closes its end of the pipe.

    However that came about: it would wait for ever. Ctrl-C, which all processes of a terminal get, is the parent's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            listening.recv()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def configuration(overrides: Overrides, config_dirs: tuple[str, ...]) -> "SimulateConf":
    """The composed configuration.

    One that differs from an earlier one in whole numbers of its load is not composed anew: that takes as long as a
    short simulation.
    """
    import dataclasses

    counts: dict[str, Any] = {}
    rest = []
    for override in overrides:  # later ones win
        key, _, value = override.lstrip("+").partition("=")
        if key in LOAD and value.isdecimal():
            counts[key.partition(".")[2]] = int(value)
        else:
            counts.pop(key.partition(".")[2] if key in LOAD else "", None)
            rest.append(override)
    base = composed(tuple(rest), config_dirs)
    return dataclasses.replace(base, workload=dataclasses.replace(base.workload, **counts))


@lru_cache(maxsize=256)
def composed(overrides: Overrides, config_dirs: tuple[str, ...]) -> "SimulateConf":
    """The configuration of some overrides."""
    from conf.compose import compose

    return compose(overrides, config_dirs)


def predict(overrides: Overrides, config_dirs: tuple[str, ...] = ()) -> Prediction:
    """Build and run one configuration with the exact engine; a failure is a prediction with its status and reason."""
    from scripts.failure import failure_status, reason_of
    from sim import api
    from sim.report.metrics import measure

    try:
        result = api.run(api.prepare(configuration(overrides, config_dirs)))
        found = measure(result, (99.0,))
    except Exception as error:
        return Prediction(failure_status(error), reason_of(error))
    if found.failed or found.output_throughput is None or found.total_token_throughput is None:
        return Prediction("rejected", f"{found.failed:,} of {found.failed + found.completed:,} requests were refused.")
    latency: dict[str, float] = {}
    for metric in ("ttft", "tpot"):
        one = found.latency[metric]
        values = {"mean": one.mean_s, "p50": one.median_s, "p99": one.percentile_s(99.0)}
        latency |= {f"{metric}_ms_{name}": 1e3 * value for name, value in values.items() if value is not None}
    return Prediction(
        latency_ms=latency,
        output_per_gpu=found.output_throughput / result.gpus,
        total_per_gpu=found.total_token_throughput / result.gpus,
        preemptions=found.preemptions,
        steps=found.steps,
        claimed_error=result.claim.rel_error if result.claim else None,
        outside_share=result.claim.outside_share if result.claim else None,
    )
