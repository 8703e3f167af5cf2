"""A fit is judged on rows it has not seen: all together, and by the kernel that their table names."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from calibration import operators
from predictors.families import MODULES, family
from predictors.family import Predicted
from predictors.table import LABELS, OperatorTable


def gathered(kernels):
    rows = len(kernels)
    labels = {name: np.array([""] * rows, object) for name in LABELS} | {"kernel": np.array(kernels, object)}
    sizes = np.arange(1.0, rows + 1.0)
    table = OperatorTable("gemm", "h100-sxm", dict.fromkeys("mnk", sizes), labels, np.ones(rows))
    return operators.Gathered(SimpleNamespace(), table, "nothing was set aside")


def test_rows_without_a_kernel_are_not_all_rows(monkeypatch):
    """Measured 1 s each; predicted 1.1 s where a kernel is named, 2 s where none is; the last row is not held out."""
    told = SimpleNamespace(
        splits=lambda table, device: {"shapes": table["m"] < 5.0, "none": table["m"] < 0.0},
        predict=lambda fitted, table, device: Predicted(
            np.where(table["kernel"] == "", 2.0, 1.1), np.zeros(len(table)), np.zeros(len(table))
        ),
    )
    monkeypatch.setattr(operators, "family", lambda name: told)
    data = gathered(["fa3", "", "fa3", "fa3", "fa3"])
    found = operators.judged("gemm", SimpleNamespace(), data)
    assert {kernel: errors.rows for kernel, errors in found.items()} == {"": 4, "fa3": 3, operators.NOT_NAMED: 1}
    assert found[""].median == pytest.approx(0.1) and found["fa3"].mean == pytest.approx(0.1)
    assert found[""].mean == pytest.approx((3 * 0.1 + 1.0) / 4)
    assert found[operators.NOT_NAMED].median == pytest.approx(1.0)
    assert operators.judged("gemm", SimpleNamespace(), data, "none") == {}


HEAD = "device,engine,engine_version,kernel,dtype,op,timing"


def csv(folder, name, *lines):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def moving(kernel, timing, engine="torch", sizes=30):
    """Norms over 32, 64 ... tokens: 3 us and 2.8 TB/s."""
    columns = f"h100-sxm,{engine},2.9.0,{kernel},bf16,norm,{timing}"
    return [f"{columns},{32 * n},32768,{3 + 32 * n * 32768 / 2.8e6:.6g}" for n in range(1, sizes + 1)]


def test_eager_elementwise_rows_are_refused_with_the_reason(tmp_path):
    head = f"{HEAD},tokens,bytes_per_token,time_us"
    rows = [*moving("torch eager", "kernel"), *moving("torch eager", "launch")]
    path = csv(tmp_path, "elementwise.csv", head, *rows)
    message = (
        r"none of the 60 rows of h100-sxm for elementwise .*: 60 of several kernels in a row, .* \(kernel torch eager"
    )
    with pytest.raises(operators.NothingToFit, match=message):
        operators.gather("h100-sxm", "elementwise", [path])
    # One kernel of the same engine is learned apart from an engine's.
    mixed = csv(tmp_path, "elementwise-mine.csv", head, *rows, *moving("rms", "kernel"), *moving("rms", "launch"))
    found = operators.gather("h100-sxm", "elementwise", [mixed])
    assert family("elementwise").used(found.table).sum() == 30
    assert found.unused == (
        "90 of 120 rows are not learned: 60 of several kernels in a row, which engines fuse into one (kernel torch "
        "eager), 30 with the host's launch in their time"
    )


def test_the_columns_of_the_documentation_suffice(tmp_path):
    """The example's columns: no engine, no kernel, no timing, which is then the device's alone."""
    rows = [f"h100-sxm,bf16,norm,{32 * n},32768,{3 + 32 * n * 32768 / 2.8e6:.6g}" for n in range(1, 31)]
    path = csv(tmp_path, "elementwise.csv", "device,dtype,op,tokens,bytes_per_token,time_us", *rows)
    found = operators.gather("h100-sxm", "elementwise", [path])
    assert family("elementwise").used(found.table).all() and found.unused == ""


def test_too_few_rows_of_a_kernel_are_told(tmp_path):
    path = csv(tmp_path, "elementwise.csv", f"{HEAD},tokens,bytes_per_token,time_us", *moving("rms", "kernel", sizes=9))
    with pytest.raises(operators.NothingToFit, match="9 of an engine, version and op with fewer than 20 rows$"):
        operators.gather("h100-sxm", "elementwise", [path])


def products(*shapes, dtype="bf16"):
    columns = f"h100-sxm,vllm,0.24.0,torch.nn.functional.linear,{dtype},linear,kernel"
    return [
        f"{columns},{m},{n},{k},{5 + max(m * n * k / 4e8, n * k / 1.4e6):.6g}"
        for n, k in shapes
        for m in (1, 16, 256, 1024)
    ]


def test_rows_that_nobody_can_learn_are_counted(tmp_path):
    head = f"{HEAD},m,n,k,time_us"
    path = csv(tmp_path, "gemm.csv", head, *products((4096, 4096)), *products((4096, 4096), dtype="fp7"))
    found = operators.gather("h100-sxm", "gemm", [path])
    assert re.fullmatch("4 of 8 rows are not learned: 4 whose dtype is none of bf16, .*", found.unused)
    fast = csv(tmp_path, "gemm-fast.csv", head, *(line.rpartition(",")[0] + ",0.01" for line in products((64, 64))))
    with pytest.raises(operators.NothingToFit, match="all 4 rows of h100-sxm for gemm are set aside: .* below 0.1 us"):
        operators.gather("h100-sxm", "gemm", [fast])


LENGTHS = (
    "prefill_tokens,prefill_chunks,prefill_area,prefill_kv_tokens,prefill_max_tokens,decodes,decode_sum,decode_max"
)
HEADS = "q_heads,kv_heads,qk_dim,v_dim,kv_bytes_per_element"
DECODES = f"device,kernel,dtype,op,timing,{LENGTHS},decode_sumsq,{HEADS},warm,time_us"


def test_rows_of_the_other_family_of_a_table_need_no_word(tmp_path):
    decodes = [f"h100-sxm,fa,bf16,decode,,0,0,0,0,0,{n},{512 * n},512,{512**2 * n},32,8,128,128,2,1,20" for n in (1, 2)]
    prefill = "h100-sxm,fa,bf16,prefill,,512,1,131328,512,512,0,0,0,0,32,8,128,128,2,1,60"
    path = csv(tmp_path, "attention.csv", DECODES, *decodes, prefill)
    assert operators.gather("h100-sxm", "decode", [path]).unused == ""
    assert operators.gather("h100-sxm", "mixed", [path]).unused == ""  # an empty `timing` is the kernel alone
    alone = csv(tmp_path, "attention-decode.csv", DECODES, *decodes)
    with pytest.raises(
        operators.NothingToFit, match="none of the 2 rows of h100-sxm for mixed .*: 2 of batches without"
    ):
        operators.gather("h100-sxm", "mixed", [alone])


def test_a_fit_that_keeps_no_row_says_so(tmp_path):
    shapes = [(n, k) for n in range(64, 8192, 64) for k in (1024, 4096)]
    path = csv(tmp_path, "gemm.csv", f"{HEAD},m,n,k,time_us", *products(*shapes))
    found = operators.gather("h100-sxm", "gemm", [path])
    held_out = family("gemm").splits(found.table, found.device)["shapes"]
    assert 0.05 < held_out.mean() < 0.25
    only = operators.Gathered(found.device, found.table.where(held_out), "")
    with pytest.raises(
        operators.NothingToFit, match="are held out to judge by, and none of the others .*: all are held"
    ):
        operators.fit_family("gemm", only)


def test_too_few_shapes_are_told_with_the_number_that_is_needed(tmp_path, monkeypatch):
    path = csv(tmp_path, "gemm.csv", f"{HEAD},m,n,k,time_us", *products((6144, 4096), (4096, 4096), (28672, 4096)))
    monkeypatch.setattr(operators, "fit_family", lambda *_, **more: SimpleNamespace())
    found = operators.calibrated("h100-sxm", "gemm", [path], seed=0, quick=True, every_split=False, date="2026-11-30")
    assert found.card["errors"] == {"shapes": {}}
    (note,) = found.notes
    # (7/8)^34 = 1.07 %, (7/8)^35 = 0.93 %
    assert re.match("3 shapes are too few: .* one in 8 took none, .* not known; 35 are needed .* in 99% of cases", note)


def test_the_page_tells_how_many_shapes_are_needed():
    """One in 8, 16 and 4: the least n with (1 - 1/8)^n, (1 - 1/16)^n, (1 - 1/4)^n below 1 %."""
    needed = {8: 35, 16: 72, 4: 17}
    for one_in, count in needed.items():
        assert (1 - 1 / one_in) ** count < 0.01 < (1 - 1 / one_in) ** (count - 1)
    page = (Path(__file__).parents[2] / "docs/operator-tables.md").read_text()
    for name in MODULES:
        one_in = family(name).ONE_IN
        assert re.search(
            rf"^\| `{name}` \|.*\| 1 in {one_in}( of each)? \| {needed[one_in]}( in all)? \|$", page, re.M
        ), name
