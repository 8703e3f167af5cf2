"""Mixers with a state of fixed size: Mamba, Mamba-2 and the gated delta rule (linear attention).

All keep a short convolution's last inputs and a state per sequence. `flops_per_token` counts what is not a weight
matrix: the convolution, the update and the read-out of the state, one token at a time.
"""

import abc
from dataclasses import dataclass, field

from sim.model.linear import CacheSpec, Formats, HeadShape, Linear, Vector, linear, share


@dataclass(frozen=True)
class Recurrent(abc.ABC):
    """What the three forms share; `conv_bytes_per_element` and `state_bytes_per_element` are the cached types."""

    conv_kernel: int
    conv_bytes_per_element: float
    state_bytes_per_element: float
    conv_bias: bool
    formats: Formats = field(kw_only=True, default_factory=Formats)

    @abc.abstractmethod
    def conv_channels(self, tensor_parallel: int) -> int:
        """Channels the convolution runs over, on one rank."""

    @abc.abstractmethod
    def state_elements(self, tensor_parallel: int) -> int:
        """Elements of the recurrent state of one sequence, on one rank."""

    @abc.abstractmethod
    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """The weight matrices of one rank."""

    @abc.abstractmethod
    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Convolution, decay and norm weights of one rank."""

    def flops_per_token(self, tensor_parallel: int) -> float:
        """Convolution `2 kernel channels`, and per state element two FLOPs each to decay, to add and to read."""
        conv = 2 * self.conv_kernel * self.conv_channels(tensor_parallel)
        return float(conv + 6 * self.state_elements(tensor_parallel))

    def cache(self, tensor_parallel: int, kv_bytes_per_element: float) -> CacheSpec:
        """`kernel - 1` inputs of the convolution and the state; independent of the KV type and of length."""
        conv = (self.conv_kernel - 1) * self.conv_channels(tensor_parallel) * self.conv_bytes_per_element
        state = self.state_elements(tensor_parallel) * self.state_bytes_per_element
        return CacheSpec("mamba", state_bytes=round(conv + state))

    def shapes(self, tensor_parallel: int, kv_bytes_per_element: float) -> tuple[HeadShape, ...]:
        """None: nothing is read per cached token."""
        return ()

    def conv_vector(self, tensor_parallel: int) -> Vector:
        """The convolution's weights (and bias)."""
        return Vector("conv", self.conv_channels(tensor_parallel) * (self.conv_kernel + self.conv_bias))


@dataclass(frozen=True)
class Mamba(Recurrent):
    """Selective state space (Mamba-1): `inner` channels of `state` elements, step sizes of rank `dt_rank`.

    `inner_norms`: norms on dt, B and C (Jamba).
    """

    inner: int
    state: int
    dt_rank: int
    proj_bias: bool = False
    inner_norms: bool = False

    def conv_channels(self, tensor_parallel: int) -> int:
        """`inner / tp`."""
        return share(self.inner, "Mamba channels", tensor_parallel)

    def state_elements(self, tensor_parallel: int) -> int:
        """`inner / tp * state`."""
        return self.conv_channels(tensor_parallel) * self.state

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Matrices in (x and gate), x (dt, B, C; summed over ranks), dt and out."""
        inner = self.conv_channels(tensor_parallel)
        return (
            linear("in", hidden, 2 * inner, self.formats, self.proj_bias),
            linear("x", inner, self.dt_rank + 2 * self.state, self.formats),
            linear("dt", self.dt_rank, inner, self.formats, True),
            linear("out", inner, hidden, self.formats, self.proj_bias),
        )

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Convolution, A and D (float32), norms of dt, B and C."""
        inner = self.conv_channels(tensor_parallel)
        parts = [self.conv_vector(tensor_parallel), Vector("a_d", inner * (self.state + 1), 4.0)]
        if self.inner_norms:
            parts.append(Vector("inner_norms", self.dt_rank + 2 * self.state))
        return tuple(parts)


@dataclass(frozen=True)
class Mamba2(Recurrent):
    """State-space duality (Mamba-2): `heads` of `head_dim` with `state` elements per channel, B and C in `groups`.

    Groups are copied where ranks outnumber them.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    proj_bias: bool = False
    gate_norm: bool = True

    def conv_channels(self, tensor_parallel: int) -> int:
        """`heads / tp * head_dim + 2 groups * state`."""
        heads = share(self.heads, "Mamba-2 heads", tensor_parallel)
        return heads * self.head_dim + 2 * kv_groups(self.groups, tensor_parallel) * self.state

    def state_elements(self, tensor_parallel: int) -> int:
        """`heads / tp * head_dim * state`."""
        return share(self.heads, "Mamba-2 heads", tensor_parallel) * self.head_dim * self.state

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Matrices in (gate, x, B, C, dt) and out."""
        heads = share(self.heads, "Mamba-2 heads", tensor_parallel)
        inner = heads * self.head_dim
        return (
            linear("in", hidden, inner + self.conv_channels(tensor_parallel) + heads, self.formats, self.proj_bias),
            linear("out", inner, hidden, self.formats, self.proj_bias),
        )

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Convolution, A, D and the bias of dt (float32), the gated norm."""
        heads = share(self.heads, "Mamba-2 heads", tensor_parallel)
        parts = [self.conv_vector(tensor_parallel), Vector("a_d_dt", 3 * heads, 4.0)]
        if self.gate_norm:
            parts.append(Vector("gate_norm", heads * self.head_dim))
        return tuple(parts)


@dataclass(frozen=True)
class GatedDelta(Recurrent):
    """Gated delta rule: `k_heads` of `k_dim` and `v_heads` of `v_dim`, one `k_dim x v_dim` state per value head."""

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int

    def conv_channels(self, tensor_parallel: int) -> int:
        """Queries, keys and values of one rank."""
        k_heads = share(self.k_heads, "linear-attention key heads", tensor_parallel)
        v_heads = share(self.v_heads, "linear-attention value heads", tensor_parallel)
        return 2 * k_heads * self.k_dim + v_heads * self.v_dim

    def state_elements(self, tensor_parallel: int) -> int:
        """`v_heads / tp * k_dim * v_dim`."""
        return share(self.v_heads, "linear-attention value heads", tensor_parallel) * self.k_dim * self.v_dim

    def flops_per_token(self, tensor_parallel: int) -> float:
        """As the others, plus the read of the old value that the delta rule subtracts."""
        return super().flops_per_token(tensor_parallel) + 2.0 * self.state_elements(tensor_parallel)

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Matrices qkvz (query, key, value, output gate), ba (write strength and decay) and out."""
        v_heads = share(self.v_heads, "linear-attention value heads", tensor_parallel)
        values = v_heads * self.v_dim
        return (
            linear("qkvz", hidden, self.conv_channels(tensor_parallel) + values, self.formats),
            linear("ba", hidden, 2 * v_heads, self.formats),
            linear("out", values, hidden, self.formats),
        )

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """Convolution, decay and its bias, the gated norm of one value head."""
        v_heads = share(self.v_heads, "linear-attention value heads", tensor_parallel)
        return self.conv_vector(tensor_parallel), Vector("a_dt", 2 * v_heads, 4.0), Vector("gate_norm", self.v_dim)


def kv_groups(groups: int, tensor_parallel: int) -> int:
    """B and C groups of one rank: divided where possible, copied where ranks outnumber them."""
    return groups // tensor_parallel if groups % tensor_parallel == 0 else max(1, groups // tensor_parallel)
