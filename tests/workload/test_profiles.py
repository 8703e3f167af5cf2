"""The shipped length tables against their sources."""

import re

import numpy as np
import pytest

from calibration.length_profiles import RECIPES, pairs_of, table
from sim.workload import WorkloadConf, build_workload
from sim.workload.length import profile


QUANTILES = (0.5, 0.9, 0.99)


def statistics(values):
    return np.array([values.mean(), *np.quantile(values, QUANTILES)])


def close(got, wanted):
    """Within 2 %, or the one token that rounding may cost."""
    return bool(np.all(np.abs(got - wanted) <= np.maximum(0.02 * wanted, 1.0)))


def whole_table(name):
    """Input and output lengths over an even grid of probabilities: the table's distribution without sampling noise."""
    u, v = np.meshgrid((np.arange(2000) + 0.5) / 2000, (np.arange(400) + 0.5) / 400)
    return [np.maximum(column, 1) for column in profile.load(name).lengths(u.ravel(), v.ravel())]


def quarter_means(prompt, output):
    """Mean output in each quarter of the requests, ordered by input."""
    ordered = output[np.argsort(prompt, kind="stable")]
    return np.array([quarter.mean() for quarter in np.array_split(ordered, 4)])


def test_every_recipe_is_shipped_and_nothing_else():
    assert profile.names() == sorted(RECIPES)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_table_has_the_statistics_that_its_header_states(name):
    facts = profile.load(name).facts
    assert {"source", "licence", "rows", "note"} <= set(facts)
    for what, values in zip(("input tokens", "output tokens"), whole_table(name), strict=True):
        stated = np.array([float(number) for number in re.findall(r"(?:mean|p50|p90|p99) ([\d.]+)", facts[what])])
        assert close(statistics(values), stated), f"{what}: {statistics(values)} against {stated}"


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"reasoning-servegen"}))
def test_table_has_mean_and_quantiles_of_its_source_and_the_dependence_in_it(name, shared):
    pairs = pairs_of(name, shared / "data")
    prompt, output = whole_table(name)
    assert close(statistics(prompt), statistics(pairs[:, 0]))
    assert close(statistics(output), statistics(pairs[:, 1]))
    # What independent marginals would lose; the smallest source has 92 requests to a quarter.
    error = quarter_means(prompt, output) / quarter_means(pairs[:, 0], pairs[:, 1]) - 1
    assert np.all(np.abs(error) < (0.15 if len(pairs) < 1000 else 0.05))


def test_shipped_table_is_what_the_script_makes(shared):
    made = table(pairs_of("azure-code", shared / "data"), RECIPES["azure-code"].edges, RECIPES["azure-code"].levels)
    shipped = profile.load("azure-code")
    assert np.allclose(made[:, 0], shipped.weight, rtol=1e-5)
    assert np.allclose(made[:, 1:3], np.stack([shipped.input_low, shipped.input_high], axis=1), rtol=1e-4)
    assert np.allclose(made[:, 3:], shipped.output, rtol=1e-4)


def test_tables_are_small():
    for name in profile.names():
        assert profile.load(name).output.size <= 64 * 32


def test_a_draw_follows_the_table_and_says_where_it_comes_from():
    workload = build_workload(WorkloadConf(lengths="profile", profile="azure-code", num_requests=50_000), 0)
    wanted = statistics(whole_table("azure-code")[0])
    # p99 of 50,000 draws: four standard errors are well inside 3 % here.
    assert np.all(np.abs(statistics(workload.prompt_tokens) / wanted - 1) < 0.03)
    assert any("CC-BY-4.0" in line and "AzurePublicDataset" in line for line in workload.provenance)


def test_profile_of_ones_own_is_a_file(tmp_path):
    file = tmp_path / "mine.csv"
    # Half of the requests: 10 in, outputs evenly from 1 to 3; the other half: 30 in, 7 out.
    file.write_text("# source: me\nweight,input_low,input_high,output_0,output_1\n0.5,10,10,1,3\n0.5,30,30,7,7\n")
    workload = build_workload(WorkloadConf(lengths="profile", profile=str(file), num_requests=4000), 0)
    short = workload.prompt_tokens == 10
    assert set(workload.prompt_tokens) == {10, 30}
    assert abs(short.sum() - 2000) < 4 * np.sqrt(1000)
    assert set(workload.output_tokens[short]) == {1, 2, 3} and set(workload.output_tokens[~short]) == {7}


@pytest.mark.parametrize(
    "text, message",
    [
        ("weight,input_low\n1,2\n", "line 1: wanted weight,input_low,input_high,output_0"),
        ("weight,input_low,input_high,output_0,output_1\n1,2,3\n", "line 2: wanted 5 finite numbers"),
        ("weight,input_low,input_high,output_0,output_1\n1,2,3,4,nan\n", "line 2: wanted 5 finite numbers"),
        ("weight,input_low,input_high,output_0,output_1\n", "at least one bin"),
        ("weight,input_low,input_high,output_0,output_0.5\n1,2,3,4,5\n", "levels that rise from 0 to 1"),
        ("weight,input_low,input_high,output_0,output_x\n1,2,3,4,5\n", "columns output_<level>"),
        ("weight,input_low,input_high,output_0,output_1\n1,2,3,5,4\n", "do not fall along a row"),
    ],
)
def test_broken_profile_says_what_is_wrong(tmp_path, text, message):
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        build_workload(WorkloadConf(lengths="profile", profile=str(file)), 0)


def test_unknown_profile_lists_the_known_ones():
    with pytest.raises(ValueError, match="workload.profile wants one of .*azure-code.*, got 'azure'"):
        build_workload(WorkloadConf(lengths="profile", profile="azure"), 0)
    with pytest.raises(ValueError, match="workload.lengths=profile wants workload.profile"):
        build_workload(WorkloadConf(lengths="profile"), 0)
