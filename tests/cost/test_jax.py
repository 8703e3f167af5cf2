"""The installed JAX computes right sums: version 0.10.2 did not on CPU (jax-ml/jax#39103)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batched_product_and_sum(dtype):
    # 256 x 64 ones times 64 ones, summed over 256 rows of 64 batches of weight 256:
    # every product is 64, 256 rows give 16384, 64 batches 2^20, times 256 = 2^28 = 268,435,456.
    matrices, vectors = jnp.ones((64, 256, 64), dtype), jnp.ones((64, 64), dtype)
    total = jax.jit(lambda a, x: 256 * jnp.sum(jax.vmap(jnp.matmul)(a, x)))(matrices, vectors)
    assert float(total) == 268_435_456


def test_reduction_of_high_rank():
    # 2^7 elements of 1 x 2: another sum that crashed that version.
    x = jnp.ones((2,) * 7)
    assert float(jax.jit(lambda a: jnp.sum(a * 2.0))(x)) == 256
