"""The closed form of the lengths: values by hand, exact limits, skew, windows, floats against arrays, gradients."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim.cost.lengths import (
    FLOATS,
    AttentionTerms,
    DecodeTerms,
    LengthTerms,
    PrefillTerms,
    RecurrentTerms,
    decodes_s,
    lengths_s,
    windowed_chunk,
    windowed_rows,
)


B, C = 3e-9, 20e-9  # seconds per token: streamed by the device, read by one block
DECODE = DecodeTerms(floor_s=5e-6, several_s=2e-6, split_s=1e-6, row_s=0.1e-6, token_s=B, chain_s=C, split_share=1 / 40)
PREFILL = PrefillTerms(
    floor_s=4e-6,
    tiles_per_token=1 / 64,
    heads=32.0,
    units=100.0,
    key_s=C,
    block_s=2e-6,
    empty_s=0.3e-6,
    stepped=0.0,
    wave=1.0,
    kv_token_s=B,
    row_token_s=0.0,
    token_s=0.0,
    context_token_s=0.0,
    rereads=3.0,
    rereads_per_block=0.03,
    cache_share=1e-6,
    joint=1.0,
)
KIND = AttentionTerms(10.0, DECODE, PREFILL)
STATE = RecurrentTerms(5.0, 6e-6, 1e-6, 8e-6, 2e-6, 0.2e-6, 0.4e-6, 0.05e-6)
NAMES = ("prefill_tokens", "prefill_chunks", "prefill_area", "prefill_kv_tokens", "prefill_max_tokens")
NAMES += ("decodes", "decode_sum", "decode_max", "decode_sumsq")


def seconds(stats, *kinds, states=()):
    return lengths_s(FLOATS, LengthTerms(kinds or (KIND,), states), *(getattr(stats, name) for name in NAMES))


def two_kernels(kind):
    """The same layers where decodes have a kernel of their own."""
    return kind._replace(prefill=kind.prefill._replace(joint=0.0))


def test_equal_decodes_by_hand(batch):
    # 100 rows of 1000: 40 rows would be split, 100 are not. Stream 100,000 x 3 ns = 300 us; one block needs 20 us only.
    # 5 floor + 2 several + 100 x 0.1 + 300 = 317 us, 10 layers.
    assert seconds(batch(decodes=[1000] * 100)) == pytest.approx(3.17e-3, rel=1e-9)


def test_single_split_row_by_hand(batch):
    # 1 of 40 rows: 39/40 of the split cost, chain 20 ns/40 < stream 3 ns: 5 + 0.975 + 0.1 + 30 = 36.075 us, 10 layers
    assert seconds(batch(decodes=[10_000])) == pytest.approx(0.36075e-3, rel=1e-6)


def test_one_long_row_by_hand(batch):
    # 50 rows of 100 and one of 20,100, none split. All stream: (50 x 100 + 20,100) x 3 ns = 75.3 us. When the short
    # ones are done, 20,000 tokens remain at 20 instead of 3 ns: 340 us more. 5 + 2 + 51 x 0.1 + 75.3 + 340 = 427.4 us.
    assert seconds(batch(decodes=[100] * 50 + [20_100])) == pytest.approx(10 * 427.4e-6, rel=1e-4)


def exact_stream_s(lengths):
    """Integral of max(c, b A(w)) over w, A(w) rows longer than w."""
    ordered = np.sort(lengths)
    active = len(ordered) - np.arange(len(ordered))
    return np.sum(np.diff(np.concatenate([[0.0], ordered])) * np.maximum(C, B * active))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20_000), min_size=40, max_size=200))
def test_two_classes_are_near_the_exact_integral(lengths):
    rows, fixed = len(lengths), 7e-6 + 0.1e-6 * len(lengths)
    price = lengths_s(
        FLOATS,
        LengthTerms((KIND,)),
        *(0, 0, 0, 0, 0, rows, sum(lengths), max(lengths), sum(x * x for x in lengths)),
    )
    got, want = price / 10 - fixed, exact_stream_s(np.array(lengths, float))
    assert 0.8 * want < got < 1.35 * want
    assert got >= max(B * sum(lengths), 0.0) * (1 - 1e-9)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 40_000), min_size=1, max_size=80),
    st.sampled_from([None, (512.0, 0.0), (512.0, 1.0)]),
    st.booleans(),
)
def test_decodes_alone_bit_for_bit(lengths, window, recurrent):
    """The short form for batches that only decode against the long one, on numpy's functions."""
    kind = KIND if window is None else KIND._replace(window=window[0], chunked=window[1])
    terms = LengthTerms(
        (KIND, kind), (RecurrentTerms(3.0, 2e-6, 1e-7, 4e-6, 2e-7, 1e-9, 5e-9, 1e-10),) if recurrent else ()
    )
    stats = (len(lengths), sum(lengths), max(lengths), sum(x * x for x in lengths))
    like_numpy = SimpleNamespace(**vars(FLOATS))
    assert decodes_s(terms, *stats) == lengths_s(like_numpy, terms, 0, 0, 0, 0, 0, *stats)
    assert lengths_s(FLOATS, terms, 0, 0, 0, 0, 0, *stats) == decodes_s(terms, *stats)


