"""How long a person waits: a small run from the command line, imports, compilation and results folder included."""

import os
import resource
import subprocess
import sys
import tempfile
import time

from scripts.bench import peak_bytes


OVERRIDES = ("workload=fixed-1024-128", "workload.num_requests=50")


def startup() -> dict[str, float | str]:
    """`headway simulate` with 50 requests in a new process, and `headway --help`: CPU and wall seconds."""
    wall_s, cpu_s, peak = call("simulate", *OVERRIDES)
    help_wall_s, help_cpu_s, _ = call("--help")
    return {
        "configuration": f"headway simulate {' '.join(OVERRIDES)}",
        "startup_s": cpu_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "peak_bytes": peak,
        "help_cpu_s": help_cpu_s,
        "help_wall_s": help_wall_s,
    }


def call(*words: str) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and (largest so far) peak bytes of one `headway` call in an empty folder."""
    command = [sys.executable, "-P", "-c", "import sys; from scripts.cli import main; sys.exit(main())", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, env=os.environ, stdout=subprocess.DEVNULL, check=True)
        wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, peak_bytes(resource.RUSAGE_CHILDREN)
