"""Family `mixed`: attention kernels of batches with prefill, one fit per device over all engines' kernels.

The closed form of `sim.cost.prefill` with constants by kernel (`mixed_form`) times an ensemble's residual
(`mixed_features`): one ensemble for kernels whose tables hold decodes, one for those of prefill alone. A tenth of the
shapes are set apart to learn how far each kernel's prices err.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from predictors.attention.mixed_features import features
from predictors.attention.mixed_form import BOUNDS, COLD, START, Cut, Heads, Lengths, kernel_s, prefill_terms
from predictors.attention.mixed_kernel import MixedKernel, stored_nets
from predictors.attention.mixed_kernels import (
    CUTS,
    LATENT_DIMS,
    Known,
    allowed_for,
    as_arrays,
    beyond,
    cuts_of,
    known_of,
    nearest,
)
from predictors.attention.mixed_rows import (
    CELL,
    LAYOUT,
    ONE_IN as ONE_IN,
    heads_of,
    is_mixed,
    lengths_of,
    names_of,
    shapes as shapes,
    splits_of,
    unused as unused,
)
from predictors.family import Fitted, Predicted
from predictors.physics import fit_constants
from predictors.residual import Residual, Schedule, train
from predictors.splits import held_out
from predictors.table import OperatorTable
from sim.hardware.spec import DeviceConf


NAME = "mixed"
VERSION = 1
SCHEDULES = {
    "mixed": Schedule(members=4, width=64, steps=4000, batch=2048, rate=4e-3),
    "alone": Schedule(members=3, width=96, steps=6000, batch=2048, rate=4e-3),
}
QUICK = Schedule(members=2, width=16, steps=300, batch=256)
TRIED, REFINED = (250, 250), (1500, 400)
"""Rows of each kernel and steps of the descent, to find how it cuts its work and then its constants."""
SEEN = {"mixed": 80_000, "alone": 120_000}
"""Rows that a network is trained on at most."""
REPEATED = 0.15
"""Chance of a row of uniform decodes from a table of skewed ones: it repeats another table's."""
LEAST_ROWS = 50
"""A kernel with fewer is left out."""
CHUNK = 16384


