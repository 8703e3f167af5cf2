"""Reading device files: names, a user's own file, plug-ins, and one sentence for each mistake."""

import dataclasses
import sys

import pytest

from sim.hardware.check import device_from, numbers, source_of
from sim.hardware.plausible import range_of
from sim.hardware.read import list_devices, load_device
from sim.hardware.spec import DeviceConf


MINIMAL = """
name: Acme One
peak_flops_per_s: {bf16: 100e12}
memory_bytes: 64e9
memory_bytes_per_s: 2e12
compute_units: 100
"""


def write(tmp_path, text):
    path = tmp_path / "acme.yaml"
    path.write_text(text)
    return path


def test_names_ignore_case_and_separators():
    assert load_device("H100_SXM") == load_device("h100-sxm") == load_device("h100 sxm")


def test_two_loads_share_nothing():
    load_device("h100-sxm").peak_flops_per_s["bf16"] = 0.0
    assert load_device("h100-sxm").peak_flops_per_s["bf16"] == 989e12


def test_a_new_chip_is_one_file(tmp_path):
    device = load_device(write(tmp_path, MINIMAL))
    assert isinstance(device, DeviceConf)
    assert device.memory_bytes == 64e9
    # Stated defaults: 0.75 of the peak, no cache above the memory rate, 8 x 2e12 / 100 per unit.
    assert device.matmul_efficiency == {"bf16": 0.75}
    assert device.cache_bytes_per_s == 2e12
    assert device.unit_stream_bytes_per_s == pytest.approx(1.6e11)
    assert "class default" in source_of(device, "unit_stream_bytes_per_s")
    assert "names no source" in source_of(device, "memory_bytes")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("h100", r"hardware=h100 is not a known device \(did you mean h100-pcie or h100-sxm\?\)"),
        ("rtx4090", r"did you mean rtx-4090\?"),
        ("missing.yaml", r"hardware=missing.yaml: there is no such file"),
    ],
)
def test_unknown_names_say_the_nearest(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_device(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("memory_bytes_per_s", "memory_byte_per_s"),
            r"unknown key memory_byte_per_s \(did you mean memory_bytes_per_s",
        ),
        (("memory_bytes: 64e9", ""), r"lacks memory_bytes, which every device needs; add memory_bytes"),
        (("64e9", "-64e9"), r"memory_bytes must be a number in bytes, finite and at least 0, got -64000000000"),
        (
            ("2e12", ".nan"),
            r"memory_bytes_per_s must be a number in bytes per second, finite and at least 0, got nan",
        ),
        (("2e12", "2 TB/s"), r"memory_bytes_per_s must be a number in bytes per second, got '2 TB/s'"),
        (("2e12", "0"), r"memory_bytes_per_s must be a number in bytes per second between 1e\+07 and 1e\+16, got 0"),
        (("bf16", "bf17"), r"unknown dtype bf17 \(did you mean bf16\?\); known are fp32"),
        (("bf16: 100e12", "bf16: true"), r"peak_flops_per_s.bf16 must be a number in FLOP per second, got True"),
        (("100\n", "1.5\n"), r"compute_units must be a whole number, got 1.5"),
        (("{bf16: 100e12}", "{}"), r"lacks peak_flops_per_s"),
        (("{bf16: 100e12}", "[1]"), r"peak_flops_per_s must hold keys and values, got \[1\]"),
    ],
)
def test_wrong_content_is_one_sentence(tmp_path, change, sentence):
    assert change[0] in MINIMAL
    with pytest.raises(ValueError, match=sentence) as caught:
        load_device(write(tmp_path, MINIMAL.replace(*change)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "memory_efficiency: 1.2",
            r"memory_efficiency must be a share between 0.001 and 1, got 1.2; correct memory_efficiency",
        ),
        ("matmul_efficiency: {bf16: 0}", r"matmul_efficiency.bf16 must be a share between 0.001 and 1, got 0"),
        ("matmul_efficiency: {fp8: 0.5}", r"matmul_efficiency.fp8 has no peak_flops_per_s.fp8"),
        ("memory_nominal_bytes: 60e9", r"memory_bytes \(64000000000\) must not exceed memory_nominal_bytes"),
        ("scale_up: {kind: NVLink}", r"scale_up.bytes_per_s must be positive for a NVLink link"),
        ("scale_up: {latency: 1}", r"unknown key scale_up.latency \(did you mean latency_s\?\)"),
        ("pcie: {kind: PCIe, bytes_per_s: 1e9, topology: star}", r"pcie.topology must be one of switch, mesh, torus"),
        (
            "nic: {kind: nvlink, bytes_per_s: 1e9}",
            r"nic.kind must be one of NVLink, .* got nvlink \(did you mean NVLink or NVLink-C2C\?\); correct nic.kind",
        ),
        ("collectives: h100", r"collectives must be one of .*, got h100 \(did you mean h100_sxm\?\)"),
        ("memory_bytes_estimated: maybe", r"memory_bytes_estimated must be true or false, got 'maybe'"),
        ("notes: [", r"broken YAML in line"),
        ("memory_bytes: 1", r"broken YAML in line \d+, duplicate key"),
    ],
)
def test_wrong_additions_are_one_sentence(tmp_path, line, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load_device(write(tmp_path, MINIMAL + line + "\n"))
    assert "\n" not in str(caught.value)


def _edges():
    """Every numeric key of a device with its least and largest value, and the dict that sets it."""
    whole = load_device("h100-sxm")
    for key in numbers(whole):
        low, high, _ = range_of(key)
        yield key, low, high


def _with(key, value):
    content = dataclasses.asdict(load_device("h100-sxm"))
    head, _, tail = key.partition(".")
    (content[head] if tail else content)[tail or head] = value
    if key == "memory_bytes":
        content["memory_nominal_bytes"] = max(value, 1e6)
    return content


@pytest.mark.parametrize(("key", "low", "high"), list(_edges()))
def test_every_number_has_a_range(key, low, high):
    """Both ends are accepted, what lies outside is one sentence, in whatever unit."""
    for value in (low, high):
        if key == "memory_nominal_bytes" and value == low:
            continue  # must not be below memory_bytes
        device_from(_with(key, value), "acme")
    for value in (1e30, 2 * high, *([low / 2] if low > 0 else []), -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"^Device acme: {key} must be .*got .*; correct {key}\.$") as caught:
            device_from(_with(key, value), "acme")
        assert "\n" not in str(caught.value)


def test_the_catalogue_is_far_from_the_bounds():
    for name in list_devices():
        for key, value in numbers(load_device(name)).items():
            low, high, none = range_of(key)
            assert (none and value == 0) or low <= value <= high, (name, key)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "5", "text"])
