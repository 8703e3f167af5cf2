"""Rows of operator tables from the columns of a file: batches of equal lengths, labels, names of dtypes and devices."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import ArrayLike

from predictors.table import FAMILIES, LABELS, LENGTH_COLUMNS as LENGTH_COLUMNS, OperatorTable


DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "sq": "int8", "fp4": "nvfp4"}


COPY = "copy of"
"""In a source label: the file repeats another device's, so that nobody knows what it measured."""


class Part(NamedTuple):
    """Rows of one family and device in one file, read when asked for."""

    source: str
    device: str
    family: str
    engine: str
    path: Path
    read: Callable[[], OperatorTable]


def table(
    family: str,
    device: str,
    seconds: ArrayLike,
    columns: Mapping[str, Any],
    labels: Mapping[str, Any],
) -> OperatorTable:
    """Rows of one family, in SI units; a number or a word stands for all rows, labels left out are empty."""
    time_s = np.asarray(seconds, np.float64)
    rows = len(time_s)
    if set(columns) != set(FAMILIES[family]) or not set(labels) <= set(LABELS):
        raise AssertionError(f"{family} has the columns {FAMILIES[family]}, got {tuple(columns)}, {tuple(labels)}")
    return OperatorTable(
        family=family,
        device=device,
        columns={
            name: np.array(np.broadcast_to(np.asarray(columns[name], np.float64), rows)) for name in FAMILIES[family]
        },
        labels={name: words(labels.get(name, ""), rows) for name in LABELS},
        seconds=time_s,
    )


def words(label: str | Sequence[str] | np.ndarray | pa.ChunkedArray, rows: int = 0) -> np.ndarray:
    """A label as an array of str that share their objects; a missing word is empty."""
    if isinstance(label, str):
        return np.full(rows, label, object)
    if isinstance(label, pa.ChunkedArray):
        coded = label.combine_chunks().dictionary_encode()
        known = np.array(
            [str(word) if word is not None else "" for word in coded.dictionary.to_pylist()] + [""], object
        )
        return known[coded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    return np.asarray(label, object)


def renamed(label: np.ndarray, rename: Callable[[str], str]) -> np.ndarray:
    """A label with every distinct word replaced by `rename(word)`."""
    known = {word: rename(word) for word in set(label.tolist())}
    return np.array([known[word] for word in label.tolist()], object)


def dtypes(label: np.ndarray) -> np.ndarray:
    """Names of dtypes as this project writes them: bf16, fp16, fp8, fp8_block, nvfp4, int8, int4_wo ..."""
    return renamed(label, lambda name: DTYPE_NAMES.get(name.lower(), name.lower()))


def equal_lengths(
    chunks: ArrayLike = 0.0,
    chunk: ArrayLike = 0.0,
    prior: ArrayLike = 0.0,
    decodes: ArrayLike = 0.0,
    context: ArrayLike = 0.0,
) -> dict[str, np.ndarray]:
    """The length columns of batches: `chunks` chunks of `chunk` tokens on `prior`, `decodes` rows of one `context`.

    A context holds the token that its row computes.
    """
    b, c, p, n, length = (np.asarray(value, np.float64) for value in (chunks, chunk, prior, decodes, context))
    return {
        "prefill_tokens": b * c,
        "prefill_chunks": b,
        "prefill_area": b * (c * p + c * (c + 1.0) / 2.0),
        "prefill_kv_tokens": b * (p + c),
        "prefill_max_tokens": np.where(b > 0.0, p + c, 0.0),
        "decodes": n,
        "decode_sum": n * length,
        "decode_max": np.where(n > 0.0, length, 0.0),
        "decode_sumsq": n * length**2,
    }


def batch_lengths(chunks: Sequence[tuple[float, float]], contexts: Sequence[float]) -> dict[str, float]:
    """The length columns of one batch of chunks (new tokens, prior tokens) and decode contexts, of any lengths."""
    return {
        "prefill_tokens": sum(c for c, _ in chunks),
        "prefill_chunks": float(len(chunks)),
        "prefill_area": sum(c * p + c * (c + 1.0) / 2.0 for c, p in chunks),
        "prefill_kv_tokens": sum(c + p for c, p in chunks),
        "prefill_max_tokens": max((c + p for c, p in chunks), default=0.0),
        "decodes": float(len(contexts)),
        "decode_sum": sum(contexts),
        "decode_max": max(contexts, default=0.0),
        "decode_sumsq": sum(length**2 for length in contexts),
    }


def check_columns(found: Sequence[str], needed: Sequence[str], ignored: Sequence[str], path: Path) -> None:
    """**Raises:** ValueError for a column that is missing, and for one that nobody knows, with the nearest known."""
    missing = [name for name in needed if name not in found]
    if missing:
        same = otherwise_written(missing[0], found)
        near = same or get_close_matches(missing[0], found, 1, 0.0)[0]
        hint = ": rename it, case counts" if same else ""
        raise ValueError(
            f"{path} needs the column '{missing[0]}', which is not among its {len(found)}; near: '{near}'{hint}."
        )
    known = (*needed, *ignored)
    for name in found:
        if name not in known:
            raise unknown(f"{path}: the column", name, known, ": rename or drop it")


def otherwise_written(name: str, known: Sequence[str]) -> str:
    """The one of `known` that differs from `name` by case alone; "" for none."""
    return next((one for one in known if one.lower() == name.lower()), "")


def unknown(what: str, name: str, known: Sequence[str], hint: str = "") -> ValueError:
    """The refusal of a name that is none of the known, with the nearest."""
    longer = sorted(one for one in known if one.startswith(name)) if name else []
    near = (longer or get_close_matches(name, known, 1, 0.0))[0]
    return ValueError(f"{what} '{name}' is unknown; the nearest known is '{near}'{hint}.")


def device_of(hardware: str, known: Mapping[str, str], path: Path) -> str:
    """Name in the catalogue of a device as a source calls it.

    **Raises:** ValueError, with the nearest, for hardware that the reader does not know.
    """
    if hardware not in known:
        raise unknown(f"{path}: the hardware", hardware, list(known))
    return known[hardware]
