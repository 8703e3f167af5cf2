"""Kernels that only move activations, learned from tables: a family as in `predictors.family`.

Few constants by operator and engine (`form`), fitted (`learn`), and read by the kinds of a plan's kernels (`kernel`).
"""

from predictors.elementwise.kernel import kernel as kernel
from predictors.elementwise.learn import (
    NAME as NAME,
    ONE_IN as ONE_IN,
    VERSION as VERSION,
    fit as fit,
    predict as predict,
    shapes as shapes,
    splits as splits,
    unused as unused,
    used as used,
)
