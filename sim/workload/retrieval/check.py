"""Whether the part of a configuration about retrieval makes sense, and is read."""

import math
from dataclasses import fields

from sim.documents import nearest
from sim.workload.conf import WorkloadConf
from sim.workload.retrieval.columns import MOST_CHUNKS, MOST_CORPUS
from sim.workload.retrieval.conf import RetrievalConf
from sim.workload.sessions.check import is_drawn
from sim.workload.sessions.conf import NONE, LawConf
from sim.workload.sessions.law import check_law, reads
from sim.workload.trace import MOST_TOKENS


ORDERS = ("relevance", "popularity")
KEY = "workload.retrieval"


def check_retrieval(conf: WorkloadConf) -> None:
    """Raise `ValueError`, one sentence with the key, for a value out of range or a combination that can't be."""
    asked = conf.retrieval
    check_law(asked.latency_s, f"{KEY}.latency_s", 0.0)
    for key, least, most in (
        ("chunks", 0, MOST_CHUNKS),
        ("chunk_tokens", 1, MOST_TOKENS),
        ("corpus_chunks", 1, MOST_CORPUS),
    ):
        value = getattr(asked, key)
        if not least <= value <= most:
            raise ValueError(f"{KEY}.{key} wants an integer from {least} to {most:,}, got {value}")
    if not 0 <= asked.exponent <= 100 or math.isnan(asked.exponent):
        raise ValueError(f"{KEY}.exponent wants a number from 0 to 100, got {asked.exponent}")
    if asked.order not in ORDERS:
        raise ValueError(f"{KEY}.order wants {' or '.join(ORDERS)}, got {asked.order!r}{nearest(asked.order, ORDERS)}")
    if asked.chunks > asked.corpus_chunks:
        raise ValueError(
            f"{KEY}.chunks={asked.chunks} wants as many different ones, got {KEY}.corpus_chunks={asked.corpus_chunks}"
        )
    if asked.latency_s.law != NONE and conf.abort_after_s is not None:
        raise ValueError(
            f"{KEY}.latency_s is simulated with clients that wait to the end: leave out workload.abort_after_s"
        )
    if not asked.chunks:
        return
    if conf.lengths == "trace" or is_drawn(conf):
        other = "a trace, which has its own content" if conf.lengths == "trace" else "sessions"
        raise ValueError(f"{KEY}.chunks wants drawn requests that stand alone, got {other}; set it to 0")
    _check_room(conf)


def _check_room(conf: WorkloadConf) -> None:
    """Raise `ValueError` where no question fits behind the chunks."""
    asked = conf.retrieval
    before = conf.prefix_tokens + asked.chunks * asked.chunk_tokens
    for key, most, room in (
        ("max_input_tokens", conf.max_input_tokens, 1),
        ("max_total_tokens", conf.max_total_tokens, 2),
    ):
        if most is not None and before + room > most:
            raise ValueError(
                f"workload.{key}={most} wants to be at least {before + room}, with workload.prefix_tokens and "
                f"{KEY}.chunks x chunk_tokens of {before} in front of every question"
            )


def unread_of_retrieval(asked: RetrievalConf, key: str) -> str:
    """What `key` (`latency_s.mean`) wants in order to be read; empty where it is."""
    name, _, number = key.partition(".")
    if name in ("chunk_tokens", "corpus_chunks", "exponent", "order") and not asked.chunks:
        return f"{KEY}.chunks > 0, got 0"
    if name == "latency_s" and number in {field.name for field in fields(LawConf)} - {"law"}:
        return (
            ""
            if number in reads(asked.latency_s.law)
            else f"a law that reads it, got {KEY}.latency_s.law={asked.latency_s.law}"
        )
    return ""
