"""`headway bench`: how fast the simulator is, each benchmark in fresh processes on one core.

A benchmark is a function of some module that returns its numbers; its name and place stand in `BENCHMARKS`. Times are
CPU seconds (`getrusage`), for the machine may be shared; of several processes the median is printed.
"""

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.table import table


BENCHMARKS = {
    "startup": "scripts.bench_startup:startup",
    "event-counted": "scripts.bench_event:event_counted",
    "event-identity": "scripts.bench_event:event_identity",
    "event-identity-256": "scripts.bench_event:event_identity_256",
    "event-learned": "scripts.bench_learned:event_learned",
    "event-decodes": "scripts.bench_event:event_decodes",
    "event-rows": "scripts.bench_event:event_rows",
    "event-sglang": "scripts.bench_event:event_sglang",
    "event-trtllm": "scripts.bench_event:event_trtllm",
    "azure-replay": "scripts.bench_event:azure_replay",
    "fleet-colocated": "scripts.bench_fleet:fleet_colocated",
    "fleet-disaggregated": "scripts.bench_fleet:fleet_disaggregated",
    "event-core": "scripts.bench_fleet:event_core",
    "moe-layer": "scripts.bench_experts:moe_layer",
    "analytic-kernel": "scripts.bench_cost:analytic_kernel",
    "scan-analytic": "scripts.bench_scan:scan_analytic",
    "scan-learned": "scripts.bench_learned:scan_learned",
}
REPEATS = 3

ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def run(arguments: Arguments) -> Answer:
    """Run the benchmarks named, or all. The JSON object is `{name: {number: value}}`."""
    from conf.mistakes import did_you_mean, nearest

    for name in arguments.words:
        if name not in BENCHMARKS:
            near = did_you_mean(nearest(name, BENCHMARKS))
            raise ValueError(f"there is no benchmark {name}{near} Known are {', '.join(BENCHMARKS)}.")
    given = arguments.value("--repeat")
    if given is not None and not (given.isdecimal() and int(given) > 0):
        raise ValueError(f"--repeat wants a whole number above 0, got {given!r}.")
    repeats = int(given) if given else REPEATS
    found: dict[str, dict[str, Any]] = {}
    for name in arguments.words or BENCHMARKS:
        if not arguments.switch("--json"):
            times = "once" if repeats == 1 else f"{repeats} times"
            print(f"headway: {name}, {times} in a process of its own, on one core", file=sys.stderr)
        found[name] = median([measure(name) for _ in range(repeats)])
    failed = [name for name, numbers in found.items() if numbers["status"] != "ok"]
    return Answer(found, text(found), 1 if failed else 0)


def measure(name: str) -> dict[str, Any]:
    """One benchmark in a process of its own."""
    command = [sys.executable, "-P", "-c", f"from scripts.bench import worker; worker({name!r})"]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
        return {"status": "error", "message": last}
    numbers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"status": "ok", **numbers}


def worker(name: str) -> None:
    """In the new process: keep to one core, run, and print the numbers as JSON."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    module, _, function = BENCHMARKS[name].partition(":")
    benchmark = getattr(importlib.import_module(module), function)
    imported_s = cpu_s()
    started = time.perf_counter()
    numbers = dict(benchmark())
    measured = {
        "startup_s": imported_s,
        "cpu_s": cpu_s() - imported_s,
        "wall_s": time.perf_counter() - started,
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(measured | numbers))


def cpu_s() -> float:
    """User and system time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes(who: int = resource.RUSAGE_SELF) -> int:
    """Largest resident set so far; Linux counts KiB, macOS bytes."""
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def median(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each number over the repeats, with the range of `steps_per_cpu_s`; the failure, if one failed."""
    failed = [numbers for numbers in repeats if numbers["status"] != "ok"]
    if failed:
        return failed[0]
    first = repeats[0]
    numbers = {
        key: statistics.median(run[key] for run in repeats) if isinstance(value, int | float) else value
        for key, value in first.items()
    }
    rates = [run["steps_per_cpu_s"] for run in repeats if "steps_per_cpu_s" in run]
    if rates:
        numbers["steps_per_cpu_s_range"] = [min(rates), max(rates)]
    return numbers | {"repeats": len(repeats)}


def text(found: dict[str, dict[str, Any]]) -> str:
    """The table: rates, times and memory, with what was run below."""
    head = ("benchmark", "steps/CPU-s", "real engine", "start-up s", "compile s", "CPU s", "wall s", "peak MB")
    keys = ("steps_per_cpu_s", "real_steps_per_cpu_s", "startup_s", "compile_s", "cpu_s", "wall_s", "peak_bytes")
    rows, below = [], []
    for name, numbers in found.items():
        if numbers["status"] != "ok":
            below.append(f"{name}: failed, {numbers['message']}")
            continue
        shown = [numbers.get(key) for key in keys]
        rows.append(
            (name, *("" if value is None else figure(key, value) for key, value in zip(keys, shown, strict=True)))
        )
        more = {key: value for key, value in numbers.items() if key not in (*keys, "status", "steps_per_cpu_s_range")}
        below.append(f"{name}: " + ", ".join(f"{key} {brief(value)}" for key, value in more.items()))
    return "\n".join([table(head, rows), "", *below])


def figure(key: str, value: float) -> str:
    """A number of the table in its unit."""
    if key == "peak_bytes":
        return f"{value / 1e6:,.0f}"
    return f"{value:,.0f}" if key.endswith("steps_per_cpu_s") else f"{value:.2f}"


def brief(value: Any) -> str:
    """Any other number or text."""
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
