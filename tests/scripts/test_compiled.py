"""Compiled kernels are kept where the caller may write, and nowhere else."""

import os

import pytest

from scripts.compiled import keep_compiled


NAMES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)


def test_a_folder_of_the_user_is_made_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled()
    assert os.environ[NAMES[0]] == str(tmp_path / "headway" / "jax")
    assert (tmp_path / "headway" / "jax").is_dir()


def test_the_callers_word_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(NAMES[0], "")
    keep_compiled()
    assert os.environ[NAMES[0]] == "" and not list(tmp_path.iterdir())


def test_nothing_is_kept_where_no_folder_can_be_made(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled()
    assert NAMES[0] not in os.environ
