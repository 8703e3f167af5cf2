"""Files of any content: what is wrong with one is a sentence with its name."""

import pytest

from sim.documents import parse_json, parse_yaml, read_mapping, user_path


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)

BROKEN_YAML = {
    "a: [1": "broken YAML in line",
    "a: " + "[" * 5000: "broken YAML in line 1, exceeded maximum nesting depth",
    "a: &x [*x]": "does an alias hold itself",
    "&x\na: *x": "does an alias hold itself",
    LAUGHS: "more than 100 levels or 1,000,000 values",
    "a: " + "1" * 5000: "a number of thousands of digits",
    "a: !!int x": "a value that cannot be read",
    "a: 1\na: 2": "broken YAML in line 2, duplicate key a",
    "a: 1\n---\nb: 2": "broken YAML in line 2",
    "a: *b": "undefined alias",
    "a: \0": "not allowed",
}

BROKEN_JSON = {
    "": "broken JSON in line 1",
    "{": "broken JSON in line 1",
    "[" * 100_000: "nested too deeply",
    "[" * 200 + "]" * 200: "more than 100 levels",
    "1" * 5000: "a number of thousands of digits",
}


@pytest.mark.parametrize("text", BROKEN_YAML)
def test_broken_yaml(text):
    with pytest.raises(ValueError, match=f"^mine.yaml: .*{BROKEN_YAML[text]}") as caught:
        parse_yaml(text, "mine.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", BROKEN_JSON)
def test_broken_json(text):
    with pytest.raises(ValueError, match=f"^mine.json: .*{BROKEN_JSON[text]}"):
        parse_json(text, "mine.json")


def test_yaml_is_read_as_the_configurations_are():
    found = parse_yaml("a: 1e12\nb: 2024-01-02\nc: 0x10\nd: 1.5\ne: '1e3'\nf: {<<: &x {g: 1}, h: *x}\ni: -1E-3", "x")
    assert found == {
        "a": 1e12,
        "b": "2024-01-02",
        "c": 16,
        "d": 1.5,
        "e": "1e3",
        "f": {"g": 1, "h": {"g": 1}},
        "i": -1e-3,
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "is not text in UTF-8"),
        (b"5", "must hold a mapping of keys, got int"),
        (b"null", "must hold a mapping of keys, got NoneType"),
        (b"[]", "must hold a mapping of keys, got list"),
    ],
)
@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
def test_a_file_that_is_no_mapping(tmp_path, content, said, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: {said}"):
        read_mapping(tmp_path / name)


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="nowhere.json: there is no such file"):
        read_mapping(tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="this is a folder"):
        read_mapping(tmp_path)


def test_a_path_that_is_none():
    for text in ("", " ", "a\0b"):
        with pytest.raises(ValueError, match="^workload wants a name or a path"):
            user_path(text, "workload")
    with pytest.raises(ValueError, match="workload=~nobody-of-this-name/x: there is no user ~nobody-of-this-name"):
        user_path("~nobody-of-this-name/x", "workload")
