"""Which rows are set aside, with what reason and example, and that nothing else is."""

import numpy as np
import pytest

from calibration.tables.check import quarantined
from calibration.tables.rows import COPY, table
from sim.hardware.read import load_device


H100 = load_device("h100-sxm")
SHAPE = (4096, 4096, 4096)
FLOPS = 2 * 4096**3
GOOD_S = FLOPS / H100.peak_flops_per_s["bf16"] / 0.8


def reasons(quarantine):
    return [one.reason for one in quarantine.aside]


def test_sound_rows_pass_unchanged(gemm):
    given = gemm([SHAPE, (1, 4096, 4096)], [GOOD_S, 12e-6])
    (kept,), quarantine = quarantined([given])
    assert kept.seconds.tolist() == given.seconds.tolist() and len(quarantine) == 0
    assert str(quarantine) == "nothing was set aside"


@pytest.mark.parametrize("bad", [0.0, -1e-6, np.nan, np.inf])
def test_times_that_are_no_times(gemm, bad):
    (kept,), quarantine = quarantined([gemm([SHAPE, SHAPE], [GOOD_S, bad])])
    assert len(kept) == 1 and reasons(quarantine) == ["the time is not a positive number"]


@pytest.mark.parametrize("shape", [(0, 8, 8), (-1, 8, 8), (np.nan, 8, 8)])
def test_sizes_that_are_no_sizes(gemm, shape):
    (kept,), quarantine = quarantined([gemm([SHAPE, shape], [GOOD_S, GOOD_S])])
    assert len(kept) == 1 and reasons(quarantine) == ["a size is not a positive number"]


def test_a_product_above_the_peak_is_named_with_its_shape(gemm):
    peak_s = FLOPS / H100.peak_flops_per_s["bf16"]
    tables = [gemm([SHAPE, (4096, 4096, 2048), (8192, 4096, 4096)], [0.5 * peak_s, 0.5 * GOOD_S, 2 * GOOD_S])]
    (kept,), quarantine = quarantined(tables)
    assert len(kept) == 2 and len(quarantine) == 1
    assert "1 of 3 rows: more than 1.1 times the peak arithmetic of NVIDIA H100" in str(quarantine)
    assert "k bf16 linear m 4096, n 4096, k 4096" in str(quarantine)


def test_a_rate_just_above_the_datasheet_is_the_boost_clock(gemm):
    peak_s = FLOPS / H100.peak_flops_per_s["bf16"]
    assert len(quarantined([gemm([SHAPE], [peak_s / 1.09])])[1]) == 0
    assert len(quarantined([gemm([SHAPE], [peak_s / 1.11])])[1]) == 1


def test_weight_only_formats_have_the_peak_of_16_bits(gemm):
    fp8_s = 1.2 * FLOPS / H100.peak_flops_per_s["fp8"]  # impossible in 16 bits, possible in 8
    assert len(quarantined([gemm([SHAPE], [fp8_s], dtype="fp8_block")])[1]) == 0
    assert len(quarantined([gemm([SHAPE], [fp8_s], dtype="int4_wo")])[1]) == 1


def test_keys_that_were_never_read(decode):
    # 128 rows of 992 tokens x 8 heads x 256 values x 2 B = 520 MB in 3.55 us: 147 TB/s
    (kept,), quarantine = quarantined([decode([(128, 992), (1, 992), (4, 992)], [3.55e-6, 9e-6, 1e-5])])
    assert len(kept) == 2
    assert "what the memory or the link of NVIDIA H100" in reasons(quarantine)[0]


def test_what_fits_the_cache_may_be_faster_than_memory(decode):
    held = H100.cache_bytes / (8 * 256 * 2)  # tokens whose keys and values fill the cache
    assert len(quarantined([decode([(1, held)], [5e-6])])[1]) == 0  # 10 TB/s
    beyond_s = 20 * held * 8 * 256 * 2 / H100.memory_bytes_per_s
    assert len(quarantined([decode([(1, 21 * held)], [beyond_s / 1.05])])[1]) == 0
    assert len(quarantined([decode([(1, 21 * held)], [beyond_s / 1.15])])[1]) == 1


def test_a_window_bounds_what_is_read(decode):
    rows = decode([(64, 100_000)], [30e-6])
    assert len(quarantined([rows])[1]) == 1
    windowed = table("attention", "h100-sxm", rows.seconds, dict(rows.columns) | {"window": 128.0}, dict(rows.labels))
    assert len(quarantined([windowed])[1]) == 0


def test_most_rows_impossible_condemn_the_kernel_and_no_other(decode):
    batches = [(1, 64), (32, 8192), (64, 8192), (128, 8192)]
    wrong = decode(batches, [7e-6, 40e-6, 50e-6, 60e-6], kernel="shared blocks")
    right = decode(batches, [7e-6, 400e-6, 800e-6, 1600e-6])
    (kept,), quarantine = quarantined([wrong, right])
    assert set(kept["kernel"].tolist()) == {"k"} and len(quarantine) == 4
    assert reasons(quarantine)[0].startswith("most rows of the kernel that could show it pass")


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_wrong_unit_of_time_is_seen(gemm, factor):
    shapes = [(m, 4096, 4096) for m in (1, 64, 1024, 4096)]
    seconds = np.array([12e-6, 14e-6, 50e-6, GOOD_S])
    kept, quarantine = quarantined([gemm(shapes, seconds * factor)])
    assert not kept and len(quarantine) == 4


def test_one_slow_row_is_no_wrong_unit(gemm):
    shapes = [(m, 4096, 4096) for m in (1, 64, 1024, 4096)]
    assert len(quarantined([gemm(shapes, [12e-6, 14e-6, 50e-3, GOOD_S])])[1]) == 0