def test_a_file_without_keys_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match="lacks name|must hold keys and values"):
        load_device(write(tmp_path, text))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"&x\na: *x", "does an alias hold itself"),
        (b"name: " + b"[" * 3000, "nesting depth"),
        (b"name: ${other}", "is not valid YAML: Interpolation key 'other' not found"),
    ],
)
def test_what_is_no_device_file_is_named(tmp_path, content, said):
    (tmp_path / "acme.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=f"Device file .*acme.yaml.*{said}"):
        load_device(tmp_path / "acme.yaml")


def test_a_folder_called_like_a_device_file(tmp_path):
    (tmp_path / "acme.yaml").mkdir()
    with pytest.raises(ValueError, match="acme.yaml: this is a folder"):
        load_device(tmp_path / "acme.yaml")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed distribution, as a packager lays it down, that ships device files through the entry point."""

    def install(file_name, text=MINIMAL, module="acme_devices", entry="acme_devices"):
        package = tmp_path / module
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / file_name).write_text(text)
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[headway.devices]\nacme = {entry}\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("acme_devices", None)


def test_a_plugin_adds_devices(plugin):
    assert "acme-one" not in list_devices()
    plugin("acme-one.yaml")
    assert "acme-one" in list_devices()
    assert load_device("Acme One").name == "Acme One"


def test_a_plugin_cannot_replace_a_shipped_device(plugin):
    plugin("h100-sxm.yaml")
    with pytest.raises(
        ValueError, match=r"plug-in acme \(acme_devices\) ships the device h100-sxm, which exists already"
    ):
        list_devices()
    assert load_device("h100-sxm").vendor == "NVIDIA"


def test_a_broken_plugin_is_named(plugin):
    plugin("acme-one.yaml", entry="no_such_module")
    with pytest.raises(ValueError, match=r"Device plug-in acme \(no_such_module\) cannot be read"):
        load_device("acme-one")
