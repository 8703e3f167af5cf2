"""vLLM's `--dataset-name timed_trace`: timestamps in seconds, hashes of 16-token blocks, by that tool's defaults."""

from sim.workload.conf import WorkloadConf
from sim.workload.hashed import fits, read_hashed
from sim.workload.source import Head, Source, Trace


BLOCK_TOKENS = 16


def matches(head: Head) -> bool:
    """JSON lines with one hash per 16 tokens."""
    return fits(head, BLOCK_TOKENS, 512, fractional=True)


def read(source: Source, conf: WorkloadConf) -> Trace:
    """`hash_block_tokens` is the tool's chunk-hash-size, `time_scale` its sec-multiplier."""
    return read_hashed(source, conf, "timed_trace", 1e9, BLOCK_TOKENS)
