"""`headway calibrate device=`: what is printed beside the artifact, and what is refused."""

import re

import pytest

from calibration import operators
from predictors.family import Fitted
from scripts import calibrate, validate_operators


HEAD = "device,engine,engine_version,kernel,dtype,op,timing"
LINEAR = "h100-sxm,torch,2.9.0,torch.nn.functional.linear,bf16,qkv_proj,kernel"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """What `scripts/profile.py` writes, in small: one product, a row of it that cannot be, eager norms, a sampler."""
    folder = tmp_path / "own"
    folder.mkdir()
    products = [f"{LINEAR},{m},6144,4096,{5 + m * 6144 * 4096 / 4e8:.6g}" for m in (16, 64, 256, 1024)]
    norms = [f"h100-sxm,torch,2.9.0,torch eager,bf16,norm,kernel,{32 * n},32768,{5 + 0.4 * n}" for n in range(1, 28)]
    for name, columns, rows in (
        ("gemm", "m,n,k,time_us", [*products, f"{LINEAR},1,6144,4096,0.01"]),
        ("elementwise", "tokens,bytes_per_token,time_us", norms),
        ("sequence", "rows,vocab,time_us", ["h100-sxm,torch,2.9.0,torch eager,bf16,sampler,kernel,1,128256,9"]),
    ):
        (folder / f"{name}.csv").write_text("\n".join([f"{HEAD},{columns}", *rows]) + "\n")
    monkeypatch.setattr(operators, "fit_family", lambda name, *_, **more: Fitted(name, 2, {}, ()))
    return folder


def test_what_is_set_aside_and_what_is_not_learned_is_printed(headway, tables):
    found = headway("calibrate", "device=h100-sxm", f"sources={tables}", "out=mine")
    assert found.code == 0 and "median %" not in found.out  # no table of errors with nothing but a header
    assert "set aside:\n  h100-sxm gemm: 1 of 5 rows: the time is below 0.1 us" in found.out
    assert "note: h100-sxm gemm: 1 shape is too few: the hash that holds out one in 8 took none" in found.out
    assert "note: none of the 27 rows of h100-sxm for elementwise can be learned: 27 of several kernels" in found.out
    assert "note: sequence tables are not learned here: a step's head is priced as a product" in found.out
    told = headway("calibrate", "device=h100-sxm", f"sources={tables}", "out=mine", "--json").json()
    assert told["set_aside"]["h100-sxm"]["gemm"].startswith("h100-sxm gemm: 1 of 5 rows:") and len(told["notes"]) == 3
    assert told["errors"] == {"h100-sxm": {"gemm": {"shapes": {}}}}


def test_nothing_set_aside_is_said_too(headway, tables):
    (tables / "gemm.csv").write_text(f"{HEAD},m,n,k,time_us\n{LINEAR},64,6144,4096,9\n")
    found = headway("calibrate", "device=h100-sxm", "family=gemm", f"sources={tables}", "out=mine")
    assert "  h100-sxm gemm: nothing was set aside\n" in found.out and "sequence" not in found.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("device=h100-sxm", "family=elementwise"), "none of the 27 rows of h100-sxm for elementwise can be learned: "),
        (("device=l40s", "family=gemm"), "sources hold no table of l40s for gemm."),
        (("hardware=h100-sxm",), "calibrate takes hardware only with --from, .* without it device=NAME says whose"),
        (("device=h100-sxm", "engine.max_num_seqs=3"), "takes engine.max_num_seqs only with --from"),
    ],
)
def test_what_is_refused(headway, tables, words, message):
    found = headway("calibrate", *words, f"sources={tables}", "out=mine")
    assert found.code == 2
    assert re.search(message, found.err), found.err


def test_a_table_that_nobody_learns_alone(headway, tables):
    found = headway("calibrate", "device=h100-sxm", f"sources={tables}/sequence.csv", "out=mine")
    assert found.code == 2 and "sources hold no table of h100-sxm for gemm" in found.err
    assert "sequence tables are not learned here" in found.err


def test_an_artifact_without_a_held_out_shape_cannot_be_judged(headway, tables):
    headway("calibrate", "device=h100-sxm", "family=gemm", f"sources={tables}", "out=mine")
    found = headway("validate", "operators", "predictor=mine", "device=h100-sxm", f"sources={tables}")
    assert found.code == 2 and "h100-sxm gemm: 1 shape is too few" in found.err


def test_help_names_every_key_and_default(headway):
    told = headway("validate", "--help").out
    operators_part = told[told.index("operators: ") :]
    for key in validate_operators.KEYS[1:]:
        assert f"{key}=" in operators_part, key
    assert "jobs=N               processes (one per core)" in told and "by a hash (all)" in told
    told = headway("calibrate", "--help").out
    for key in calibrate.KEYS:
        assert f"{key}=" in told, key
    assert f"({calibrate.OUT})" in told
