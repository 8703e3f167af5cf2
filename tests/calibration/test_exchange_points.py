"""Fits of measured dispatch and combine: known constants are found again, tables survive writing and reading."""

import numpy as np
import pytest

from calibration.exchange_points import FREE, fit, fits, read, shape_of, spread, summary, write
from calibration.tables.aiconfigurator import installed
from sim.hardware.exchange_form import HIGH_THROUGHPUT, LOW_LATENCY, Constants, exchange_s
from sim.hardware.exchange_table import ExchangePoints, read_points, read_rows, shipped_points


TOKENS = tuple(float(1 << power) for power in range(13))
TRUE = Constants(8e-6, 1.5e-8, 2e-10, 4e-6, 2.5e11, 3e10, 0.0, 0.0)


def made(hidden, top_k, experts, ranks=8, nodes=1, mode=LOW_LATENCY, constants=TRUE) -> ExchangePoints:
    """A series that the constants give exactly."""
    one = ExchangePoints("h200_sxm", mode, "dispatch", ranks, nodes, hidden, top_k, experts, "1.0", TOKENS, TOKENS)
    times = exchange_s(mode, constants, shape_of(one), np.array(TOKENS))
    return one._replace(time_s=tuple(times.tolist()))


SHAPES = ((2048, 8, 128), (4096, 2, 8), (4096, 6, 256), (5120, 1, 16), (6144, 4, 128), (7168, 8, 256), (7168, 6, 384))


def test_known_constants_are_found_again():
    several = [made(*shape) for shape in SHAPES]
    found = fit(several, Constants(0.0, 0.0, 0.0, 0.0, np.inf, np.inf, 0.0, 0.0), FREE[LOW_LATENCY])
    assert found == pytest.approx(TRUE, rel=0.02)


def test_errors_by_what_was_held_out(tmp_path):
    across = TRUE._replace(base_s=2e-5, nic_bytes_per_s=4.5e10)
    several = [made(*shape) for shape in SHAPES]
    several += [made(7168, 8, 256, ranks, ranks // 8, constants=across) for ranks in (16, 32)]
    several.append(made(7168, 8, 256, mode=HIGH_THROUGHPUT)._replace(ranks=4))
    several.append(made(7168, 8, 256, mode=HIGH_THROUGHPUT))
    found = fits(several)
    by = {(one.row.mode, one.row.ranks): one for one in found}
    inside = by[LOW_LATENCY, 8]
    assert set(inside.errors) == {"fit", "tokens", "hidden", "top_k"}
    assert max(error.p95 for error in inside.errors.values()) < 0.05
    assert by[LOW_LATENCY, 32].row.constants.nic_bytes_per_s == pytest.approx(4.5e10, rel=0.02)
    assert by[LOW_LATENCY, 16].errors["ranks"].median < 0.02
    assert "ranks" in by[HIGH_THROUGHPUT, 4].errors
    write(several, found, tmp_path, "2026-11")
    points = read_points((tmp_path / "exchange_points.csv").read_text().splitlines())
    assert [one[:-1] for one in points] == [one[:-1] for one in several]
    rows = read_rows((tmp_path / "exchanges.csv").read_text().splitlines())
    assert [row[:5] for row in rows] == [one.row[:5] for one in found]
    assert rows[0].constants == pytest.approx(found[0].row.constants)
    assert len(summary(found).splitlines()) == len(found) + 1


def test_spread_is_of_relative_errors():
    found = spread([np.log([1.1, 0.9]), np.log([1.3])])
    assert found == pytest.approx((0.1, 0.28, 0.5 / 3))


@pytest.mark.skipif(installed() is None, reason="needs the package's tables")
def test_what_is_shipped_is_what_the_tables_say():
    shipped = [one for several in shipped_points().values() for one in several]
    tables = {one[:-2]: one for one in read()}
    assert {one[:-2] for one in shipped} == set(tables)
    for one in shipped:
        assert one.tokens == tables[one[:-2]].tokens
        assert one.time_s == pytest.approx(tables[one[:-2]].time_s, rel=1e-3)
