"""The file of fitted constants: what it says, that it gives the fit back, what it refuses; the page's example."""

import dataclasses
import json
import re
from importlib.metadata import version
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest

from predictors.artifact import load, save
from sim.cost.stats import BatchStats


@pytest.fixture
def path(found, tmp_path):
    save(tmp_path / "constants.json", found, data="sixty steps", date="2026-11-30")
    return tmp_path / "constants.json"


def test_applying_the_file_gives_the_fit(path, found, cost, plan):
    new_cost, new_plan = load(path).apply(cost, plan)
    assert eqx.tree_equal(new_cost, found.cost) and eqx.tree_equal(new_plan, found.plan)


def test_reading_gives_what_was_written(path, found):
    assert load(path) == save(path, found, data="sixty steps", date="2026-11-30")


def test_the_file_says_where_it_comes_from(path, found, plan):
    content = json.loads(path.read_text())
    assert content["schema"] == "headway.constants/1"
    assert (content["data"], content["date"], content["rows"]) == ("sixty steps", "2026-11-30", 60)
    assert content["headway"] == version("headway")
    assert content["data_sha256"] == found.data_sha256
    assert content["error_before"]["median"] == np.median(np.abs(found.error_before))
    assert content["error_after"]["bias"] == found.error_after.mean()
    entry = content["constants"]["device.memory_bytes_per_s"]
    assert entry == {
        "published": float(plan.device.memory_bytes_per_s),
        "factor": found.factors["device.memory_bytes_per_s"],
    }


def test_a_stack_of_plans_is_scaled_alike(path, found, cost, plan):
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), plan)
    _, new = load(path).apply(cost, stacked)
    assert eqx.tree_equal(jax.tree.map(lambda leaf: leaf[1], new), found.plan)


def test_another_device_is_refused(path, cost, plan):
    other = eqx.tree_at(lambda p: p.device.cache_bytes_per_s, plan, 1e12)
    with pytest.raises(ValueError, match="fitted where device.cache_bytes_per_s was .*, got 1000000000000.0: that is"):
        load(path).apply(cost, other)


def test_other_published_constants_are_refused(path, cost, plan):
    other = eqx.tree_at(lambda c: c.decode.floor_s, cost, np.float64(1e-6))
    with pytest.raises(ValueError, match="fitted where decode.floor_s was 7e-06, got 1e-06"):
        load(path).apply(other, plan)


def test_a_list_of_another_length_is_refused(found, cost, plan, tmp_path):
    published = found.published | {"gemm.tile_share": np.ones(3)}
    other = dataclasses.replace(found, factors={"gemm.tile_share": 1.1}, published=published)
    artifact = save(tmp_path / "tiles.json", other, data="x", date="2026-11-30")
    with pytest.raises(ValueError, match=r"fitted where gemm.tile_share was \[1.0, 1.0, 1.0\], got \[0"):
        artifact.apply(cost, plan)


def test_applying_twice_is_refused(path, cost, plan):
    artifact = load(path)
    with pytest.raises(ValueError, match="or they are applied already"):
        artifact.apply(*artifact.apply(cost, plan))


def test_a_constant_that_is_no_more_is_refused(path, cost, plan):
    path.write_text(path.read_text().replace("decode.floor_s", "decode.flor_s"))
    with pytest.raises(ValueError, match="'decode.flor_s' is no rate.*nearest is 'decode.floor_s'"):
        load(path).apply(cost, plan)


def test_a_date_that_is_none(found, tmp_path):
    with pytest.raises(ValueError, match="date must be YYYY-MM-DD, got 'yesterday'"):
        save(tmp_path / "x.json", found, data="x", date="yesterday")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON file"),
        ("[1]", "must have the schema 'headway.constants/1', got None"),
        ('{"schema": "headway.constants/9"}', "must have the schema 'headway.constants/1', got 'headway.constants/9'"),
        ('{"schema": "headway.constants/1", "constants": {}}', "does not hold the fields"),
        ('{"schema": "headway.constants/1", "constants": {}, "device": 5}', "does not hold the fields"),
        ('{"schema": "headway.constants/1", "constants": {"a": {"factor": 1}}}', "does not hold the fields"),
        ('{"schema": "headway.constants/1", "constants": {"a": {"factor": "x", "published": 1}}}', "does not hold"),
    ],
)
def test_a_broken_file(tmp_path, text, message):
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "broken.json")


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="cannot read the constants in .*none.json: No such file or directory"):
        load(tmp_path / "none.json")


@pytest.mark.parametrize("factor", [float("nan"), 0.0, -1.0, 3.5])
def test_a_factor_beyond_the_bounds(path, factor):
    content = json.loads(path.read_text())
    content["constants"]["gemm.flops_per_s"]["factor"] = factor
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"allows factors up to 3.0, got {factor} for gemm.flops_per_s"):
        load(path)


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys, stats, measured_s, truth, plan):
    page = (Path(__file__).parents[2] / "docs" / "calibrate.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = [*BatchStats.__dataclass_fields__, "measured_s"]
    table = np.column_stack([*(getattr(stats, name) for name in names[:-1]), measured_s])
    np.savetxt(tmp_path / "steps.csv", table, delimiter=",", header=",".join(names), comments="", fmt="%.17g")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    exec(example, scope)
    assert scope["found"].factors == pytest.approx(truth, rel=1e-4)
    assert scope["job"].plan.arrays.device.memory_bytes_per_s == pytest.approx(0.85 * plan.device.memory_bytes_per_s)
    assert len(scope["result"].requests) == 20 and all(scope["result"].checks.values())
    assert "device.memory_bytes_per_s: x 0.85" in capsys.readouterr().out
