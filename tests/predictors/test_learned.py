"""Which artifact a simulation takes, and what a report says of it."""

import dataclasses

import numpy as np
import pytest

from predictors import gemm, learned, recurrent
from predictors.family import Fitted
from predictors.learned import artifact_for, cost_rows, families_of, learned_cost, shipped_for
from predictors.recurrent import ROLES, START, RecurrentKernel
from predictors.store import load, save
from sim.cost.analytic import analytic_cost
from sim.hardware.read import load_device
from sim.model.read import load_model


@pytest.fixture(scope="module")
def h100():
    return load_device("h100-sxm")


@pytest.fixture(scope="module")
def fitted():
    four = np.ones((4, 4))
    arrays = {
        "constants": {name: np.array(values) for name, values in START.items()},
        "role": np.arange(4.0),
        "error": np.array([0.01, 0.02, 0.03, 0.04]),
        "rows": np.full(4, 100.0),
        "low": four,
        "high": 1e4 * four,
    }
    return Fitted("recurrent", recurrent.VERSION, arrays, tuple(f"vllm 0.24.0 {role}" for role in ROLES))


@pytest.fixture
def folder(tmp_path, fitted, h100):
    told = {"tables": [{"source": "a table"}, {"source": "a table"}], "date": "2026-11-30"}
    told |= {"errors": {"shapes": {"": {"median": 0.0321}}}}
    save(tmp_path / "h100-sxm", h100.name, [fitted], {"recurrent": told})
    return tmp_path / "h100-sxm"


def test_learned_kernels_take_the_place_of_analytic_ones(folder, h100):
    cost = learned_cost(load(folder), h100, "vllm")
    assert isinstance(cost.recurrent, RecurrentKernel)
    assert cost.recurrent.rel_error.tolist() == pytest.approx([0.02, 0.04])
    assert type(cost.gemm) is type(analytic_cost().gemm)


def test_an_artifact_by_folder(folder, h100):
    assert artifact_for(h100, str(folder)).name == "h100-sxm"
    # For a device of the catalogue: its folder, or one of folders by device.
    assert shipped_for("h100-sxm", str(folder)).name == shipped_for("h100-sxm", str(folder.parent)).name == "h100-sxm"
    assert artifact_for(h100, "analytic") is None is shipped_for("h100-sxm", "analytic")


def test_the_artifact_of_another_device_is_refused(folder):
    with pytest.raises(ValueError, match="was fitted on NVIDIA H100 SXM.*, got hardware NVIDIA B200"):
        artifact_for(load_device("b200-sxm"), str(folder))


def test_a_folder_that_is_none_is_refused(tmp_path, h100):
    with pytest.raises(ValueError, match="predictor must be auto, kernels, analytic or a folder .*, got .*nowhere"):
        artifact_for(h100, str(tmp_path / "nowhere"))


def test_auto_takes_what_was_shipped_for_the_device(folder, h100, monkeypatch):
    monkeypatch.setattr(learned, "shipped", lambda: {h100.name: folder})
    found = artifact_for(h100)
    assert found is artifact_for(h100) and found.card["device"] == h100.name
    assert artifact_for(load_device("b200-sxm")) is None


def test_a_device_without_kernels_of_its_own_takes_those_of_its_chip(folder, h100, monkeypatch):
    """Its own go first; a report says whose they are; a name that is none is refused."""
    monkeypatch.setattr(learned, "shipped", lambda: {h100.name: folder})
    twin = dataclasses.replace(h100, name="Twin of an H100", kernels_of="h100-sxm")
    found = artifact_for(twin)
    assert found is artifact_for(twin) and found.families["recurrent"] is artifact_for(h100).families["recurrent"]
    assert h100.name in dict((what, source) for what, _, source in cost_rows(found))["recurrent kernels"]
    assert all(h100.name not in source for *_, source in cost_rows(artifact_for(h100)))
    monkeypatch.setattr(learned, "shipped", lambda: {twin.name: folder})
    assert "lender" not in artifact_for(twin).card["families"]["recurrent"]
    assert artifact_for(h100) is None
    with pytest.raises(ValueError, match="hardware.kernels_of=h9000 is not a known device"):
        artifact_for(dataclasses.replace(h100, name="Other", kernels_of="h9000"))


