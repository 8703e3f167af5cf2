"""The shipped device files: complete, sourced, and equal to the measured tables where those speak."""

import csv
import math

import pytest

from sim.hardware.check import numbers, source_of
from sim.hardware.collectives import collective_constants
from sim.hardware.read import list_devices, load_device
from sim.units import GB, GIB


# Name in accelerators.csv -> device file.
FILES = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100-PCIe-80GB": "a100-pcie-80gb",
    "H100-SXM": "h100-sxm",
    "H100-PCIe": "h100-pcie",
    "H200-SXM": "h200-sxm",
    "H800-SXM": "h800",
    "H20": "h20",
    "B200-SXM": "b200-sxm",
    "B300-SXM": "b300-sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "L4": "l4",
    "T4": "t4",
    "RTX3090": "rtx-3090",
    "RTX-A6000": "rtx-a6000",
    "RTX-PRO-6000-Server": "rtx-pro-6000",
    "MI300X": "mi300x",
    "MI325X": "mi325x",
    "MI355X": "mi355x",
    "Gaudi2": "gaudi2",
    "Gaudi3": "gaudi3",
    "TPUv4": "tpu-v4",
    "TPUv5e": "tpu-v5e",
    "TPUv5p": "tpu-v5p",
    "TPUv6e": "tpu-v6e",
    "TPU7x": "tpu-v7x",
    "Trainium2": "trainium2",
    "Inferentia2": "inferentia2",
    "Ascend910B": "ascend-910b",
    "Ascend910C": "ascend-910c",
}
BEYOND_THE_TABLE = {"rtx-4090", "a800", "a100-sxm-40gb", "a40", "a10g", "gh200"}


def test_catalogue_holds_every_wanted_device():
    assert set(FILES.values()) | BEYOND_THE_TABLE <= set(list_devices())


@pytest.mark.parametrize("name", list_devices())
def test_device_is_complete_and_physical(name):
    device = load_device(name)
    assert {key for key in numbers(device) if source_of(device, key) in ("", "schema default")} == set()
    assert set(device.matmul_efficiency) == set(device.peak_flops_per_s)
    assert all(peak > 1e12 for peak in device.peak_flops_per_s.values())
    assert 0.4 < device.memory_efficiency < 1
    assert 0.9 * device.memory_nominal_bytes < device.memory_bytes <= device.memory_nominal_bytes
    assert device.memory_bytes_estimated == ("estimated" in source_of(device, "memory_bytes"))
    assert device.cache_bytes_per_s >= device.memory_bytes_per_s
    assert device.unit_stream_bytes_per_s * device.compute_units > device.memory_bytes_per_s
    assert device.tdp_w == 0 or device.idle_w < device.tdp_w
    assert device.pcie.bytes_per_s > 0 and device.nic.bytes_per_s > 0
    constants = collective_constants(device, "all_reduce", 2)
    assert all(math.isfinite(x) and x > 0 for x in (*constants.a_s, *constants.bytes_per_s))


@pytest.mark.parametrize("row_name", FILES)
def test_numbers_equal_the_datasheet_table(shared, row_name):
    with (shared / "data/hardware/accelerators.csv").open() as stream:
        table = {row["name"]: row for row in csv.DictReader(line for line in stream if not line.startswith("#"))}
    assert set(table) == set(FILES)
    row, device = table[row_name], load_device(FILES[row_name])
    dtypes = {"fp8": "fp8", "int8": "int8", "fp4": "fp4", "fp16_bf16": "fp16"}
    for column, dtype in dtypes.items():
        if row[column]:
            assert device.peak_flops_per_s[dtype] == pytest.approx(float(row[column]) * 1e12)
        else:
            assert dtype not in device.peak_flops_per_s
    assert device.memory_bytes_per_s == pytest.approx(float(row["hbm_GBps"]) * GB)
    # The catalogue's GB is 2^30 for most GPUs and 10^9 for a few.
    nominal = float(row["hbm_GB"])
    units = (device.memory_nominal_bytes / GIB, device.memory_nominal_bytes / GB)
    assert min(abs(unit / nominal - 1) for unit in units) < 0.011
    for column, link in (("scaleup_GBps_dir", device.scale_up), ("pcie_GBps_dir", device.pcie)):
        if row[column]:
            assert link.bytes_per_s == pytest.approx(float(row[column]) * GB)
    if row["tdp_W"]:
        assert device.tdp_w == float(row["tdp_W"])
    if row["price_lo"]:
        assert device.usd_per_hour == pytest.approx((float(row["price_lo"]) + float(row["price_hi"])) / 2, abs=0.006)


def test_matmul_ceilings_equal_the_published_ones(shared):
    names = {
        "H100-SXM": "h100-sxm",
        "A100-SXM": "a100-sxm-80gb",
        "MI300X": "mi300x",
        "B200": "b200-sxm",
        "GH200": "gh200",
    }
    with (shared / "data/hardware/mamf.csv").open() as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    checked = 0
    for row in rows:
        if row["accelerator"] in names:
            device = load_device(names[row["accelerator"]])
            achieved = device.peak_flops_per_s[row["dtype"]] * device.matmul_efficiency[row["dtype"]]
            assert achieved == pytest.approx(float(row["mamf"]) * 1e12, rel=0.002)
            checked += 1
    assert checked == 8


@pytest.mark.parametrize(
    ("name", "gib"),
    [("h100-sxm", 79.19), ("h200-sxm", 139.80), ("rtx-3090", 23.58), ("l40s", 44.53), ("b200-sxm", 178.35)],
)
def test_memory_is_what_the_runtime_reports(name, gib):
    assert load_device(name).memory_bytes / GIB == pytest.approx(gib, abs=0.005)


def test_memory_of_the_validated_card_is_exact():
    assert load_device("rtx-pro-6000").memory_bytes == 101_976_440_832
