"""Fits the products of one device: constants by kernel, an ensemble for those of many shapes, scales and curves."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from predictors.family import Fitted
from predictors.gemm.curves import curves_of, fit_curves, hats, keys_of
from predictors.gemm.form import ACTIVATION_BYTES, BOUNDS, START, Product, gemm_parts
from predictors.gemm.predict import BEND, Rows, based, described, rows_of
from predictors.gemm.relations import LEAST_SHAPES, followed, stand_ins
from predictors.gemm.rows import kernel_names, used
from predictors.physics import fit_constants
from predictors.residual import Residual, Schedule, train
from predictors.splits import held_out
from predictors.table import OperatorTable
from predictors.variants import error_by_kernel
from sim.hardware.spec import DeviceConf


NAME, VERSION = "gemm", 2
SCHEDULE = Schedule(members=4, width=40, depth=3, bend=BEND, steps=4000, batch=1024, rate=1.5e-2, decay=5e-2, warm=0.05)
QUICK = Schedule(members=2, width=16, depth=2, bend=BEND, steps=300, batch=256, rate=1e-2, decay=1e-3, warm=0.05)
PHYSICS_ROWS, PHYSICS_STEPS, QUICK_STEPS = 2000, 600, 200


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
    """See `predictors.family.Family.fit`."""
    chosen = used(table)
    table, left_out = table.where(chosen), int((~chosen).sum())
    if not len(table):
        raise ValueError("the gemm tables hold no product of a known type; add some, or leave the family out.")
    kernels = tuple(sorted(set(kernel_names(table))))
    rows = rows_of(table, device, kernels)
    counts = np.bincount(rows.code, minlength=len(kernels))
    shapes = np.array([_shapes(rows, rows.code == one) for one in range(len(kernels))])
    constants = physics(rows, table.seconds, len(kernels), seed, QUICK_STEPS if quick else PHYSICS_STEPS)
    base = np.array([followed(one, kernels, shapes, counts) for one in range(len(kernels))])
    arrays: dict[str, Any] = {"constants": constants, "base": base.astype(np.float64)}
    arrays |= {"scale": np.zeros(len(kernels)), "place": np.full(len(kernels), -1.0)}
    form = described(constants, rows, rows.code)
    arrays["low"], arrays["high"] = ranges(form.features, rows.code, len(kernels))
    judge = held_out(table, ("k", "n"), 12)
    log_ratio = np.log(table.seconds / form.warm_s)
    learn(arrays, shapes, rows.code, form.features, log_ratio, ~judge, seed, QUICK if quick else SCHEDULE)
    seconds, _, _ = based(arrays, rows)
    left = np.log(table.seconds / seconds)
    for one in np.flatnonzero(base != np.arange(len(kernels))):
        arrays["scale"][one] = np.median(left[rows.code == one])
    left = left - arrays["scale"][rows.code]
    few = shapes[rows.code] < LEAST_SHAPES
    learned = arrays["place"][rows.code] >= 0.0
    arrays["error"] = error_by_kernel(np.abs(np.expm1(left)), rows.code, judge & learned, len(kernels))
    keys = keys_of(rows.code, rows.product.n, rows.product.k)
    arrays["error_profiled"] = profiled_error(rows.where(few), left[few], seed, len(kernels))
    arrays["curves"] = fit_curves(keys[few], rows.m[few], left[few])
    sizes = np.stack([rows.m, rows.product.n, rows.product.k], axis=-1)
    arrays["stand_in"] = stand_ins(rows.code, sizes, table.seconds, kernels)
    arrays["rows"] = counts.astype(np.float64)
    facts = {
        "seed": seed,
        "rows": len(table),
        "unused_rows": left_out,
        "shapes": {name: int(count) for name, count in zip(kernels, shapes, strict=True)},
        "error_on_shapes_aside": {name: float(error) for name, error in zip(kernels, arrays["error"], strict=True)},
        "follows": {kernels[one]: kernels[base[one]] for one in range(len(kernels)) if base[one] != one},
        "scale": {kernels[one]: float(np.exp(arrays["scale"][one])) for one in np.flatnonzero(arrays["scale"])},
    }
    return Fitted(NAME, VERSION, arrays, kernels, facts)


def _shapes(rows: Rows, chosen: Bool[np.ndarray, " row"]) -> int:
    return len(set(zip(rows.product.n[chosen].tolist(), rows.product.k[chosen].tolist(), strict=True)))


def physics(
    rows: Rows, seconds: Float[np.ndarray, " row"], kernels: int, seed: int, steps: int
) -> dict[str, np.ndarray]:
    """Constants `[kernel]` (`share` with tiles in front), all in one descent on a sample of each kernel's rows."""
    generator = np.random.default_rng(seed)
    taken = []
    for one in range(kernels):
        at = np.flatnonzero(rows.code == one)
        taken.append(np.sort(at if len(at) <= PHYSICS_ROWS else generator.choice(at, PHYSICS_ROWS, replace=False)))
    at = np.concatenate(taken)
    few, measured_s = rows.where(at), seconds[at]
    start = {name: np.tile(np.asarray(START[name], np.float64)[..., None], kernels) for name in BOUNDS}
    # the host's time is what the shortest launches take
    shortest = [np.quantile(seconds[rows.code == one], 0.05) for one in range(kernels)]
    start["host"] = np.clip(shortest, *BOUNDS["host"])

    def form(constants: Any) -> Float[Array, " row"]:
        mine = {name: value[..., few.code] for name, value in constants.items()} | {"quantise": START["quantise"]}
        return gemm_parts(mine, Product(*map(jnp.asarray, few.product)), jnp.asarray(few.m)).warm_s

    weights = 1.0 / np.bincount(few.code)[few.code]
    constants = fit_constants(form, start, measured_s, bounds=BOUNDS, weights=weights, steps=steps)[0]
    return constants | {"quantise": quantising(few, np.asarray(constants["t0"]))}


