"""Set-up from nothing: the pinned versions, and how a Python is found."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    """A distribution's name as the registry compares it."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", name)[0]).lower()


def pinned() -> dict[str, str]:
    """Version by distribution in the lock."""
    return {
        normal(name): version for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", LOCK, re.MULTILINE)
    }


def test_the_lock_names_no_address():
    assert "://" not in LOCK
    assert not re.search(r"--(extra-)?index-url|--find-links|file:", LOCK)


def test_every_pin_has_hashes():
    entries = re.split(r"\n(?=[A-Za-z0-9])", LOCK)[1:]
    assert len(entries) == len(pinned()) > 20
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_lock_covers_what_the_project_asks_for():
    wanted = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
    ]
    assert {normal(name) for name in wanted} <= set(pinned())


def test_jax_is_not_the_one_that_computes_wrong_sums():
    assert PROJECT["project"]["requires-python"] == ">=3.12"
    assert tuple(int(part) for part in pinned()["jax"].split(".")[:2]) >= (0, 12)
    assert pinned()["jax"] == pinned()["jaxlib"]


def shell(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `text` after `environment.sh`, with nothing of the caller's environment but what is given."""
    command = f". '{ROOT}/scripts/environment.sh'\n{text}"
    return subprocess.run(
        ["/bin/sh", "-eu", "-c", command], env=environment, capture_output=True, text=True, check=False
    )


def fake(folder: Path, name: str, body: str) -> Path:
    """An executable script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_is_taken_only_after_it_has_run(tmp_path):
    """A shim on PATH that cannot run is passed over; so is a Python that is too old."""
    fake(tmp_path / "bin", "python3.12", "echo 'not switched on' >&2; exit 127")
    fake(tmp_path / "bin", "python3", "exit 1")
    right = fake(tmp_path / "pyenv" / "versions" / "3.12.9" / "bin", "python3", f'exec "{sys.executable}" "$@"')
    found = shell(
        "headway_python", PATH=f"{tmp_path}/bin:/usr/bin:/bin", PYENV_ROOT=f"{tmp_path}/pyenv", HOME="/nowhere"
    )
    assert found.stdout.strip() == str(right), found.stderr


def test_pyenv_is_found_by_its_shims(tmp_path):
    fake(tmp_path / "pyenv" / "shims", "python3.13", "exit 127")
    right = fake(tmp_path / "pyenv" / "versions" / "3.13.1" / "bin", "python3", f'exec "{sys.executable}" "$@"')
    found = shell(
        'headway_fits() { [ "$1" = \'' + str(right) + "' ]; }; headway_python",
        PATH=f"{tmp_path}/pyenv/shims:/usr/bin:/bin",
    )
    assert found.stdout.strip() == str(right), found.stderr


def test_a_wish_comes_first_and_is_checked(tmp_path):
    assert shell("headway_python", PATH=os.defpath, HEADWAY_PYTHON=sys.executable).stdout.strip() == sys.executable
    old = fake(tmp_path, "python2", "exit 1")
    found = shell("headway_python", PATH=os.defpath, HEADWAY_PYTHON=str(old))
    assert found.returncode == 1
    assert f"HEADWAY_PYTHON={old} is no Python 3.12 or newer" in found.stderr


def test_no_python_at_all_is_one_clear_sentence():
    found = shell("headway_fits() { false; }; headway_python", PATH=os.defpath, HOME="/nowhere")
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr.count("\n") == 1
    assert "needs Python 3.12 or newer" in found.stderr and "HEADWAY_PYTHON=" in found.stderr


def test_an_environment_of_the_same_stamp_is_left_alone(tmp_path):
    """The second start does nothing: no Python is looked for, nothing is printed."""
    root = tmp_path / "checkout"
    for name in ("requirements.txt", "pyproject.toml", "scripts/install.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    fake(root / ".venv" / "bin", "python", "exit 0")
    text = f"headway_python() {{ echo looked >&2; return 1; }}\nheadway_stamp '{root}' > '{root}/.venv/headway-stamp'\n"
    found = shell(f"{text}headway_environment '{root}'", PATH="/usr/bin:/bin")
    assert (found.returncode, found.stderr) == (0, "")
    changed = shell(f"{text}echo more >> '{root}/requirements.txt'\nheadway_environment '{root}'", PATH="/usr/bin:/bin")
    assert (changed.returncode, changed.stderr) == (2, "looked\n")


@pytest.mark.parametrize("script", ["headway.sh", "test.sh", "environment.sh"])
def test_scripts_are_plain_posix_shell(script):
    done = subprocess.run(["sh", "-n", str(ROOT / "scripts" / script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_test_script_explains_itself():
    for flag in ("--help", "-h"):
        told = subprocess.run(
            ["/bin/sh", ROOT / "scripts" / "test.sh", flag], capture_output=True, text=True, check=True
        )
        assert told.stdout.startswith("usage: sh scripts/test.sh") and "== format" not in told.stdout
