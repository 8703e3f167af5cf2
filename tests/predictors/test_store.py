"""Fitted families as files: what is written is what is read, and anything else is refused in one sentence."""

import json

import numpy as np
import pytest

from predictors.families import MODULES, family
from predictors.family import Fitted
from predictors.store import SCHEMA, load, save


DEVICE = "NVIDIA H100 SXM 80GB"
TOLD = {"tables": [{"source": "a table"}], "rows": 3, "seed": 0, "date": "2026-11-30", "licence": "", "errors": {}}


def fitted(name="recurrent", value=0.1):
    arrays = {"constants": {"t0": np.array([value, 2.0])}, "ranges": {"low": np.zeros((0, 3)), "codes": np.arange(3)}}
    arrays |= {"half": np.float16([1.5]), "width": 7}
    return Fitted(name, family(name).VERSION, arrays, ("a kernel", "another"), {"rows": 3})


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "h100", DEVICE, [fitted()], {"recurrent": TOLD})
    return tmp_path / "h100"


def edited(folder, change):
    card = json.loads((folder / "card.json").read_text())
    change(card)
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def test_what_is_written_is_read(folder):
    found = load(folder)
    one = found.families["recurrent"]
    assert (found.name, found.card["device"], found.card["schema"]) == ("h100", DEVICE, SCHEMA)
    assert (one.kernels, one.version, one.facts) == (("a kernel", "another"), family("recurrent").VERSION, {"rows": 3})
    # float64 is stored as float32, all else as it is.
    assert one.arrays["constants"]["t0"].tolist() == np.float32([0.1, 2.0]).tolist()
    assert one.arrays["half"].dtype == np.float16 and one.arrays["ranges"]["codes"].tolist() == [0, 1, 2]
    assert one.arrays["ranges"]["low"].shape == (0, 3) and int(one.arrays["width"]) == 7
    assert found.card["families"]["recurrent"]["tables"] == TOLD["tables"]


def test_the_same_fit_gives_the_same_bytes(folder, tmp_path):
    save(tmp_path / "again", DEVICE, [fitted()], {"recurrent": TOLD})
    for name in ("card.json", "recurrent.msgpack"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_families_that_are_not_written_stay(folder):
    save(folder, DEVICE, [fitted("gemm", 0.5)], {"gemm": TOLD})
    found = load(folder).families
    assert set(found) == {"gemm", "recurrent"}
    assert found["recurrent"].arrays["constants"]["t0"][0] == np.float32(0.1)
    with pytest.raises(ValueError, match=f"holds families of {DEVICE}, got another"):
        save(folder, "another", [fitted()], {"recurrent": TOLD})


def test_nothing_is_written_where_the_card_cannot_be(tmp_path):
    with pytest.raises(ValueError):
        save(tmp_path / "new", DEVICE, [fitted()], {"recurrent": TOLD | {"errors": {"shapes": np.nan}}})
    assert not (tmp_path / "new").exists()


def test_files_that_do_not_belong_together_are_refused(folder):
    (folder / "recurrent.msgpack").write_bytes((folder / "recurrent.msgpack").read_bytes() + b"0")
    with pytest.raises(ValueError, match=r"is not the file that .* describes \(its sha256 differs\)"):
        load(folder)
    (folder / "recurrent.msgpack").unlink()
    with pytest.raises(ValueError, match="recurrent.msgpack is missing"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda card: card["families"]["recurrent"].update(version=99), "fitted with version 99 of the features"),
        (lambda card: card.update(schema="other/1"), f"schema must be {SCHEMA}, got 'other/1'"),
        (lambda card: card["families"].update(strange={}), "family must be one of .*, got strange"),
    ],
)
def test_cards_of_others_are_refused(folder, change, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load(edited(folder, change))
    assert str(caught.value).count(". ") == 0 and str(caught.value).endswith(".")


def test_families_are_modules_with_a_name_and_a_version():
    for name in MODULES:
        module = family(name)
        assert module.VERSION >= 1 and all(callable(getattr(module, f)) for f in ("fit", "predict", "splits", "kernel"))
    with pytest.raises(ValueError, match="family must be one of gemm, decode, .*, got other"):
        family("other")