def fit(table: OperatorTable, device: DeviceConf, seed: int, quick: bool) -> Fitted:
    """Cuts and constants of all kernels together, then the ensembles."""
    table = table.where(is_mixed(table))
    if not len(table):
        raise ValueError("the attention tables hold no batch that prefills; add some, or leave the family out.")
    table = table.where(_told(names_of(table)))
    names = names_of(table)
    kernels = tuple(sorted(set(names.tolist())))
    code = np.searchsorted(np.array(kernels, object), names)
    lengths, heads = lengths_of(table), heads_of(table, device)
    known = known_of(table, names, kernels, lengths, heads)
    apart = _apart(table)
    rng = np.random.default_rng(seed)
    shorter = 10 if quick else 1
    known = _cut(known, lengths, heads, table.seconds, code, ~apart, rng, shorter)
    rows = _sample(code, ~apart, REFINED[0] // shorter, rng)
    constants = _constants(
        known, _take(lengths, rows), _take(heads, rows), table.seconds[rows], code[rows], REFINED[1] // shorter
    )
    arrays: dict[str, Any] = {"constants": constants, "nets": {}}
    physics_s, seen = _seen(known, constants, lengths, heads, code)
    for index, name in enumerate(("alone", "mixed")):
        mine = np.flatnonzero((known.mixed[code] == index) & ~apart)
        if not len(mine):
            continue
        chance = np.where(table["op"][mine] == "mixed_uniform", REPEATED, 1.0)
        chance /= np.sqrt(np.bincount(code[mine], minlength=len(kernels))[code[mine]])
        if len(mine) > SEEN[name]:
            mine = np.sort(rng.choice(mine, SEEN[name], False, chance / chance.sum()))
        log_ratio = np.log(table.seconds[mine] / physics_s[mine])
        net = train(seen[name][mine], log_ratio, seed=seed, schedule=QUICK if quick else SCHEDULES[name])
        arrays["nets"][name] = _stored(net)
    fitted = Fitted(NAME, VERSION, arrays | {"known": as_arrays(known)}, kernels)
    errors = _errors(fitted, physics_s, seen, code, table.seconds, apart)
    known = known._replace(error=np.array([errors.get(kernel, errors[""]) for kernel in kernels]))
    facts = {"rows": len(table), "seed": seed, "median error of kernels on shapes apart": errors}
    return Fitted(NAME, VERSION, arrays | {"known": as_arrays(known)}, kernels, facts)


def predict(fitted: Fitted, table: OperatorTable, device: DeviceConf) -> Predicted:
    """Price every row."""
    known = Known(**fitted.arrays["known"])
    names = names_of(table).tolist()
    place = {kernel: index for index, kernel in enumerate(fitted.kernels)}
    near = {name: place[name] if name in place else _nearest(fitted, known, name) for name in set(names)}
    code = np.array([near[name] for name in names])
    lengths, heads = lengths_of(table), heads_of(table, device)
    physics_s, seen = _seen(known, fitted.arrays["constants"], lengths, heads, code)
    log_factor, spread = _corrections(fitted, seen, known.mixed[code])
    with jax.enable_x64(True):
        outside = np.asarray(beyond(known, code, lengths, heads))
    outside = np.where([name in place for name in names], outside, 1.0)
    error = known.error[code]
    return Predicted(
        physics_s * np.exp(log_factor),
        np.sqrt(np.maximum(error, OUTSIDE * outside) ** 2 + spread**2),
        outside,
    )


OUTSIDE = 0.12
"""Relative error claimed outside the measured range."""


def _nearest(fitted: Fitted, known: Known, name: str) -> int:
    """The kernel that stands in for one that the fit does not know."""
    engine, *_, element, dim = name.split("|")
    allowed = allowed_for(fitted.kernels, engine)
    latent = float(float(dim) == LATENT_DIMS)
    with jax.enable_x64(True):
        return int(nearest(known, allowed, element_bytes=float(element), dim=float(dim), latent=latent))


def kernel(fitted: Fitted, device: DeviceConf, engine: str) -> MixedKernel:
    """The kernel of `sim.cost` that prices a plan of `engine`."""
    known = Known(**fitted.arrays["known"])
    values: dict[str, Any] = {
        "constants": {name: np.asarray(value) for name, value in fitted.arrays["constants"].items()},
        "known": known,
        "kinds": tuple("mixed" if mixed else "alone" for mixed in np.asarray(known.mixed).tolist()),
        "allowed": allowed_for(fitted.kernels, engine),
        "nets": stored_nets(fitted.arrays["nets"]),
        "outside_error": np.asarray(OUTSIDE),
    }
    return MixedKernel(**values)


def splits(table: OperatorTable, device: DeviceConf) -> Mapping[str, Bool[np.ndarray, " row"]]:
    """See `mixed_rows.splits_of`."""
    return splits_of(table, device)


def _stored(net: Residual) -> dict[str, Any]:
    ranges = {name: np.asarray(getattr(net, name), np.float32) for name in ("center", "scale", "low", "high")}
    return ranges | {"parameters": jax.tree.map(lambda leaf: np.asarray(leaf, np.float16), net.parameters)}


def _told(names: np.ndarray) -> Bool[np.ndarray, " row"]:
    """Rows of kernels that have enough of them; all rows where none has."""
    kernels, place, count = np.unique(names.astype(str), return_inverse=True, return_counts=True)
    enough = count >= min(LEAST_ROWS, int(count.max()))
    return enough[place]


def _apart(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Shapes that no network sees."""
    mixed = table["decodes"] > 0.0
    return np.where(mixed, held_out(table, (*CELL, "prefill_tokens"), 10), held_out(table, (*LAYOUT, "v_dim"), 10))


def _take(tuples: Any, rows: Any) -> Any:
    return type(tuples)(*(np.asarray(leaf, np.float64)[rows] for leaf in tuples))


def _sample(code: np.ndarray, chosen: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Up to `most` chosen rows of each kernel; any row of one that has none chosen."""
    found = []
    for kernel in range(code.max() + 1):
        mine = code == kernel
        rows = np.flatnonzero(mine & chosen) if (mine & chosen).any() else np.flatnonzero(mine)
        found.append(rng.choice(rows, min(most, len(rows)), False))
    return np.sort(np.concatenate(found))


def _constants(known, lengths: Lengths, heads: Heads, seconds, code, steps: int) -> dict[str, np.ndarray]:
    """Constants by kernel that fit the rows."""
    cut = _cut_of(known, code)

    def priced(constants):
        mine = {name: value[code] for name, value in constants.items()}
        return kernel_s(jnp, prefill_terms(jnp, mine, cut, heads), lengths)

    start = {name: np.full(len(known.mixed), value) for name, value in START.items()}
    found, _ = fit_constants(priced, start, seconds, bounds=_bounds(known), steps=steps, rate=0.05)
    return found


def _bounds(known: Known) -> dict[str, Any]:
    """Kernels measured among others run from a cold cache: what memory does is not theirs to move."""
    cold = known.mixed > 0.0
    return {
        name: tuple(np.where(cold, COLD.get(name, ends)[end], ends[end]) for end in (0, 1))
        for name, ends in BOUNDS.items()
    }


def _cut_of(known: Known, code: np.ndarray) -> Cut:
    return Cut(*(np.asarray(leaf) for leaf in cuts_of(known, code)))


def _cut(known, lengths, heads, seconds, code, chosen, rng, shorter: int) -> Known:
    """How each kernel cuts its work: of all `CUTS` the one that fits it best, each with constants of its own."""
    rows, kinds = _sample(code, chosen, TRIED[0] // shorter, rng), len(CUTS)
    each, tried = np.repeat(rows, kinds), np.tile(np.arange(kinds), len(rows))
    many = Known(*(np.repeat(leaf, kinds, axis=0) for leaf in known))
    shapes = np.tile(np.array(CUTS).T, len(known.mixed))
    many = many._replace(tile_rows=shapes[0], packed=shapes[1], resident=shapes[2])
    own = code[each] * kinds + tried
    part = (_take(lengths, each), _take(heads, each))
    constants = _constants(many, *part, seconds[each], own, TRIED[1] // shorter)
    mine = {name: value[own] for name, value in constants.items()}
    physics_s = kernel_s(np, prefill_terms(np, mine, _cut_of(many, own), part[1]), part[0])
    error = np.minimum(np.abs(np.log(physics_s / seconds[each])), 0.3)
    mean = (np.bincount(own, error) / np.bincount(own)).reshape(-1, kinds)
    best = np.array(CUTS)[mean.argmin(axis=1)].T
    return known._replace(tile_rows=best[0], packed=best[1], resident=best[2])


def _parts(length: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, length, CHUNK))


def _seen(known, constants, lengths, heads, code) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The closed form's seconds of each row, float64, and the features of either network."""
    with jax.enable_x64(True):
        mine = {name: np.asarray(value, np.float64)[code] for name, value in constants.items()}
        terms = prefill_terms(np, mine, _cut_of(known, code), heads)
        physics_s = kernel_s(np, terms, lengths)
        one_hot = np.eye(len(known.mixed))
        seen: dict[str, list] = {"alone": [], "mixed": []}
        for rows in _parts(len(code)):
            leaves: Any = terms
            part: Any = type(leaves)(*(None if leaf is None else np.asarray(leaf)[rows] for leaf in leaves))
            kind = one_hot[code[rows]]
            for name, found in seen.items():
                own = kind[:, known.mixed == (name == "mixed")]
                row = _features(part, _take(heads, rows), _take(lengths, rows), own, name == "mixed")
                found.append(np.asarray(row, np.float32))
    return physics_s, {name: np.concatenate(found) for name, found in seen.items()}


_features = jax.jit(features, static_argnums=4)
_apply = jax.jit(lambda net, rows: net(rows))


def _corrections(fitted: Fitted, seen: Mapping[str, np.ndarray], mixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log factor and spread of each row."""
    log_factor, spread = np.zeros(len(mixed)), np.zeros(len(mixed))
    for name, net in stored_nets(fitted.arrays["nets"]).items():
        mine = np.flatnonzero(mixed == (name == "mixed"))
        for part in _parts(len(mine)):
            rows = mine[part]
            padded = np.zeros((CHUNK, seen[name].shape[1]), np.float32)
            padded[: len(rows)] = seen[name][rows]
            found = _apply(net, jnp.asarray(padded))
            log_factor[rows], spread[rows] = found.log_factor[: len(rows)], found.spread[: len(rows)]
    return log_factor, spread


def _errors(fitted, physics_s, seen, code, seconds, apart) -> dict[str, float]:
    """Median relative error on the shapes apart, by kernel and of all (""); of seen shapes where none is apart."""
    known = Known(**fitted.arrays["known"])
    log_factor, _ = _corrections(fitted, seen, known.mixed[code])
    error = np.abs(physics_s * np.exp(log_factor) / seconds - 1.0)
    judged = apart if apart.any() else np.ones(len(apart), bool)
    found = {"": float(np.median(error[judged]))}
    for index, kernel in enumerate(fitted.kernels):
        if (mine := judged & (code == index)).sum() >= 20:
            found[kernel] = float(np.median(error[mine]))
    return found
