"""`headway validate`: predictions against measurements, each kind of measurement by a command of its own."""

import importlib

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.configure import key_of


KINDS = {
    "run": "scripts.validate_run",
    "serving": "scripts.validate_serving",
    "kv": "scripts.validate_kv",
    "operators": "scripts.validate_operators",
    "collectives": "scripts.validate_collectives",
}
"""What is validated, by the word that says so (`run=DIR`, `operators`), and the module with `run(arguments)`."""


def run(arguments: Arguments) -> Answer:
    """Hand over to the one kind that was named."""
    named = [kind for kind in KINDS if kind in {key_of(word) for word in arguments.words}]
    if len(named) != 1:
        got = f", got {' and '.join(named)}" if named else ""
        wanted = "run=DIR, serving=FILE, kv=FILE, collectives=FILE or operators"
        raise ValueError(f"headway validate wants one of {wanted}{got}.")
    found: Answer = importlib.import_module(KINDS[named[0]]).run(arguments)
    return found
