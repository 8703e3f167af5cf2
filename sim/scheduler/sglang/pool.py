"""SGLang's KV pool: free tokens, and the tree of cached ones they are won back from."""

from sim.memory.radix import RadixTree
from sim.scheduler.sglang.request import SglangRequest


class TokenPool:
    """Counts the tokens of one replica's KV cache at page granularity.

    Always `free + tree.tokens + sum(ceil(kv) - protected) = tokens` over the requests that hold KV; slot 0 is extra.

    **Arguments:** `tokens` are cut to whole pages; `reuse`: keep a tree (otherwise nothing outlives its request);
    `split_prompt`: outputs can be evicted without their prompt; `evict_shortfall`: no more than is lacking is evicted,
    otherwise as much as is wanted.
    """

    def __init__(
        self,
        tokens: int,
        page_size: int,
        *,
        reuse: bool = True,
        split_prompt: bool = True,
        evict_shortfall: bool = True,
    ):
        self.page_size = page_size
        self.tokens = self.free = tokens // page_size * page_size
        self.tree = RadixTree(page_size)
        self.reuse = reuse
        self._split_prompt = split_prompt
        self._evict_shortfall = evict_shortfall

    @property
    def available(self) -> int:
        """Tokens that nobody uses: free or evictable."""
        return self.free + self.tree.evictable

    def ceil(self, tokens: int) -> int:
        """Up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def floor(self, tokens: int) -> int:
        """Down to whole pages."""
        return tokens // self.page_size * self.page_size

    def evict_to(self, tokens: int) -> None:
        """Evict until so many tokens are free, or nothing can be evicted."""
        lacking = tokens - self.free
        if lacking > 0 and self.tree.evictable:
            self.free += self.tree.evict(lacking if self._evict_shortfall else tokens)

    def look(self, request: SglangRequest, tokens: int) -> int:
        """How many of the first `tokens` are cached; they and what holds them become the most recently used."""
        return self.tree.match(request.content, tokens)[1] if self.reuse else 0

    def hold(self, request: SglangRequest, tokens: int) -> int:
        """Find the first `tokens` as far as they are cached, and lock them for the request; how many."""
        if not self.reuse:
            return 0
        request.node, request.protected = self.tree.match(request.content, tokens)
        self.tree.lock(request.node)
        return request.protected

    def let_go(self, request: SglangRequest) -> None:
        """Unlock what `hold` locked."""
        if request.node is not None:
            self.tree.unlock(request.node)
            request.node = None
        request.protected = 0

    def extend(self, start: int, end: int) -> None:
        """Take the pages with which a request grows from `start` to `end` tokens.

        **Raises:** `ValueError` where they are not there, which an admission without room for a page can lead to.
        """
        self.free -= self.ceil(end) - self.ceil(start)
        if self.free < 0:
            raise ValueError(
                f"a prefill finds the KV pool of {self.tokens:,} tokens exhausted, at which SGLang stops with an "
                "error: raise engine.num_gpu_blocks_override, or lower engine.block_size or engine.max_num_seqs"
            )

    def store(self, request: SglangRequest, tokens: int) -> None:
        """Put the first `tokens` of a request in the tree, which goes on holding them; its own copies are freed."""
        if not self.reuse:
            return
        node, found = self.tree.insert(request.content, tokens, self._boundary(request))
        self.free += found - request.protected
        self.tree.lock(node)
        if request.node is not None:
            self.tree.unlock(request.node)
        request.node, request.protected = node, self.floor(tokens)

    def finish(self, request: SglangRequest, kv: int, tokens: int) -> None:
        """Put the first `tokens` in the tree and free the rest of the `kv` tokens that an ended request holds."""
        self.free += self.ceil(kv) - request.protected
        if self.reuse:
            before = self.tree.tokens
            self.tree.insert(request.content, tokens, self._boundary(request))
            self.free -= self.tree.tokens - before
        self.let_go(request)

    def drop(self, request: SglangRequest, kv: int) -> None:
        """Free the `kv` tokens of a retracted request; nothing of it is stored."""
        self.free += self.ceil(kv) - request.protected
        self.let_go(request)

    def _boundary(self, request: SglangRequest) -> int | None:
        return request.prompt if self._split_prompt else None
