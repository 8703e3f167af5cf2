"""Kernels that only move activations, learned from tables: a family as in `predictors.family`.

Few constants by operator and engine (`form`), fitted (`learn`), and read by the kinds of a plan's kernels (`kernel`).
"""

from predictors.elementwise.kernel import kernel as kernel
from predictors.elementwise.learn import (
    NAME as NAME,
    VERSION as VERSION,
    fit as fit,
    predict as predict,
    splits as splits,
    used as used,
)
