"""State layers learned from tables: few constants by kernel, of the closed form that every engine computes.

A layer runs a convolution and a scan, each in one kernel for decoding rows and one for chunks. For n rows or c chunks
of T tokens in all, L = T/c, channels C, state elements N,

    convolution, rows     t0 + C n moved near
    scan, rows            t0 + N n moved near
    convolution, chunks   t0 + C (c chunk + T token near)
    scan, chunks          t0 + ((chain L)^4 + (N (c chunk + T token near)/units)^4)^(1/4)

`moved` is bytes over the memory's rate. `near` falls from 1 to a share where what the kernel moves fits into the
last-level cache: tables repeat one kernel. In a model, decoding rows find no state there (1); chunks find what the
kernel before has written, as far as it fits (`near` at 4096 tokens). Tables have gated delta networks (GDN, KDA); of
Mamba only the convolution, so its layers stay analytic.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from predictors.family import Fitted, Predicted, none_of
from predictors.physics import fit_constants
from predictors.splits import combinations, held_out
from predictors.table import OperatorTable
from sim.cost.analytic import analytic_cost
from sim.cost.kernel import LengthKernel
from sim.cost.recurrent import RecurrentConstants, RecurrentTerms
from sim.cost.soft import soft_maximum
from sim.cost.stats import BatchStats
from sim.deployment.plan import DeviceArrays, RecurrentSlots
from sim.hardware.spec import DeviceConf


NAME, VERSION = "recurrent", 1
ONE_IN = 4
ROLES = ("convolution decode", "scan decode", "convolution context", "scan context")
START: Mapping[str, tuple[float, ...]] = {
    "t0": (2e-6, 4e-6, 5e-6, 2e-5),
    "moved": (14.0, 8.0, 1.0, 1.0),
    "cached": (0.5, 0.5, 0.5, 0.5),
    "share": (0.5, 1.0, 0.5, 0.5),
    "chunk": (1e-12, 1e-12, 1e-12, 6e-10),
    "token": (1e-12, 1e-12, 1.5e-12, 3e-12),
    "chain": (1e-9, 1e-9, 1e-9, 5e-8),
}
"""Where each constant starts, by role; roles that do not read one leave it there."""
BOUNDS = {"t0": (5e-7, 1e-3), "cached": (0.02, 1.0), "share": (0.05, 50.0)}
STEPS, QUICK_STEPS, ROWS = 1200, 150, 1500
REFERENCE_TOKENS = 4096.0
TOKEN_BYTES = 4.0
"""Of a channel, read and written."""
BEYOND = 2.0
"""Outside calibration, twice the error is claimed."""


def role_of(table: OperatorTable) -> np.ndarray:
    """Index in `ROLES` of every row; -1 for the verification of drafts, which plans do not price here."""
    scan = np.array(["conv" not in kernel for kernel in table["kernel"].tolist()], int)
    phase = np.array([{"decode": 0, "context": 2}.get(op, -9) for op in table["op"].tolist()], int)
    return np.maximum(scan + phase, -1)


def names_of(table: OperatorTable) -> list[str]:
    """Engine, version, kernel and phase of every row, and the kind of layer where one kernel serves two."""
    builds = zip(table["engine"].tolist(), table["engine_version"].tolist(), strict=True)
    kinds = ["kda" if "kimi" in model.lower() else "" for model in table["model"].tolist()]
    kinds = [
        "mamba" if "mamba" in model.lower() or "nemotron" in model.lower() else kind
        for model, kind in zip(table["model"].tolist(), kinds, strict=True)
    ]
    rows = zip(builds, table["kernel"].tolist(), table["op"].tolist(), kinds, strict=True)
    return [" ".join(filter(None, (*build, kernel, op, kind))) for build, kernel, op, kind in rows]


def row_seconds(
    xp: Any, constants: Mapping[str, Any], table: Mapping[str, Any], role: Any, device: DeviceConf
) -> Float[Array, " row"]:
    """Seconds of every row; constants by row."""
    rate = device.memory_bytes_per_s * device.memory_efficiency
    tokens, sequences, channels = table["tokens"], table["sequences"], table["channels"]
    elements = table["heads"] * table["head_dim"] * table["state_dim"]
    size = xp.where(role % 2 == 1, elements, channels)
    moved = sequences * size * constants["moved"]
    cache, cached = constants["share"] * max(device.cache_bytes, 1.0), constants["cached"]
    decode_s = moved / rate * near(xp, moved, cache, cached)
    token_s = tokens * constants["token"] * near(xp, tokens * channels * TOKEN_BYTES, cache, cached)
    work_s = size * (sequences * constants["chunk"] + token_s)
    scan_s = soft_maximum(xp, constants["chain"] * tokens / sequences, work_s / device.compute_units)
    return constants["t0"] + xp.where(role < 2, decode_s, xp.where(role == 2, work_s, scan_s))


def near(xp: Any, moved_bytes: Any, cache_bytes: Any, cached: Any) -> Any:
    """Share of the memory's time: `cached` while the bytes fit, 1 far beyond."""
    fill = xp.minimum(moved_bytes / cache_bytes, 1e4) ** 4
    return (fill + cached) / (1.0 + fill)


