"""Constants of collectives: what was measured, what is carried over, and what is a formula."""

import csv
import gzip
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.hardware.collective_points import CollectivePoints, between, monotone
from sim.hardware.collective_table import ANY_GROUP, SHARPNESS, shipped_rows
from sim.hardware.collectives import LIBRARIES, OPERATIONS, algorithm_factor, algorithm_steps, collective_constants
from sim.hardware.read import list_devices, load_device
from sim.hardware.spec import LinkConf


DEVICES = {name: load_device(name) for name in list_devices()}


def seconds(constants, size_bytes):
    """The soft minimum, by hand, times the measured ratio."""
    pairs = zip(constants.a_s, constants.bytes_per_s, strict=True)
    times = [a + constants.factor * size_bytes / b for a, b in pairs]
    form = sum(t**-SHARPNESS for t in times) ** (-1 / SHARPNESS)
    if not constants.log_sent:
        return form
    return form * np.exp(np.interp(np.log(constants.factor * size_bytes), constants.log_sent, constants.log_ratio))


def test_traffic_and_steps():
    # Ring all-reduce of 4: 3 steps to reduce, 3 to gather, 1/4 of the buffer in each.
    assert (algorithm_steps("all_reduce", 4), algorithm_factor("all_reduce", 4)) == (6, 1.5)
    assert (algorithm_steps("all_gather", 4), algorithm_factor("all_gather", 4)) == (3, 0.75)
    assert (algorithm_steps("send_recv", 4), algorithm_factor("send_recv", 4)) == (1, 1.0)


@pytest.mark.parametrize(
    ("name", "op", "group", "library", "size_bytes", "measured_us", "within"),
    [
        # NCCL medians, fp16: H100 x 8 all-reduce of 1 KB, 1 MB and 512 MB, A100 x 8 all-to-all of 16 MB.
        ("h100-sxm", "all_reduce", 8, "nccl", 1 << 10, 15.6, 0.05),
        ("h100-sxm", "all_reduce", 8, "nccl", 1 << 20, 25.4, 0.05),
        ("h100-sxm", "all_reduce", 8, "nccl", 1 << 29, 2112, 0.05),
        ("a100-sxm-80gb", "all_to_all", 8, "nccl", 1 << 24, 114, 0.02),
        ("rtx-pro-6000", "all_reduce", 2, "nccl", 1 << 29, 13900, 0.02),
        # What data-parallel ranks exchange over PCIe: 16 and 256 KB between two.
        ("rtx-pro-6000", "all_gather", 2, "nccl", 1 << 14, 6.2, 0.01),
        ("rtx-pro-6000", "reduce_scatter", 2, "nccl", 1 << 18, 13.62, 0.01),
        # An engine's own kernel is three times faster on small messages.
        ("h100-sxm", "all_reduce", 8, "vllm", 1 << 10, 4.7, 0.05),
        # The sound L40S host, 1 GiB over 8 GPUs at a bus of 20.8 GB/s.
        ("l40s", "all_reduce", 8, "vllm", 1 << 30, 90_200, 0.05),
    ],
)
def test_close_to_measured(name, op, group, library, size_bytes, measured_us, within):
    constants = collective_constants(load_device(name), op, group, library)
    assert seconds(constants, size_bytes) == pytest.approx(measured_us * 1e-6, rel=within)


def test_versions_have_series_of_their_own():
    # RTX PRO 6000, a pair, 1 MB: vLLM 0.19 and 0.24 differ; an older version takes the oldest, a newer the newest.
    device = load_device("rtx-pro-6000")
    by_version = {
        version: seconds(collective_constants(device, "all_reduce", 2, f"vllm{version}"), 1 << 20)
        for version in ("/0.10.2", "/0.19.0", "/0.23.1", "/0.24.0", "/0.33.0", "")
    }
    assert by_version["/0.10.2"] == by_version["/0.19.0"] == by_version["/0.23.1"]
    assert by_version["/0.24.0"] == by_version["/0.33.0"] == by_version[""]
    assert by_version["/0.19.0"] != pytest.approx(by_version["/0.24.0"], rel=0.02)


