"""Benchmarks of both engines with learned prices: steps per CPU-second.

The prices are those of the artifact shipped for the device; an attention kernel that none has learned gets factors
drawn at random on the same grids, and reading them costs the same.
"""

from typing import Any

import numpy as np

from scripts.bench_event import closed_loop, measured
from scripts.bench_scan import closed_loops, measured_lanes
from sim.cost.decode import DECODE_AXES
from sim.cost.grid import Axis, Grid, mesh
from sim.cost.lengths import LengthTerms
from sim.cost.prefill import BATCH_AXES, PREFILL_AXES
from sim.cost.table import PriceTable


def event_learned() -> dict[str, float | str]:
    """The work of `event_counted`."""
    job = closed_loop("auto")
    table, factors = with_grids(job.price_table())
    return measured(job, table) | {"factors": factors}


def scan_learned() -> dict[str, float | str]:
    """The work of `scan_analytic`."""
    jobs, table, configuration = closed_loops("auto")
    table, factors = with_grids(table)
    return measured_lanes(jobs, table, configuration) | {"factors": factors}


def with_grids(table: PriceTable) -> tuple[PriceTable, str]:
    """The same prices with a grid on every attention kernel, and whether those were learned or drawn."""
    learned = [kernel.grid is not None for kind in table.lengths.attention for kernel in (kind.decode, kind.prefill)]
    kinds = []
    for kind in table.lengths.attention:
        decode, prefill = _gridded(kind.decode, DECODE_AXES), _gridded(kind.prefill, PREFILL_AXES, BATCH_AXES)
        kinds.append(kind._replace(decode=decode, prefill=prefill))
    whence = "learned" if all(learned) else "some drawn" if any(learned) else "drawn"
    return table._replace(lengths=LengthTerms(tuple(kinds), table.lengths.recurrent)), whence


def _gridded(terms: Any, *grids: tuple[Axis, ...]) -> Any:
    """With drawn factors on its grids, one after the other, if it has none."""
    if terms.grid is not None:
        return terms
    nodes = sum(len(mesh(axes)[0]) for axes in grids)
    return terms._replace(grid=Grid((1.0 + 0.05 * np.random.default_rng(0).standard_normal(nodes)).tolist()))
