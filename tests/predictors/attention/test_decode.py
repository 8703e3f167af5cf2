"""Decode kernels fitted to a known law, and in a plan: the grid against the networks, windows, gradients, marks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors.attention import decode
from predictors.attention.decode_form import chosen, seconds, starts, work
from predictors.attention.decode_kernels import kernels_of, names_of, rates_of, rows_of
from sim.cost.decode import DECODE_AXES, decode_s, windowed_rows
from sim.cost.slots import slots_first
from sim.cost.stats import BatchStats
from sim.deployment.lower import lower
from sim.model.read import load_model
from tests.predictors.attention.conftest import attention_table


TEXTS = {
    "engine": "vllm",
    "engine_version": "0.24.0",
    "kernel": "vllm_flash_attn_fa3",
    "op": "decode",
    "timing": "kernel",
}
WINDOW = 1024.0
BATCHES = 240
NODE = float(DECODE_AXES[1].nodes()[10])
LENGTHS = ("decodes", "decode_sum", "decode_max", "decode_sumsq")


def batches(rows, short, long, share=0.25, **columns):
    """Batches of rows of `short` keys of which a `share`, rounded, has `long` ones."""
    rows, short, long = (np.asarray(values, np.float64) for values in (rows, short, long))
    many = np.round(share * rows)
    sums = [(rows - many) * short**power + many * long**power for power in (1, 2)]
    longest = np.where(many > 0.0, long, short)
    lengths = dict(zip(LENGTHS, (rows, sums[0], longest, sums[1]), strict=True))
    return attention_table(TEXTS, **lengths, **columns)


def law(table, device):
    """Seconds of known constants, and a wave over the context that no constant can say."""
    names = names_of(table)
    known = tuple(sorted(set(names.tolist())))
    code = np.array([known.index(name) for name in names.tolist()])
    constants = starts(len(known)) | {"floor": np.array([9e-6, 5e-6])[: len(known)], "stream": np.asarray(0.9)}

    def price(batch):
        rates = rates_of(device)
        return seconds(batch, work(batch, rates), rates, chosen(constants, code))

    with jax.enable_x64(True):
        batch = jax.tree.map(
            lambda leaf: np.asarray(leaf, np.float64), rows_of(table, kernels_of(table, names, known), code)
        )
        found = np.asarray(jax.jit(price)(batch))
    keys = np.minimum(table["decode_sum"] / table["decodes"], table["window"])
    return dataclasses.replace(table, seconds=found * (1.0 + 0.1 * np.sin(np.log2(keys))))


@pytest.fixture(scope="module")
def known_table(h100):
    """Five layouts of heads, equal and skewed lengths; one layout with a window, which other kernels run past it."""
    lengths = [float(round(32 * 1.7**step)) for step in range(13)]
    heads = [(32, 8, np.inf), (32, 4, np.inf), (16, 16, np.inf), (64, 8, np.inf), (8, 1, np.inf), (32, 8, WINDOW)]
    grid = [
        (float(rows), keys, skew * keys, float(q), float(kv), window)
        for q, kv, window in heads
        for rows in (1, 4, 16, 64, 256)
        for keys in lengths
        for skew in ((1.0,) if window == WINDOW else (1.0, 3.0))
    ]
    rows, short, long, q_heads, kv_heads, window = zip(*grid, strict=True)
    return law(batches(rows, short, long, q_heads=q_heads, kv_heads=kv_heads, window=window), h100)


@pytest.fixture(scope="module")
def seen(known_table, h100):
    return known_table.where(~decode.splits(known_table, h100)["cells"])


@pytest.fixture(scope="module")
def fitted(seen, h100):
    return decode.fit(seen, h100, 0, True)


@pytest.fixture(scope="module")
def priced_rows(fitted, seen, h100):
    """Predictions of fewer rows than were fitted, repeated up to as many: one compilation serves all."""

    def price(table):
        at = np.arange(len(seen)) % len(table)
        many = {name: table[name][at] for name in (*table.columns, *table.labels)}
        found = decode.predict(fitted, attention_table(TEXTS, **many), h100)
        return type(found)(*(np.asarray(leaf)[: len(table)] for leaf in found))

    return price


@pytest.fixture(scope="module")
def slots(h100):
    """The layers of a model of 32 heads; the same with a window; none."""
    one = slots_first(lower(load_model("llama-3.1-8b"), h100).attention, np)
    one = jax.tree.map(lambda leaf: leaf[[0, 0, 1]], one)
    return dataclasses.replace(one, window=np.where([False, True, False], WINDOW, one.window))


@pytest.fixture(scope="module")
def priced(fitted, slots, h100):
    """Seconds `[kind, batch]` of one layer by the closed form and its grid; and the slopes of the sum over batches."""
    plan = decode.kernel(fitted, h100, "vllm"), slots, lower(load_model("llama-3.1-8b"), h100).device

    def layer_s(terms, slots, decodes, decode_sum, longest, squares):
        rows = jnp.maximum(decodes, 1.0)
        mean = decode_sum / rows
        variance = jnp.maximum(squares / rows - mean * mean, 0.0)
        window, chunked = slots.window[:, None], slots.chunked[:, None]
        return decode_s(jnp, terms, decodes, *windowed_rows(jnp, mean, variance, longest, window, chunked))

    def total(factors, lengths, plan):
        kernel, slots, device = plan
        fast = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factors[0])
        some = dataclasses.replace(slots, flops_per_s=slots.flops_per_s * factors[1])
        terms = kernel.terms(jnp, some, fast)
        wide = jax.tree.map(lambda leaf: leaf[:, None], terms._replace(grid=None))
        found = layer_s(wide._replace(grid=terms.grid._replace(start=terms.grid.start[:, None])), slots, *lengths)
        return jnp.sum(found[0]), found

    compiled = jax.jit(jax.value_and_grad(total, has_aux=True))

    def call(table, factors=(1.0, 1.0)):
        lengths = [np.resize(table[name], BATCHES) for name in LENGTHS]
        with jax.enable_x64(True):
            (total_s, found), slope = jax.tree.map(np.asarray, compiled(jnp.asarray(factors), lengths, plan))
        return found[:, : len(table)], total_s, slope

    return call


def test_a_fit_finds_a_known_law_on_batches_it_has_not_seen(priced_rows, known_table, h100):
    unseen = known_table.where(decode.splits(known_table, h100)["cells"])
    found = priced_rows(unseen)
    error = np.abs(found.seconds / unseen.seconds - 1.0)
    assert len(unseen) > 40 and np.median(error) < 0.04 and np.quantile(error, 0.9) < 0.12
    assert (found.rel_error > 0.0).all()


def test_the_grid_gives_what_the_networks_give(priced, priced_rows):
    rng = np.random.default_rng(1)
    short = np.rint(np.exp(rng.uniform(np.log(40.0), np.log(20_000.0), BATCHES)))
    rows, skew = np.rint(np.exp(rng.uniform(0.0, np.log(400.0), BATCHES))), rng.choice([1.0, 1.0, 2.5], BATCHES)
    table = batches(rows, short, np.rint(skew * short))
    ratio = np.abs(priced(table)[0][0] / priced_rows(table).seconds - 1.0)
    assert np.median(ratio) < 0.01 and np.quantile(ratio, 0.95) < 0.08
    # On nodes there is nothing to interpolate.
    table = batches([1.0, 16.0, 64.0, 256.0], [NODE] * 4, [NODE] * 4)
    assert priced(table)[0][0] == pytest.approx(priced_rows(table).seconds, rel=1e-4)


def test_past_a_window_the_kernel_of_long_rows_is_read_exactly(priced, priced_rows):
    # All rows longer than the window read as many keys: where most batches of such layers are.
    table = batches([1.0, 8.0, 64.0, 256.0], [5000.0] * 4, [5000.0] * 4, window=[WINDOW] * 4)
    assert priced(table)[0][1] == pytest.approx(priced_rows(table).seconds, rel=2e-3)
    assert (priced(table)[0][1] < 0.7 * priced(table)[0][0]).any()


def test_slopes_by_finite_differences(priced):
    # The memory's rate: 256 rows of 9000 keys. Networks compute in float32, the rest in float64.
    table = batches([256.0], [9000.0], [9000.0])
    _, total_s, slope = priced(table)
    for which in (0, 1):
        ends = [priced(table, [1.0 + step * (index == which) for index in range(2)])[1] for step in (1e-4, -1e-4)]
        assert slope[which] == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-2, abs=1e-4 * total_s)
    assert -1.3 < slope[0] / total_s < -0.5


def test_no_rows_cost_nothing_and_slopes_stay_finite(priced):
    found, total_s, slope = priced(batches([0.0, 0.0], [0.0, 64.0], [0.0, 64.0]))
    assert not found.any() and total_s == 0.0 and np.isfinite(slope).all()


def test_beyond_what_was_measured_is_marked_and_claims_twice_the_error(fitted, priced_rows, slots, h100):
    inside, beyond = batches([64.0], [3795.0], [3795.0]), batches([256.0], [90_000.0], [90_000.0])
    assert priced_rows(inside).outside == 0.0 and priced_rows(beyond).outside == 1.0
    other = dataclasses.replace(inside, labels=inside.labels | {"kernel": np.array(["other"], object)})
    assert priced_rows(other).outside == 1.0
    assert priced_rows(other).rel_error == pytest.approx(2 * priced_rows(inside).rel_error)
    assert priced_rows(other).seconds == priced_rows(inside).seconds
    kernel, device = decode.kernel(fitted, h100, "vllm"), lower(load_model("llama-3.1-8b"), h100).device
    found = []
    for table in (inside, beyond):
        stats = BatchStats(**dict.fromkeys(BatchStats.__dataclass_fields__, 0.0) | {n: table[n][0] for n in LENGTHS})
        with jax.enable_x64(True):
            found.append([np.asarray(leaf) for leaf in kernel.doubt(slots, device, stats)])
    # Dims of the unused slot were not measured, whatever the batch.
    assert found[0][1].tolist() == [0.0, 0.0, 1.0] and found[1][1].tolist() == [1.0, 0.0, 1.0]
    assert found[1][0][0] == pytest.approx(2 * found[0][0][0])


def test_a_kernel_of_another_engine_takes_the_place_of_one_that_was_not_measured(fitted, h100):
    kernel = decode.kernel(fitted, h100, "sglang")
    assert kernel.net_of.tolist() == [0.0, 0.0]


def test_no_decode_row_is_refused(h100):
    with pytest.raises(ValueError, match="no batch that only decodes"):
        decode.fit(attention_table({"op": "prefill"}, prefill_tokens=[64.0]), h100, 0, True)


def test_splits_hold_out_whole_cells(known_table, h100):
    found = decode.splits(known_table, h100)
    assert set(found) == {"shapes", "heads", "cells", "top"}
    for name, columns in (("cells", ("decodes", "decode_max")), ("heads", ("q_heads", "kv_heads", "qk_dim"))):
        cells = list(zip(*(known_table[column].tolist() for column in columns), strict=True))
        sides = [{cell for cell, out in zip(cells, found[name], strict=True) if out == side} for side in (True, False)]
        assert not sides[0] & sides[1]
    assert 0.2 < found["top"].mean() < 0.3
