"""A plan's prices as two tables and a closed form, and the price of many steps by component in one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sim.cost.lengths import LengthTerms
from sim.cost.model import CostModel
from sim.cost.stats import BatchStats
from sim.cost.step_cost import SECONDS
from sim.deployment.plan import UNLIMITED, PlanArrays


MODES = ("eager", "piecewise", "full")
STATS = tuple(BatchStats.__dataclass_fields__)


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
def _tables(cost: CostModel, plan: PlanArrays, tokens, rows):
    zero = jnp.zeros((), tokens.dtype)
    base = dict.fromkeys(STATS, zero)

    def token_s(mode, padded):
        price = cost(plan, BatchStats(**(base | {"padded_tokens": padded, "graph_mode": mode})))
        return price.total_s

    def row_s(emitting):
        return cost(plan, BatchStats(**(base | {"emitting": emitting}))).head_s

    modes = jnp.arange(len(MODES), dtype=tokens.dtype)
    by_mode = jax.vmap(lambda mode: jax.vmap(lambda padded: token_s(mode, padded))(tokens))(modes)
    return by_mode, jax.vmap(row_s)(rows)


def price_table(cost: CostModel, plan: PlanArrays, max_tokens: int, max_rows: int) -> PriceTable:
    """Tabulate `cost` for one plan up to `max_tokens` padded tokens and `max_rows` emitting rows.

    The kernel is compiled for multiples of 1024 tokens and 256 rows, so that plans of one sweep share it.
    """
    tokens, rows = -(-(max_tokens + 1) // 1024) * 1024, -(-(max_rows + 1) // 256) * 256
    with jax.enable_x64(True):
        cost = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), cost)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), plan)
        token_s, row_s = _tables(cost, wide, np.arange(tokens, dtype=np.float64), np.arange(rows, dtype=np.float64))
        return PriceTable(
            token_s=np.array(token_s)[:, : max_tokens + 1],
            row_s=np.array(row_s)[: max_rows + 1],
            lengths=cost.length_terms(wide),
        )


@jax.jit
def _steps(cost: CostModel, plan: PlanArrays, stats: BatchStats):
    return jax.vmap(cost, in_axes=(None, 0))(plan, stats)


def price_steps(cost: CostModel, plan: PlanArrays, columns: Any) -> dict[str, np.ndarray]:
    """Seconds by component (and `total_s`, `memory_bytes`, `flops`) of many steps of one plan, in float64.

    `columns`: anything whose items or attributes are named as the fields of `BatchStats`, each `[step]`.
    """

    def column(name: str) -> np.ndarray:
        values = columns[name] if hasattr(columns, "keys") else getattr(columns, name)
        return np.asarray(values, np.float64)

    values = {name: column(name) for name in STATS}
    count = len(values["decodes"])
    padded = 1 << max(count - 1, 255).bit_length()
    with jax.enable_x64(True):
        cost = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), cost)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), plan)
        stats = BatchStats(**{name: np.pad(v, (0, padded - count)) for name, v in values.items()})
        price = _steps(cost, wide, stats)
        names = (*SECONDS, "total_s", "memory_bytes", "flops")
        return {name: np.asarray(getattr(price, name))[:count] for name in names}


def stack_terms(tables: Sequence[LengthTerms]) -> LengthTerms:
    """Terms of several plans with a leading `config` axis, `[config]` leaves in float64.

    Kinds are matched by position; a plan with fewer kinds than another gets ones with `count` 0. Windows are kept
    only where some plan has one.
    """

    def stacked(name: str) -> tuple:
        lists = [getattr(table, name) for table in tables]
        some = max(lists, key=len)
        width = len(some)
        rows = [list(kinds) + [kind._replace(count=0.0) for kind in some[len(kinds) :]] for kinds in lists]
        return tuple(_stack([kinds[index] for kinds in rows]) for index in range(width))

    return LengthTerms(stacked("attention"), stacked("recurrent"))


def _stack(kinds: list) -> Any:
    """One kind of several plans; where only some have a window, the others get one that never binds."""
    if any(getattr(kind, "window", None) is not None for kind in kinds):
        kinds = [kind._replace(window=UNLIMITED, chunked=0.0) if kind.window is None else kind for kind in kinds]
    return jax.tree.map(lambda *leaves: np.array(leaves, np.float64), *kinds)
