"""`KEY=VALUE` words of commands that configure no simulation."""

from pathlib import Path

import pytest

from calibration.tables.find import PACKAGE
from scripts import calibrate
from scripts.arguments import Arguments
from scripts.plain_keys import PlainKeys


def test_sources_are_paths_and_the_installed_package(tmp_path):
    (tmp_path / "tables").mkdir()
    keys = PlainKeys.of("headway calibrate", [f"sources={PACKAGE}, {tmp_path}/tables"], ["sources"])
    assert keys.sources("sources", PACKAGE) == [PACKAGE, Path(tmp_path / "tables")]
    assert PlainKeys.of("headway calibrate", [], ["sources"]).sources("sources", PACKAGE) == []


def test_calibrate_takes_the_package_by_its_name(monkeypatch):
    asked = []
    monkeypatch.setattr("calibration.operators.calibrated", lambda device, name, sources, **more: asked.append(sources))
    with pytest.raises(ValueError, match="sources hold no table of l40s for gemm"):
        calibrate.run(Arguments({"--json": True}, ["device=l40s", "family=gemm", f"sources={PACKAGE}"]))
    assert asked == [[PACKAGE]]


def test_a_misspelt_package_is_told():
    keys = PlainKeys.of("headway calibrate", ["sources=aiconfigurator_core"], ["sources"])
    with pytest.raises(ValueError, match="aiconfigurator_core does not exist; give .* or aiconfigurator-core for the"):
        keys.sources("sources", PACKAGE)
