"""Learned elementwise kernels: the form by hand, what a fit finds, what a plan pays for it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors import elementwise
from predictors.elementwise.form import Rates, rates_of, row_seconds
from predictors.elementwise.kernel import chosen
from predictors.elementwise.learn import OPS
from predictors.family import Fitted
from predictors.learned import learned_cost
from predictors.store import Artifact, load, save
from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.cost.analytic import analytic_cost
from sim.deployment.lower import lower
from sim.deployment.plan import ELEMENTWISE_KINDS, ElementwiseSlots, trimmed
from sim.hardware.read import load_device
from sim.model.read import load_model


TRUTH = {
    "vllm 0.19.0 norm": {"t0": 2e-6, "row": 1e-11, "block": 1e-9, "near": 1.3, "far": 1.1, "share": 0.7},
    "vllm 0.19.0 rotary": {"t0": 3e-6, "row": 5e-11, "block": 2e-9, "near": 2.6, "far": 1.9, "share": 0.7},
}
# As many tokens and slots wherever a kernel is priced, so that it is compiled once.
TOKENS, WIDTHS = (1.0, 8.0, 32.0, 64.0, 128.0, 512.0, 2048.0, 8192.0), (8192.0, 16384.0, 32768.0, 65536.0)


@pytest.fixture(scope="module")
def h100():
    return load_device("h100-sxm")


def rows(ops, tokens, widths, seconds, **labels):
    shared = {
        "source": "mine",
        "engine": "vllm",
        "engine_version": "0.19.0",
        "dtype": "bf16",
        "timing": "kernel",
    } | labels
    known = {name: np.full(len(ops), shared.get(name, ""), object) for name in LABELS} | {"op": np.array(ops, object)}
    columns = dict(zip(FAMILIES["elementwise"], (np.array(tokens), np.array(widths)), strict=True))
    return OperatorTable("elementwise", "h100-sxm", columns, known, np.array(seconds))


@pytest.fixture(scope="module")
def table(h100):
    """Two operators that obey the form with `TRUTH`."""
    grid = [(name, tokens, width) for name in TRUTH for tokens in TOKENS for width in WIDTHS]
    seconds = [row_seconds(np, TRUTH[name], tokens, width, rates_of(h100)) for name, tokens, width in grid]
    names, tokens, widths = zip(*grid, strict=True)
    return rows([name.split()[-1] for name in names], tokens, widths, seconds)


@pytest.fixture(scope="module")
def fitted(table, h100):
    return elementwise.fit(table, h100, 0, False)


def known(**more) -> Fitted:
    """`TRUTH` as a fit would hand it over."""
    arrays = {
        "constants": {name: np.array([one[name] for one in TRUTH.values()]) for name in next(iter(TRUTH.values()))},
        "error": np.array([0.05, 0.08]),
        "rows": np.array([100.0, 50.0]),
        "low_width": np.array([8192.0, 8192.0]),
        "high_width": np.array([65536.0, 65536.0]),
        "low_bytes": np.array([8192.0, 8192.0]),
        "high_bytes": np.array([6e8, 6e8]),
    }
    return Fitted("elementwise", elementwise.VERSION, arrays | more, tuple(TRUTH), {})


def test_form_by_hand():
    rates = Rates(memory_bytes_per_s=1e12, cache_bytes_per_s=4e12, cache_bytes=40e6)
    constants = {"t0": 2e-6, "row": 2e-10, "block": 1e-9, "near": 2.0, "far": 1.5, "share": 0.5}
    # 1000 tokens of 20 kB are 20 MB, all of half the cache: f = 1, so that half of what is slower is paid.
    # moved = 20 MB (2/4 + (1.5 - 2/4)/2)/1e12 = 20 us; blocks 1 us; a row 20 kB 0.2 ns = 4 us.
    want = 2e-6 + (21e-6**4 + 4e-6**4) ** 0.25
    assert row_seconds(np, constants, 1000.0, 20e3, rates) == pytest.approx(want)
    # One token: the row alone, but for 20 kB 2/4e12 = 10 ns moved and a block of 1 ns.
    assert row_seconds(np, constants, 1.0, 20e3, rates) == pytest.approx(2e-6 + 4e-6, rel=1e-9)
    # Far beyond the cache: 1.5 passes over the memory.
    assert row_seconds(np, constants, 1e6, 20e3, rates) == pytest.approx(2e-6 + 1e-3 + 1.5 * 2e10 / 1e12, rel=1e-6)


def test_no_faster_beyond_the_cache_than_in_it():
    rates = Rates(memory_bytes_per_s=1e12, cache_bytes_per_s=1e12, cache_bytes=40e6)
    constants = {"t0": 2e-6, "row": 0.0, "block": 0.0, "near": 5.0, "far": 1.0, "share": 0.5}
    sizes = np.geomspace(1.0, 1e5, 200)
    assert (np.diff(row_seconds(np, constants, sizes, 20e3, rates)) > 0.0).all()


def test_fit_recovers_the_form(fitted, table, h100):
    assert fitted.kernels == tuple(TRUTH)
    found = elementwise.predict(fitted, table, h100)
    assert np.abs(found.seconds / table.seconds - 1.0).max() < 0.05
    assert not found.outside.any() and (found.rel_error >= 0.02).all()


def test_beyond_the_cache_unseen_kernels_move_once(table, h100):
    few = table.where(table["tokens"] <= 128.0)  # 8 MB at most, of a cache of 50 MB
    fitted = elementwise.fit(few, h100, 0, False)
    large = rows(["norm", "rotary"], [25000.0] * 2, [65536.0] * 2, [1.0] * 2)
    found = elementwise.predict(fitted, large, h100)
    once_s = 25000.0 * 65536.0 / rates_of(h100).memory_bytes_per_s
    assert found.seconds == pytest.approx(once_s, rel=0.25) and found.outside.all()


def test_what_is_fitted(table):
    assert elementwise.used(table).all()
    others = (
        {"timing": "launch"},
        {"source": "Vidur", "engine": ""},
        {"source": "Frontier", "engine": ""},
        {"kernel": "torch eager"},
        {"kernel": "sglang", "engine": "sglang"},
    )
    for labels in others:
        again = rows(table["op"], table["tokens"], table["bytes_per_token"], table.seconds, **labels)
        assert not elementwise.used(again).any()
    assert not elementwise.used(table.where(np.arange(len(table)) < 19)).any()  # too few of one operator
    difference = rows(["quantise_compute_scale"] * 24, table["tokens"][:24], table["bytes_per_token"][:24], [1e-6] * 24)
    assert not elementwise.used(difference).any()


def test_nothing_to_fit(table, h100):
    with pytest.raises(ValueError, match="hold no operator of an engine with 20 rows"):
        elementwise.fit(table.where(np.arange(len(table)) < 5), h100, 0, True)


def test_whole_widths_are_held_out(table, h100):
    found = elementwise.splits(table, h100)
    for _, own in table.groups("op", "bytes_per_token"):
        assert found["shapes"][own].all() or not found["shapes"][own].any()
    assert (table["tokens"][found["top"]] == 8192.0).all() and found["top"].any()


@pytest.fixture(scope="module")
def prices(h100):
    """Seconds, error and seconds outside calibration, `[tokens, slot]`; and the slope in a factor on both rates."""
    device = lower(load_model("llama-3.1-8b"), h100).device

    def price(kernel, slots, factor, tokens):
        faster = dataclasses.replace(
            device,
            memory_bytes_per_s=device.memory_bytes_per_s * factor,
            cache_bytes_per_s=device.cache_bytes_per_s * factor,
        )
        return kernel.price(kernel.terms(slots, faster), tokens)

    slope = jax.grad(lambda *inputs: price(*inputs).seconds.sum(), argnums=2)
    return jax.jit(jax.vmap(price, (None, None, None, 0))), jax.jit(slope)


def one_each(kinds, widths):
    """One kernel of each width, of the kinds named."""
    codes = np.array([float(ELEMENTWISE_KINDS.index(kind)) for kind in kinds])
    return ElementwiseSlots(count=np.ones(len(widths)), bytes_per_token=np.array(widths), kind=codes)


def test_the_kernel_is_the_prediction(prices, table, h100):
    kernel, tokens = elementwise.kernel(known(), h100, "vllm"), np.array(TOKENS)
    with jax.enable_x64(True):
        for kind, error in (("norm", 0.05), ("rotary", 0.08)):
            own = table.where(np.array([op == kind for op in table["op"].tolist()]))
            wanted = elementwise.predict(known(), own, h100)
            found = prices[0](kernel, one_each([kind] * len(WIDTHS), WIDTHS), 1.0, tokens)
            assert np.asarray(found.seconds).ravel() == pytest.approx(wanted.seconds, rel=1e-12)
            assert np.asarray(found.error_s / found.seconds).ravel() == pytest.approx(wanted.rel_error)
            assert np.asarray(wanted.rel_error) == pytest.approx(error)
            assert not np.asarray(found.outside_s).any() and not wanted.outside.any()


def test_kinds_that_nobody_measured(prices, h100):
    kernel, slots = (
        elementwise.kernel(known(), h100, "vllm/0.33.0"),
        one_each(("cache_write", "embedding", "rotary", "rotary"), [16384.0] * 4),
    )
    with jax.enable_x64(True):
        found = prices[0](kernel, slots, 1.0, np.array(TOKENS))
    like, analytic, rotary, _ = np.asarray(found.seconds)[0]
    assert like == rotary and analytic == pytest.approx(2.4e-6, rel=0.01)
    assert np.asarray(found.outside_s)[0] == pytest.approx([like, analytic, 0.0, 0.0])
    assert np.asarray(found.error_s)[0, :3] == pytest.approx([2 * 0.08 * like, 0.15 * analytic, 0.08 * rotary])


def test_the_engines_own_kernel_comes_first():
    names = ("any norm", "sglang 0.5 norm", "vllm 0.19.0 norm", "vllm 0.24.0 norm_only")
    some = dataclasses.replace(known(rows=np.array([30.0, 900.0, 40.0, 50.0])), kernels=names)
    assert chosen(some, ("norm", "norm_only"), "vllm/0.33.0") == (2, True)
    assert chosen(some, ("norm",), "trtllm") == (0, True)  # rows that name no engine count as anybody's
    assert chosen(some, ("norm_only",), "sglang") == (3, False)
    assert chosen(some, ("rotary",), "vllm") is None


def test_prices_rise_with_tokens_and_tell_where_they_end(prices, h100):
    kernel, tokens = elementwise.kernel(known(), h100, "vllm"), np.array([0.0, 1.0, 20.0, 200.0, 1e3, 8e3, 1e5, 1e6])
    with jax.enable_x64(True):
        found = prices[0](
            kernel, one_each(("norm", "rotary", "norm", "add"), (16384.0, 16384.0, 100.0, 8e3)), 1.0, tokens
        )
    seconds, outside_s = np.asarray(found.seconds), np.asarray(found.outside_s)
    assert (seconds[0] == 0.0).all() and (np.diff(seconds, axis=0) > 0.0).all()
    assert not outside_s[1, :2].any()
    assert (outside_s[-1] == seconds[-1]).all()  # 16 GB: more than was measured
    assert (outside_s[:, 2:] == seconds[:, 2:]).all()  # 100 bytes a token: less


def test_faster_rates_help_and_the_gradient_says_so(prices, h100):
    kernel = elementwise.kernel(known(), h100, "vllm")
    slots = one_each(("norm", "rotary", "activation", "add"), (32768.0, 8192.0, 60000.0, 8e3))
    with jax.enable_x64(True):
        up, down = (prices[0](kernel, slots, factor, np.array(TOKENS)).seconds for factor in (1.0 + 1e-5, 1.0 - 1e-5))
        for index, tokens in enumerate(TOKENS):
            slope = float(prices[1](kernel, slots, 1.0, tokens))
            change = float(np.sum(np.asarray(up)[index] - np.asarray(down)[index]))
            assert slope < 0.0 and slope == pytest.approx(change / 2e-5, rel=1e-3)


def test_round_trip(fitted, table, h100, tmp_path):
    save(tmp_path, h100.name, [fitted], {"elementwise": {"tables": [], "errors": {}, "date": "2026-01-01"}})
    again = load(tmp_path).families["elementwise"]
    assert again.kernels == fitted.kernels
    before, after = (elementwise.predict(one, table, h100).seconds for one in (fitted, again))
    assert after == pytest.approx(before, rel=1e-6)


def test_it_prices_a_plan(h100):
    cost = learned_cost(Artifact("x", {}, {"elementwise": known()}), h100, "vllm")
    plan = trimmed(lower(load_model("llama-3.1-8b"), h100))

    def price(kernel):
        return kernel.price(kernel.terms(plan.elementwise, plan.device), jnp.asarray(1.0))

    with jax.enable_x64(True):
        found, guess = price(cost.elementwise), price(analytic_cost().elementwise)
    # One token: 65 norms of 32 kB at 10 ps a byte, 32 rotary embeddings of 20480 and cache writes of 8192 bytes at
    # 50 ps; activations and the embedding as the analytic model has them.
    want = 65 * (2e-6 + 32768e-11) + 32 * (3e-6 + 20480 * 5e-11) + 32 * (3e-6 + 8192 * 5e-11) + 33 * 2.4e-6
    assert np.sum(np.asarray(found.seconds)) == pytest.approx(want, rel=0.01)
    assert np.sum(np.asarray(guess.seconds)) == pytest.approx(162 * 2.4e-6, rel=0.01)
    assert np.sum(np.asarray(found.outside_s)) == pytest.approx(32 * (3e-6 + 8192 * 5e-11) + 33 * 2.4e-6, rel=0.02)
    assert set(OPS) == set(ELEMENTWISE_KINDS)
