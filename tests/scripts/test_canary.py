"""jax 0.10.2, the newest for Python 3.11, sums wrongly on CPU (jax-ml/jax#39103): no installation with it may pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize(("dtype", "rows"), [(np.float64, 16_385), (np.float32, 32_769)])
def test_a_jitted_reduction_over_mapped_products_is_right(dtype, rows):
    """Row i holds (i, 0, 0), so |I row|^2 = i^2; the last one is 2^28 (2^30), which both types hold exactly."""
    vectors = np.zeros((rows, 3), dtype)
    vectors[:, 0] = np.arange(rows)
    with jax.enable_x64(True):
        identity = jnp.eye(3, dtype=dtype)
        lengths = jax.jit(jax.vmap(lambda vector: jnp.sum((identity @ vector) ** 2)))(jnp.asarray(vectors))
    np.testing.assert_array_equal(np.asarray(lengths), vectors[:, 0] ** 2)
