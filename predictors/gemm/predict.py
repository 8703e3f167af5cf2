"""Prices rows of a table by a fit: form, networks by stored format, scale and curves of the kernels of few shapes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from predictors.family import Fitted, Predicted
from predictors.gemm.curves import curves_of, hats, keys_of
from predictors.gemm.form import Product, gemm_features, gemm_parts
from predictors.gemm.rows import codes, kernel_names, products_of
from predictors.residual import Residual
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


CHUNK = 32768
BEYOND = 2.0
"""Outside calibration, twice the error is claimed."""


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


def encoded(xp: Any, features: Any, place: Any, width: int) -> Any:
    """Inputs of a network: features, then 1 for the kernel's place among those of its format."""
    return xp.concatenate([features, (place[..., None] == xp.arange(width)).astype(features.dtype)], axis=-1)


def network(arrays: Mapping[str, Any], group: Any) -> Residual:
    """The ensemble of one stored format."""
    stored = arrays["networks"]
    leaves = {name: jnp.asarray(stored[name])[group] for name in ("center", "scale", "low", "high")}
    parameters = jax.tree.map(lambda leaf: jnp.asarray(leaf)[group], stored["parameters"])
    # as many hidden layers as weights before the last
    width, depth = parameters["Dense_0"]["bias"].shape[-1], len(parameters) - 1
    return Residual(parameters=parameters, width=width, depth=depth, bend="relu", **leaves)


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
    slack = 1e-5 * (high - low) + 1e-5
    outside = ((form.features < low - slack) | (form.features > high + slack)).any(axis=1).astype(np.float64)
    spread, group = np.zeros(len(seconds)), np.asarray(arrays["group"]).astype(int)[base]
    if "networks" in arrays:
        place, width = np.asarray(arrays["place"]).astype(int)[base], int(arrays["width"])
        inputs = encoded(np, np.clip(form.features, low, high), place, width)
        for one in np.unique(group[group >= 0]):
            mine = np.flatnonzero(group == one)
            factor, spread[mine] = corrected(network(arrays, one), inputs[mine])
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


def expected_error(kernel_error: Any, spread: Any, outside: Any) -> Any:
    """Median error of the kernel on shapes held out, plus the disagreement of the members; twice that outside."""
    return (kernel_error + 0.67 * spread) * (1.0 + (BEYOND - 1.0) * outside)
