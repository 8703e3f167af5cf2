"""Prices on arrays equal those on Python floats in every bit."""

import jax
import jax.numpy as jnp
import numpy as np

from sim.cost.lengths import FLOATS, AttentionTerms, LengthTerms, RecurrentTerms, lengths_s
from sim.scan.rounded import RoundedNumpy, rounded
from tests.scan.test_exact import DECODE, PREFILL


def compiled(function, *arrays, zero=0.0):
    """`function` on `Rounded` arrays, compiled in float64."""
    with jax.enable_x64(True):
        run = jax.jit(lambda zero, *args: function(*rounded(args, zero)).value)
        return np.asarray(run(np.full(len(arrays[0]), zero), *map(jnp.asarray, arrays)))


def test_products_and_quotients_are_rounded():
    """Expressions that compilers contract or rearrange, on 10,000 triples."""
    a, b, c = np.random.default_rng(0).random((3, 10_000))
    for expression in (
        lambda a, b, c: a * b + c,
        lambda a, b, c: c - a * b,
        lambda a, b, c: a * b - c * c,
        lambda a, b, c: a / b / c,
        lambda a, b, c: a / (b / c),
        lambda a, b, c: -a * 3.0 + 2.0 / c,
        lambda a, b, c: 1.0 - a / b,
        lambda a, b, c: a * b / 12.0,
    ):
        assert np.array_equal(compiled(expression, a, b, c), expression(a, b, c))
    found = compiled(lambda a, b: a / RoundedNumpy.sqrt(b), a, b)
    assert np.array_equal(found, a / np.sqrt(b))


def test_the_zero_reaches_every_product():
    """With 1 in its place: (2 * 3 + 1) / (6 + 1) + 1 = 2, sqrt(4) + 1 = 3."""
    two, three, six = (np.array([value]) for value in (2.0, 3.0, 6.0))
    assert compiled(lambda a, b, c: a * b / c, two, three, six, zero=1.0).tolist() == [2.0]
    assert compiled(RoundedNumpy.sqrt, np.array([4.0]), zero=1.0).tolist() == [3.0]


def test_closed_form_of_the_lengths():
    """Full, sliding and chunked attention and state layers, on drawn batches."""
    terms = LengthTerms(
        (
            AttentionTerms(16.0, DECODE, PREFILL),
            AttentionTerms(12.0, DECODE, PREFILL._replace(joint=1.0, wave=0.0), 128.0, 0.0),
            AttentionTerms(4.0, DECODE, PREFILL, 512.0, 1.0),
        ),
        (RecurrentTerms(8.0, 3.1e-6, 1.7e-7, 9e-6, 2e-7, 1.3e-9, 4e-9, 2e-10),),
    )
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(400):
        contexts = rng.integers(1, 3000, rng.integers(0, 40)).astype(float)
        chunks = rng.integers(1, 500, rng.integers(0, 4)).astype(float)
        prior = rng.integers(0, 2000, len(chunks)).astype(float)
        if not len(contexts) + len(chunks):
            continue
        batches.append(
            [
                chunks.sum(),
                float(len(chunks)),
                (chunks * prior + chunks * (chunks + 1) / 2).sum(),
                (prior + chunks).sum(),
                (prior + chunks).max(initial=0.0),
                float(len(contexts)),
                contexts.sum(),
                contexts.max(initial=0.0),
                (contexts**2).sum(),
            ]
        )
    columns = np.array(batches).T
    with jax.enable_x64(True):
        run = jax.jit(lambda zero, terms, stats: lengths_s(RoundedNumpy, *rounded((terms, *stats), zero)).value)
        found = np.asarray(run(np.zeros(len(batches)), jax.tree.map(np.float64, terms), tuple(columns)))
    assert found.tolist() == [lengths_s(FLOATS, terms, *map(float, batch)) for batch in batches]
