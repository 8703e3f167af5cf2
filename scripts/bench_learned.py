"""Benchmarks of both engines with learned prices: steps per CPU-second.

A device without an artifact gets factors drawn at random on the same grids: reading them costs the same.
"""

from typing import Any

import numpy as np

from scripts.bench_event import closed_loop, measured
from scripts.bench_scan import closed_loops, measured_lanes
from sim.cost.decode import DECODE_AXES
from sim.cost.grid import Axis, Grid, mesh
from sim.cost.lengths import LengthTerms
from sim.cost.prefill import PREFILL_AXES
from sim.cost.table import PriceTable


def event_learned() -> dict[str, float | str]:
    """The work of `event_counted`."""
    job = closed_loop()
    return measured(job, with_grids(job.price_table()))


def scan_learned() -> dict[str, float | str]:
    """The work of `scan_analytic`."""
    jobs, table, configuration = closed_loops()
    return measured_lanes(jobs, with_grids(table), configuration)


def with_grids(table: PriceTable) -> PriceTable:
    """The same prices, with a grid on every attention kernel."""
    kinds = []
    for kind in table.lengths.attention:
        decode, prefill = _gridded(kind.decode, DECODE_AXES), _gridded(kind.prefill, PREFILL_AXES)
        kinds.append(kind._replace(decode=decode, prefill=prefill))
    return table._replace(lengths=LengthTerms(tuple(kinds), table.lengths.recurrent))


def _gridded(terms: Any, axes: tuple[Axis, ...]) -> Any:
    if terms.grid is not None:
        return terms
    nodes = len(mesh(axes)[0])
    return terms._replace(grid=Grid((1.0 + 0.05 * np.random.default_rng(0).standard_normal(nodes)).tolist()))
