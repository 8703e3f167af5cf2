"""The decoding requests of SGLang's running batch, which move in lockstep.

Each decode batch has a row of every running request, so a request is described by one number, its `key`: at tick t
(decode batches so far) it has `key + t` tokens in the cache. Sums over the batch move by closed form, and a batch
that nobody enters or leaves costs nothing per row.
"""

from heapq import heapify, heappop, heappush

from sim.scheduler.sglang.request import SglangBatch, SglangRequest


def lag(pending: SglangBatch | None, request: SglangRequest) -> int:
    """Tokens of a running request whose output has not been processed: 1 if it has a row in the pending batch."""
    if pending is None:
        return 0
    return 1 if pending.mode != "extend" else int(request.last_batch == pending.number)


class Running:
    """`rows` by index, in order. `tick` decode batches were launched, the last of them numbered `last_decode`.

    In a mixed batch the rows are set aside (`rows` is empty) until they come back with those it prefilled.
    """

    def __init__(self, page_size: int):
        self.rows: dict[int, SglangRequest] = {}
        self.tick = 0
        self.last_decode = self.decode_before = -1
        self._page_size = page_size
        self._by_class = [0] * page_size
        self._key_sum = self._key_squares = self._count = 0
        self._ceiling_sum = self._in_full = 0
        self._longest: list[tuple[int, int, SglangRequest]] = []
        self._places = 0
        self._ends: dict[int, list[SglangRequest]] = {}
        self._follows: dict[int, int] = {}

    def join(self, request: SglangRequest, kv: int) -> None:
        """A request with `kv` tokens in the cache is the last of the batch from now on."""
        request.key = key = kv - self.tick
        request.ceiling = request.max_new + request.prompt - 1 - key
        self.rows[request.index] = request
        self._seat(request)
        self._by_class[key % self._page_size] += 1
        self._count += 1
        self._key_sum += key
        self._key_squares += key * key
        self._ceiling_sum += request.ceiling
        self._in_full += request.in_full
        heappush(self._longest, (-key, request.place, request))
        last = request.prompt + request.outputs - 1 - key
        if last > self.tick:
            self._ends.setdefault(last, []).append(request)
        number = request.last_batch
        self._follows[number] = self._follows.get(number, 0) + 1

    def _seat(self, request: SglangRequest) -> None:
        self._places += 1
        request.place = self._places

    def leave(self, request: SglangRequest) -> None:
        """It is no longer in the batch (`rows` is the caller's to change)."""
        key = request.key
        self._by_class[key % self._page_size] -= 1
        self._count -= 1
        self._key_sum -= key
        self._key_squares -= key * key
        self._ceiling_sum -= request.ceiling
        self._in_full -= request.in_full
        ends = self._ends.get(request.prompt + request.outputs - 1 - key)
        if ends is not None and request in ends:
            ends.remove(request)
            if not ends:
                del self._ends[request.prompt + request.outputs - 1 - key]
        request.last_batch = number = self.last_token(request)
        self._follows[number] -= 1
        request.place = -1

    def kv(self, request: SglangRequest) -> int:
        """Tokens of a request of the batch that have a KV slot."""
        return request.key + self.tick

    def last_token(self, request: SglangRequest) -> int:
        """The batch that a request got, or will get, its last token from."""
        return max(request.last_batch, self.last_decode)

    def out(self, request: SglangRequest, pending: SglangBatch | None) -> int:
        """Tokens of a request of the batch that have come out; those of `pending` are not processed yet."""
        return request.key + self.tick - request.prompt + 1 - lag(pending, request)

    def outputs_left(self, pending: SglangBatch | None) -> list[int]:
        """How many more tokens each row is allowed, `max_new` less what has come out."""
        tick = self.tick
        if pending is not None and pending.mode == "extend":
            number = pending.number
            return [r.ceiling - tick + (r.last_batch == number) for r in self.rows.values()]
        if pending is not None:
            tick -= 1
        return [r.ceiling - tick for r in self.rows.values()]

    def wanted_in_full(self, pending: SglangBatch | None) -> int | None:
        """The sum of `outputs_left`, if every row will want all of it; otherwise None."""
        if self._in_full < self._count or len(self.rows) < self._count:
            return None
        late = 0
        if pending is not None:
            late = self._follows.get(pending.number, 0) if pending.mode == "extend" else self._count
        return self._ceiling_sum - self._count * self.tick + late

    @property
    def tokens(self) -> int:
        """Tokens of all requests of the batch that have a KV slot."""
        return self._key_sum + self._count * self.tick

    @property
    def need(self) -> int:
        """Tokens of the pages that the next decode batch opens."""
        return self._page_size * self._by_class[-self.tick % self._page_size]

    def need_of(self, requests: list[SglangRequest]) -> int:
        """The same for some of the rows."""
        if self._page_size == 1:
            return len(requests)
        return self._page_size * sum((r.key + self.tick) % self._page_size == 0 for r in requests)

    def launch(self, batch: SglangBatch) -> None:
        """Every row decodes once in `batch`: its statistics, who gets a last token, and who follows whom."""
        n = self._count
        self.tick = tick = self.tick + 1
        batch.decodes = n
        batch.decode_sum = self._key_sum + n * tick
        batch.decode_sumsq = self._key_squares + tick * (2 * self._key_sum + n * tick)
        longest = self._longest
        while longest[0][2].place != longest[0][1]:
            heappop(longest)
        batch.decode_max = tick - longest[0][0]
        batch.decoding = self.rows
        ending = self._ends.pop(tick, None)
        if ending:
            ending.sort(key=lambda request: request.place)
            batch.finishing.extend(ending)
        for number, rows in self._follows.items():
            if rows:
                batch.follows[number] = batch.follows.get(number, 0) + rows
        self._follow(batch.number)

    def repeat(self, batch: SglangBatch) -> bool:
        """Launch a batch like `batch` again, unless somebody gets a last token from it."""
        tick = self.tick + 1
        if tick in self._ends:
            return False
        self.tick = tick
        n = batch.decodes
        batch.decode_sumsq += 2 * batch.decode_sum + n
        batch.decode_sum += n
        batch.decode_max += 1
        batch.follows = {batch.number: n}
        batch.number += 1
        self._follow(batch.number)
        return True

    def reorder(self, rows: list[SglangRequest]) -> None:
        """The same rows in another order."""
        for request in rows:
            self._seat(request)
        self.rows = {request.index: request for request in rows}
        self._longest = [(-request.key, request.place, request) for request in rows]
        heapify(self._longest)

    def _follow(self, number: int) -> None:
        self.decode_before = self.last_decode
        self.last_decode = number
        self._follows = {number: self._count}
