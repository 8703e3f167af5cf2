"""The command line called in this process, in an empty folder."""

import json

import pytest

from scripts.cli import main


class Call:
    """Exit code and outputs of one call."""

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err

    def json(self) -> dict:
        """The one JSON object on standard output."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@pytest.fixture
def headway(tmp_path, monkeypatch, capsys):
    """`headway("simulate", "workload.rate=10")` in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Call:
        capsys.readouterr()
        code = main(words)
        captured = capsys.readouterr()
        return Call(code, captured.out, captured.err)

    return call