def test_between_groups_by_hand():
    # Gathers of 2 and 8 of 10 and 40 us: 4 is half way in the logarithm, 20 us. All-reduce: latencies 10 and 40 us ->
    # 20 us; the rest 100 and 175 us is 100 us per byte share 1 and 1.75: 20 + 1.5 x 100 = 170 us.
    def series(op, group, *times_s):
        return CollectivePoints("f", "nccl", "1", op, group, (1e3, 1e6), times_s)

    sizes, times = between(series("all_gather", 2, 1e-5, 1e-4), series("all_gather", 8, 4e-5, 4e-4), 4)
    assert sizes == (1e3, 1e6) and times == pytest.approx((2e-5, 2e-4))
    _, times = between(series("all_reduce", 2, 1e-5, 1.1e-4), series("all_reduce", 8, 4e-5, 2.15e-4), 4)
    assert times == pytest.approx((2e-5, 1.7e-4), rel=1e-3)


def test_no_smaller_message_takes_longer():
    assert monotone((3.0, 1.0, 2.0, 5.0, 4.0)) == (1.0, 1.0, 2.0, 4.0, 4.0)


def test_measured_is_not_called_estimated():
    constants = collective_constants(load_device("h100-sxm"), "all_reduce", 8)
    assert not constants.estimated and "vllm/" in constants.source
    assert constants.factor == 1.75


def test_a_slower_link_scales_the_family():
    # H800 has H100's latencies and 200 of its 450 GB/s.
    h800, h100 = (collective_constants(load_device(name), "all_reduce", 8) for name in ("h800", "h100-sxm"))
    assert h800.estimated and "measured on NVIDIA H100" in h800.source
    assert h800.a_s == h100.a_s
    assert h800.bytes_per_s == pytest.approx([b * 200 / 450 for b in h100.bytes_per_s])


def test_another_device_of_equal_link_is_still_estimated():
    assert collective_constants(load_device("h20"), "all_reduce", 4).estimated


def test_unmeasured_group_grows_by_hops():
    # A100 at 6: the fit over all groups, a + 5 steps x hop for an all-gather.
    row = next(
        r
        for r in shipped_rows()
        if (r.family, r.library, r.op, r.group) == ("a100_sxm", "nccl", "all_gather", ANY_GROUP)
    )
    constants = collective_constants(load_device("a100-sxm-80gb"), "all_gather", 6)
    assert constants.estimated
    assert constants.a_s == pytest.approx([a + 5 * hop for a, hop in zip(row.a_s, row.hop_s, strict=True)])
    inside = [seconds(collective_constants(load_device("a100-sxm-80gb"), "all_gather", g), 4096) for g in (2, 6)]
    assert inside[0] < inside[1]


def test_a_missing_operation_follows_the_all_reduce():
    device = load_device("l40s")
    gather, reduce = (collective_constants(device, op, 8, "nccl") for op in ("all_gather", "all_reduce"))
    assert gather.a_s == pytest.approx([0.67 * a for a in reduce.a_s])
    assert gather.bytes_per_s == reduce.bytes_per_s


def test_formula_from_a_link():
    # An NVLink pair at 56 GB/s: LL base 6.6 us + 2 steps x 0.6 us; large messages reach 0.75 x 56 GB/s.
    constants = collective_constants(load_device("rtx-3090"), "all_reduce", 2)
    assert constants.estimated
    assert constants.a_s[0] == pytest.approx(7.8e-6)
    assert seconds(constants, 1 << 36) == pytest.approx((1 << 36) / 42e9, rel=0.001)