def test_repeats_that_agree_become_their_median(gemm):
    given = gemm([SHAPE, (1, 8, 8), SHAPE, SHAPE, (1, 8, 8)], [3e-4, 5e-6, 3.1e-4, 3.3e-4, 6e-6])
    (kept,), quarantine = quarantined([given])
    assert dict(zip(kept["m"].tolist(), kept.seconds.tolist(), strict=True)) == {4096: 3.1e-4, 1: 5.5e-6}
    assert quarantine.merged == 3 and "3 rows repeat a shape and agree" in str(quarantine)


def test_repeats_that_disagree_are_all_set_aside(gemm):
    given = gemm([SHAPE, SHAPE, (8, 8, 8), SHAPE], [3e-4, 4e-4, 5e-6, 3e-4])
    (kept,), quarantine = quarantined([given])
    assert kept["m"].tolist() == [8] and len(quarantine) == 3 and quarantine.merged == 0
    assert reasons(quarantine) == ["rows of one shape are up to 1.33 times apart"]


def test_short_repeats_may_differ_by_the_clock_s_resolution(gemm):
    assert len(quarantined([gemm([(1, 8, 8)] * 2, [2e-6, 3.9e-6])])[1]) == 0
    assert len(quarantined([gemm([(1, 8, 8)] * 2, [2e-6, 4.1e-6])])[1]) == 2


def test_other_labels_are_no_repeats_but_another_file_is(gemm):
    tables = [gemm([SHAPE], [3e-4]), gemm([SHAPE], [4e-4], timing="launch"), gemm([SHAPE], [3.1e-4], source="again")]
    (kept,), quarantine = quarantined(tables)
    assert kept.seconds.tolist() == pytest.approx([3.05e-4, 4e-4]) and quarantine.merged == 1


def test_files_that_repeat_another_device_s(gemm):
    kept, quarantine = quarantined([gemm([SHAPE], [3e-4], source=f"V ({COPY} a100)")])
    assert not kept and reasons(quarantine) == ["the file repeats another device's"]


def test_devices_and_families_stay_apart(gemm, decode):
    tables = [gemm([SHAPE], [3e-4]), decode([(1, 64)], [7e-6]), gemm([SHAPE], [9e-4], device="a100-sxm-80gb")]
    kept, _ = quarantined(tables)
    assert [(one.device, one.family) for one in kept] == [
        ("h100-sxm", "gemm"),
        ("h100-sxm", "attention"),
        ("a100-sxm-80gb", "gemm"),
    ]


def test_a_device_that_nobody_knows(gemm):
    with pytest.raises(ValueError, match="h100-sxn.*h100-sxm"):
        quarantined([gemm([SHAPE], [3e-4], device="h100-sxn")])


def expert_rows(tokens, seconds, **more):
    shape = {"experts": 256.0, "top_k": 8.0, "hidden": 6144.0, "inter": 2048.0, "tp": 1.0, "ep": 1.0, "matrices": 3.0}
    columns = shape | {"tokens": tokens, "active": np.nan, "max_load": np.nan, "skew": 0.0} | more
    labels = {"dtype": "fp8", "op": "experts"}
    return table("moe", "h100-sxm", seconds, columns, labels)


def test_experts_stream_their_weights():
    # 16 tokens x 8 of 256 experts: 128 x 3 x 6144 x 2048 B = 4.83 GB, 50 MiB of them cached: 1.427 ms at 3.35 TB/s
    assert len(quarantined([expert_rows([16.0], [1.43e-3])])[1]) == 0
    assert len(quarantined([expert_rows([16.0], [1.25e-3])])[1]) == 1
    assert len(quarantined([expert_rows([16.0], [1.25e-3], active=64.0)])[1]) == 0  # counted: 64 had rows
    assert len(quarantined([expert_rows([16.0], [1.25e-3], skew=1.2)])[1]) == 0  # how many is not known


def test_no_all_reduce_sends_faster_than_its_link():
    link = H100.scale_up.bytes_per_s
    size = 2.0**29

    def rows(seconds, **more):
        columns = {"bytes": [size], "ranks": 8.0, "nodes": 1.0} | more
        return table("collective", "h100-sxm", [seconds], columns, {"op": "all_reduce", "kernel": "NCCL"})

    least_s = size * 7 / 8 / link
    assert len(quarantined([rows(least_s)])[1]) == 0
    assert len(quarantined([rows(0.85 * least_s)])[1]) == 1
    assert len(quarantined([rows(0.85 * least_s, nodes=2.0)])[1]) == 0  # another link, not modelled here


def test_collectives_of_a_host_that_the_shipped_constants_leave_out():
    columns = {"bytes": [1e6] * 4, "ranks": [2.0, 8.0, 8.0, 8.0], "nodes": 1.0}
    builds = np.array([["nccl", "2.27.3"], ["nccl", "2.27.3"], ["sglang", "0.5.12"], ["sglang", "0.5.14"]], object)
    labels = {"op": "all_reduce", "engine": builds[:, 0], "engine_version": builds[:, 1]}
    (kept,), quarantine = quarantined([table("collective", "l40s", [1e-3] * 4, columns, labels)])
    assert list(zip(kept["engine"], kept["ranks"], strict=True)) == [("nccl", 2), ("sglang", 8)]
    assert reasons(quarantine) == ["the host had no access between devices beyond a pair"]
    (kept,), _ = quarantined([table("collective", "gb200", [1e-3] * 4, columns, labels)])
    assert len(kept) == 4
