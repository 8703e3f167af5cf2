"""Fits the experts of one device: physics constants by kernel, one residual for all, and what each is off by."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from predictors.family import Fitted, Predicted
from predictors.moe.form import BOUNDS, START, Experts, Parts, moe_features, moe_parts
from predictors.moe.loads import Loads
from predictors.moe.rows import MODEL, codes, doubtful, experts_of, kernel_names, used
from predictors.moe.sampled import table_loads
from predictors.moe.series import curves_of, fit_curves, hats, keys_of
from predictors.physics import fit_constants
from predictors.residual import Residual, Schedule, train
from predictors.splits import held_out
from predictors.table import OperatorTable
from predictors.variants import error_by_kernel, expected_error
from sim.hardware.spec import DeviceConf


NAME, VERSION = "moe", 2
SCHEDULE = Schedule(members=4, width=64, steps=7000, batch=1024)
QUICK = Schedule(members=2, width=16, steps=200, batch=256)
PHYSICS_ROWS, PHYSICS_STEPS = 1500, 800
LEAST_ROWS = 400
"""A kernel of fewer rows has no residual: the physics alone."""
CHUNK = 65536


class Rows(NamedTuple):
    """Rows of a table as the form and the residual read them; `code`: of the kernel; `skewed`: 1 for skewed routing."""

    work: Experts
    loads: Loads
    tokens: Float[np.ndarray, " row"]
    code: Int[np.ndarray, " row"]
    skewed: Int[np.ndarray, " row"]


def rows_of(table: OperatorTable, device: DeviceConf, kernels: tuple[str, ...]) -> Rows:
    """All rows of `table`."""
    code = codes(kernel_names(table), kernels)
    skewed = (np.nan_to_num(table["skew"]) > 0.0).astype(int)
    return Rows(experts_of(table, device), table_loads(table), table["tokens"], code, skewed)


def some(rows: Rows, chosen: Any) -> Rows:
    """The chosen rows; `padded` has its tiles in front."""
    loads = Loads(rows.loads.rows[chosen], rows.loads.active[chosen], rows.loads.padded[:, chosen])
    work = Experts(*(leaf[chosen] for leaf in rows.work))
    return Rows(work, loads, rows.tokens[chosen], rows.code[chosen], rows.skewed[chosen])


def pair(code: Any, spread: Any) -> Any:
    """Physics constants are kept by kernel and by whether the experts are spread over ranks."""
    return 2 * code + spread


def spread_of(work: Experts, xp: Any = np) -> Any:
    """1 where experts are spread over ranks."""
    return xp.asarray(work.local_experts < work.experts).astype(int)


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
    """See `predictors.family.Family.fit`."""
    chosen = used(table)
    disturbed = chosen & doubtful(table)
    table = table.where(chosen & ~disturbed)
    if not len(table):
        raise ValueError("the expert tables hold no row of a known type; add some, or leave the family out.")
    kernels = tuple(sorted(set(kernel_names(table))))
    rows = rows_of(table, device, kernels)
    constants = physics(rows, table.seconds, len(kernels), seed, 150 if quick else PHYSICS_STEPS)
    parts, features = described(constants, rows)
    log_ratio = np.log(table.seconds / parts)
    low, high = ranges(features, rows.code, len(kernels))
    counts = np.bincount(rows.code, minlength=len(kernels))
    learned = counts >= LEAST_ROWS
    judge = held_out(table, (*MODEL, "tp", "ep", "dtype"), 10)
    taught = learned[rows.code] & ~judge
    if taught.sum() < LEAST_ROWS:
        taught = learned[rows.code]
    arrays: dict[str, Any] = {"constants": constants, "low": low, "high": high, "learned": learned.astype(np.float64)}
    if taught.any():
        inputs = encoded(np, np.clip(features, low[rows.code], high[rows.code]), rows.code, len(kernels))
        schedule = QUICK if quick else SCHEDULE
        at = drawn(rows.code, taught, seed)
        residual = train(inputs[at], log_ratio[at], seed=seed, schedule=schedule)
        arrays["residual"] = stored(residual)
    predicted_s, _, _ = predicted_parts(Fitted(NAME, VERSION, arrays, kernels), rows)
    left = np.log(table.seconds / predicted_s)
    arrays["error"] = error_by_kernel(np.abs(np.expm1(left)), rows.code, judge, len(kernels))
    arrays["error_profiled"] = profiled_error(rows, left, seed, len(kernels))
    arrays["series"] = fit_curves(keys_of(rows.code, rows.work), rows.skewed, rows.tokens, left)
    arrays["signature"] = signatures(rows, len(kernels))
    arrays["rows"] = counts.astype(np.float64)
    facts = {
        "seed": seed,
        "rows": len(table),
        "disturbed_rows": int(disturbed.sum()),
        "unused_rows": int((~chosen).sum()),
    }
    return Fitted(NAME, VERSION, arrays, kernels, facts)


def physics(
    rows: Rows, seconds: Float[np.ndarray, " row"], kernels: int, seed: int, steps: int
) -> dict[str, np.ndarray]:
    """Constants `[2 kernel + spread]` (`tile_share` with tiles in front), all in one descent.

    Each pair is fitted with searched and with untuned tiles, and keeps the better. Pairs with no rows take those of the
    same kernel spread otherwise.
    """
    pairs = pair(rows.code, spread_of(rows.work))
    generator = np.random.default_rng(seed)
    taken = []
    for one in range(2 * kernels):
        at = np.flatnonzero(pairs == one)
        if not len(at):
            at = np.flatnonzero(pairs == one ^ 1)
        at = at if len(at) <= PHYSICS_ROWS else generator.choice(at, PHYSICS_ROWS, replace=False)
        taken.append(np.sort(at))
    at = np.concatenate(taken)
    owner = np.repeat(np.arange(2 * kernels), [len(index) for index in taken])
    owner = np.concatenate([owner, owner + 2 * kernels])
    few = some(rows, np.concatenate([at, at]))
    measured_s = np.concatenate([seconds[at], seconds[at]])
    start = {name: np.tile(np.asarray(value, np.float64)[..., None], 4 * kernels) for name, value in START.items()}
    untuned = np.repeat([0.0, 1.0], 2 * kernels)

    def form(constants: Any) -> Float[Array, " row"]:
        mine = {name: value[..., owner] for name, value in constants.items()} | {"untuned": untuned[owner]}
        tokens: Any = few.tokens
        return moe_parts(mine, few.work, few.loads, tokens).seconds

    weights = 1.0 / np.bincount(owner)[owner]
    found, _ = fit_constants(form, start, measured_s, bounds=BOUNDS, weights=weights, steps=steps)
    with jax.enable_x64(True):
        error = np.abs(np.log(np.asarray(form(found)) / measured_s))
    mean = np.bincount(owner, np.minimum(error, 0.5)) / np.bincount(owner)
    better = np.arange(2 * kernels) + 2 * kernels * (mean[2 * kernels :] < mean[: 2 * kernels])
    return {name: value[..., better] for name, value in (found | {"untuned": untuned}).items()}


def described(
    constants: dict[str, np.ndarray], rows: Rows
) -> tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row feature"]]:
    """Physics seconds and features of all rows."""
    found = [_described(constants, some(rows, slice(at, at + CHUNK))) for at in range(0, len(rows.tokens), CHUNK)]
    seconds, features = zip(*found, strict=True)
    return np.concatenate(seconds), np.concatenate(features)


def _described(constants: dict[str, np.ndarray], rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    mine = {name: value[..., pair(rows.code, spread_of(rows.work))] for name, value in constants.items()}
    with jax.enable_x64(True):
        parts, features = _physics_of(mine, rows.work, rows.loads, rows.tokens)
    return np.asarray(parts), np.asarray(features)


@jax.jit
def _physics_of(mine: Any, work: Experts, loads: Loads, tokens: Array) -> tuple[Array, Array]:
    parts: Parts = moe_parts(mine, work, loads, tokens)
    return parts.seconds, moe_features(work, loads, parts, tokens)


def ranges(features: np.ndarray, code: np.ndarray, kernels: int) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest of each feature by kernel."""
    low, high = (np.full((kernels, features.shape[1]), value) for value in (np.inf, -np.inf))
    np.minimum.at(low, code, features)
    np.maximum.at(high, code, features)
    return low, high


