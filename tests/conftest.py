"""Strict JAX for every test, and the folder of measured data, where it is present."""

import os
from pathlib import Path

import pytest
from hypothesis import settings


os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
# The same kernels are compiled again and again, by other tests and in other runs. A folder for each worker: an entry is
# never read while another process writes it.
COMPILED = Path(__file__).parents[1] / ".pytest_cache" / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


# Drawn examples are the same in every run, so that a failure is the change's own; HYPOTHESIS_PROFILE=random explores.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The measured data beside the project (`../shared`); tests that need it skip where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not (path / "data").is_dir():
        pytest.skip("measured data not present (../shared/data)")
    return path


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """The fitted kernels that come with Headway, which other tests do not see."""
    from importlib.resources import files

    return Path(str(files("predictors") / "artifacts"))


@pytest.fixture(scope="session", autouse=True)
def _analytic_prices(tmp_path_factory):
    """In this process every device is priced by the analytic model: its prices can be worked by hand."""
    from predictors import store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHIPPED", tmp_path_factory.mktemp("no-artifacts"))
        yield
