"""A request as SGLang's scheduler knows it."""

import numpy as np

from sim.memory.radix import Node
from sim.scheduler.base import Batch, Request, Row
from sim.scheduler.sglang.ratio import CLIP_MAX_NEW


class SglangRequest(Request):
    """A request, and what of it is in the cache.

    `outputs` tokens come out; the engine only knows that at most `max_new` do, and that the end comes no earlier if the
    request has `ignore_eos`. `out` tokens have come out; while it decodes that is known from `key`: at tick t of the
    running batch it has `key + t` tokens with a KV slot, and may get `ceiling - t` more after those under way
    (`sim.scheduler.sglang.running`). Before, `computed` counts them. `protected` of them lie in the tree and are locked
    on the path to `node`.
    """

    __slots__ = (
        "max_new",
        "ignore_eos",
        "name",
        "out",
        "key",
        "ceiling",
        "place",
        "protected",
        "node",
        "enqueued",
        "counted",
        "tried_tokens",
        "tried_hit",
        "matched",
        "later",
        "before",
        "life",
        "last_token_id",
        "_content",
    )

    def __init__(self, index: int, prompt: int, outputs: int, token_ids: np.ndarray | None = None, priority: int = 0):
        super().__init__(index, prompt, outputs, token_ids, priority)
        self.max_new = outputs
        self.ignore_eos = True
        self.name: int | str = index
        """Breaks ties between equal requests (hrrn); the engine compares request ids."""
        self.out = 0
        self.key = self.ceiling = 0
        self.place = -1
        """Position in the running batch, as an ascending number; -1 outside."""
        self.protected = 0
        self.node: Node | None = None
        self.enqueued = 0
        """Order of entering the queue, renewed by a preemption."""
        self.counted = 0
        """The scheduler's count of computed tokens then (hrrn)."""
        self.tried_tokens = 0
        self.tried_hit = 0
        """Length and hit when its admission was last tried (priority preemption)."""
        self.matched = 0
        self.later = False
        """Hit and postponement as found when the queue was last put in order."""
        self.before = -1
        """The batch of its last token before the prefill under way."""
        self.life = 0
        """Retractions and the like: a row of an earlier life is void."""
        self.last_token_id: int | None = None
        """What its last token is, where that is known to differ (EOS)."""
        self._content: bytes | None = None

    @property
    def known(self) -> int:
        """Tokens known: the prompt and what has come out."""
        return self.prompt + self.out

    @property
    def in_full(self) -> bool:
        """Whether all outputs it is allowed are reserved for it: it ignores EOS, and they are not clipped."""
        return self.ignore_eos and self.max_new <= CLIP_MAX_NEW

    @property
    def content(self) -> bytes:
        """All its tokens, outputs to come included, as the tree takes them; unknown ones are like nobody else's."""
        if self._content is None:
            first, length = self.output_base - self.prompt, self.prompt + self.outputs
            if self.token_ids is None:
                ids = np.arange(first, first + length, dtype=np.int64)
            else:
                known = self.token_ids[:length].astype(np.int64)
                ids = np.concatenate([known, np.arange(first + len(known), first + length, dtype=np.int64)])
            if self.last_token_id is not None:
                ids[-1] = self.last_token_id
            self._content = ids.tobytes()
        return self._content


class SglangRow(Row[SglangRequest]):
    """A prefill row, in the request's present `life`."""

    __slots__ = ("life",)

    def __init__(self, request: SglangRequest, tokens: int, computed: int, kind: str):
        super().__init__(request, tokens, computed, kind)
        self.life = request.life


class SglangBatch(Batch[SglangRequest]):
    """`rows` are the prefill rows; `decoding` the requests that decode, in order (a live view); `chunked` the one whose
    prefill is not complete yet, `retracted` the part of `preempted` that lost its KV in the decode step.

    `mode`: idle, extend, decode or mixed; seats where a decode instance took up requests. `dropped` have a row whose
    token is thrown away: they were retracted since or had ended. `idle`: nothing at all is left to do.
    """

    __slots__ = ("mode", "decoding", "chunked", "retracted", "idle")

    def __init__(self) -> None:
        super().__init__()
        self.mode = "idle"
        self.decoding: dict[int, SglangRequest] = {}
        self.chunked: SglangRequest | None = None
        self.retracted: list[SglangRequest] = []
        self.idle = False
        self.finishing: list[SglangRequest] = []
        self.emitted: list[SglangRequest] = []
        self.preempted: list[SglangRequest] = []
        self.rows: list[SglangRow] = []
        self.follows: dict[int, int] = {}
        self.dropped: list[SglangRequest] = []

    def forget(self, request: SglangRequest) -> None:
        """The request gets no token from it."""
        for requests in (self.emitted, self.finishing):
            if request in requests:
                requests.remove(request)
