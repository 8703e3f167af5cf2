"""The part of a workload's configuration that is about retrieval."""

from dataclasses import dataclass, field

from sim.workload.sessions.conf import LawConf


@dataclass
class RetrievalConf:
    """What is looked up before a prompt goes to the engine; without `chunks` and `latency_s`, nothing.

    - `chunks`: how many a request retrieves, all different, `chunk_tokens` long; they stand between
      `workload.prefix_tokens` and the question, which is `workload.lengths`.
    - `corpus_chunks`: how many there are to draw from; the i-th most popular has weight i^-`exponent` (0: all alike).
    - `order`: of a prompt's chunks: `relevance`, as they were drawn, or `popularity`, the most popular first.
    - `latency_s`: from sending the request until its prompt goes to the engine; `none`: at once.
    """

    chunks: int = 0
    chunk_tokens: int = 512
    corpus_chunks: int = 10_000
    exponent: float = 1.0
    order: str = "relevance"
    latency_s: LawConf = field(default_factory=LawConf)
