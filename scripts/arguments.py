"""The options of a command, read without any import that takes time; `KEY=VALUE` overrides pass through."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches


@dataclass(frozen=True)
class Option:
    """One option: `value` names its argument ("" for a switch); `many` may be given more than once."""

    name: str
    text: str
    value: str = ""
    short: str = ""
    many: bool = False


HELP = Option("--help", "show this and stop", short="-h")
JSON = Option("--json", "print one JSON object on standard output and nothing else")


@dataclass
class Arguments:
    """What was given: values by option name, switches as True, and the words that are no options."""

    options: dict[str, str | bool | list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def switch(self, name: str) -> bool:
        """Whether a switch was given."""
        return bool(self.options.get(name))

    def value(self, name: str) -> str | None:
        """The argument of an option, None if it was not given."""
        found = self.options.get(name)
        return found if isinstance(found, str) else None

    def values(self, name: str) -> list[str]:
        """The arguments of an option that may be repeated."""
        found = self.options.get(name, [])
        return found if isinstance(found, list) else []


def parse(words: Sequence[str], options: Sequence[Option], command: str) -> Arguments:
    """Split `words` into options and the rest. `ValueError` for an unknown option or a missing argument."""
    known = {name: option for option in options for name in (option.name, option.short) if name}
    found = Arguments()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            found.words.append(word)
            continue
        option = known.get(name)
        if option is None:
            near = get_close_matches(name, known, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"`headway {command} --help` lists its options."
            raise ValueError(f"headway {command} has no option {name}: {hint}")
        if not option.value:
            if equals:
                raise ValueError(f"{option.name} takes no value, got {value!r}.")
            found.options[option.name] = True
            continue
        if not equals:
            if not queue:
                raise ValueError(f"{option.name} wants {option.value}, and the command ends there.")
            value = queue.pop(0)
            if value.partition("=")[0] in known:
                raise ValueError(f"{option.name} wants {option.value}, got the option {value}.")
        if option.many:
            found.options[option.name] = [*found.values(option.name), value]
        else:
            found.options[option.name] = value
    return found
