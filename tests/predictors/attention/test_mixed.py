"""Batches with prefill: terms by hand, a known law, and a plan's grid against the networks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors.attention import mixed
from predictors.attention.mixed_form import START, Cut, Heads, Lengths, kernel_s, prefill_terms
from predictors.attention.mixed_kernels import allowed_for
from predictors.attention.mixed_rows import heads_of, lengths_of, names_of
from sim.cost.analytic import analytic_cost
from sim.cost.prefill import PREFILL_AXES, prefill_s
from sim.cost.slots import slots_first
from sim.cost.stats import BatchStats
from sim.deployment.lower import lower
from sim.deployment.plan import UNLIMITED
from sim.model.read import load_model
from tests.predictors.attention.conftest import attention_table


TEXTS = {
    "engine": "vllm",
    "engine_version": "0.24.0",
    "kernel": "vllm_flash_attn_fa3",
    "dtype": "bf16",
    "op": "mixed",
    "timing": "kernel",
}
CUT = Cut(128.0, 0.0, 1.0, 1.0)
BATCHES = 200
NODES = [axis.nodes() for axis in PREFILL_AXES]


def test_latent_prefill_falls_back_on_another_engine():
    kernels = ("sglang|1|flash_attention|bf16|2|320", "sglang|1|fa3|bf16|2|256", "trtllm|1|default|bf16|2|320")
    # SGLang's latent rows are of the absorbed form: TensorRT-LLM's stand in; an engine's own come first.
    assert allowed_for(kernels, "sglang").tolist() == [0.0, 1.0, 1.0]
    assert allowed_for(kernels, "trtllm").tolist() == [0.0, 0.0, 1.0]
    assert allowed_for(kernels, "vllm").tolist() == [1.0, 1.0, 1.0]


def batches(tokens, chunks, prior, decodes, keys, **columns):
    """`chunks` chunks of `tokens` in all on `prior` each, and `decodes` rows of `keys` each."""
    tokens, chunks, prior, decodes, keys = (np.asarray(x, np.float64) for x in (tokens, chunks, prior, decodes, keys))
    lengths = {
        "prefill_tokens": tokens,
        "prefill_chunks": chunks,
        "prefill_area": tokens * (prior + 0.5 * (tokens / chunks + 1.0)),
        "prefill_kv_tokens": tokens + prior * chunks,
        "prefill_max_tokens": prior + tokens / chunks,
        "decodes": decodes,
        "decode_sum": decodes * keys,
        "decode_max": np.where(decodes > 0.0, keys, 0.0),
        "decode_sumsq": decodes * keys**2,
    }
    return attention_table(TEXTS, **lengths, **columns)


def random_batches(count, seed, **columns):
    """One chunk in half of them, prior tokens in a third, decodes in two thirds."""
    rng = np.random.default_rng(seed)

    def spread(low, high, share):
        some = np.rint(np.exp(rng.uniform(np.log(low), np.log(high), count)))
        return np.where(rng.random(count) < share, some, 0.0)

    chunks = np.maximum(spread(2.0, 8.0, 0.5), 1.0)
    chunk = spread(16.0, 4096.0, 1.0)
    decodes = spread(1.0, 256.0, 0.67)
    return batches(chunk * chunks, chunks, spread(64.0, 8192.0, 0.33), decodes, spread(64.0, 8192.0, 1.0), **columns)


def test_terms_by_hand():
    # 32 query heads on 8 KV heads of 128 + 128, 2 B: 4 KiB a token; 1 TB/s, 0.1 PFLOP/s, 100 units, 50 MB of cache.
    heads = Heads(*map(np.asarray, (32.0, 8.0, 256.0, 4096.0, UNLIMITED, 1e14, 1e12, 50e6, 100.0)))
    constants = START | {"compute_share": 0.8, "memory_share": 0.5, "cache_share": 2.0}
    apart, together = (prefill_terms(np, constants, CUT._replace(packed=packed), heads) for packed in (0.0, 1.0))
    # 128 query rows of one head, each key with 60 operations beside 2 x 256, at 0.8 of the rate of one of 100 units
    assert apart.key_s == pytest.approx(2 * 128 * (256 + 60) * 100 / (0.8 * 1e14))
    assert (apart.tiles_per_token, apart.heads, apart.rereads) == (1 / 128, 32.0, 3.0)
    assert (together.tiles_per_token, together.heads, together.rereads) == (4 / 128, 8.0, 0.0)
    assert apart.kv_token_s == pytest.approx(4096 / 0.5e12)
    assert apart.cache_share == pytest.approx(4096 / (2 * 50e6 * 8))
    # a row in and out: 2 B x 32 x 256
    assert apart.row_token_s == pytest.approx(16384 / 1e12)
    assert apart.token_s == pytest.approx((0.1 * 16384 + 0.5 * 2 * 8 * 256) / 1e12)


def test_terms_are_those_of_the_analytic_kernel(h100):
    # With its constants and cut the form is `sim.cost.prefill` itself.
    plan = lower(load_model("llama-3.1-8b"), h100)
    slots, device = slots_first(plan.attention, np), plan.device
    analytic = analytic_cost().prefill
    wanted = analytic.terms(np, slots, device)
    constants = dict.fromkeys(START, 1.0) | {
        "floor": analytic.floor_s,
        "block": wanted.block_s,
        "empty": wanted.empty_s,
        "extra": 0.0,
        "before_q": 0.0,
        "before_kv": 0.0,
        "wave": slots.wave,
    }
    heads = Heads(
        *(slots.q_heads, slots.kv_heads, slots.prefill_dim, slots.kv_bytes_per_token, slots.window, slots.flops_per_s),
        *(leaf + 0.0 * slots.count for leaf in (device.memory_bytes_per_s, device.cache_bytes, device.compute_units)),
    )
    found = prefill_terms(np, constants, Cut(slots.tile_rows, slots.packed, 1.0, slots.joint), heads)
    for name in set(found._fields) - {"grid", "context_token_s"}:
        assert getattr(found, name)[0] == pytest.approx(getattr(wanted, name)[0]), name


def test_limits():
    heads = Heads(*map(np.asarray, (32.0, 8.0, 256.0, 4096.0, UNLIMITED, 1e14, 1e12, 50e6, 100.0)))
    constants = START | {"compute_share": 1.0, "extra": 0.0, "block": 1e-8, "before_q": 0.0, "before_kv": 0.0}

    def price(heads, **lengths):
        filled = Lengths(*(np.asarray(lengths.get(name, 0.0)) for name in Lengths._fields))
        return kernel_s(np, prefill_terms(np, constants, CUT, heads), filled)

    # A chunk of 32768 tokens: 2 x 32 heads x 256 x half of 32768^2 FLOP, but for the diagonal of tiles.
    whole = {"tokens": 32768.0, "chunks": 1.0, "seen": 16384.5, "context": 32768.0, "deepest": 32768.0}
    assert price(heads, **whole) == pytest.approx(2 * 32 * 256 * 32768 * 16384.5 / 1e14, rel=0.02)
    # 16 tokens while 64 rows of 16384 keys decode, arithmetic for free: a million tokens of 4 KiB at 1 TB/s. All heads
    # run at once, so that keys are read once.
    few = {"tokens": 16.0, "chunks": 1.0, "seen": 8.5, "context": 16.0, "deepest": 16.0}
    rows = {"decodes": 64.0, "mean": 16384.0, "longest": 16384.0}
    free = heads._replace(flops_per_s=np.asarray(1e20), units=np.asarray(1e4))
    once_s = 64 * 16384 * 4096 / 1e12
    assert price(free, **few, **rows) == pytest.approx(once_s, rel=0.03)


def law(table, device):
    """Seconds of known constants, and a wave over the tokens that no constant can say."""
    constants = START | {"floor": 9e-6, "compute_share": 0.9, "extra": 30.0}
    found = kernel_s(np, prefill_terms(np, constants, CUT, heads_of(table, device)), lengths_of(table))
    return dataclasses.replace(table, seconds=found * (1.0 + 0.1 * np.sin(np.log(table["prefill_tokens"]))))


@pytest.fixture(scope="module")
def known_table(h100):
    """Random batches of three head layouts, and every cell of decodes with several chunks."""
    heads = np.random.default_rng(5).integers(0, 3, 600)
    q_heads, kv_heads = np.array([32.0, 32.0, 16.0])[heads], np.array([8.0, 4.0, 16.0])[heads]
    return law(random_batches(600, 0, q_heads=q_heads, kv_heads=kv_heads), h100)


@pytest.fixture(scope="module")
def seen(known_table, h100):
    return known_table.where(~mixed.splits(known_table, h100)["shapes"])


@pytest.fixture(scope="module")
def fitted(seen, h100):
    return mixed.fit(seen, h100, 0, True)


@pytest.fixture(scope="module")
def priced_rows(fitted, seen, h100):
    """Predictions of fewer rows than were fitted, repeated up to as many: one compilation serves all."""

    def price(table):
        at = np.arange(len(seen)) % len(table)
        many = {name: table[name][at] for name in (*table.columns, *table.labels)}
        found = mixed.predict(fitted, attention_table(TEXTS, **many), h100)
        return type(found)(*(np.asarray(leaf)[: len(table)] for leaf in found))

    return price


@pytest.fixture(scope="module")
def slots(h100):
    """The layers of a model of 32 heads, and none."""
    one = slots_first(lower(load_model("llama-3.1-8b"), h100).attention, np)
    return jax.tree.map(lambda leaf: leaf[:2], one)


@pytest.fixture(scope="module")
def priced(fitted, slots, h100):
    """Seconds `[kind, batch]` of one layer by closed form and grid; and the slopes of the first kind's sum."""
    plan = mixed.kernel(fitted, h100, "vllm"), slots, lower(load_model("llama-3.1-8b"), h100).device

    def total(factors, lengths, plan):
        kernel, slots, device = plan
        fast = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factors[0])
        terms = kernel.terms(jnp, dataclasses.replace(slots, flops_per_s=slots.flops_per_s * factors[1]), fast)
        wide = jax.tree.map(lambda leaf: leaf[:, None], terms._replace(grid=None))
        wide = wide._replace(grid=terms.grid._replace(start=terms.grid.start[:, None]))
        found = prefill_s(jnp, wide, *lengths, 0.0)
        return jnp.sum(found[0]), found

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))

    def call(lengths, factors=(1.0, 1.0)):
        lengths = [np.resize(leaf, BATCHES) for leaf in lengths]
        with jax.enable_x64(True):
            (total_s, found), slope = jax.tree.map(np.asarray, compiled(jnp.asarray(factors), lengths, plan))
        return found, total_s, slope

    return call


