"""Which chunks each request retrieves, and how long that takes."""

import numpy as np
from jaxtyping import Float, Int

from sim.workload import draws
from sim.workload.conf import WorkloadConf
from sim.workload.retrieval.columns import Retrieval
from sim.workload.retrieval.conf import RetrievalConf
from sim.workload.sessions.conf import NONE
from sim.workload.sessions.law import described, sample
from sim.workload.trace import seconds_to_ns


WHOLE = 1 << 51
"""Weights are whole numbers that sum to little more: which chunk a uniform falls on is then exact."""


def retrieves(conf: WorkloadConf) -> bool:
    """Whether anything is looked up."""
    return conf.retrieval.chunks > 0 or conf.retrieval.latency_s.law != NONE


def drawn_retrieval(conf: WorkloadConf, seed: int, count: int) -> Retrieval:
    """The retrieval of `count` requests: latencies of their law, chunks by popularity without replacement."""
    asked = conf.retrieval
    latency_ns = np.zeros(count, np.int64)
    if asked.latency_s.law != NONE:
        seconds = sample(asked.latency_s, count, draws.stream(seed, draws.RETRIEVAL_TIMES))
        latency_ns = seconds_to_ns(np.maximum(seconds, 0.0))
    chunks = np.zeros((count, 0), np.int64)
    if asked.chunks:
        uniforms = draws.stream(seed, draws.CHUNKS).random((count, asked.chunks))
        chunks = distinct(weights(asked.corpus_chunks, asked.exponent), uniforms)
        if asked.order == "popularity":
            chunks = np.sort(chunks, axis=1)
    system = conf.prefix_tokens if asked.chunks else 0
    return Retrieval(latency_ns, chunks, asked.chunk_tokens if asked.chunks else 0, system)


def weights(corpus: int, exponent: float) -> Int[np.ndarray, " chunk"]:
    """Weight i^-s of the i-th most popular chunk, i from 1, in whole numbers, at least 1 and about `WHOLE` in all."""
    shares = draws.exp(-exponent * draws.log(np.arange(1.0, corpus + 1)))
    return np.maximum(np.floor(shares * (WHOLE / shares.sum())), 1.0).astype(np.int64)


def distinct(
    weight: Int[np.ndarray, " chunk"], uniforms: Float[np.ndarray, "request draw"]
) -> Int[np.ndarray, "request draw"]:
    """One chunk for each uniform, in each row all different: every draw is among those that are left, by weight.

    A uniform u stands for floor(u W) of the weight W that is left; each chunk taken before whose place in the order of
    all lies at or below is stepped over, the first of them first.
    """
    ends = np.cumsum(weight)
    starts = ends - weight
    found = np.zeros(uniforms.shape, np.int64)
    left = np.full(len(uniforms), ends[-1])
    for draw in range(uniforms.shape[1]):
        place = np.minimum(np.floor(uniforms[:, draw] * left).astype(np.int64), left - 1)
        for taken in np.sort(found[:, :draw], axis=1).T:
            place += np.where(place >= starts[taken], weight[taken], 0)
        found[:, draw] = np.searchsorted(ends, place, side="right")
        left -= weight[found[:, draw]]
    return found


def provenance(conf: RetrievalConf) -> tuple[str, ...]:
    """Where chunks and latencies come from."""
    said: tuple[str, ...] = ()
    if conf.chunks:
        said = (
            f"retrieval: {conf.chunks} chunks of {conf.chunk_tokens} tokens, drawn from {conf.corpus_chunks:,} by a "
            f"Zipf law of exponent {conf.exponent:g}, in order of {conf.order}",
        )
    if conf.latency_s.law != NONE:
        said += (f"retrieval latency: {described(conf.latency_s)} s",)
    return said
