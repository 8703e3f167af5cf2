"""A plan's prices as two tables and a closed form, and the price of many steps by component in one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sim.cost.lengths import LengthTerms
from sim.cost.model import CostModel
from sim.cost.stats import BatchStats
from sim.cost.step_cost import SECONDS
from sim.deployment.plan import UNLIMITED, PlanArrays


MODES = ("eager", "piecewise", "full")
STATS = tuple(BatchStats.__dataclass_fields__)
COLUMNS = (*SECONDS, "total_s", "memory_bytes", "flops")
CHUNK = 2048


class PriceTable(NamedTuple):
    """Price of one step: `token_s[mode, padded] + row_s[emitting] + lengths_s(lengths, ...)`, all float64.

    - `token_s`: `[mode, tokens + 1]`: products, experts, elementwise kernels, collectives, launch, host.
    - `row_s`: `[rows + 1]`: LM head and sampler.
    - `lengths`: constants of `sim.cost.lengths.lengths_s`, Python floats.
    """

    token_s: np.ndarray
    row_s: np.ndarray
    lengths: LengthTerms


@jax.jit
def _price(cost: CostModel, plan: PlanArrays, stats: BatchStats) -> Float[Array, "column row"]:
    price = jax.vmap(cost, in_axes=(None, 0))(plan, stats)
    return jnp.stack([getattr(price, name) for name in COLUMNS])


def _price_rows(cost: CostModel, plan: PlanArrays, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Price rows of one plan in float64, always `CHUNK` at a time: one compilation serves every table and every run."""
    count = len(next(iter(values.values())))
    empty = np.zeros(count)
    found = np.empty((len(COLUMNS), count))
    with jax.enable_x64(True):
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            spare = CHUNK - (rows.stop - start)
            fields: dict[str, Any] = {name: np.pad(values.get(name, empty)[rows], (0, spare)) for name in STATS}
            stats = BatchStats(**fields)
            found[:, rows] = np.asarray(_price(cost, plan, stats))[:, : rows.stop - start]
    return dict(zip(COLUMNS, found, strict=True))


def _in_float64(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def price_table(cost: CostModel, plan: PlanArrays, max_tokens: int, max_rows: int) -> PriceTable:
    """Tabulate `cost` for one plan up to `max_tokens` padded tokens and `max_rows` emitting rows."""
    cost, plan = _in_float64(cost), _in_float64(plan)
    tokens, rows, modes = np.arange(max_tokens + 1.0), np.arange(max_rows + 1.0), np.arange(float(len(MODES)))
    columns = {
        "padded_tokens": np.concatenate([np.tile(tokens, len(MODES)), np.zeros(len(rows))]),
        "graph_mode": np.concatenate([np.repeat(modes, len(tokens)), np.zeros(len(rows))]),
        "emitting": np.concatenate([np.zeros(len(MODES) * len(tokens)), rows]),
    }
    price = _price_rows(cost, plan, columns)
    with jax.enable_x64(True):
        lengths = cost.length_terms(plan)
    by_mode = price["total_s"][: -len(rows)].reshape(len(MODES), len(tokens))
    return PriceTable(token_s=by_mode.copy(), row_s=price["head_s"][-len(rows) :].copy(), lengths=lengths)


def price_steps(cost: CostModel, plan: PlanArrays, columns: Any) -> dict[str, np.ndarray]:
    """Seconds by component (and `total_s`, `memory_bytes`, `flops`) of many steps of one plan, in float64.

    `columns`: anything whose items or attributes are named as the fields of `BatchStats`, each `[step]`.
    """

    def column(name: str) -> np.ndarray:
        values = columns[name] if hasattr(columns, "keys") else getattr(columns, name)
        return np.asarray(values, np.float64)

    return _price_rows(_in_float64(cost), _in_float64(plan), {name: column(name) for name in STATS})


def stack_terms(tables: Sequence[LengthTerms]) -> LengthTerms:
    """Terms of several plans with a leading `config` axis, `[config]` leaves in float64.

    Kinds are matched by position; a plan with fewer kinds than another gets ones with no layers. Windows are kept
    only where some plan has one.
    """

    def stacked(name: str) -> tuple:
        lists = [getattr(table, name) for table in tables]
        some = max(lists, key=len)
        width = len(some)
        rows = [list(kinds) + [kind._replace(layers=0.0) for kind in some[len(kinds) :]] for kinds in lists]
        return tuple(_stack([kinds[index] for kinds in rows]) for index in range(width))

    return LengthTerms(stacked("attention"), stacked("recurrent"))


def _stack(kinds: list) -> Any:
    """One kind of several plans; where only some have a window, the others get one that never binds."""
    if any(getattr(kind, "window", None) is not None for kind in kinds):
        kinds = [kind._replace(window=UNLIMITED, chunked=0.0) if kind.window is None else kind for kind in kinds]
    return jax.tree.map(lambda *leaves: np.array(leaves, np.float64), *kinds)