def test_a_fit_finds_a_known_law_on_batches_it_has_not_seen(priced_rows, known_table, h100):
    unseen = known_table.where(mixed.splits(known_table, h100)["shapes"])
    found = priced_rows(unseen)
    error = np.abs(found.seconds / unseen.seconds - 1.0)
    assert len(unseen) > 40 and np.median(error) < 0.06 and np.quantile(error, 0.9) < 0.2
    assert (found.rel_error > 0.0).all()


def test_the_grid_gives_what_the_networks_give(priced, priced_rows):
    table = random_batches(BATCHES, 1)
    ratio = np.abs(priced(lengths_of(table))[0][0] / priced_rows(table).seconds - 1.0)
    single = table["prefill_chunks"] == 1.0
    assert np.median(ratio[single]) < 0.015 and np.quantile(ratio[single], 0.95) < 0.08
    assert np.median(ratio) < 0.02 and np.quantile(ratio, 0.95) < 0.1
    # On nodes there is nothing to interpolate.
    tokens, prior, decodes, keys = (NODES[axis][2:3] for axis in range(4))
    table = batches(tokens, np.ones(1), prior - 1.0, decodes - 1.0, keys - 1.0)
    on_node_s = priced_rows(table).seconds
    assert priced(lengths_of(table))[0][0, :1] == pytest.approx(on_node_s, rel=1e-3)


