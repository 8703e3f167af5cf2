"""A user's own csv: what it may leave out, what it may not, and that it is read as it was written."""

import re
from pathlib import Path

import numpy as np
import pytest

from calibration.tables import quarantined, tables_for
from calibration.tables.plain import write
from calibration.tables.rows import table
from predictors.table import FAMILIES, LABELS


HEAD = "device,op,dtype,m,n,k,time_us"


def csv(folder, name, *lines):
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read(path, family="gemm", device="h100-sxm", **more):
    return tables_for(device, family, [path], **more)


@pytest.mark.parametrize(("unit", "seconds"), [("s", 12), ("ms", 12e-3), ("us", 12e-6), ("ns", 12e-9)])
def test_the_header_has_the_unit(tmp_path, unit, seconds):
    (found,) = read(csv(tmp_path, "gemm.csv", HEAD.replace("us", unit), "h100-sxm,qkv_proj,bf16,1,2,3,12"))
    assert found.seconds.tolist() == pytest.approx([seconds], rel=1e-15)
    assert found["source"].tolist() == ["gemm.csv"] and found["engine"].tolist() == [""]


def test_a_folder_with_files_of_several_devices_and_engines(tmp_path):
    lines = ("h100-sxm,vllm,1,2,3,4", "l40s,vllm,1,2,3,4", "h100-sxm,sglang,5,2,3,4")
    csv(tmp_path, "gemm-first.csv", "device,engine,m,n,k,time_us", *lines)
    csv(tmp_path, "sequence.csv", "device,rows,vocab,time_us", "h100-sxm,1,2,3")
    csv(tmp_path, "notes.csv", "device,what", "h100-sxm,nothing")
    assert [found["m"].tolist() for found in read(tmp_path)] == [[1], [5]]
    assert [found["m"].tolist() for found in read(tmp_path, engine="sglang")] == [[5]]
    assert [found.family for found in read(tmp_path, None)] == ["gemm", "gemm", "sequence"]


def test_columns_that_may_be_blank(tmp_path):
    columns = [name for name in FAMILIES["attention"] if name != "window"]
    numbers = ",".join("1" for _ in columns)
    (found,) = read(
        csv(tmp_path, "attention.csv", f"device,{','.join(columns)},time_us", f"h100-sxm,{numbers},9"), "attention"
    )
    assert found["window"].tolist() == [np.inf]
    columns = FAMILIES["moe"]
    numbers = ",".join("" if name in ("active", "max_load", "skew") else "1" for name in columns)
    (found,) = read(csv(tmp_path, "moe.csv", f"device,{','.join(columns)},time_us", f"h100-sxm,{numbers},9"), "moe")
    assert np.isnan(found["active"][0]) and np.isnan(found["skew"][0])


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        (HEAD + ",kernl", "h100-sxm,x,bf16,1,2,3,4,y", "column 'kernl' is unknown; the nearest known is 'kernel'"),
        (HEAD.replace(",k,", ","), "h100-sxm,x,bf16,1,2,4", "needs the column 'k'"),
        (HEAD.replace(",m,", ",M,"), "h100-sxm,x,bf16,1,2,3,4", "needs the column 'm', .*; near: 'M': rename it, case"),
        (HEAD.replace("device", "Device"), "h100-sxm,x,bf16,1,2,3,4", "column 'device', .*; near: 'Device': rename it"),
        (HEAD.replace("time_us", "Time_us"), "h100-sxm,x,bf16,1,2,3,4", "one time column .*time_us.*, got Time_us"),
        (HEAD.replace("time_us", "time"), "h100-sxm,x,bf16,1,2,3,4", "one time column .*, got none"),
        (HEAD + ",time_ms", "h100-sxm,x,bf16,1,2,3,4,5", "one time column .*, got time_us, time_ms"),
        (HEAD, "h100-sxn,x,bf16,1,2,3,4", "the device 'h100-sxn' is unknown; the nearest known is 'h100-sxm'"),
        (HEAD, "h100-sxm,x,bf16,1,two,3,4", "must be a csv of numbers below its header"),
        (HEAD, "h100-sxm,x,bf16,1,,3,4", "needs a number in column 'n' of every row; row 1 has none"),
    ],
)
def test_what_is_refused(tmp_path, head, row, message):
    with pytest.raises(ValueError, match=message):
        read(csv(tmp_path, "gemm.csv", head, row))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_as_written(tmp_path, family):
    draws = np.random.default_rng(1)
    columns = {name: draws.uniform(1, 1e9, 5) for name in FAMILIES[family]}
    labels = {name: np.array([f"{name} {row % 2}" for row in range(5)], object) for name in LABELS}
    columns |= {name: np.array([np.nan, 1, 2, 3, 4]) for name in ("active", "skew") if name in columns}
    columns |= {"window": np.array([np.inf, 1, 2, 3, 4])} if "window" in columns else {}
    given = table(family, "h100-sxm", draws.uniform(1e-6, 1, 5), columns, labels)
    write(given, tmp_path / f"{family}.csv")
    found = read(tmp_path, family)
    assert sum(map(len, found)) == 5  # in two parts, one per engine
    for part in found:
        rows = given["engine"] == part["engine"][0]
        np.testing.assert_array_equal(part.seconds, given.seconds[rows])
        for name in (*FAMILIES[family], *LABELS):
            np.testing.assert_array_equal(part[name], given[name][rows])


def test_an_empty_timing_is_the_kernel_alone(tmp_path):
    lines = ("h100-sxm,,1,2,3,4", "h100-sxm,launch,1,2,3,4")
    (found,) = read(csv(tmp_path, "gemm.csv", "device,timing,m,n,k,time_us", *lines))
    (bare,) = read(csv(tmp_path, "gemm-bare.csv", "device,m,n,k,time_us", "h100-sxm,1,2,3,4"))
    assert found["timing"].tolist() == ["kernel", "launch"] and bare["timing"].tolist() == ["kernel"]


def test_the_name_of_a_file_tells_its_family(tmp_path):
    given = table("sequence", "h100-sxm", [1.0], {"rows": 1, "vocab": 2}, {})
    with pytest.raises(ValueError, match="must begin with its family, 'sequence', got gemm.csv"):
        write(given, tmp_path / "gemm.csv")


def test_the_examples_of_the_documentation(tmp_path):
    text = (Path(__file__).parents[3] / "docs/operator-tables.md").read_text()
    titles = re.split("^### ", text, flags=re.MULTILINE)[1:]
    families = set()
    for title in titles:
        blocks = re.findall("```\n(.*?)```", title, flags=re.DOTALL)
        for family, block in zip(re.findall(r"\w+", title.splitlines()[0]), blocks, strict=False):
            (tmp_path / f"{family}.csv").write_text(block)
            kept, quarantine = quarantined(read(tmp_path / f"{family}.csv", family))
            assert len(quarantine) == 0 and sum(map(len, kept)) == block.count("\n") - 1, str(quarantine)
            families.add(family)
    assert families == set(FAMILIES)