def test_across_nodes_adds_hops_and_is_capped_by_the_nics():
    # 16 H100 in two nodes: one tree level up and down, 5 us each; all-reduce bus at most 0.9 x 8 x 50 GB/s.
    device = load_device("h100-sxm")
    one, two = (collective_constants(device, "all_reduce", g, "nccl") for g in (8, 16))
    assert two.a_s[0] == pytest.approx(one.a_s[0] + 2 * 5e-6)
    assert seconds(two, 1 << 36) >= two.factor * (1 << 36) / 360e9
    # An all-to-all sends 8/15 of what leaves a rank through its own 50 GB/s NIC.
    spread = collective_constants(device, "all_to_all", 16)
    assert seconds(spread, 1 << 36) == pytest.approx((1 << 36) * (8 / 16) / 45e9, rel=0.001)


def test_one_rank_costs_nothing():
    constants = collective_constants(load_device("l4"), "all_reduce", 1)
    assert constants.a_s == (0.0, 0.0, 0.0) and constants.factor == 0


@settings(deadline=None)
@given(
    st.sampled_from(list_devices()),
    st.sampled_from(OPERATIONS),
    st.sampled_from([2, 3, 4, 8, 16, 72, 128]),
    st.sampled_from(LIBRARIES),
)
def test_every_device_has_sane_constants(name, op, group, library):
    device = DEVICES[name]
    constants = collective_constants(device, op, group, library)
    fastest = max(device.scale_up.bytes_per_s, device.pcie.bytes_per_s, device.nic.bytes_per_s)
    assert all(1e-6 < a < 5e-3 for a in constants.a_s)
    large = 1 << 40
    assert constants.factor * large / seconds(constants, large) < 1.02 * fastest
    assert constants.source


@pytest.mark.parametrize(
    ("op", "group", "library"), [("gather", 2, "vllm"), ("all_reduce", 0, "vllm"), ("all_reduce", 2, "x")]
)
def test_unknown_requests_are_named(op, group, library):
    with pytest.raises(ValueError, match=f"got op={op}, library={library}, group={group}"):
        collective_constants(load_device("l4"), op, group, library)


def test_unknown_family_is_named():
    device = replace(load_device("h100-sxm"), collectives="h900")
    with pytest.raises(ValueError, match="collectives must be one of a100_sxm.*got h900"):
        collective_constants(device, "all_reduce", 8)


def test_no_network_is_named():
    device = replace(load_device("h100-sxm"), nic=LinkConf())
    with pytest.raises(
        ValueError, match="16 ranks of NVIDIA H100 SXM 80GB .* no network joins them: give hardware.nic.kind"
    ):
        collective_constants(device, "all_reduce", 16)


def test_table_states_its_errors():
    rows = shipped_rows()
    reduces = [r for r in rows if (r.library, r.op) == ("nccl", "all_reduce") and r.group != ANY_GROUP]
    assert len(reduces) == 9 * 3 - 2 - 2  # GB200 and GB300 stop at 4; the unsound L40S host beyond a pair is left out
    # The study's bar for all-reduce with every second inner size held out is 5-6 % in the mean.
    assert statistics.mean(r.held_out_error for r in reduces) < 0.055
    assert all(r.fit_error < 0.10 for r in rows if r.group != ANY_GROUP)


def test_shipped_fits_against_the_raw_rows(shared):
    """The stated errors, recomputed on the raw NCCL rows of one family (sizes in bytes)."""
    with gzip.open(shared / "data/hardware/collectives/nccl_perf_normalised_bytes.csv.gz", "rt") as stream:
        rows = [r for r in csv.DictReader(stream) if (r["sys"], r["op_name"]) == ("h200_sxm", "all_reduce")]
    device = load_device("h200-sxm")
    errors = []
    for row in rows:
        constants = collective_constants(device, "all_reduce", int(row["num_gpus"]), "nccl")
        errors.append(abs(seconds(constants, int(row["bytes"])) / (float(row["latency_ms"]) * 1e-3) - 1))
    assert statistics.mean(errors) < 0.05