def quantising(rows: Rows, t0: Float[np.ndarray, " kernel"]) -> Float[np.ndarray, " kernel"]:
    """What the kernel that quantises takes at least: how much longer t0 is than the median of 16-bit products."""
    narrow, hosted = np.zeros(len(t0), bool), np.zeros(len(t0), bool)
    narrow[rows.code[rows.product.input_bytes < ACTIVATION_BYTES]] = True
    hosted[rows.code[rows.product.launched > 0.5]] = True
    bare = t0[~narrow & ~hosted]
    return np.where(narrow, np.maximum(t0 - np.median(bare), 0.0), 0.0) if len(bare) else np.zeros(len(t0))


def ranges(features: np.ndarray, code: np.ndarray, kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of each feature by kernel."""
    low, high = (np.full((kernels, features.shape[1]), value, np.float32) for value in (np.inf, -np.inf))
    np.minimum.at(low, code, features)
    np.maximum.at(high, code, features)
    return low, high


def learn(
    arrays: dict[str, Any],
    shapes: np.ndarray,
    code: Int[np.ndarray, " row"],
    features: Float[np.ndarray, "row feature"],
    log_ratio: Float[np.ndarray, " row"],
    taught: Bool[np.ndarray, " row"],
    seed: int,
    schedule: Schedule,
) -> None:
    """Train an ensemble for each kernel of many shapes, into `arrays`: `networks`, and the `place` of each there."""
    networks: list[Residual] = []
    for one in np.flatnonzero(shapes >= LEAST_SHAPES):
        mine = taught & (code == one)
        if mine.any():
            arrays["place"][one] = len(networks)
            networks.append(train(features[mine], log_ratio[mine], seed=seed, schedule=schedule))
    if networks:
        arrays["networks"] = stacked(networks)


def stacked(networks: list[Residual]) -> dict[str, Any]:
    """Ensembles of one shape as arrays with a leading axis of kernels; half precision is far finer than their error."""
    found: dict[str, Any] = {
        name: np.stack([np.asarray(getattr(one, name), np.float32) for one in networks])
        for name in ("center", "scale", "low", "high")
    }
    trees: list[Any] = [one.parameters for one in networks]
    parameters = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf, np.float16) for leaf in leaves]), *trees)
    return found | {"parameters": parameters}


def profiled_error(
    rows: Rows, left: Float[np.ndarray, " row"], seed: int, kernels: int
) -> Float[np.ndarray, " kernel"]:
    """Median error at row counts that the curve of a shape has not seen: one of eight, drawn; 0 where none is kept."""
    found = np.zeros(kernels)
    aside = np.random.default_rng(seed).random(len(left)) < 0.125
    if aside.any() and not aside.all():
        keys = keys_of(rows.code, rows.product.n, rows.product.k)
        curves = curves_of(fit_curves(keys[~aside], rows.m[~aside], left[~aside]), keys[aside])
        size = np.abs(np.expm1(left[aside] - np.sum(curves * hats(np, rows.m[aside]), axis=1)))
        for one in np.unique(rows.code[aside]):
            found[one] = float(np.median(size[rows.code[aside] == one]))
    return found