def test_skew_costs(batch):
    even, uneven = batch(decodes=[1000] * 60), batch(decodes=[500] * 59 + [30_500])
    assert even.decode_sum == uneven.decode_sum
    assert seconds(uneven) > 1.5 * seconds(even)


def test_chunk_by_hand(batch):
    # 128 tokens on 1000: 2 tiles x 32 heads = 64 blocks, one wave. Mean keys 1064.5, and half a tile more:
    # (2 x 1064.5 + 64)/2 = 1096.5 x 20 ns + 2 = 23.93 us; the longest sees 1128: 24.56 us, which is the schedule.
    # Stream 1128 x 3 ns = 3.384 us.
    want = 4e-6 + (24.56e-6**4 + 3.384e-6**4) ** 0.25
    assert seconds(batch(prefills=[(128, 1000)])) == pytest.approx(10 * want, rel=1e-9)


def test_mixed_by_hand(batch):
    # 64 tokens from scratch and 10 decodes of 2000. Blocks of decodes: 2000 x 20 ns + 2 = 42 us, 10 of 32 heads on 100
    # units: 3.2 -> 4 waves, 168 us; the one tile (64 keys x 20 ns + 2 = 3.28 us) hides. Keys of 10 x 2000 fill 2 % of
    # the
    # cache: nothing again. Stream (64 + 20,000) x 3 ns = 60.192 us.
    want = 4e-6 + (168e-6**4 + 60.192e-6**4) ** 0.25
    assert seconds(batch(prefills=[(64, 0)], decodes=[2000] * 10)) == pytest.approx(10 * want, rel=1e-6)


def test_keys_are_read_again_beyond_the_cache(batch):
    # 100 rows of 10,000 tokens fill the cache exactly: half of min(3, 0.03 x 101) = 3 more reads, 2.5 times the keys.
    busy = KIND._replace(prefill=PREFILL._replace(key_s=1e-12, block_s=0.0, empty_s=0.0))
    got = seconds(batch(prefills=[(64, 0)], decodes=[10_000] * 100), busy) / 10
    assert got == pytest.approx(4e-6 + 3e-9 * (64 + 1e6 * 2.5), rel=1e-3)


def test_idle_tiles(batch):
    # 640 tokens are 10 tiles, so each of 50 decodes has 9 that are empty: 450 blocks x 32 heads x 0.3 us on 100 units
    stats = batch(prefills=[(640, 0)], decodes=[64] * 50)
    alone = KIND._replace(prefill=PREFILL._replace(empty_s=0.0, kv_token_s=1e-15))
    both = KIND._replace(prefill=PREFILL._replace(kv_token_s=1e-15))
    assert seconds(stats, both) - seconds(stats, alone) == pytest.approx(10 * 43.2e-6, rel=1e-6)


def test_two_kernels_add(batch):
    kind = two_kernels(KIND)
    chunk, rows = [(256, 512)], [3000] * 50
    both = seconds(batch(chunk, rows), kind)
    assert both == pytest.approx(seconds(batch(chunk), kind) + seconds(batch((), rows), kind))


def test_balanced_work_has_no_waves(batch):
    even = KIND._replace(prefill=PREFILL._replace(wave=0.0, empty_s=0.0))
    # 32 heads of 10 x 42 and 3.28 us on 100 units: 135.45 us instead of 4 waves
    want = 4e-6 + (135.45275e-6**4 + 60.192e-6**4) ** 0.25
    assert seconds(batch(prefills=[(64, 0)], decodes=[2000] * 10), even) == pytest.approx(10 * want, rel=1e-4)


