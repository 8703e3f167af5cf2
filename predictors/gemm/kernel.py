"""The products of a plan, priced by fitted constants, networks, scales and curves of profiled shapes."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from predictors.family import Fitted
from predictors.gemm.curves import hats, profiled
from predictors.gemm.form import Product, gemm_features, gemm_parts
from predictors.gemm.predict import left_range, network
from predictors.gemm.relations import chosen
from predictors.gemm.rows import parsed
from predictors.variants import expected_error
from sim.cost.kernel import TokenKernel
from sim.cost.priced import Priced
from sim.cost.slots import slots_first
from sim.deployment.plan import DeviceArrays, GemmSlots


class GemmTerms(NamedTuple):
    """What of the products does not depend on the batch: `times` of each shape per step, and the kernel's numbers.

    `place`: of the kernel's network; `learned`: 0 where none is used; `certain`: 0 where no kernel of the slot's format
    was measured; `curve`: 0 where the shape was not profiled.
    """

    times: Float[Array, "gemm *config"]
    product: Product
    constants: Any
    log_scale: Float[Array, "gemm *config"]
    low: Float[Array, "gemm *config feature"]
    high: Float[Array, "gemm *config feature"]
    place: Int[Array, "gemm *config"]
    learned: Float[Array, "gemm *config"]
    curve: Float[Array, "gemm *config knot"]
    error: Float[Array, "gemm *config"]
    certain: Float[Array, "gemm *config"]


class LearnedGemm(TokenKernel):
    """Fitted products of one device as one engine runs them.

    `choice`, `measured`: for each stored format the kernel, and 1 if its format was measured. One that was not takes
    the physics of the most like kernel at its own rate and size, without a network, all of it outside calibration. A
    kernel that was measured only with the host's launch in its times is priced by the physics without the host.
    """

    arrays: Any
    choice: Float[Array, " format"]
    measured: Float[Array, " format"]
    device_timed: Float[Array, " kernel"]
    networks: int = eqx.field(static=True)

    def terms(self, slots: GemmSlots, device: DeviceArrays) -> GemmTerms:
        """Kernel, constants and curve of every slot; leaves `[gemm, *config]`."""
        slots = slots_first(slots)
        dtype, shape = slots.n.dtype, slots.n.shape
        stored = {name: value for name, value in self.arrays.items() if name != "networks"}
        arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), stored)
        form = slots.format.astype(int)
        code = jnp.asarray(self.choice, dtype)[form].astype(int)
        certain = jnp.asarray(self.measured, dtype)[form]
        base = arrays["base"][code].astype(int)
        place = arrays["place"][base].astype(int)
        learned = (place >= 0).astype(dtype) * certain * jnp.asarray(self.device_timed, dtype)[base]
        curve = profiled(arrays["curves"], code, slots.n, slots.k) * certain[..., None]
        known = jnp.any(curve != 0.0, axis=-1)
        product = Product(
            n=slots.n,
            k=slots.k,
            weight_bytes=slots.weight_bytes_per_param,
            input_bytes=slots.input_bytes,
            flops_per_s=slots.flops_per_s,
            memory_bytes_per_s=jnp.broadcast_to(device.memory_bytes_per_s, shape),
            cache_bytes=jnp.broadcast_to(device.cache_bytes, shape),
            units=jnp.broadcast_to(device.compute_units, shape),
            launched=jnp.zeros_like(slots.n),
        )
        return GemmTerms(
            times=slots.count,
            product=product,
            constants={name: value[..., base] for name, value in arrays["constants"].items()},
            log_scale=arrays["scale"][code] * certain,
            low=arrays["low"][base],
            high=arrays["high"][base],
            place=jnp.maximum(place, 0),
            learned=learned,
            curve=curve,
            error=jnp.where(known, arrays["error_profiled"][code], arrays["error"][code]),
            certain=certain,
        )

    def price(self, terms: GemmTerms, rows: Float[Array, "gemm *config"]) -> Priced:
        """All products of each slot; `rows`: the m of each. Weights come from memory, not from the cache."""
        m = jnp.broadcast_to(jnp.maximum(rows, 1.0), terms.product.n.shape)
        parts = gemm_parts(terms.constants, terms.product, m)
        features = gemm_features(terms.product, parts, m)
        out = left_range(terms.low, terms.high, features)
        outside = jnp.where(terms.certain > 0.5, out.astype(m.dtype), 1.0)
        factor = terms.log_scale + jnp.sum(terms.curve * hats(jnp, m), axis=-1)
        known = jnp.any(terms.curve != 0.0, axis=-1).astype(m.dtype)
        spread = jnp.zeros_like(m)
        if self.networks:
            log_factor, spread = self._corrected(terms, features.astype(jnp.float32))
            factor = factor + terms.learned * log_factor.astype(m.dtype)
            spread = terms.learned * spread.astype(m.dtype) * (1.0 - known)
        seconds = terms.times * jnp.where(rows > 0.0, parts.cold_s * jnp.exp(factor), 0.0)
        return Priced(seconds, seconds * expected_error(terms.error, spread, outside), seconds * outside)

    def _corrected(self, terms: GemmTerms, inputs: Float[Array, "gemm *config feature"]) -> tuple[Array, Array]:
        """Log factor and spread in float32: a slot's own network, or every network where plans are stacked."""
        stored = self.arrays["networks"]
        if terms.place.ndim == 1:
            found = jax.vmap(lambda place, some: network(stored, place)(some)[:2])(terms.place, inputs)
            return found[0], found[1]
        factor = spread = jnp.zeros(terms.place.shape, inputs.dtype)
        for place in range(self.networks):
            mine = network(stored, place)(inputs)
            factor = jnp.where(terms.place == place, mine.log_factor, factor)
            spread = jnp.where(terms.place == place, mine.spread, spread)
        return factor, spread


def learned_gemm(fitted: Fitted, engine: str) -> LearnedGemm:
    """The products of a plan of `engine` ("vllm", "vllm/0.19.0"); see `LearnedGemm`."""
    choice, measured = chosen(fitted, engine)
    arrays = {name: value for name, value in fitted.arrays.items() if name not in ("rows", "stand_in")}
    place = np.asarray(arrays["place"]).astype(int)
    needed = np.unique(place[np.asarray(arrays["base"]).astype(int)[choice]])
    needed = needed[needed >= 0]
    # only the networks of kernels that this engine runs are kept
    arrays["place"] = np.array([np.searchsorted(needed, one) if one in needed else -1 for one in place], np.float64)
    if len(needed):
        arrays["networks"] = jax.tree.map(lambda leaf: np.asarray(leaf)[needed], arrays["networks"])
    leaves: dict[str, Any] = {
        "choice": choice.astype(np.float64),
        "measured": measured,
        "device_timed": np.array([not parsed(name)[-1] for name in fitted.kernels], np.float64),
    }
    return LearnedGemm(arrays=arrays, networks=len(needed), **leaves)