def test_slopes_by_finite_differences(priced):
    lengths = lengths_of(batches([2048.0], [1.0], [1024.0], [64.0], [4096.0]))
    _, total_s, slope = priced(lengths)
    for which in (0, 1):
        ends = [priced(lengths, [1.0 + step * (index == which) for index in range(2)])[1] for step in (1e-4, -1e-4)]
        assert slope[which] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-2, abs=1e-4 * total_s)
    assert slope[1] / total_s < -0.3


def test_slopes_stay_finite_without_rows(priced):
    # What is read of a batch that prefills nothing: one chunk of one token, no keys.
    _, total_s, slope = priced(Lengths(*np.array([[1.0]] * 2 + [[0.0]] * 8)))
    assert np.isfinite(total_s) and np.isfinite(slope).all()


def test_beyond_what_was_measured_is_marked(fitted, priced_rows, slots, h100):
    table = batches([1024.0, 1024.0], [1.0, 1.0], [0.0, 90_000.0], [16.0, 16.0], [1024.0, 1024.0])
    found = priced_rows(table)
    assert found.outside.tolist() == [0.0, 1.0]
    assert found.rel_error[1] >= mixed.OUTSIDE and found.rel_error[1] > found.rel_error[0]
    other = dataclasses.replace(table, labels=table.labels | {"engine": np.array(["sglang"] * 2, object)})
    unknown = priced_rows(other)
    assert unknown.outside.tolist() == [1.0, 1.0] and unknown.seconds.tolist() == found.seconds.tolist()
    kernel, device = mixed.kernel(fitted, h100, "vllm"), lower(load_model("llama-3.1-8b"), h100).device
    stats = BatchStats(**{name: table.columns.get(name, np.zeros(2)) for name in BatchStats.__dataclass_fields__})
    with jax.enable_x64(True):
        kinds = jax.tree.map(lambda leaf: leaf[:1], slots)
        error, outside = map(np.asarray, kernel.doubt(kinds, device, stats))
    assert outside.tolist() == [0.0, 1.0] and error[1] >= mixed.OUTSIDE


