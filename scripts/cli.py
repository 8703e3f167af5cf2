"""`headway COMMAND`: finds the command, prints its answer, turns mistakes into one sentence.

Nothing slow is imported before the command line has been read.
"""

import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from scripts.answer import Answer
from scripts.arguments import parse
from scripts.commands import COMMANDS
from scripts.compiled import keep_compiled
from scripts.interrupts import heard


BAD_INPUT, BUG, INTERRUPTED = 2, 1, 130


def version() -> str:
    """The version of the installed distribution."""
    from importlib.metadata import version as installed

    return installed("headway")


def answer(words: Sequence[str]) -> Answer:
    """The answer to one command line (without the program's name)."""
    from scripts.help import command_help, overview

    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        return Answer({"status": "ok", "help": overview(), "commands": list(COMMANDS)}, overview())
    if name in ("--version", "-V"):
        return Answer({"status": "ok", "version": version()}, f"headway {version()}")
    command = COMMANDS.get(name)
    if command is None:
        near = get_close_matches(name, COMMANDS, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(COMMANDS)}."
        if name == "sweep":
            hint = "a sweep is `headway simulate -m KEY=A,B ...`."
        if "=" in name:
            hint = f"the command comes first, `headway simulate {name}`."
        raise ValueError(f"there is no command {name}: {hint}")
    arguments = parse(words[1:], command.all_options, name)
    if arguments.switch("--help"):
        return Answer({"status": "ok", "help": command_help(command)}, command_help(command))
    found: Answer = importlib.import_module(command.module).run(arguments)
    return found


def failure(error: BaseException) -> Answer:
    """What a person reads of an exception: its sentence if the input was wrong, else a note that this is a bug."""
    if isinstance(error, KeyboardInterrupt):
        return Answer({"status": "interrupted", "message": "interrupted"}, "interrupted", INTERRUPTED)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {(error.strerror or str(error)).lower()}."
        return Answer({"status": "error", "message": message}, message, BAD_INPUT)
    if isinstance(error, ValueError):
        # The program's name is printed before it.
        message = sentence(str(error).removeprefix("headway "))
        return Answer({"status": "error", "message": message}, message, BAD_INPUT)
    if isinstance(error, MemoryError):
        from scripts.failure import out_of_memory

        message = out_of_memory(" ".join(str(error).split()))
        return Answer({"status": "error", "message": message}, message, BAD_INPUT)
    if isinstance(error, SystemExit):
        message = (
            f"the run was ended by sys.exit({error.code!r}), which no part of headway calls: look at code of your own."
        )
        return Answer({"status": "error", "message": message}, message, BAD_INPUT)
    message = f"a bug in headway, {type(error).__name__}: {error} (HEADWAY_DEBUG=1 shows where)."
    return Answer({"status": "bug", "message": message}, message, BUG)


def sentence(text: str) -> str:
    """One line with a full stop, unless it ends with a mark already."""
    line = " ".join(text.split())
    return line if not line or line.endswith((".", "!", "?")) else line + "."


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0, 2 for bad input, 1 for a bug."""
    words = list(sys.argv[1:] if words is None else words)
    keep_compiled()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA tells of a slow compilation as of an error
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    out = sys.stdout
    with contextlib.suppress(AttributeError):
        # Names of files need not be text: what cannot be written is written as \udcff, in JSON too.
        out.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        # With --json, whatever a library prints must not reach standard output.
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), heard():
            found = answer([*words[:1], "--json", *words[1:]] if as_json and words else words)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if os.environ.get("HEADWAY_DEBUG"):
            traceback.print_exc()
        found = failure(error)
        if not as_json:
            print(f"headway: {found.text}", file=sys.stderr)
            return found.code
    try:
        print(dump(found.fields) if as_json else found.text, file=out, flush=True)
    except BrokenPipeError:
        # The reader has gone (`headway models | head`): nothing is left to say, at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    return found.code


def dump(fields: dict[str, Any]) -> str:
    """Strict JSON in one line; arrays become lists, and numbers that JSON has no word for become null."""
    try:
        return json.dumps(fields, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        from sim.report.plain import to_json

        return to_json(fields)
