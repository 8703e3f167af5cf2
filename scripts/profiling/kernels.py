"""One call per row: each rank's slice of a layer as torch computes it, collectives left out."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from scripts.profiling.grid import Batch, batches, load, rows_per_expert
from scripts.profiling.shapes import Experts, Heads, Shapes
from scripts.profiling.timing import Call


DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

EXPERT_BYTES_KEPT = 16 * 2**30
"""Experts that take more are not measured: a card must hold them all."""


class Row(NamedTuple):
    """What is measured: the family's columns, its labels, and the call. The call is made when it is asked for."""

    family: str
    op: str
    kernel: str
    columns: Mapping[str, float | None]
    call: Call


class Bench:
    """Tensors on one device. `warm`: 0 where the clock flushes the cache before every call."""

    def __init__(self, torch: Any, device: str, dtype: str, warm: int):
        self.torch, self.device, self.warm = torch, device, warm
        self.dtype = getattr(torch, DTYPES[dtype])
        self.element = torch.empty(0, dtype=self.dtype).element_size()

    def random(self, *shape: int) -> Any:
        """Small normal numbers."""
        return self.torch.randn(*shape, dtype=self.dtype, device=self.device) * 0.02

    def products(self, shapes: Shapes, tokens: Sequence[int]) -> Iterator[Row]:
        """Every product of a layer over `tokens` rows."""
        linear = self.torch.nn.functional.linear
        for product in shapes.products:
            weight = self.random(product.n, product.k)
            for m in tokens:
                columns = {"m": m, "n": product.n, "k": product.k}
                call = partial(linear, self.random(m, product.k), weight)
                yield Row("gemm", product.op, "torch.nn.functional.linear", columns, call)

    def attention(self, heads: Heads, most_tokens: int, most_cached: int) -> Iterator[Row]:
        """Prefills, decodes and both together; the keys of every sequence are its own.

        Where torch has a kernel for sequences of many lengths, it computes whole batches, windows included.
        """
        ragged = self.ragged_kernel()
        windows = {None, heads.window} if ragged else {None}
        for batch in batches(most_tokens, most_cached, ragged is not None):
            for window in sorted(windows, key=lambda keys: keys or 0):
                call, kernel = self.attend(heads, batch, window, ragged)
                shape: Mapping[str, float | None] = {
                    "q_heads": heads.q_heads,
                    "kv_heads": heads.kv_heads,
                    "qk_dim": heads.dim,
                    "v_dim": heads.dim,
                    "kv_bytes_per_element": self.element,
                    "window": window,
                    "warm": self.warm,
                }
                yield Row("attention", batch.op, kernel, {**batch.columns(), **shape}, call)

    def ragged_kernel(self) -> Any:
        """`torch.nn.attention.varlen.varlen_attn` if this torch has it and it runs here, else None."""
        try:
            kernel = importlib.import_module("torch.nn.attention.varlen").varlen_attn
            heads = Heads(2, 1, 64)
            self.many_lengths(heads, Batch(((2, 1),), (3,)), None, kernel)()
        except (ImportError, AttributeError, TypeError, RuntimeError):
            return None
        return kernel

    def attend(self, heads: Heads, batch: Batch, window: int | None, ragged: Any) -> tuple[Call, str]:
        """The call for one batch, and what it is called. Without `ragged`, a mixed batch is one call of each kind."""
        if ragged is not None:
            return self.many_lengths(heads, batch, window, ragged), "torch.nn.attention.varlen.varlen_attn"
        calls = [self.prefill(heads, new, prior) for new, prior in batch.chunks]
        if batch.contexts:
            calls.append(self.decode(heads, len(batch.contexts), batch.contexts[0]))

        def all_of_them() -> None:
            for call in calls:
                call()

        name = "torch.nn.functional.scaled_dot_product_attention"
        return (calls[0], name) if len(calls) == 1 else (all_of_them, f"{name}, one call of each kind")

    def many_lengths(self, heads: Heads, batch: Batch, window: int | None, kernel: Any) -> Call:
        """All sequences of a batch in one call, each row seeing its own past, of `window` keys at most."""
        torch = self.torch
        new = [chunk for chunk, _ in batch.chunks] + [1] * len(batch.contexts)
        cached = [chunk + prior for chunk, prior in batch.chunks] + list(batch.contexts)
        q = self.random(sum(new), heads.q_heads, heads.dim)
        k, v = (self.random(sum(cached), heads.kv_heads, heads.dim) for _ in range(2))
        q_ends, k_ends = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self.device) for lengths in (new, cached)
        )
        reach = ((window - 1) if window else -1, 0)
        grouped = heads.q_heads != heads.kv_heads
        return partial(kernel, q, k, v, q_ends, k_ends, max(new), max(cached), window_size=reach, enable_gqa=grouped)

    def prefill(self, heads: Heads, new: int, prior: int) -> Call:
        """`new` tokens that see `prior` cached ones and each other's past."""
        torch = self.torch
        q = self.random(1, heads.q_heads, new, heads.dim)
        k, v = (self.random(1, heads.kv_heads, new + prior, heads.dim) for _ in range(2))
        attend = torch.nn.functional.scaled_dot_product_attention
        if prior == 0:
            return partial(attend, q, k, v, is_causal=True, enable_gqa=heads.q_heads != heads.kv_heads)
        causal = importlib.import_module("torch.nn.attention.bias").causal_lower_right(new, new + prior)
        repeats = heads.q_heads // heads.kv_heads
        if repeats > 1:
            # a bias and grouped heads do not go together: keys are copied before, not in the measured call
            k, v = (tensor.repeat_interleave(repeats, dim=1) for tensor in (k, v))
        return partial(attend, q, k, v, attn_mask=causal)

    def decode(self, heads: Heads, rows: int, context: int) -> Call:
        """One query for each of `rows` sequences of `context` cached tokens."""
        q = self.random(rows, heads.q_heads, 1, heads.dim)
        k, v = (self.random(rows, heads.kv_heads, context, heads.dim) for _ in range(2))
        attend = self.torch.nn.functional.scaled_dot_product_attention
        return partial(attend, q, k, v, enable_gqa=heads.q_heads != heads.kv_heads)

    def experts(self, experts: Experts, tokens: Sequence[int], skews: Sequence[float]) -> Iterator[Row]:
        """The routed experts of this rank: up, gate and down of each that got rows, one after the other."""
        inter = experts.inter // experts.tp
        size = experts.local * experts.matrices * inter * experts.hidden * self.element
        if size > EXPERT_BYTES_KEPT:
            return
        up = self.random(experts.local, (experts.matrices - 1) * inter, experts.hidden)
        down = self.random(experts.local, experts.hidden, inter)
        for skew in skews:
            for count in tokens:
                counts = rows_per_expert(count, experts.top_k, experts.experts, experts.local, skew)
                columns: Mapping[str, float | None] = {
                    "tokens": count,
                    "experts": experts.experts,
                    "top_k": experts.top_k,
                    "hidden": experts.hidden,
                    "inter": experts.inter,
                    "tp": experts.tp,
                    "ep": experts.ep,
                    "matrices": experts.matrices,
                    "active": sum(rows > 0 for rows in counts),
                    "max_load": load(counts),
                    "skew": skew,
                }
                yield Row("moe", "experts", "torch: a loop over experts", columns, self.visit(up, down, counts))

    def visit(self, up: Any, down: Any, counts: Sequence[int]) -> Call:
        """The products of every expert that got rows, and the activation between."""
        functional = self.torch.nn.functional
        busy = [(index, self.random(rows, up.shape[2])) for index, rows in enumerate(counts) if rows]
        gated = up.shape[1] == 2 * down.shape[2]

        def call() -> None:
            for index, rows in busy:
                wide = functional.linear(rows, up[index])
                if gated:
                    gate, wide = wide.chunk(2, dim=-1)
                    wide = functional.silu(gate) * wide
                else:
                    wide = functional.relu(wide)
                functional.linear(wide, down[index])

        return call

    def elementwise(self, shapes: Shapes, tokens: Sequence[int]) -> Iterator[Row]:
        """Residual and norm, activation and gate, rotary embedding: eager calls, several kernels each."""
        hidden, inter = shapes.hidden, shapes.inter
        scale = self.random(hidden)
        for m in tokens:
            yield self.simple("norm", m, 4 * hidden, partial(self.norm, self.random(m, hidden), scale))
            if inter:
                call = partial(self.gate, self.random(m, inter), self.random(m, inter))
                yield self.simple("activation", m, 3 * inter, call)
            if shapes.heads:
                heads, dim = shapes.heads.q_heads + shapes.heads.kv_heads, shapes.heads.dim
                call = partial(self.rotate, self.random(m, heads, dim), self.random(m, 1, dim))
                yield self.simple("rotary", m, 2 * heads * dim, call)

    def norm(self, x: Any, scale: Any) -> Any:
        """The residual added, and the norm of the sum."""
        return self.torch.nn.functional.rms_norm(x + x, (x.shape[-1],), scale)

    def gate(self, gate: Any, wide: Any) -> Any:
        """A gated activation."""
        return self.torch.nn.functional.silu(gate) * wide

    def rotate(self, q: Any, angles: Any) -> Any:
        """A rotary embedding, its table read once."""
        return q * angles + q.roll(q.shape[-1] // 2, -1) * angles

    def simple(self, op: str, tokens: int, numbers: int, call: Call) -> Row:
        """A row whose kernel reads and writes `numbers` numbers for each token."""
        columns: Mapping[str, float | None] = {"tokens": tokens, "bytes_per_token": numbers * self.element}
        return Row("elementwise", op, "torch eager", columns, call)

    def sequences(self, shapes: Shapes, rows: Sequence[int]) -> Iterator[Row]:
        """What runs for each row that emits a token: this rank's share of the head, and a sampler of the whole."""
        linear = self.torch.nn.functional.linear
        head = self.random(shapes.vocab, shapes.hidden)
        for count in rows:
            columns: Mapping[str, float | None] = {"rows": count, "vocab": shapes.vocab}
            call = partial(linear, self.random(count, shapes.hidden), head)
            yield Row("sequence", "lm_head", "torch.nn.functional.linear", columns, call)
            call = partial(self.sample, self.random(count, shapes.whole_vocab))
            yield Row("sequence", "sampler", "torch eager", {"rows": count, "vocab": shapes.whole_vocab}, call)

    def sample(self, logits: Any) -> Any:
        """A token of each row by the largest of probability over exponential noise, as engines draw it."""
        noise = self.torch.empty_like(logits, dtype=self.torch.float32).exponential_()
        return (self.torch.softmax(logits.float(), -1) / noise).argmax(-1)
