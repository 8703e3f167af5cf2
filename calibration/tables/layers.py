"""Rows of a profile that names the layers of one model: their shapes follow from its dimensions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.types

from calibration.tables.dimensions import Dimensions
from calibration.tables.rows import check_columns, table, words
from predictors.table import OperatorTable


Columns = dict[str, Any]


class Profile(NamedTuple):
    """What the rows of one file share: labels, the device, the tensor-parallel split, the model's dimensions."""

    source: str
    device: str
    model: str
    tp: int
    dimensions: Dimensions
    engine: str = ""
    engine_version: str = ""
    kernel: str = ""
    dtype: str = "bf16"
    timing: str = "kernel"
    warm: float = 0.0

    def labels(self, **more: Any) -> dict[str, Any]:
        """Labels of its rows."""
        names = ("source", "engine", "engine_version", "kernel", "dtype", "model", "timing")
        return {name: getattr(self, name) for name in names} | more

    def heads(self) -> Columns:
        """The attention columns that the model decides; KV in 16 bits."""
        d = self.dimensions
        return {
            "q_heads": d.q_heads / self.tp,
            "kv_heads": max(d.kv_heads / self.tp, 1.0),
            "qk_dim": d.head_dim,
            "v_dim": d.head_dim,
            "kv_bytes_per_element": 2.0,
            "window": np.inf,
            "warm": self.warm,
        }


def read_csv(path: Path, needed: tuple[str, ...], ignored: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """The needed columns, and those of the ignored that are there, of a csv file.

    Words are objects, all else float64: NaN where there is no number, 0 and 1 for false and true.

    **Raises:** ValueError for missing and unknown columns.
    """
    stored = pyarrow.csv.read_csv(path)
    check_columns(stored.column_names, needed, ignored, path)
    return {name: _column(stored[name]) for name in stored.column_names}


def _column(stored: pa.ChunkedArray) -> np.ndarray:
    if pyarrow.types.is_string(stored.type):
        return words(stored)
    if pyarrow.types.is_null(stored.type):
        return np.full(len(stored), np.nan)
    if pyarrow.types.is_boolean(stored.type):
        stored = stored.cast(pa.int8())
    return stored.to_numpy().astype(np.float64)


def gemm(op: np.ndarray, tokens: np.ndarray, seconds: np.ndarray, profile: Profile) -> OperatorTable:
    """Rows of those layers that are products."""
    shapes = {name: profile.dimensions.gemm(name, profile.tp) for name in set(op.tolist())}
    chosen = _chosen(op, shapes)
    widths = np.array([shapes[name] for name in op[chosen].tolist()]).reshape(-1, 2)
    columns = {"m": tokens[chosen], "n": widths[:, 0], "k": widths[:, 1]}
    return table("gemm", profile.device, seconds[chosen], columns, profile.labels(op=op[chosen]))


def elementwise(op: np.ndarray, tokens: np.ndarray, seconds: np.ndarray, profile: Profile) -> OperatorTable:
    """Rows of those layers that only move activations."""
    moved = {name: profile.dimensions.elementwise(name, profile.tp) for name in set(op.tolist())}
    chosen = _chosen(op, moved)
    columns = {"tokens": tokens[chosen], "bytes_per_token": [moved[name] for name in op[chosen].tolist()]}
    return table("elementwise", profile.device, seconds[chosen], columns, profile.labels(op=op[chosen]))


def sequence(op: np.ndarray, rows: np.ndarray, seconds: np.ndarray, profile: Profile) -> OperatorTable:
    """Rows of the head, whose vocabulary is split, and of the sampler, which sees all of it."""
    chosen = (op == "lm_head") | (op == "sampler")
    vocab = np.where(op == "lm_head", profile.dimensions.vocab / profile.tp, profile.dimensions.vocab)
    columns = {"rows": rows[chosen], "vocab": vocab[chosen]}
    return table("sequence", profile.device, seconds[chosen], columns, profile.labels(op=op[chosen]))


def _chosen(op: np.ndarray, known: Mapping[str, Any]) -> np.ndarray:
    return np.array([known[name] is not None for name in op.tolist()], bool)
