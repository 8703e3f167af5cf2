"""Mooncake's traces: timestamps in milliseconds, hashes of 512-token blocks."""

from sim.workload.conf import WorkloadConf
from sim.workload.hashed import fits, read_hashed
from sim.workload.source import Head, Source, Trace


BLOCK_TOKENS = 512


def matches(head: Head) -> bool:
    """JSON lines with one hash per 512 tokens."""
    return fits(head, BLOCK_TOKENS, 16, fractional=False)


def read(source: Source, conf: WorkloadConf) -> Trace:
    """Equal hashes mean equal blocks with equal blocks before them."""
    return read_hashed(source, conf, "Mooncake", 1e6, BLOCK_TOKENS)
