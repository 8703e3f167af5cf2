"""Keeps what JAX compiled between runs: a cost model with learned kernels takes longer to compile than to simulate."""

import os
from pathlib import Path


LEAST_S = "0.3"
"""What compiles faster is not kept."""


def keep_compiled() -> None:
    """Name a folder for compiled kernels, `~/.cache/headway/jax`, to this process and those it starts.

    Must come before JAX is imported. `JAX_COMPILATION_CACHE_DIR` of the caller wins (empty: none); where no folder can
    be made, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(root) / "headway" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return
    if os.access(folder, os.W_OK):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", LEAST_S)
