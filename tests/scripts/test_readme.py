"""What the README shows works: its Python runs, its commands compose, its links lead somewhere."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from conf.expand import expand
from scripts.arguments import parse
from scripts.commands import COMMANDS
from scripts.configure import request


ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(path: Path) -> list[list[str]]:
    """The words of every `headway ...` line in the shell blocks of a document."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] == ["sh", "scripts/headway.sh"]:
                words = ["headway", *words[2:]]
            if words and words[0] == "headway":
                found.append(words[1:])
    return found


def test_the_example_in_python_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(example, {})
    lines = out.getvalue().splitlines()
    assert re.fullmatch(r"first token after \d+\.\d ms, then one every \d+\.\d\d ms", lines[0])
    assert re.match(r"\d+ tokens/s on 1 GPU: ", lines[1])
    assert any(line.startswith("max_num_seqs = ") for line in lines)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_is_right(path, tmp_path, monkeypatch):
    """Options exist and configurations compose; files that stand for the reader's own are made first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path" / "to" / "folder").mkdir(parents=True)
    (tmp_path / "path" / "to" / "folder" / "config.json").write_text("{}")
    (tmp_path / "path" / "to" / "config.json").write_text("{}")
    (tmp_path / "path" / "to" / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    (tmp_path / "acme-a1.yaml").write_text(
        (ROOT / "docs" / "add-a-device.md").read_text().split("```yaml\n")[1].split("```")[0]
    )
    for name, text in re.findall(r"```\w+\n# (\S+\.(?:py|yaml))\n(.*?)```", path.read_text(), re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in commands(path):
        if words[0].startswith("-"):
            continue
        command = COMMANDS[words[0]]
        arguments = parse(words[1:], command.all_options, command.name)
        if command.name not in ("simulate", "memory"):
            continue
        asked = request(arguments)
        if arguments.switch("--multirun"):
            assert len(expand(asked.overrides, asked.config_dirs)) > 1
        else:
            asked.config()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target
