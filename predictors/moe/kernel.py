"""The routed experts of a plan, priced by fitted constants, residual and curves of profiled layouts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from predictors.family import Fitted
from predictors.moe.form import Experts, moe_features, moe_parts
from predictors.moe.learn import encoded, pair, restored, spread_of
from predictors.moe.loads import Loads, expected_loads, known_loads
from predictors.moe.rows import DTYPES, parsed
from predictors.moe.series import hats, keys_of, profiled
from predictors.residual import Residual
from predictors.variants import age, bits, expected_error
from sim.cost.kernel import ExpertKernel
from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.deployment.formats import FORMATS
from sim.deployment.plan import DeviceArrays, MoeSlots


SERVED = {
    ("trtllm", "nvfp4"): ("trtllm", "moe_torch_flow_min_latency"),
    ("trtllm", "fp8_block"): ("sglang", "sglang_flashinfer_trtllm_moe"),
}
"""By engine and stored format: whose kernel, and which, servers choose where it was profiled.

TensorRT-LLM's published Blackwell recipes set `moe_config.backend: TRTLLM`. Of its 8-bit kernels its own tables hold
another backend's only; SGLang's hold the same library.
"""
SERVED_WIDE = {("trtllm", "fp8_block"): ("trtllm", "deepgemm")}
"""The same for experts over more than `NODE` ranks, where it differs: TensorRT-LLM's guide for DeepSeek-R1 has WIDEEP
there, which computes 8-bit experts by DeepGEMM."""
NODE = 8
UNTUNED = {("sglang", "0.5.10"): ("sglang_fused_moe_triton",)}
"""Profiled without the tuned tiles that the engine ships: up to twice the time of the same kernel in the next table."""


class MoeTerms(NamedTuple):
    """What of the routed experts does not depend on the batch: `times` layers, their work, and the kernel's numbers.

    `constants`: physics of each slot's kernel; `curve`: of its layout, 0 where it was not profiled; `certain`: 0 where
    no kernel for the slot's format was measured.
    """

    times: Float[Array, "moe *config"]
    work: Experts
    code: Int[Array, "moe *config"]
    constants: Any
    low: Float[Array, "moe *config feature"]
    high: Float[Array, "moe *config feature"]
    learned: Float[Array, "moe *config"]
    curve: Float[Array, "moe *config knot"]
    known: Float[Array, "moe *config"]
    error: Float[Array, "moe *config"]
    certain: Float[Array, "moe *config"]


class LearnedMoe(ExpertKernel):
    """Fitted experts of one device as one engine runs them.

    `choice`, `measured`: for each stored format, gated or not, on one rank, spread, or spread over more than `NODE`:
    the kernel, and 1 if it was measured as this engine runs it. `skew`: exponent of the assumed law of experts'
    popularity, 0: all alike.
    """

    arrays: Any
    residual: Residual | None
    choice: Int[Array, "format gated width"]
    measured: Float[Array, "format gated width"]
    skew: Float[Array, ""]

    def terms(self, slots: MoeSlots, device: DeviceArrays) -> MoeTerms:
        """Kernel, constants and curve of every slot; leaves `[moe, *config]`."""
        slots = slots_first(slots)
        work = Experts(
            hidden=slots.hidden,
            inter=slots.inter,
            experts=jnp.maximum(slots.experts, 1.0),
            local_experts=jnp.maximum(slots.local_experts, 1.0),
            top_k=slots.top_k,
            matrices=slots.matrices,
            weight_bytes=slots.weight_bytes_per_param,
            flops_per_s=slots.flops_per_s,
            memory_bytes_per_s=jnp.broadcast_to(device.memory_bytes_per_s, slots.hidden.shape),
            units=jnp.broadcast_to(device.compute_units, slots.hidden.shape),
            cache_bytes=jnp.broadcast_to(device.cache_bytes, slots.hidden.shape),
        )
        spread = spread_of(work, jnp)
        wide = (work.experts > (NODE + 0.5) * work.local_experts).astype(int)
        at = (slots.format.astype(int), (slots.matrices > 2.5).astype(int), spread + wide)
        code = jnp.asarray(self.choice)[at].astype(int)
        dtype = slots.hidden.dtype
        arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), self.arrays)
        curve = profiled(arrays["series"], keys_of(code, work, jnp))
        known = jnp.any(curve != 0.0, axis=-1).astype(dtype)
        return MoeTerms(
            times=slots.count,
            work=work,
            code=code,
            constants={name: value[..., pair(code, spread)] for name, value in arrays["constants"].items()},
            low=arrays["low"][code],
            high=arrays["high"][code],
            learned=arrays["learned"][code],
            curve=curve,
            known=known,
            error=jnp.where(known > 0.5, arrays["error_profiled"][code], arrays["error"][code]),
            certain=jnp.asarray(self.measured, dtype)[at],
        )

    def price(self, terms: MoeTerms, rows: Float[Array, "*config"]) -> Priced:
        """All layers of each slot, `[moe, *config]`, over `rows` tokens of all ranks of the expert group."""
        work = terms.work
        tokens = jnp.broadcast_to(jnp.maximum(rows, 1.0), work.hidden.shape)
        loads = expected_loads(
            tokens, work.experts, work.local_experts, work.top_k, jnp.asarray(self.skew, tokens.dtype)
        )
        return self._priced(terms, rows, tokens, loads)

    def price_loads(
        self,
        terms: MoeTerms,
        tokens: Float[Array, "*config"],
        rows: Float[Array, "#moe *config"],
        active: Float[Array, "#moe *config"],
    ) -> Priced:
        """The same on a rank of which `active` experts get `rows` rows."""
        some = jnp.broadcast_to(jnp.maximum(tokens, 1.0), terms.work.hidden.shape)
        loads = known_loads(jnp.broadcast_to(rows, some.shape), jnp.broadcast_to(active, some.shape))
        return self._priced(terms, tokens, some, loads)

    def _priced(
        self, terms: MoeTerms, rows: Float[Array, "*config"], tokens: Float[Array, "moe *config"], loads: Loads
    ) -> Priced:
        work = terms.work
        parts = moe_parts(terms.constants, work, loads, tokens)
        features = moe_features(work, loads, parts, tokens)
        slack = 1e-6 * (terms.high - terms.low) + 1e-6
        out = jnp.any(((features < terms.low - slack) | (features > terms.high + slack))[..., :-1], axis=-1)
        factor, spread = jnp.sum(terms.curve * hats(jnp, tokens), axis=-1), jnp.zeros_like(tokens)
        if self.residual is not None:
            inputs = encoded(jnp, jnp.clip(features, terms.low, terms.high), terms.code, self.arrays["error"].shape[0])
            correction = self.residual(inputs)
            factor = factor + terms.learned * correction.log_factor
            spread = terms.learned * correction.spread * (1.0 - terms.known)
        outside = jnp.where(terms.certain > 0.5, out.astype(tokens.dtype), 1.0)
        seconds = terms.times * jnp.where(rows > 0.0, parts.seconds * jnp.exp(factor), 0.0)
        return Priced(seconds, seconds * expected_error(terms.error, spread, outside), seconds * outside)


def learned_moe(fitted: Fitted, engine: str, skew: float = 0.0) -> LearnedMoe:
    """The experts of a plan of `engine`; see `LearnedMoe`."""
    arrays = dict(fitted.arrays)
    residual = arrays.pop("residual", None)
    choice, measured = chosen_kernels(fitted, engine)
    for name in ("signature", "rows"):
        arrays.pop(name)
    leaves: dict[str, Any] = {"choice": choice, "measured": measured, "skew": np.asarray(skew, np.float64)}
    return LearnedMoe(
        arrays={name: jax.tree.map(np.asarray, value) for name, value in arrays.items()},
        residual=None if residual is None else restored(residual),
        **leaves,
    )


def chosen_kernels(fitted: Fitted, engine: str) -> tuple[np.ndarray, np.ndarray]:
    """Kernel for each format, gated or not, on one rank, spread, spread wide; and whether the engine runs it so.

    Preference: the format itself, as many bits, what servers run (`SERVED`), the engine's own, seen with this kind of
    experts, launch left out, tuned (not `UNTUNED`), the newest version (of "vllm/0.19.0" the newest up to it, else the
    oldest), more rows.
    """
    engine, _, version = engine.partition("/")
    signature, rows = np.asarray(fitted.arrays["signature"]), np.asarray(fitted.arrays["rows"])
    owners, builds, dtypes, names = zip(*map(parsed, fitted.kernels), strict=True)
    ages = [age(build, version) for build in builds]
    shape = (len(FORMATS), signature.shape[1], signature.shape[2] + 1)
    choice, measured = np.zeros(shape, np.int64), np.zeros(shape)
    for form, gated, width in np.ndindex(shape):
        ranked, spread = [], min(width, 1)
        wanted = SERVED.get((engine, FORMATS[form]))
        if width > 1:
            wanted = SERVED_WIDE.get((engine, FORMATS[form]), wanted)
        for code, kernel in enumerate(fitted.kernels):
            stored = DTYPES[dtypes[code]][0]
            same, own, seen = stored == FORMATS[form], owners[code] == engine, signature[code, gated, spread] > 0
            alike = bits(stored) == bits(FORMATS[form])
            tuned = names[code] not in UNTUNED.get((owners[code], builds[code]), ())
            served = (owners[code], names[code]) == wanted
            rank = (same, alike, served, own, seen, not kernel.endswith(" launched"), tuned)
            ranked.append((rank, ages[code], rows[code], -code, same and (own or served) and seen))
        *_, code, surely = max(ranked)
        choice[form, gated, width], measured[form, gated, width] = -code, float(surely)
    return choice, measured