def encoded(xp: Any, features: Any, code: Any, kernels: int) -> Any:
    """Inputs of the residual: features, then 1 for the row's kernel."""
    return xp.concatenate([features, (code[..., None] == xp.arange(kernels)).astype(features.dtype)], axis=-1)


def drawn(code: Int[np.ndarray, " row"], taught: Bool[np.ndarray, " row"], seed: int) -> Int[np.ndarray, " row"]:
    """Rows to train on, as many as are taught: kernels of few rows are not drowned (square root of their rows)."""
    at = np.flatnonzero(taught)
    chance = 1.0 / np.sqrt(np.bincount(code[at])[code[at]])
    return np.random.default_rng(seed).choice(at, len(at), p=chance / chance.sum())


def stored(residual: Residual) -> dict[str, Any]:
    """The ensemble as arrays."""
    return {
        "parameters": residual.parameters,
        "center": residual.center,
        "scale": residual.scale,
        "low": residual.low,
        "high": residual.high,
        "width": np.asarray(residual.width),
    }


def restored(arrays: Any) -> Residual:
    """The ensemble that `stored` wrote."""
    leaves = {name: arrays[name] for name in ("parameters", "center", "scale", "low", "high")}
    return Residual(width=int(arrays["width"]), **leaves)


def predicted_rows(fitted: Fitted, rows: Rows) -> Predicted:
    """Seconds, expected error and mark of every row."""
    parts: Any = predicted_parts(fitted, rows)
    seconds, spread, outside = parts
    curves = curves_of(fitted.arrays["series"], keys_of(rows.code, rows.work), rows.skewed)
    seconds = seconds * np.exp(np.sum(curves * hats(np, rows.tokens), axis=1))
    known = curves.any(axis=1)
    base = np.where(known, fitted.arrays["error_profiled"][rows.code], fitted.arrays["error"][rows.code])
    return Predicted(seconds, expected_error(base, spread * ~known, outside), outside)


