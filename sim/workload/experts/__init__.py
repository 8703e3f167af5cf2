"""Which experts tokens choose: laws of popularity, one module each; a new file is a new `experts.law`.

A law has `popularity(options, layers, experts, rng)`, and `READS`: the keys of `ExpertsConf` that it reads, with their
defaults. It gives weights above or equal to 0 of any scale, `[domain, layer, expert]`: a text is of one of the domains,
each as likely as another. `choices` draws tokens from them.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.documents import nearest
from sim.workload import draws
from sim.workload.experts.conf import ExpertsConf


EVEN = "even"
DETAILS = ("collapsed", "layers")
_NOT_LAWS = {"choices", "conf", "inclusion"}
_OF_LAWS = ("exponent", "bound", "concentration", "domains", "path", "run_tokens")
_MOST_DOMAINS = 1024
FLUCTUATION_TOKENS = 512


def names() -> list[str]:
    """The laws by which tokens choose; `even` is none of them."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_LAWS)


def check_experts(conf: ExpertsConf) -> None:
    """Raise `ValueError`, one sentence, for a law that is not known, a key it does not read, or one out of range."""
    if conf.law not in (EVEN, *names()):
        known = [EVEN, *names()]
        raise ValueError(f"experts.law wants one of {', '.join(known)}, got {conf.law!r}{nearest(conf.law, known)}.")
    if conf.detail not in DETAILS:
        raise ValueError(f"experts.detail wants one of {', '.join(DETAILS)}, got {conf.detail!r}.")
    reads = _reads(conf.law)
    for key in _OF_LAWS:
        if getattr(conf, key) is not None and key not in reads:
            takers = [law for law in names() if key in _reads(law)]
            raise ValueError(
                f"experts.{key} has no effect with experts.law={conf.law}: it is read by {', '.join(takers)}; leave it "
                "out, or change experts.law."
            )
    if conf.law == EVEN and (conf.fluctuation or conf.detail != DETAILS[0]):
        key = "fluctuation" if conf.fluctuation else "detail"
        raise ValueError(f"experts.{key} has no effect with experts.law=even; choose {', '.join(names())}.")
    if conf.fluctuation_tokens is not None and not conf.fluctuation:
        raise ValueError("experts.fluctuation_tokens has no effect while experts.fluctuation is 0; set that above 0.")
    _check_ranges(conf)


def _check_ranges(conf: ExpertsConf) -> None:
    for key, low, high in (
        ("exponent", 0.0, 10.0),
        ("bound", 1.0, 1e9),
        ("concentration", 1e-3, 1e9),
        ("domains", 1, _MOST_DOMAINS),
        ("run_tokens", 1, 1 << 20),
        ("fluctuation", 0.0, 10.0),
        ("fluctuation_tokens", 1, 1 << 20),
    ):
        value = getattr(conf, key)
        if value is not None and not low <= value <= high:
            raise ValueError(f"experts.{key} wants a number from {low:g} to {high:g}, got {value:g}.")
    if conf.run_tokens is not None and conf.run_tokens & (conf.run_tokens - 1):
        raise ValueError(f"experts.run_tokens wants a power of two, got {conf.run_tokens}.")
    if conf.law == "trace" and not conf.path:
        raise ValueError("experts.law=trace wants experts.path, a csv file with the columns layer, expert and tokens.")


def options(conf: ExpertsConf) -> dict[str, Any]:
    """The keys that the law reads, filled with its defaults."""
    reads = _reads(conf.law)
    return {key: default if getattr(conf, key) is None else getattr(conf, key) for key, default in reads.items()}


def popularity(conf: ExpertsConf, layers: int, experts: int, seed: int) -> Float[np.ndarray, "domain layer expert"]:
    """Shares of all choices that each expert gets in each layer, by domain; they sum to 1.

    **Raises:** `ValueError` for a trace that does not describe this model.
    """
    rng = draws.stream(seed, draws.EXPERTS)
    weights = np.asarray(_law(conf.law).popularity(options(conf), layers, experts, rng), np.float64)
    shares: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def described(conf: ExpertsConf) -> str:
    """The law in words, for people."""
    said = ", ".join(f"{key} {value}" for key, value in options(conf).items() if value is not None)
    moves = f", popularity varies by {conf.fluctuation:.0%}" if conf.fluctuation else ""
    return f"{conf.law}{f' ({said})' if said else ''}{moves}"


def _reads(law: str) -> Mapping[str, Any]:
    reads: Mapping[str, Any] = {} if law == EVEN else _law(law).READS
    return reads


def _law(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")