def test_devices_of_one_chip():
    assert {name: load_device(name).kernels_of for name in ("gb200", "gb300", "b200-sxm")} == {
        "gb200": "b200-sxm",
        "gb300": "b300-sxm",
        "b200-sxm": "",
    }


@pytest.fixture
def products_alone(tmp_path, h100):
    """An artifact of a user's own, with products and nothing else."""
    save(tmp_path / "mine", h100.name, [Fitted("gemm", gemm.VERSION, {}, ())], {"gemm": {"tables": [], "errors": {}}})
    return tmp_path / "mine"


def test_families_that_an_own_artifact_lacks_come_from_the_shipped_one(folder, products_alone, h100, monkeypatch):
    monkeypatch.setattr(learned, "shipped", lambda: {h100.name: folder})
    found = artifact_for(h100, str(products_alone))
    assert (found.name, list(found.families)) == ("mine", ["gemm", "recurrent"])
    assert found.families["recurrent"] is artifact_for(h100).families["recurrent"]
    rows = cost_rows(found)
    assert rows[0][:2] == ("gemm kernels", "learned, error on unseen shapes not known")
    assert rows[1][2] == "a table, fitted 2026-11-30; comes with Headway, for the artifact of predictor= has none"
    assert rows[2][0] == "decode, mixed, moe, elementwise kernels" and rows[2][1] == "estimated"
    # What the user's own has stays the user's own, and is judged alone.
    assert artifact_for(h100, str(folder)).families.keys() == {"recurrent"}
    assert "lent" not in artifact_for(h100, str(folder)).card["families"]["recurrent"]
    assert shipped_for("h100-sxm", str(products_alone)).families.keys() == {"gemm"}


def test_an_own_artifact_of_a_device_without_a_shipped_one_stays_as_it_is(products_alone, h100, monkeypatch):
    monkeypatch.setattr(learned, "shipped", dict)
    assert artifact_for(h100, str(products_alone)).families.keys() == {"gemm"}


def test_a_lent_family_is_checked_as_ever(folder, products_alone, h100, monkeypatch):
    monkeypatch.setattr(learned, "shipped", lambda: {h100.name: folder})
    (folder / "recurrent.msgpack").write_bytes(b"other")
    with pytest.raises(ValueError, match="recurrent.msgpack is not the file that card.json describes"):
        artifact_for(h100, str(products_alone))


def test_a_report_says_what_is_learned_and_what_is_not(folder, h100):
    rows = cost_rows(load(folder))
    assert rows[0] == ("recurrent kernels", "learned, 3.2% median error on unseen shapes", "a table, fitted 2026-11-30")
    assert rows[1][1] == "estimated" and "gemm" in rows[1][0] and "recurrent" not in rows[1][0]
    (only,) = cost_rows(None)
    assert only[0] == "step prices" and "analytic model" in only[2]


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("llama-3.1-8b", {"decode", "mixed"}),
        ("qwen3-30b-a3b", {"decode", "mixed", "moe"}),
        ("mamba2-2.7b", {"recurrent"}),
        ("jamba-v0.1", {"decode", "mixed", "recurrent", "moe"}),
    ],
)
def test_a_report_tells_of_the_kernels_that_the_model_runs(name, others):
    assert families_of(load_model(name)) == {"gemm", "elementwise"} | others


def test_kernels_that_the_model_does_not_run_are_left_out(folder):
    assert [row[0] for row in cost_rows(load(folder), {"gemm", "elementwise"})] == ["gemm, elementwise kernels"]