def predicted_parts(fitted: Fitted, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds by form and residual, disagreement of the members, 1 outside calibration."""
    found = [_predicted(fitted, some(rows, slice(at, at + CHUNK))) for at in range(0, len(rows.tokens), CHUNK)]
    seconds, spread, outside = (np.concatenate(leaves) for leaves in zip(*found, strict=True))
    return seconds, spread, outside


def _predicted(fitted: Fitted, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = fitted.arrays
    seconds, features = _described(arrays["constants"], rows)
    low, high = arrays["low"][rows.code], arrays["high"][rows.code]
    slack = 1e-6 * (high - low) + 1e-6
    outside = ((features < low - slack) | (features > high + slack)).any(axis=1).astype(np.float64)
    spread = np.zeros(len(seconds))
    if "residual" in arrays:
        inputs = encoded(np, np.clip(features, low, high), rows.code, len(fitted.kernels))
        correction = _corrected(restored(arrays["residual"]), inputs.astype(np.float32))
        learned = arrays["learned"][rows.code]
        seconds = seconds * np.exp(learned * np.asarray(correction.log_factor, np.float64))
        spread = learned * np.asarray(correction.spread, np.float64)
    return seconds, spread, outside


def profiled_error(
    rows: Rows, left: Float[np.ndarray, " row"], seed: int, kernels: int
) -> Float[np.ndarray, " kernel"]:
    """Median error at token counts that the curve of a layout has not seen: one of eight, drawn by layout."""
    aside = np.random.default_rng(seed).random(len(left)) < 0.125
    keys = keys_of(rows.code, rows.work)
    found = fit_curves(keys[~aside], rows.skewed[~aside], rows.tokens[~aside], left[~aside])
    curves = curves_of(found, keys, rows.skewed)
    size = np.abs(np.expm1(left - np.sum(curves * hats(np, rows.tokens), axis=1)))
    return error_by_kernel(size, rows.code, aside, kernels)


@jax.jit
def _corrected(residual: Residual, inputs: Array) -> Any:
    return residual(inputs)


def signatures(rows: Rows, kernels: int) -> Float[np.ndarray, "kernel gated spread"]:
    """Rows of each kernel by gated experts or not, and spread or not: which shapes an engine runs it for."""
    found = np.zeros((kernels, 2, 2))
    np.add.at(found, (rows.code, (rows.work.matrices > 2.5).astype(int), spread_of(rows.work)), 1.0)
    return found
