"""Files that people write, YAML and JSON: whatever is wrong with one comes out as a sentence with its name."""

import difflib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml


MOST_DEPTH = 100
MOST_VALUES = 1_000_000


def user_path(text: str, key: str) -> Path:
    """`text` as a path, `~` filled in; `ValueError` that names `key` where it can be no path."""
    if not text.strip() or "\0" in text:
        raise ValueError(f"{key} wants a name or a path, got {text!r}.")
    full = os.path.expanduser(text) if text.startswith("~") else text
    if full.startswith("~"):
        raise ValueError(f"{key}={text}: there is no user {text.split('/')[0]}, whose folder ~ would be.")
    return Path(full)


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` as a clause: names that begin with the word, else the nearest; nothing if none is near."""
    names, lower = list(known), word.lower()
    close = [name for name in names if word and name.lower().startswith(lower)]
    if not close:
        by_lower = {name.lower(): name for name in names}
        close = [by_lower[name] for name in difflib.get_close_matches(lower, by_lower, n=1)]
    return f" (did you mean {' or '.join(close[:3])}?)" if close else ""


def read_text(path: Path) -> str:
    """The text of a file; `ValueError` if it is missing, a folder, not readable or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: a file is wanted, this is a folder.") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text in UTF-8.") from None


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as OmegaConf reads it: `1e12` is a number, a date is text, a repeated key is a mistake."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping whose keys are all different."""
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, where: str) -> Any:
    """What a YAML text holds. `ValueError` for what is no YAML, and for what no program could walk through."""
    try:
        value = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        at = f"broken YAML in line {mark.line + 1}" if mark else "broken YAML"
        raise ValueError(f"{where}: {at}, {problem or ' '.join(str(error).split())}.") from None
    except RecursionError:
        raise ValueError(f"{where}: broken YAML, nested too deeply.") from None
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        # A tag whose text it does not fit (`!!int x`), a number of thousands of digits.
        raise ValueError(f"{where}: broken YAML, {_said(error)}.") from None
    return tame(value, where)


def parse_json(text: str, where: str) -> Any:
    """What a JSON text holds. `ValueError` for what is no JSON, and for what no program could walk through."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: broken JSON in line {error.lineno} ({error.msg}).") from None
    except RecursionError:
        raise ValueError(f"{where}: broken JSON, nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{where}: broken JSON, {_said(error)}.") from None
    return tame(value, where)


def _said(error: Exception) -> str:
    return "a number of thousands of digits" if "digits" in str(error) else f"a value that cannot be read ({error})"


def tame(value: Any, where: str) -> Any:
    """`value` if it is a finite tree: an alias of YAML can hold itself, or stand for more than memory holds."""
    level, depth, count = [value], 0, 0
    while level:
        count += len(level)
        if depth > MOST_DEPTH or count > MOST_VALUES:
            raise ValueError(
                f"{where}: holds more than {MOST_DEPTH} levels or {MOST_VALUES:,} values; does an alias hold itself?"
            )
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.values()
            elif isinstance(item, list | tuple | set):
                below += item
            if len(below) > MOST_VALUES:
                break
        level, depth = below, depth + 1
    return value


def read_document(path: Path) -> Any:
    """What a .json file, or a YAML file of any other name, holds."""
    text = read_text(path)
    return parse_json(text, str(path)) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON or YAML file; `ValueError` if it holds anything else."""
    return mapping(read_document(path), str(path))


def mapping(value: Any, where: str) -> dict[str, Any]:
    """`value` if it is a mapping, keys as text; `ValueError` with `where` otherwise."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must hold a mapping of keys, got {type(value).__name__}.")
    return {str(key): entry for key, entry in value.items()}