def test_states_by_hand(batch):
    # Decodes 6 + 10 x 1 = 16 us. Chunks 8 us, before the scan 300 x 0.05 = 15 us, and the soft maximum of the work,
    # 2 x 2 + 300 x 0.2 = 64 us, and of a chain of 150 tokens x 0.4 = 60 us: (64^4 + 60^4)^(1/4) = 73.846 us. 5 layers.
    stats = batch(prefills=[(100, 0), (200, 50)], decodes=[7] * 10)
    got = lengths_s(FLOATS, LengthTerms((), (STATE,)), *(getattr(stats, name) for name in NAMES))
    assert got == pytest.approx(5 * (16 + 8 + 15 + 73.846) * 1e-6, rel=1e-5)


def test_nothing_attends(batch):
    assert seconds(batch(), KIND, states=(STATE,)) == 0.0
    arrays = lengths_s(jnp, LengthTerms((KIND,), (STATE,)), *(jnp.zeros(3) for _ in NAMES))
    assert np.array_equal(np.asarray(arrays), np.zeros(3))


@pytest.mark.parametrize("length", [1, 100, 511, 512, 513, 9000])
def test_window_is_exact_for_equal_lengths(batch, length):
    windowed = KIND._replace(window=512.0, chunked=0.0)
    assert seconds(batch(decodes=[length] * 80), windowed) == pytest.approx(
        seconds(batch(decodes=[min(length, 512)] * 80)), rel=2e-6
    )


@pytest.mark.parametrize("mean,deviation", [(4000.0, 2000.0), (4000.0, 8000.0), (30_000.0, 30_000.0)])
def test_rows_far_beyond_the_window_read_no_less_than_the_widest_lengths_would(mean, deviation):
    # With a share p = mean^2/(mean^2 + variance) of rows of one length and all others 0, p of them read the window.
    inside, variance, _ = windowed_rows(FLOATS, mean, deviation**2, 10.0 * mean, 128.0, 0.0)
    share = mean**2 / (mean**2 + deviation**2)
    assert 0.999 * share * 128.0 <= inside <= 128.0
    assert variance >= 0.0


def test_window_of_normal_lengths():
    # lengths N(1000, 300) cut at their mean lose s/sqrt(2 pi) = 119.68 tokens on average
    inside, _, longest = windowed_rows(FLOATS, 1000.0, 300.0**2, 2000.0, 1000.0, 0.0)
    assert inside == pytest.approx(1000 - 300 / np.sqrt(2 * np.pi), rel=1e-6)
    assert longest == 1000.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100), st.integers(1, 5000))
def test_window_bounds(lengths, window):
    values = np.array(lengths, float)
    inside, variance, longest = windowed_rows(
        FLOATS, float(values.mean()), float(values.var()), float(values.max()), float(window), 0.0
    )
    assert inside <= min(values.mean(), window) + 1e-6
    # two classes at the worst places lose (sqrt(d^2 + V) - d)/2 (Scarf's bound); two thirds of V never lose more
    distance = abs(values.mean() - window)
    assert inside >= min(values.mean(), window) - 0.5 * (np.sqrt(distance**2 + values.var()) - distance) - 1e-6
    assert 0 <= variance <= values.var() + 1e-9
    assert longest == min(values.max(), window)


def test_chunked_rows_read_half_a_chunk(batch):
    # far beyond the chunk of 512, rows are spread over their chunks and read 256 keys; within it, all of them
    kind = KIND._replace(window=512.0, chunked=1.0)
    far, near = seconds(batch(decodes=[9000] * 80), kind), seconds(batch(decodes=[100] * 80), kind)
    assert far == pytest.approx(seconds(batch(decodes=[256] * 80)), rel=0.02)
    assert near == pytest.approx(seconds(batch(decodes=[100] * 80)), rel=0.02)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 5000), st.integers(1, 4000))
def test_window_is_exact_for_one_chunk(new, prior, window):
    area = sum(min(prior + i, window) for i in range(1, new + 1))
    seen, context, deepest = windowed_chunk(
        FLOATS, prior + (new + 1) / 2, float(new), 1.0, float(prior + new), float(prior + new), float(window), 0.0
    )
    assert seen * new == pytest.approx(area, rel=1e-3, abs=new)
    assert context == min(prior + new, new + window)
    assert deepest == min(prior + new, window)


