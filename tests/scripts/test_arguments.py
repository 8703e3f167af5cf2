"""Options of a command: values, switches, repeats, and mistakes."""

import pytest

from scripts.arguments import Option, parse


OPTIONS = (
    Option("--serve", "", "COMMAND"),
    Option("--config-dir", "", "DIR", many=True),
    Option("--multirun", "", short="-m"),
)


def test_options_and_words_may_be_mixed():
    found = parse(
        ["a=1", "-m", "--serve", "vllm serve x --y 1", "b=2", "--config-dir=c", "--config-dir", "d"], OPTIONS, "x"
    )
    assert found.words == ["a=1", "b=2"]
    assert found.switch("--multirun")
    assert found.value("--serve") == "vllm serve x --y 1"
    assert found.values("--config-dir") == ["c", "d"]


def test_a_value_may_begin_with_dashes():
    assert parse(["--serve", "--request-rate 10"], OPTIONS, "x").value("--serve") == "--request-rate 10"


def test_what_was_not_given_is_absent():
    found = parse([], OPTIONS, "x")
    assert (found.switch("--multirun"), found.value("--serve"), found.values("--config-dir")) == (False, None, [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--serv", "x"], "headway x has no option --serv: did you mean --serve?"),
        (["--zzz"], "has no option --zzz: `headway x --help` lists its options"),
        (["--serve"], "--serve wants COMMAND, and the command ends there"),
        (["--serve", "--multirun"], "--serve wants COMMAND, got the option --multirun"),
        (["--config-dir", "--serve=x"], "--config-dir wants DIR, got the option --serve=x"),
        (["--multirun=yes"], "--multirun takes no value, got 'yes'"),
    ],
)
def test_mistakes(words, said):
    with pytest.raises(ValueError, match=said):
        parse(words, OPTIONS, "x")
