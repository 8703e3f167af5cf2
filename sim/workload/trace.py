"""What arrives: one fixed list of requests, the same for every engine."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from sim.workload.retrieval.columns import Retrieval
from sim.workload.sessions.columns import Sessions


MOST_REQUESTS = 10_000_000
MOST_TOKENS = 1 << 24
"""Of one request's prompt, and of its output: longer than any model reads."""
NEVER_ABORTS = 1 << 62
"""The client waits for the request to its end."""
MOST_SECONDS = 3.2e8
"""The last arrival: some ten years. A clock in integer nanoseconds ends at 9.2e9 s."""


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in arrival order; all arrays have axis `request` and are stored as int64.

    `arrival_ns` are planned arrivals, non-decreasing, on a clock that starts at 0. With `concurrency` K (closed loop,
    or an open process under a cap) request i is sent at `max(arrival_ns[i], when fewer than K are outstanding)`.
    `token_ids`, `output_token_ids` and `block_hashes` (one array per request) carry content for prefix reuse, or are
    None; each entry of `block_hashes` stands for `hash_block_tokens` prompt tokens and everything before them.
    `priority` orders requests where a scheduler looks at it, lower is more urgent; None: all alike.
    `abort_after_ns`: how long after it was sent the client gives a request up that has not finished, `NEVER_ABORTS` for
    one it waits for; None: it waits for all.
    `sessions`: requests are rounds of sessions, session by session. Then the planned arrivals are those of the session,
    a later round is sent when the one before has ended, and `concurrency` is of sessions under way.
    `output_tokens` are all 0 where requests want no tokens but an embedding or a score (`pools`).
    `retrieval`: what is looked up when a request has been sent, before its prompt goes to the engine.
    `digest` is the SHA-256 of the arrays and the concurrency, computed where it is not given; `provenance` says where
    lengths and arrivals come from; `notes` what was dropped or left unused on the way.
    Arrays that contradict this raise `ValueError`.
    """

    name: str
    arrival_ns: Int[np.ndarray, " request"]
    prompt_tokens: Int[np.ndarray, " request"]
    output_tokens: Int[np.ndarray, " request"]
    concurrency: int | None = None
    token_ids: tuple[np.ndarray, ...] | None = None
    block_hashes: tuple[np.ndarray, ...] | None = None
    hash_block_tokens: int | None = None
    digest: str = ""
    provenance: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    output_token_ids: tuple[np.ndarray, ...] | None = None
    priority: Int[np.ndarray, " request"] | None = None
    abort_after_ns: Int[np.ndarray, " request"] | None = None
    sessions: Sessions | None = None
    retrieval: Retrieval | None = None

    def __post_init__(self) -> None:
        for key in ("arrival_ns", "prompt_tokens", "output_tokens"):
            object.__setattr__(self, key, np.ascontiguousarray(getattr(self, key), dtype=np.int64))
        for key in ("priority", "abort_after_ns"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, np.ascontiguousarray(getattr(self, key), dtype=np.int64))
        for key in ("token_ids", "output_token_ids", "block_hashes"):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, tuple(np.asarray(row, dtype=np.int64) for row in getattr(self, key)))
        self._check()
        if not self.digest:
            object.__setattr__(self, "digest", self._digest())

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def pools(self) -> bool:
        """Whether requests have no outputs: they end when their prompt is computed."""
        return not self.output_tokens.any()

    @property
    def has_content(self) -> bool:
        """Whether requests say something that could be found again."""
        shared = self.sessions is not None and self.sessions.shares
        shared |= self.retrieval is not None and self.retrieval.shares
        return shared or self.token_ids is not None or self.block_hashes is not None

    def _check(self) -> None:
        requests = len(self.arrival_ns)
        contents = ("token_ids", "output_token_ids", "block_hashes")
        for key in ("prompt_tokens", "output_tokens", *contents, "priority", "abort_after_ns"):
            value = getattr(self, key)
            if value is not None and len(value) != requests:
                raise ValueError(
                    f"a workload wants one entry of {key} per request: {requests} requests, {len(value)} entries"
                )
        if requests > MOST_REQUESTS:
            raise ValueError(f"a workload wants at most {MOST_REQUESTS:,} requests, got {requests:,}")
        if requests == 0:
            raise ValueError("a workload wants at least one request, got none")
        if self.arrival_ns[0] < 0 or np.any(np.diff(self.arrival_ns) < 0):
            raise ValueError("a workload wants non-negative, non-decreasing arrival_ns")
        if self.arrival_ns[-1] > MOST_SECONDS * 1e9:
            raise ValueError(f"a workload wants its last arrival within {MOST_SECONDS:g} s, some ten years")
        if max(self.prompt_tokens.max(), self.output_tokens.max()) > MOST_TOKENS:
            raise ValueError(f"a workload wants at most {MOST_TOKENS:,} prompt tokens and output tokens per request")
        if self.prompt_tokens.min() < 1 or (self.output_tokens.min() < 1 and not self.pools):
            raise ValueError(
                "a workload wants at least one prompt token and one output token per request (or no outputs at all)"
            )
        if self.pools and self.sessions is not None:
            raise ValueError("a workload without outputs wants requests that stand alone, got sessions")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"a workload wants concurrency >= 1 or none, got {self.concurrency}")
        if (
            self.abort_after_ns is not None
            and not ((self.abort_after_ns >= 1) & (self.abort_after_ns <= NEVER_ABORTS)).all()
        ):
            raise ValueError(f"a workload wants abort_after_ns from 1 to {NEVER_ABORTS} (never)")
        if self.block_hashes is not None and not (self.hash_block_tokens or 0) >= 1:
            raise ValueError("a workload with block_hashes wants hash_block_tokens >= 1")
        if self.sessions is not None:
            self.sessions.check(self.prompt_tokens, self.output_tokens)
            if np.diff(self.arrival_ns)[~self.sessions.begins[1:]].any():
                raise ValueError("a workload of sessions wants the planned arrival of a session for all its rounds")

        if self.retrieval is not None:
            self.retrieval.check(self.prompt_tokens)
            if self.retrieval.latency_ns.any() and self.abort_after_ns is not None:
                raise ValueError("a workload with retrieval latencies wants clients that wait: no abort_after_ns")
            if self.retrieval.shares and (self.sessions is not None or self.token_ids or self.block_hashes):
                raise ValueError("a workload with retrieved chunks wants no sessions, token_ids or block_hashes")

    def _digest(self) -> str:
        # Name, type and length go in front of every array, so that no two different workloads share a byte string.
        state = hashlib.sha256(b"headway workload 1\n")
        state.update(f"concurrency {self.concurrency} hash_block_tokens {self.hash_block_tokens}\n".encode())
        for key in ("arrival_ns", "prompt_tokens", "output_tokens", "priority", "abort_after_ns"):
            if getattr(self, key) is None:
                continue
            state.update(f"{key} <i8 {len(self)}\n".encode())
            state.update(getattr(self, key).astype("<i8").tobytes())
        for key in ("token_ids", "output_token_ids", "block_hashes"):
            rows = getattr(self, key)
            if rows is None:
                continue
            state.update(f"{key} <i8 ragged\n".encode())
            state.update(np.array([len(row) for row in rows], dtype="<i8").tobytes())
            state.update(np.concatenate(rows).astype("<i8").tobytes())
        if self.sessions is not None:
            state.update(f"sessions {len(self.sessions)} system_tokens {self.sessions.system_tokens}\n".encode())
            for key in ("first", "latency_ns", "history_tokens", "dropped_tokens", "system"):
                state.update(getattr(self.sessions, key).astype("<i8").tobytes())
        if self.retrieval is not None:
            found = self.retrieval
            state.update(f"retrieval {found.chunks.shape} {found.chunk_tokens} {found.system_tokens}\n".encode())
            for key in ("latency_ns", "chunks"):
                state.update(getattr(found, key).astype("<i8").tobytes())
        return state.hexdigest()


def seconds_to_ns(seconds: Float[np.ndarray, " request"]) -> Int[np.ndarray, " request"]:
    """`sim.units.to_ns` for an array of seconds from 0 to `MOST_SECONDS`: `floor(1e9 t + 1/2)`."""
    return np.floor(seconds * 1e9 + 0.5).astype(np.int64)
