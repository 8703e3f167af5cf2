"""Feed-forward parts: a dense MLP, or a mixture of experts with a router and an optional shared expert."""

from dataclasses import dataclass, field

from sim.model.linear import Formats, Linear, RoutedExperts, Vector, linear, share


@dataclass(frozen=True)
class Dense:
    """An MLP of `inter` units: gate, up and down (gated), or up and down. `inter` 0: the layer has none."""

    inter: int
    gated: bool = True
    bias: bool = False
    formats: Formats = field(default_factory=Formats)

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Fused gate_up (or up) and down of one rank."""
        if not self.inter:
            return ()
        inter = share(self.inter, "feed-forward units", tensor_parallel)
        first = ("gate_up", 2 * inter) if self.gated else ("up", inter)
        return (
            linear(first[0], hidden, first[1], self.formats, self.bias),
            linear("down", inter, hidden, self.formats, self.bias),
        )

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """None."""
        return ()

    def routed(
        self, hidden: int, tensor_parallel: int, expert_parallel: int = 1, redundant: int = 0
    ) -> RoutedExperts | None:
        """None: a dense part has no routed experts."""
        return None


NO_FEEDFORWARD = Dense(0)


@dataclass(frozen=True)
class MoE:
    """`experts` MLPs of `inter` units, `top_k` per token, and a shared expert of `shared_inter` units for every token.

    The router is on every rank. `router_bias` is one number per expert (a bias or a balance correction);
    `shared_gate` a hidden-to-1 gate on the shared expert. `latent`: experts work in a space of this size, with
    projections to and from it on every rank. Of the ranks that share a layer, `expert_parallel` groups hold whole
    experts, and inside a group every expert's units are divided.
    """

    experts: int
    top_k: int
    inter: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_inter: int = 0
    shared_gate: bool = False
    latent: int | None = None
    formats: Formats = field(default_factory=Formats)

    def linears(self, hidden: int, tensor_parallel: int) -> tuple[Linear, ...]:
        """Router, and the shared expert's gate_up (or up), down and gate; routed experts are in `routed`."""
        router = self.formats.of("router")
        parts = [Linear("router", hidden, self.experts, router.dtype, router.bytes_per_param)]
        if self.latent is not None:
            parts.append(linear("latent_down", hidden, self.latent, self.formats))
            parts.append(linear("latent_up", self.latent, hidden, self.formats))
        if self.shared_inter:
            inter = share(self.shared_inter, "shared-expert units", tensor_parallel)
            first = ("shared_gate_up", 2 * inter) if self.gated else ("shared_up", inter)
            parts.append(linear(first[0], hidden, first[1], self.formats))
            parts.append(linear("shared_down", inter, hidden, self.formats))
        if self.shared_gate:
            parts.append(linear("shared_gate", hidden, 1, self.formats))
        return tuple(parts)

    def vectors(self, hidden: int, tensor_parallel: int) -> tuple[Vector, ...]:
        """The router's bias."""
        return (Vector("router_bias", self.experts, 4.0),) if self.router_bias else ()

    def routed(self, hidden: int, tensor_parallel: int, expert_parallel: int = 1, redundant: int = 0) -> RoutedExperts:
        """Experts of the fullest rank: `ceil(experts / ep)` of them, each `inter / (ranks / ep)` wide.

        `tensor_parallel`: ranks that share the experts of a layer, whether they hold whole ones or not. `redundant`
        copies count as experts: a token still visits `top_k`.
        """
        stored = self.formats.of("experts")
        inter = share(self.inter, "expert units", max(1, tensor_parallel // expert_parallel))
        return RoutedExperts(
            experts=self.experts + redundant,
            local_experts=-(-(self.experts + redundant) // expert_parallel),
            top_k=self.top_k,
            hidden=self.latent or hidden,
            inter=inter,
            matrices=3 if self.gated else 2,
            dtype=stored.dtype,
            bytes_per_param=stored.bytes_per_param,
            bias=self.bias,
        )
