"""Prices rows of a table by a fit: form, networks by kernel, scale and curves of the kernels of few shapes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from predictors.family import Fitted, Predicted
from predictors.gemm.curves import curves_of, hats, keys_of
from predictors.gemm.form import SMOOTH, Product, gemm_features, gemm_parts
from predictors.gemm.rows import codes, kernel_names, products_of
from predictors.residual import Residual
from predictors.table import OperatorTable
from predictors.variants import expected_error
from sim.hardware.spec import DeviceConf


CHUNK = 32768
BEND = "silu"


class Rows(NamedTuple):
    """Rows of a table as the form and the networks read them; `code`: of the kernel."""

    product: Product
    m: Float[np.ndarray, " row"]
    code: Int[np.ndarray, " row"]

    def where(self, chosen: Any) -> "Rows":
        """The chosen rows."""
        return Rows(Product(*(leaf[chosen] for leaf in self.product)), self.m[chosen], self.code[chosen])


class Described(NamedTuple):
    """Seconds of the form as in a table and as in a model, and the features (float32) of rows."""

    warm_s: Float[np.ndarray, " row"]
    cold_s: Float[np.ndarray, " row"]
    features: Float[np.ndarray, "row feature"]


def rows_of(table: OperatorTable, device: DeviceConf, kernels: tuple[str, ...]) -> Rows:
    """All rows of `table`."""
    return Rows(products_of(table, device), table["m"], codes(kernel_names(table), kernels))


def described(constants: Mapping[str, np.ndarray], rows: Rows, code: Int[np.ndarray, " row"]) -> Described:
    """The form with the constants of kernel `code` of each row."""
    found = []
    for start in range(0, len(code), CHUNK):
        some = rows.where(slice(start, start + CHUNK))
        spare = CHUNK - len(some.m) if len(code) > CHUNK else 0  # one compilation for all full chunks
        index = np.pad(np.arange(len(some.m)), (0, spare), mode="edge")
        some, mine = some.where(index), code[start : start + CHUNK][index]
        taken = {name: np.asarray(value, np.float64)[..., mine] for name, value in constants.items()}
        with jax.enable_x64(True):
            leaves = [np.asarray(leaf)[: len(index) - spare] for leaf in _described(taken, some.product, some.m)]
        found.append(leaves)
    return Described(*(np.concatenate(leaves) for leaves in zip(*found, strict=True)))


@jax.jit
def _described(constants: Any, product: Product, m: Array) -> tuple[Array, Array, Array]:
    parts = gemm_parts(constants, product, m)
    return parts.warm_s, parts.cold_s, gemm_features(product, parts, m).astype(jnp.float32)


def network(networks: Mapping[str, Any], place: Any) -> Residual:
    """The ensemble of one kernel among `networks`, arrays with a leading axis of kernels."""
    leaves = {name: jnp.asarray(networks[name])[place] for name in ("center", "scale", "low", "high")}
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf)[place], networks["parameters"])
    # as many hidden layers as weights before the last
    width, depth = parameters["Dense_0"]["bias"].shape[-1], len(parameters) - 1
    return Residual(parameters=parameters, width=width, depth=depth, bend=BEND, **leaves)


def left_range(low: Any, high: Any, features: Any) -> Any:
    """Whether any of the smooth features lies outside the range of its kernel's rows, `[*axes]`."""
    low, high, features = (leaf[..., :SMOOTH] for leaf in (low, high, features))
    slack = 1e-5 * (high - low) + 1e-5
    return ((features < low - slack) | (features > high + slack)).any(axis=-1)


def predicted_rows(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """Seconds, expected error and mark of every row."""
    rows = rows_of(table, device, fitted.kernels)
    seconds, spread, outside = based(fitted.arrays, rows)
    keys = keys_of(rows.code, rows.product.n, rows.product.k)
    curves = curves_of(fitted.arrays["curves"], keys)
    known = curves.any(axis=1)
    seconds = seconds * np.exp(np.sum(curves * hats(np, rows.m), axis=1))
    kinds = (fitted.arrays["error"], fitted.arrays["error_profiled"])
    error, error_profiled = (np.asarray(kind, np.float64)[rows.code] for kind in kinds)
    return Predicted(seconds, expected_error(np.where(known, error_profiled, error), spread * ~known, outside), outside)


def based(arrays: Mapping[str, Any], rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds by form, network and scale, disagreement of the members, 1 outside calibration."""
    base = np.asarray(arrays["base"]).astype(int)[rows.code]
    own = base == rows.code
    form = described(arrays["constants"], rows, base)
    seconds = np.where(own, form.warm_s, form.cold_s) * np.exp(np.asarray(arrays["scale"], np.float64)[rows.code])
    low, high = (np.asarray(arrays[name], np.float32)[base] for name in ("low", "high"))
    outside = left_range(low, high, form.features).astype(np.float64)
    spread, place = np.zeros(len(seconds)), np.asarray(arrays["place"]).astype(int)[base]
    for one in np.unique(place[place >= 0]):
        mine = np.flatnonzero(place == one)
        factor, spread[mine] = corrected(network(arrays["networks"], one), form.features[mine])
        seconds[mine] *= np.exp(factor)
    return seconds, spread, outside


def corrected(residual: Residual, inputs: Float[np.ndarray, "row input"]) -> tuple[np.ndarray, np.ndarray]:
    """Log factor and spread of many rows."""
    found = []
    for start in range(0, len(inputs), CHUNK):
        some = inputs[start : start + CHUNK]
        full = np.pad(some, ((0, CHUNK - len(some)), (0, 0))) if len(inputs) > CHUNK else some
        correction = _corrected(residual, full)
        found.append([np.asarray(leaf, np.float64)[: len(some)] for leaf in correction[:2]])
    factor, spread = (np.concatenate(leaves) for leaves in zip(*found, strict=True))
    return factor, spread


@jax.jit
def _corrected(residual: Residual, inputs: Array) -> Any:
    return residual(inputs)