def used(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Rows of kernels that plans run; none where a role has no kernel, for a layer runs all of them."""
    return none_of(unused(table), len(table))


def unused(table: OperatorTable) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `predictors.family.Family.unused`."""
    roles = role_of(table)
    missing = [role for index, role in enumerate(ROLES) if index not in roles.tolist()]
    return {
        "whose op is neither context nor decode": roles < 0,
        f"without the other kernels of a layer ({', '.join(missing)})": (roles >= 0) & bool(missing),
    }


def shapes(table: OperatorTable) -> int:
    """See `predictors.family.Family.shapes`: heads and channels of layers."""
    return combinations(table.where(used(table)), "heads", "channels")


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
    """See `predictors.family.Family.fit`."""
    table = table.where(used(table))
    if not len(table):
        raise ValueError("the recurrent tables hold no context or decode row; add some, or leave the family out.")
    names, role = names_of(table), role_of(table)
    kernels = tuple(sorted(set(names)))
    code = np.array([kernels.index(name) for name in names])
    roles = np.array([role[code == one][0] for one in range(len(kernels))])
    generator = np.random.default_rng(seed)
    chosen = [np.flatnonzero(code == one) for one in range(len(kernels))]
    at = np.concatenate(
        [np.sort(rows if len(rows) <= ROWS else generator.choice(rows, ROWS, False)) for rows in chosen]
    )
    few, owner = table.where(at), code[at]
    start = {name: np.array(values)[roles] for name, values in START.items()}

    def form(constants: Any) -> Float[Array, " row"]:
        return row_seconds(jnp, _by_row(constants, owner), few.columns, role[at], device)

    weights = 1.0 / np.bincount(owner)[owner]
    steps = QUICK_STEPS if quick else STEPS
    constants, _ = fit_constants(form, start, few.seconds, bounds=BOUNDS, weights=weights, steps=steps)
    size = np.abs(row_seconds(np, _by_row(constants, code), table.columns, role, device) / table.seconds - 1.0)
    error = [float(np.median(size[code == one])) for one in range(len(kernels))]
    columns = ("tokens", "sequences", "heads", "channels")
    limits = {
        end: np.array([[pick(table[name][code == one]) for name in columns] for one in range(len(kernels))])
        for end, pick in (("low", np.min), ("high", np.max))
    }
    rows = np.bincount(code).astype(np.float64)
    arrays = {
        "constants": constants,
        "role": roles.astype(np.float64),
        "error": np.array(error),
        "rows": rows,
        **limits,
    }
    return Fitted(NAME, VERSION, arrays, kernels, {"seed": seed, "rows": len(table)})


def _by_row(constants: Mapping[str, Any], code: np.ndarray) -> dict[str, Any]:
    return {name: value[code] for name, value in constants.items()}


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """See `predictors.family.Family.predict`; kernels that were not fitted take the most like name of their role."""
    role = role_of(table)
    code = np.array([_nearest(fitted, name, one) for name, one in zip(names_of(table), role, strict=True)])
    arrays = fitted.arrays
    seconds = row_seconds(np, _by_row(arrays["constants"], code), table.columns, role, device)
    columns = np.stack([table[name] for name in ("tokens", "sequences", "heads", "channels")], axis=1)
    outside = ((columns < arrays["low"][code]) | (columns > arrays["high"][code])).any(axis=1).astype(np.float64)
    return Predicted(seconds, np.asarray(arrays["error"])[code] * (1.0 + (BEYOND - 1.0) * outside), outside)


def _nearest(fitted: Fitted, name: str, role: int) -> int:
    words = set(name.split())
    alike = [
        (len(words & set(kernel.split())), int(fitted.arrays["role"][index]) == role, index)
        for index, kernel in enumerate(fitted.kernels)
    ]
    return max(alike, key=lambda one: (one[1], one[0], -one[2]))[2]


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """Whole shapes of layers, whole models, and the longest quarter of batches."""
    rows = used(table)
    return {
        "shapes": rows & held_out(table, ("heads", "channels"), ONE_IN),
        "cells": rows & held_out(table, ("tokens", "sequences"), 8),
        "top": rows & (table["tokens"] >= 131072.0),
    }


class RecurrentKernel(LengthKernel[RecurrentTerms]):
    """Fitted constants of the layers' kernels, by role; layers that no table knows are priced by `analytic`.

    `t0` in seconds; `moved` bytes per channel or element; `chunk`, `token`, `chain` seconds; `share`, `cached`: of the
    cache (see the top); `largest_tokens`, `largest_rows`: of the measured batches; `narrowest`, `widest`: channels of
    the measured layers.
    """

    t0: Float[Array, " role"]
    moved: Float[Array, " role"]
    chunk: Float[Array, " role"]
    token: Float[Array, " role"]
    share: Float[Array, " role"]
    cached: Float[Array, " role"]
    chain: Float[Array, ""]
    rel_error: Float[Array, " phase"]
    largest_tokens: Float[Array, ""]
    largest_rows: Float[Array, ""]
    narrowest: Float[Array, " phase"]
    widest: Float[Array, " phase"]
    analytic: RecurrentConstants

    def terms(self, xp: Any, slots: RecurrentSlots, device: DeviceArrays) -> RecurrentTerms:
        """Closed-form constants; leaves `[recurrent, *config]`."""
        other = self.analytic.terms(xp, slots, device)
        one, rate = xp.ones_like(slots.count), device.memory_bytes_per_s
        row_bytes = slots.channels * self.moved[0] + slots.elements * self.moved[1]
        batch_bytes = REFERENCE_TOKENS * TOKEN_BYTES * slots.channels
        token_s = [
            self.token[role]
            * near(xp, batch_bytes, self.share[role] * xp.maximum(device.cache_bytes, 1.0), self.cached[role])
            for role in (2, 3)
        ]
        mine = RecurrentTerms(
            layers=slots.count,
            floor_s=(self.t0[0] + self.t0[1]) * one,
            sequence_s=row_bytes / rate,
            chunk_floor_s=(self.t0[2] + self.t0[3]) * one,
            chunk_s=slots.channels * self.chunk[2] + slots.elements * self.chunk[3] / device.compute_units,
            token_s=slots.elements * token_s[1] / device.compute_units,
            chain_s=self.chain * one,
            beside_s=slots.channels * token_s[0],
        )
        return RecurrentTerms(*(xp.where(slots.delta > 0.5, a, b) for a, b in zip(mine, other, strict=True)))

    def doubt(self, slots: RecurrentSlots, device: DeviceArrays, stats: BatchStats) -> tuple[Any, Any]:
        """Error of the kernels of the phase; outside: other layers, wider or narrower ones, larger batches."""
        prefills = stats.prefill_tokens > 0.0
        beyond = (stats.prefill_tokens > self.largest_tokens) | (stats.decodes > self.largest_rows)
        low, high = (jnp.where(prefills, ends[1], ends[0]) for ends in (self.narrowest, self.widest))
        beyond = beyond | (slots.channels < low) | (slots.channels > high)
        outside = jnp.where((slots.delta < 0.5) | beyond, 1.0, 0.0)
        error = jnp.where(prefills, self.rel_error[1], self.rel_error[0]) * (1.0 + (BEYOND - 1.0) * outside)
        return jnp.where(slots.delta > 0.5, error, self.analytic.rel_error), outside


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> RecurrentKernel:
    """What `engine` runs on gated delta networks: of each role its kernel of most rows, or any engine's without one.

    A version after it ("vllm/0.19.0") is not looked at: tables have one for each engine.
    """
    arrays = fitted.arrays
    codes = [_chosen(fitted, role, engine) for role in range(len(ROLES))]
    constants = {name: np.asarray(values, np.float64)[codes] for name, values in arrays["constants"].items()}
    error = np.asarray(arrays["error"], np.float64)[codes]
    low, high = (np.asarray(arrays[name], np.float64)[codes] for name in ("low", "high"))
    leaves: dict[str, Any] = {name: constants[name] for name in ("t0", "moved", "chunk", "token", "share", "cached")}
    leaves |= {"chain": constants["chain"][3], "rel_error": np.array([error[:2].max(), error[2:].max()])}
    leaves |= {"narrowest": low[[1, 3], 3], "widest": high[[1, 3], 3]}
    analytic: Any = analytic_cost().recurrent
    return RecurrentKernel(**leaves, largest_tokens=high[3, 0], largest_rows=high[1, 1], analytic=analytic)


def _chosen(fitted: Fitted, role: int, engine: str) -> int:
    rows, engine = np.asarray(fitted.arrays["rows"]), engine.partition("/")[0]
    wanted = [
        (name.split()[0] == engine, name.split()[-1] not in ("kda", "mamba"), rows[index], -index)
        for index, name in enumerate(fitted.kernels)
        if int(fitted.arrays["role"][index]) == role
    ]
    if not wanted:
        raise ValueError(f"the recurrent artifact must hold a kernel for {ROLES[role]}, got none; calibrate it again.")
    return -max(wanted)[3]
