"""One clear sentence for each way a configuration can be wrong: what was wanted, what came, which key to change."""

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches

from conf.schema import GROUPS, SimulateConf


LIKE = 0.85
"""So much alike (`SequenceMatcher`) are the first parts of a name and of what was probably meant."""

TYPES = {"int": "a number", "float": "a number", "str": "text", "bool": "true or false", "list": "a list"}
WORDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false", "String": "text"}


def schema_of(annotation: object) -> type | None:
    """The dataclass behind a field's type (`X` or `X | None`), or None."""
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((part for part in parts if isinstance(part, type) and dataclasses.is_dataclass(part)), None)


def keys(schema: type = SimulateConf, prefix: str = "") -> Iterator[str]:
    """All dotted keys below `schema`, groups included."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        yield prefix + field.name
        below = schema_of(hints[field.name])
        if below:
            yield from keys(below, f"{prefix}{field.name}.")


def _holds_list(key: str) -> bool:
    """Whether the schema has a list at a dotted key."""
    found: object = SimulateConf
    for name in key.split("."):
        schema = schema_of(found)
        found = typing.get_type_hints(schema).get(name) if schema else None
    parts = typing.get_args(found) if isinstance(found, types.UnionType) else (found,)
    return any(typing.get_origin(part) is list for part in parts)


def nearest(word: str, options: Iterable[str], count: int = 3) -> list[str]:
    """The options most like `word`, best first: those that begin with it (or a part of which does), then the close."""
    lower = {option.lower(): option for option in options}
    word = word.lower()
    begin = sorted((option for option in lower if word and f"-{word}" in f"-{option}"), key=len)
    close = get_close_matches(word, list(lower), count, 0.6)
    return [lower[option] for option in dict.fromkeys(begin[:2] + _by_head(word, lower, count) + close)][:count]


def _by_head(word: str, options: Iterable[str], count: int) -> list[str]:
    """Of a name with a version written together (`lama3`, `llama3-8b`): the options whose first parts are like it."""
    if not re.search(r"[a-z]\d", word):
        return []
    parts = _parts(word)
    ratio = {
        option: SequenceMatcher(None, "-".join(parts), "-".join(_parts(option)[: len(parts)])).ratio()
        for option in options
    }
    best = max(ratio.values(), default=0.0)
    alike = [option for option, found in ratio.items() if found == best >= LIKE]
    return sorted(alike, key=lambda option: (len(option), option))[:count]


def _parts(name: str) -> list[str]:
    """`llama-3.1-8b` and `llama3.1-8b` alike: words, and numbers with what is written onto them."""
    return re.findall(r"[a-z]+|\d+[a-z]*", name)


def did_you_mean(found: Sequence[str]) -> str:
    """`: did you mean a, b or c?`, or a full stop."""
    if not found:
        return "."
    return f": did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?"


def leaf(key: str) -> str:
    """The last part of a dotted key."""
    return key.rpartition(".")[2]


def unknown_key(key: str) -> str:
    """The sentence for a key the schema does not have: the nearest of its group, else of all."""
    known = list(keys())
    parent = key.rpartition(".")[0]
    siblings = [leaf(k) for k in known if k.rpartition(".")[0] == parent]
    if parent and siblings:
        initials = [name for name in siblings if "".join(word[0] for word in name.split("_")) == leaf(key)]
        found = [f"{parent}.{name}" for name in initials or nearest(leaf(key), siblings, 1)]
        elsewhere = [k for k in known if leaf(k) == leaf(key)]
        found = found or elsewhere
        return f"unknown key {key}" + (did_you_mean(found) if found else f": {parent} has {', '.join(siblings)}.")
    if parent:
        group = nearest(parent, GROUPS, 1)
        inside = [k for k in known if group and k.startswith(f"{group[0]}.")]
        found = [f"{group[0]}.{name}" for name in nearest(leaf(key), map(leaf, inside), 1)] if group else []
    else:
        found = nearest(key, siblings, 1)
    leaves = {leaf(k): k for k in reversed(known)}
    found = found or [leaves[name] for name in nearest(leaf(key), leaves, 1)]
    return f"unknown key {key}" + (did_you_mean(found) if found else ": `headway simulate --help` lists all keys.")


def unknown_choice(group: str, choice: str, options: Sequence[str]) -> str:
    """The sentence for a group's choice that does not exist."""
    near = did_you_mean(nearest(choice, options)).rstrip(".")
    if group not in GROUPS:
        return f"unknown choice {group}={choice}{near}" + ("" if near else ".")
    if not options:
        return f"there is no {group}={choice}, which `defaults` in one of your files want."
    where = {"model": "`headway models` lists them", "hardware": "`headway hardware` lists them"}
    path = {"model": "config.json", "workload": "trace"}.get(group, "YAML file")
    return (
        f"{group}={choice} is not one of the {len(options)} known{near} "
        f"({where.get(group) or 'known are ' + ', '.join(options)}; the path of a {path} works too)"
    )


