"""A plan's prices as two tables and a closed form, and the price of many steps by component in one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sim.cost.context import stacked_context
from sim.cost.experts.prices import SUMS, RoutingPrices, extra_seconds
from sim.cost.experts.times import RoutedExperts
from sim.cost.grid import stacked_grids
from sim.cost.lengths import LengthTerms
from sim.cost.model import CostModel
from sim.cost.priced import Priced
from sim.cost.stats import BatchStats
from sim.cost.step_cost import SECONDS, StepCost
from sim.deployment.plan import UNLIMITED, PlanArrays, trimmed


MODES = ("eager", "piecewise", "full")
STATS = tuple(BatchStats.__dataclass_fields__)
COLUMNS = (*SECONDS, "total_s", "memory_bytes", "flops", "rel_error", "outside_share")
BEHIND = ("gemm_s", "moe_s", "elementwise_s", "collective_s")
"""Components that depend on the padded tokens alone: what launches hide behind."""
TOTAL = COLUMNS.index("total_s")
OF_LENGTHS = (*Priced._fields, "memory_bytes", "flops")
CHUNK = 2048
GRIDS = ("decode", "prefill")
"""Parts of attention terms that may hold a grid."""


class PriceTable(NamedTuple):
    """Price of one step: `token_s[mode, padded] + row_s[rows] + lengths_s(lengths, ...)`, all float64.

    - `token_s`: `[mode, tokens + 1]`: products, experts, elementwise kernels, collectives, launch, host.
    - `row_s`: `[rows + 1]`: LM head and sampler, of emitting rows and the drafts beside them.
    - `lengths`: constants of `sim.cost.lengths.lengths_s`, Python floats.
    - `routing`: what unevenly spread experts change of that.
    """

    token_s: np.ndarray
    row_s: np.ndarray
    lengths: LengthTerms
    routing: RoutingPrices | None = None


def price_table(
    cost: CostModel, plan: PlanArrays, max_tokens: int, max_rows: int, experts: RoutedExperts | None = None
) -> PriceTable:
    """Tabulate `cost` for one plan up to `max_tokens` padded tokens and `max_rows` emitting rows.

    `experts`: how unevenly they are spread; None: as the cost model expects.
    """
    cost, terms = _prepared(cost, plan)
    with jax.enable_x64(True):
        by_tokens = _of_tokens(cost, terms, np.arange(max_tokens + 1.0))
        row_s = _of_rows(cost, terms, np.arange(max_rows + 1.0))[TOTAL]
        lengths = cost.lengths(terms)
    routing = None if experts is None else _routing(experts, plan, by_tokens[0])
    return PriceTable(token_s=by_tokens[:, TOTAL], row_s=row_s, lengths=lengths, routing=routing)


def _routing(experts: RoutedExperts, plan: PlanArrays, columns: np.ndarray) -> RoutingPrices:
    by_name = dict(zip(COLUMNS, columns, strict=True))
    device_s = np.sum([by_name[name] for name in BEHIND], axis=0)
    launch_s = np.asarray(plan.device.launch_s, np.float64)
    return RoutingPrices(experts, by_name["moe_s"].tolist(), device_s.tolist(), launch_s.tolist())


def length_terms(cost: CostModel, plan: PlanArrays, alike: Sequence[PlanArrays] = ()) -> LengthTerms:
    """The constants of the closed form alone; `alike` as in `price_steps`."""
    cost, terms = _prepared(cost, plan, alike)
    return cost.lengths(terms)


def price_steps(
    cost: CostModel, plan: PlanArrays, columns: Any, alike: Sequence[PlanArrays] = ()
) -> dict[str, np.ndarray]:
    """What many steps of one plan cost, in float64: seconds by component, and the rest of `COLUMNS`, by name.

    `columns`: anything whose items or attributes are named as the fields of `BatchStats`, each `[step]`; a mapping may
    leave out those that are 0. `alike`: other plans that are priced too: one compilation serves them and this one.
    """
    nothing = 0.0 * np.asarray(next(iter(columns.values())), np.float64) if hasattr(columns, "keys") else 0.0

    def column(name: str) -> np.ndarray:
        values = columns.get(name, nothing) if hasattr(columns, "keys") else getattr(columns, name)
        return np.asarray(values, np.float64)

    cost, terms = _prepared(cost, plan, alike)
    counts, of_tokens = np.unique(column("padded_tokens"), return_inverse=True)
    emitting, of_rows = np.unique(column("emitting") + column("draft_tokens"), return_inverse=True)
    mode = column("graph_mode").astype(int)
    lengths = np.stack([column(name) for name in STATS], axis=-1)
    with jax.enable_x64(True):
        tokens = _of_tokens(cost, terms, counts)[mode, :, of_tokens].T
        rows = _of_rows(cost, terms, emitting)[:, of_rows]
        attention = _chunks(_by_lengths, cost, terms, lengths)
    names = (COLUMNS, COLUMNS, OF_LENGTHS)
    return _together(*(dict(zip(*pair, strict=True)) for pair in zip(names, (tokens, rows, attention), strict=True)))


def price_experts(
    cost: CostModel, plan: PlanArrays, tokens: np.ndarray, rows: np.ndarray, active: np.ndarray
) -> np.ndarray:
    """Seconds of one layer of routed experts, `[slot, point]` in float64, at points of tokens and a rank's loads."""
    cost, terms = _prepared(cost, plan)
    with jax.enable_x64(True):
        all_layers = _chunks(_by_loads, cost, terms, np.stack([tokens, rows, active], axis=-1))
    count = np.asarray(plan.moe.count, np.float64)
    found = np.zeros((len(count), len(tokens)))
    used = np.flatnonzero(count > 0)
    found[used] = all_layers[: len(used)] / count[used, None]
    return found


