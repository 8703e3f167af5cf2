"""Rules of the house that no linter knows: sizes, floors that cover every room, and nobody's private modules."""

import ast
import statistics
import tomllib
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("sim", "predictors", "calibration", "conf", "scripts")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def test_modules_are_short():
    """600 lines are two modules; the median of those that hold anything stays at 200."""
    assert [f"{path.relative_to(ROOT)}: {lines(path)}" for path in MODULES if lines(path) > 600] == []
    assert statistics.median(size for size in map(lines, MODULES) if size > 5) <= 200


def test_the_readme_fits_on_two_screens():
    assert lines(ROOT / "README.md") <= 120


def test_there_is_no_drawer_for_odds_and_ends():
    assert [str(path) for path in MODULES if path.name in ("utils.py", "helpers.py", "misc.py", "common.py")] == []


def test_every_room_stands_on_a_floor():
    """A room that no layer names would escape the import rules."""
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = {name.strip(" ()") for layer in contract["layers"] for name in layer.replace("|", ":").split(":")}
    rooms = {f"sim.{path.stem}" for path in (ROOT / "sim").iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms -= {"sim.__init__", "sim.__pycache__"}
    assert rooms | {"predictors", "calibration", "conf", "scripts"} <= named


def imported(path: Path) -> list[str]:
    """Every module a file imports, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_imports_another_packages_private_parts(package):
    found = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        if path.relative_to(ROOT).parts[0] == package
        for name in imported(path)
        if any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
        and name.split(".")[0] != package
    ]
    assert found == []


def test_the_top_level_is_tidy():
    allowed = {
        *PACKAGES, "tests", "docs", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md",
        "requirements.txt", "pyproject.toml", ".ci", ".gitignore", ".git",
    }  # fmt: skip
    ignored = (ROOT / ".gitignore").read_text().split()
    for path in ROOT.iterdir():
        assert path.name in allowed or any(path.match(pattern.rstrip("/")) for pattern in ignored), path.name
