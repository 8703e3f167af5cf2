"""Which shapes a predictor never sees: chosen by a hash of the shape, the same everywhere and for ever."""

from hashlib import blake2b

import numpy as np
from jaxtyping import Bool

from predictors.table import OperatorTable


def held_out(table: OperatorTable, names: tuple[str, ...], one_in: int = 8) -> Bool[np.ndarray, " row"]:
    """Rows of held-out shapes: combinations of the columns or labels `names` whose hash falls in one of `one_in`."""
    keys = list(zip(*(table[name].tolist() for name in names), strict=True))
    chosen = {key: _hash(names, key) % one_in == 0 for key in set(keys)}
    return np.fromiter((chosen[key] for key in keys), bool, len(keys))


def combinations(table: OperatorTable, *names: str) -> int:
    """How many combinations of these columns or labels there are."""
    return len(set(zip(*(table[name].tolist() for name in names), strict=True)))


def _hash(names: tuple[str, ...], key: tuple) -> int:
    text = ",".join(
        f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in zip(names, key, strict=True)
    )
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