def test_names_and_rows(h100):
    table = batches([64.0, 8.0], [1.0, 8.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    # Chunks of one token are decodes.
    assert mixed.is_mixed(table).tolist() == [True, False]
    assert names_of(table)[0] == "vllm|0.24.0|vllm_flash_attn_fa3|bf16|2|256"
    with pytest.raises(ValueError, match="no batch that prefills"):
        mixed.fit(table.where(~mixed.is_mixed(table)), h100, 0, True)


def test_two_lengths_are_put_into_the_middle_of_their_last_step():
    # 3 rows of 300 keys and one of 1000: steps of 128 end at 384 and 1024, their middles are 320 and 960.
    table = batches([64.0], [1.0], [0.0], [4.0], [1.0])
    columns = {"decode_sum": [1900.0], "decode_max": [1000.0], "decode_sumsq": [3 * 300.0**2 + 1e6]}
    table = dataclasses.replace(table, columns=table.columns | {k: np.array(v) for k, v in columns.items()})
    lengths = lengths_of(table)
    assert (lengths.mean[0], lengths.longest[0]) == ((3 * 320 + 960) / 4, 960.0)
    assert lengths.variance[0] == pytest.approx(np.var([320, 320, 320, 960]))


def test_splits_hold_out_whole_cells(known_table, h100):
    found = mixed.splits(known_table, h100)
    cells = list(zip(*(known_table[name].tolist() for name in ("decodes", "decode_sum", "decode_max")), strict=True))
    rides = known_table["decodes"] > 0.0
    held = {cell for cell, out, one in zip(cells, found["shapes"], rides, strict=True) if one and out}
    kept = {cell for cell, out, one in zip(cells, found["shapes"], rides, strict=True) if one and not out}
    assert held and not held & kept
    assert not found["model"].any() and not (found["heads"] & rides).any()
