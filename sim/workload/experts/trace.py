"""Popularity that was counted in a run of the model: a csv file with `layer,expert,tokens`, and perhaps `domain`.

`tokens`: how many chose this expert of this layer; experts that are not listed, none. Experts are numbered from 0,
layers as in the file, lowest first; a file of one layer stands for all. Domains are any labels.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sim.documents import read_text, user_path


READS: dict[str, Any] = {"path": None, "run_tokens": 1}
COLUMNS = ("layer", "expert", "tokens")


def popularity(
    options: Mapping[str, Any], layers: int, experts: int, rng: np.random.Generator
) -> Float[np.ndarray, "domain layer expert"]:
    """The counts of the file."""
    del rng
    path = user_path(options["path"], "experts.path")
    counted = _counts(path, experts)
    domains, found = sorted({key[0] for key in counted}), sorted({key[1] for key in counted})
    if len(found) not in (1, layers):
        raise ValueError(
            f"experts.path={path}: the model has {layers} layers with experts, the file {len(found)}; wanted as many, "
            "or one that stands for all."
        )
    weights = np.zeros((len(domains), len(found), experts))
    for (domain, layer, expert), tokens in counted.items():
        weights[domains.index(domain), found.index(layer), expert] = tokens
    empty = np.argwhere(weights.sum(axis=-1) <= 0.0)
    if len(empty):
        domain, layer = empty[0]
        where = f"layer {found[layer]}" + (f" of domain {domains[domain]}" if len(domains) > 1 else "")
        raise ValueError(f"experts.path={path}: {where} has no tokens at any expert.")
    return np.broadcast_to(weights, (len(domains), layers, experts))


def _counts(path: Path, experts: int) -> dict[tuple[str, int, int], float]:
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"experts.path={error}") from None
    rows = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip().lower() for name in next(rows, [])]
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ValueError(f"experts.path={path}: wanted the columns {', '.join(COLUMNS)}, got {', '.join(header)}.")
    at = {name: header.index(name) for name in header}
    found: dict[tuple[str, int, int], float] = {}
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        where = f"experts.path={path}, line {number}"
        try:
            layer, expert, tokens = int(row[at["layer"]]), int(row[at["expert"]]), float(row[at["tokens"]])
        except (ValueError, IndexError):
            raise ValueError(f"{where}: wanted a layer, an expert and a count, got {','.join(row)}.") from None
        if layer < 0:
            raise ValueError(f"{where}: wanted a layer from 0, got {layer}.")
        if not 0 <= expert < experts:
            raise ValueError(f"{where}: wanted an expert from 0 to {experts - 1}, got {expert}.")
        if not 0.0 <= tokens < 1e18:
            raise ValueError(f"{where}: wanted a count of tokens from 0 to 1e18, got {row[at['tokens']]}.")
        domain = row[at["domain"]] if "domain" in at and len(row) > at["domain"] else ""
        key = (domain, layer, expert)
        found[key] = found.get(key, 0.0) + tokens
    if not found:
        raise ValueError(f"experts.path={path}: wanted at least one layer with experts, got no rows.")
    return found