def sentence(error: Exception, origin_of: Callable[[str], str | None]) -> str:
    """The sentence for an exception that Hydra, OmegaConf or the YAML reader raised while composing.

    `origin_of`: the file behind a choice `group/name` that was registered for one, or None.
    """
    text = str(error)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, choice = str(missing).rpartition("/")
        # Files that were registered as choices are known by their paths, not by the names made for them.
        options = [name for name in getattr(error, "options", None) or [] if origin_of(f"{group}/{name}") is None]
        return unknown_choice(group, choice, options)
    if text.startswith("Ambiguous value"):
        override = text.split("'")[1]
        key = override.partition("=")[0]
        values = override.partition("=")[2]
        return f"{override} gives several values: add -m to run them all, or write '{key}=[{values}]' for a list."
    if type(error).__name__ == "OverrideParseException":
        override = str(getattr(error, "override", ""))
        if "=" not in override:
            return f"{override!r} is no KEY=VALUE; write for example workload.rate=10."
        return f"cannot read {override!r}: quote the value if it holds any of ,:=[]{{}}() or spaces, KEY='\"VALUE\"'."
    wrong = re.search(r"Invalid defaults list in '([^']*)', (.*)", text)
    if wrong:
        return f"{origin_of(wrong[1]) or f'{wrong[1]}.yaml'}: {wrong[2]}."
    if "Could not override" in text and error.__cause__ is None:
        override = (re.search(r"Could not override '([^']*)'", text) or ["", "it"])[1]
        return f"{override} cannot be set like this: {', '.join(GROUPS)} choose a file, the other keys are dotted."
    if hasattr(error, "problem_mark"):
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.name}, line {mark.line + 1}" if mark else "a YAML file"
        return f"{where}: broken YAML, {getattr(error, 'problem', text)}."
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    source = (re.search(r"^In '([^']+)'", text) or ["", ""])[1]
    at = f" (in {origin_of(source) or f'{source}.yaml'})" if source else ""
    return misfit(str(root), at)


def misfit(text: str, at: str) -> str:
    """The sentence for a key or a value that does not fit the schema, from OmegaConf's message; `at` names the file."""
    full_key = (re.search(r"full_key: (\S*)", text) or ["", ""])[1]
    first = next((line for line in text.splitlines() if line.strip() and "raised while composing" not in line), text)
    if re.search(r"Key '[^']*' not in '", text):
        return unknown_key(full_key) + at
    if "is not a subclass of" in text:
        got = text.partition("Merge error: ")[2].partition(" is not")[0].strip()
        return f"{full_key or 'the file'} wants a mapping of keys, got {got or 'a single value'}{at}."
    if re.search(r"Cannot merge (Dict|List)Config with (Dict|List)Config", text):  # the same words either way round
        wanted, came = ("a list", "a mapping of keys")[:: 1 if _holds_list(full_key) else -1]
        return f"{full_key or 'one of its keys'} wants {wanted}, got {came}{at}."
    assigned = re.search(r"Cannot assign (\w+) to (?:Dict|dict)", text)
    if assigned:
        return f"{full_key} wants a mapping of keys, got {TYPES.get(assigned[1], assigned[1])}{at}."
    unsupported = re.search(r"Value '(.*)' is not a supported primitive type", text)
    if unsupported:
        return f"{full_key} wants a number, text, a list or a mapping, got a {unsupported[1]}{at}."
    unsuited = re.search(r"Cannot convert '(\w+)' to string: '(.*)'", text)
    if unsuited:
        return f"{full_key} wants text, got {unsuited[2]}{at}."
    absent = re.search(r"Interpolation key '([^']*)' not found", text)
    if absent:
        return f"{full_key} refers to {absent[1]}, which is no key of the configuration{at}."
    if "Recursive interpolation" in text:
        return f"{full_key} refers to itself{at}."
    resolving = re.search(r"raised while resolving interpolation: (.*)", text)
    if resolving:
        return f"{full_key} cannot be filled in: {resolving[1].strip(chr(34))}{at}."
    if "is not in struct" in text:
        return f"{full_key} is not set by this choice; write +{full_key}=VALUE to add it.{at}"
    converted = re.search(r"Value '(.*)' of type '\w+' could not be converted to (\w+)", text)
    if converted:
        return f"{full_key} wants {WORDS.get(converted[2], converted[2])}, got {converted[1]!r}{at}."
    boolean = re.search(r"Value '(.*)' is not a valid bool", text)
    if boolean:
        return f"{full_key} wants true or false, got {boolean[1]!r}{at}."
    if "is not Optional" in text or "Incompatible value 'None'" in text:
        return f"{full_key} wants a value, got null{at}."
    if "is not a ListConfig" in text:
        return f"{full_key} wants a list, write '{full_key}=[...]'{at}."
    if "does not support deletion" in text:
        return f"{full_key} cannot be removed; give it a value instead."
    return f"{first.strip()}{f' (key {full_key})' if full_key else ''}{at}"