def rising(batch, changes, *kinds):
    times = [seconds(batch(*change), *kinds) for change in changes]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_monotone(batch):
    rising(batch, [((), [n] * 64) for n in (1, 10, 100, 1000, 10_000)])
    rising(batch, [((), [1000] * n) for n in (1, 2, 8, 32, 64, 128, 256)])
    rising(batch, [([(c, 0)],) for c in (1, 64, 128, 512, 1024, 2048)])
    rising(batch, [([(512, p)],) for p in (0, 100, 1000, 10_000)])
    rising(batch, [([(512, 0)], [1000] * n) for n in (0, 32, 64, 128)])
    rising(batch, [((), [n] * 64) for n in (1, 100, 500, 2000)], KIND._replace(window=512.0, chunked=0.0))


batches = st.tuples(
    st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 20_000)), max_size=3),
    st.lists(st.integers(1, 30_000), max_size=64),
)


@settings(max_examples=60, deadline=None)
@given(batches, st.sampled_from(["plain", "window", "chunk", "two", "states"]))
def test_floats_equal_arrays(batch, drawn, what):
    kind = {
        "plain": KIND,
        "states": KIND,
        "two": two_kernels(KIND),
        "window": KIND._replace(window=1024.0, chunked=0.0),
        "chunk": KIND._replace(window=1024.0, chunked=1.0),
    }[what]
    terms = LengthTerms((kind,), (STATE,) if what == "states" else ())
    stats = [float(getattr(batch(*drawn), name)) for name in NAMES]
    with jax.enable_x64(True):
        arrays = lengths_s(jnp, terms, *(jnp.asarray(x) for x in stats))
        assert float(arrays) == pytest.approx(lengths_s(FLOATS, terms, *stats), rel=1e-12, abs=1e-18)


def test_single_precision(batch):
    stats = [np.float32(getattr(batch([(700, 3000)], [500, 1500, 9000] * 30), name)) for name in NAMES]
    terms = jax.tree.map(np.float32, LengthTerms((KIND._replace(window=1e12, chunked=0.0),)))
    exact = lengths_s(FLOATS, LengthTerms((KIND,)), *map(float, stats))
    assert float(lengths_s(jnp, terms, *map(jnp.asarray, stats))) == pytest.approx(exact, rel=1e-5)


GRADIENTS = [
    ([(700, 3000)], [500, 1500, 9000] * 30),
    ([(700, 3000)], []),
    ([], [500, 1500, 9000] * 30),
    ([], [1000] * 20),
]


def price_of(terms, stats):
    return lengths_s(jnp, terms, *stats)


price = jax.jit(price_of)
slope_by_terms = jax.jit(lambda terms, along, stats: jax.jvp(lambda t: price_of(t, stats), (terms,), (along,))[1])
gradients = jax.jit(jax.grad(price_of, (0, 1)))


def as_arrays(stats):
    return [jnp.asarray(np.float64(getattr(stats, name))) for name in NAMES]


@pytest.mark.parametrize("drawn", GRADIENTS)
def test_slopes_match_finite_differences(batch, drawn):
    stats = as_arrays(batch(*drawn))
    kind = KIND._replace(window=2000.0, chunked=0.0)
    leaves, tree = jax.tree.flatten(jax.tree.map(np.float64, LengthTerms((kind,))))
    whole = ("heads", "units", "tiles_per_token", "wave", "joint", "chunked")
    names = ["layers", *DecodeTerms._fields, *PrefillTerms._fields, "window", "chunked"]
    for index, name in enumerate(names):
        if name in whole:
            continue
        along = [leaf if i == index else np.float64(0) for i, leaf in enumerate(leaves)]
        exact = float(slope_by_terms(jax.tree.unflatten(tree, leaves), jax.tree.unflatten(tree, along), stats))
        ends = []
        for factor in (1.00001, 0.99999):
            moved = [leaf * factor if i == index else leaf for i, leaf in enumerate(leaves)]
            ends.append(float(price(jax.tree.unflatten(tree, moved), stats)))
        assert exact == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-10), name


@pytest.mark.parametrize("drawn", [*GRADIENTS, ([], [])])
def test_gradients_are_finite(batch, drawn):
    wide, chunks = KIND._replace(window=1e12, chunked=0.0), KIND._replace(window=2000.0, chunked=1.0)
    for kind in (wide, chunks, two_kernels(chunks)):
        terms = jax.tree.map(np.float64, LengthTerms((kind,), (STATE,)))
        slopes = gradients(terms, as_arrays(batch(*drawn)))
        assert all(np.isfinite(float(slope)) for slope in jax.tree.leaves(slopes))