def with_routing(
    found: dict[str, np.ndarray], plan: PlanArrays, experts: RoutedExperts, columns: Any
) -> dict[str, np.ndarray]:
    """Steps as `price_steps` found them, with their experts spread by `experts`; `columns` as there."""
    sums = [np.asarray(getattr(columns, name), np.float64) for name in SUMS]
    extra_s = extra_seconds(experts, found["moe_s"], np.asarray(columns.padded_tokens, np.float64), *sums)
    launch_s = np.asarray(plan.device.launch_s)[np.asarray(columns.graph_mode, np.int64)]
    late_s = launch_s - np.sum([found[name] for name in BEHIND], axis=0)
    change_s = np.maximum(late_s - extra_s, 0.0) - np.maximum(late_s, 0.0)
    found = found | {"moe_s": found["moe_s"] + extra_s, "launch_s": found["launch_s"] + change_s}
    return found | {"total_s": found["total_s"] + extra_s + change_s}


def _together(
    tokens: dict[str, np.ndarray], rows: dict[str, np.ndarray], attention: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Steps from what depends on their tokens, on their emitting rows, and on their lengths."""
    kernels_s = tokens["total_s"] - tokens["launch_s"] - tokens["host_s"] + rows["total_s"] + attention["seconds"]
    total_s = tokens["total_s"] + rows["total_s"] + attention["seconds"]
    error_s, outside_s = attention["error_s"], attention["outside_s"]
    for part in (tokens, rows):
        error_s = error_s + part["rel_error"] * part["total_s"]
        outside_s = outside_s + part["outside_share"] * (part["total_s"] - part["launch_s"] - part["host_s"])
    found = {name: tokens[name] + rows[name] for name in SECONDS}
    return found | {
        "attention_s": attention["seconds"],
        "total_s": total_s,
        "memory_bytes": attention["memory_bytes"],
        "flops": attention["flops"],
        "rel_error": np.divide(error_s, total_s, out=np.zeros_like(total_s), where=total_s > 0.0),
        "outside_share": np.divide(outside_s, kernels_s, out=np.zeros_like(total_s), where=kernels_s > 0.0),
    }


def _prepared(cost: CostModel, plan: PlanArrays, alike: Sequence[PlanArrays] = ()) -> tuple[CostModel, Any]:
    """The model in float64, and the computed terms of the slots that the plan, or one of `alike`, uses."""
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), plan, *alike)
    small = jax.tree.map(lambda leaf: leaf[0], trimmed(stack, few_shapes=True))
    cost, plan = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (cost, small))
    with jax.enable_x64(True):
        return cost, jax.tree.map(np.asarray, _terms(cost, plan))


def _chunks(priced: Any, cost: CostModel, terms: Any, rows: np.ndarray) -> np.ndarray:
    """`priced` of all rows, `[..., row]`, always `CHUNK` at a time: one compilation serves every table and run."""
    found = []
    for start in range(0, max(len(rows), 1), CHUNK):
        some = rows[start : start + CHUNK]
        spare = [(0, CHUNK - len(some)), *[(0, 0)] * (rows.ndim - 1)]
        found.append(np.asarray(priced(cost, terms, np.pad(some, spare)))[..., : len(some)])
    return np.concatenate(found, axis=-1)


@jax.jit
def _terms(cost: CostModel, plan: PlanArrays) -> Any:
    return cost.terms(plan)


def _of_tokens(cost: CostModel, terms: Any, tokens: np.ndarray) -> Float[np.ndarray, "mode column row"]:
    """Steps of so many padded tokens in each graph mode, nobody emitting."""
    return _chunks(_without_lengths, cost, terms, np.stack([tokens, 0.0 * tokens], axis=-1))


def _of_rows(cost: CostModel, terms: Any, rows: np.ndarray) -> Float[np.ndarray, "column row"]:
    """Head and sampler for so many emitting rows."""
    return _chunks(_without_lengths, cost, terms, np.stack([0.0 * rows, rows], axis=-1))[0]


@jax.jit
def _without_lengths(cost: CostModel, terms: Any, steps: Float[Array, "row 2"]) -> Float[Array, "mode column row"]:
    """Steps of padded tokens and emitting rows in each graph mode: one compilation for both, for it takes seconds.

    Only launching is computed once per mode.
    """

    def of_mode(mode, step):
        return _columns(cost.price(terms, _batch(padded_tokens=step[0], emitting=step[1], graph_mode=mode)))

    modes = jnp.arange(float(len(MODES)), dtype=steps.dtype)
    return jax.vmap(jax.vmap(of_mode, (0, None)), (None, 0), out_axes=2)(modes, steps)


@jax.jit
def _by_lengths(cost: CostModel, terms: Any, steps: Float[Array, "row stat"]) -> Float[Array, "column row"]:
    """What depends on the lengths; the compiler drops what else `price` would compute."""

    def of_step(values):
        batch = BatchStats(*values)
        work = cost.price(terms, batch)
        return jnp.stack([*cost.attention(terms, batch), work.memory_bytes, work.flops])

    return jax.vmap(of_step, out_axes=1)(steps)


@jax.jit
def _by_loads(cost: CostModel, terms: Any, points: Float[Array, "row load"]) -> Float[Array, "slot row"]:
    """Routed experts by tokens, rows and active experts."""
    return jax.vmap(lambda point: cost.experts(terms, *point).seconds, out_axes=1)(points)


def _columns(price: StepCost) -> Float[Array, " column"]:
    return jnp.stack([getattr(price, name) for name in COLUMNS])


def _batch(**fields: Float[Array, ""]) -> BatchStats:
    """A batch of the given fields, the others 0."""
    zero = jnp.zeros_like(next(iter(fields.values())))
    return BatchStats(**{name: fields.get(name, zero) for name in STATS})


def stack_terms(tables: Sequence[LengthTerms]) -> LengthTerms:
    """Terms of several plans with a leading `config` axis, `[config]` leaves in float64.

    Kinds are matched by position; a plan with fewer kinds than another gets ones with no layers. Windows are kept
    only where some plan has one. Rows that verify drafts have no place here.
    """

    def stacked(name: str) -> tuple:
        lists = [getattr(table, name) for table in tables]
        some = max(lists, key=len)
        width = len(some)
        rows = [list(kinds) + [kind._replace(layers=0.0) for kind in some[len(kinds) :]] for kinds in lists]
        return tuple(_stack([kinds[index] for kinds in rows]) for index in range(width))

    return LengthTerms(stacked("attention"), stacked("recurrent"), stacked_context([table.context for table in tables]))


def _stack(kinds: list) -> Any:
    """One kind of several plans; where only some have a window, the others get one that never binds."""
    kinds = [kind._replace(verify=None) if hasattr(kind, "verify") else kind for kind in kinds]
    if any(getattr(kind, "window", None) is not None for kind in kinds):
        kinds = [kind._replace(window=UNLIMITED, chunked=0.0) if kind.window is None else kind for kind in kinds]
    grids = {
        name: stacked_grids([getattr(kind, name).grid for kind in kinds]) for name in GRIDS if hasattr(kinds[0], name)
    }
    bare = [kind._replace(**{name: getattr(kind, name)._replace(grid=None) for name in grids}) for kind in kinds]
    stack = jax.tree.map(lambda *leaves: np.array(leaves, np.float64), *bare)
    return stack._replace(**{name: getattr(stack, name)._replace(grid=table) for name, table in grids.items()})
