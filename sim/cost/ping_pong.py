"""When micro-batches get through the layers of a model whose attention and feed-forward parts run on different devices.

Micro-batch j of layer l is computed on the attention devices (a), sent over (x), computed on the FFN devices (f) and
sent back (y). Each of the four takes one micro-batch at a time, layer by layer and in each in the order of
micro-batches; the next layer of a micro-batch begins when it is back:

    A(l, j) = max(A before, Y(l - 1, j) + latency) + a(l, j)
    X(l, j) = max(X before, A(l, j)) + x(j)
    F(l, j) = max(F before, X(l, j) + latency) + f(l, j)
    Y(l, j) = max(Y before, F(l, j)) + y(j)

A layer without a feed-forward part stays where it is. Over equal layers this becomes periodic after a few of them: then
every time is later by the same, and the rest need not be followed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


Layers = tuple[tuple[int, int | None], ...]
"""Of every layer in turn, the kind of its mixer and of its feed-forward part (None: it has none)."""
LONGEST_CYCLE = 12
STEADY_S = 1e-13


class Hops(NamedTuple):
    """Transfers in one direction: how long each micro-batch occupies the link, and how much later it arrives."""

    occupied_s: Any
    latency_s: float


def cycles(layers: Layers) -> list[tuple[Layers, int]]:
    """The layers as patterns that repeat: `(pattern, times)` in turn, found greedily, the shortest that covers most."""
    found: list[tuple[Layers, int]] = []
    at = 0
    while at < len(layers):
        best, times = layers[at : at + 1], 1
        for size in range(1, min(LONGEST_CYCLE, len(layers) - at) + 1):
            pattern = layers[at : at + size]
            count = 1
            while layers[at + count * size : at + (count + 1) * size] == pattern:
                count += 1
            if count > 1 and count * size > times * len(best):
                best, times = pattern, count
        found.append((best, times))
        at += times * len(best)
    return found


def ping_pong_s(
    pattern: Sequence[tuple[Layers, int]],
    attention_s: Any,
    ffn_s: Any,
    there: Hops,
    back: Hops,
    maximum: Callable[[Any, Any], Any] = max,
    steady: bool = True,
) -> Any:
    """Seconds from the first attention to the return of the last micro-batch.

    **Arguments:**

    - `pattern`: from `cycles`.
    - `attention_s[mixer][j]`, `ffn_s[feed][j]`: one layer of a kind over micro-batch j; numbers, or arrays of one shape
      with `maximum` for them and `steady` off.
    - `there`, `back`: the transfers.
    """
    parts = range(len(there.occupied_s))
    sent_s, there_s = there
    returned_s, back_s = back
    free_a = free_x = free_f = free_y = 0.0
    ready: list[Any] = [0.0] * len(parts)
    for layers, times in pattern:
        before: tuple[Any, ...] = ()
        for turn in range(times):
            for mixer, feed in layers:
                own_s = attention_s[mixer]
                if feed is None:
                    for j in parts:
                        ready[j] = free_a = maximum(free_a, ready[j]) + own_s[j]
                    continue
                fed_s = ffn_s[feed]
                for j in parts:
                    free_a = maximum(free_a, ready[j]) + own_s[j]
                    free_x = maximum(free_x, free_a) + sent_s[j]
                    free_f = maximum(free_f, free_x + there_s) + fed_s[j]
                    free_y = maximum(free_y, free_f) + returned_s[j]
                    ready[j] = free_y + back_s
            if not steady or times == 1:
                continue
            now = (free_a, free_x, free_f, free_y, *ready)
            if before:
                later_s = now[0] - before[0]
                if all(abs(one - other - later_s) < STEADY_S for one, other in zip(now, before, strict=True)):
                    rest_s = (times - 1 - turn) * later_s
                    free_a, free_x, free_f, free_y = free_a + rest_s, free_x + rest_s, free_f + rest_s, free_y + rest_s
                    ready = [at + rest_s for at in ready]
                    break
            before = now
    end = free_a
    for at in ready:
        end = maximum(end, at)
    return end
