"""State layers: the form by hand, a known law, and the kernel of a plan beside rows of a table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from predictors import recurrent
from predictors.recurrent import ROLES, START, near, role_of, row_seconds
from predictors.table import FAMILIES, LABELS, OperatorTable
from sim.cost.recurrent import recurrent_s
from sim.cost.slots import slots_first
from sim.cost.stats import BatchStats
from sim.deployment.lower import lower
from sim.hardware.read import load_device
from sim.model.read import load_model


NAMES = ("conv_update", "gdn_recurrent", "conv_fwd", "gdn_chunk")
LAW = {name: np.array(values) for name, values in START.items()} | {
    "t0": np.array([3e-6, 5e-6, 7e-6, 3e-5]),
    "moved": np.array([20.0, 6.0, 1.0, 1.0]),
    "chain": np.full(4, 1e-7),
}


def state_table(roles, seconds=None, **columns) -> OperatorTable:
    """Rows of the kernels of `roles`, by the index in `ROLES`, of 32 heads of 128 x 128 and 8192 channels."""
    rows = len(roles)
    sizes = {"tokens": 1.0, "sequences": 1.0, "heads": 32.0, "head_dim": 128.0, "state_dim": 128.0}
    sizes |= {"channels": 8192.0, "hidden": 2048.0}
    numbers = {n: np.asarray(columns.get(n, [sizes[n]] * rows), np.float64) for n in FAMILIES["recurrent"]}
    texts = {"engine": ["vllm"] * rows, "engine_version": ["0.24.0"] * rows, "timing": ["kernel"] * rows}
    texts |= {"kernel": [NAMES[role] for role in roles], "op": ["context" if r > 1 else "decode" for r in roles]}
    texts |= {name: columns[name] for name in LABELS if name in columns}
    labels = {name: np.array(texts.get(name, [""] * rows), object) for name in LABELS}
    times = np.ones(rows) if seconds is None else np.asarray(seconds, np.float64)
    return OperatorTable("recurrent", "h100-sxm", numbers, labels, times)


@pytest.fixture(scope="module")
def h100():
    return load_device("h100-sxm")


@pytest.fixture(scope="module")
def known_table(h100):
    """All four kernels on three layouts and a grid of batches, priced by `LAW`."""
    layouts = [(16.0, 4096.0), (32.0, 8192.0), (48.0, 12288.0)]
    decode = [
        (role, *size, rows, rows) for role in (0, 1) for size in layouts for rows in (1.0, 4.0, 16.0, 64.0, 256.0)
    ]
    lengths = [(c, c * n) for c in (1.0, 4.0, 16.0) for n in (64.0, 512.0, 4096.0)]
    context = [(role, *size, chunks, tokens) for role in (2, 3) for size in layouts for chunks, tokens in lengths]
    roles, heads, channels, sequences, tokens = (list(column) for column in zip(*decode + context, strict=True))
    columns = {"heads": heads, "channels": channels, "sequences": sequences, "tokens": tokens}
    table = state_table(roles, **columns)
    role = role_of(table)
    seconds = row_seconds(np, {name: value[role] for name, value in LAW.items()}, table.columns, role, h100)
    return state_table(roles, seconds, **columns)


@pytest.fixture(scope="module")
def fitted(known_table, h100):
    return recurrent.fit(known_table.where(~recurrent.splits(known_table, h100)["cells"]), h100, 0, True)


@pytest.fixture(scope="module")
def slots(h100):
    """The state layers of a gated delta network of 32 heads, and none."""
    return slots_first(lower(load_model("qwen3-next-80b-a3b"), h100).recurrent, np)


def test_the_form_by_hand(h100):
    device = dataclasses.replace(
        h100, memory_bytes_per_s=1e12, memory_efficiency=1.0, cache_bytes=50e6, compute_units=100
    )
    one = {name: np.ones(4) for name in START} | {"t0": np.array([1e-6, 2e-6, 3e-6, 4e-6])}
    one |= {
        "cached": np.full(4, 0.5),
        "moved": np.full(4, 10.0),
        "chunk": np.full(4, 1e-12),
        "token": np.full(4, 1e-12),
    }
    one |= {"chain": np.full(4, 1e-7)}
    rows = [1e5, 1e4, 4.0, 1.0]
    table = state_table([0, 1, 2, 3], tokens=[1e5, 1e4, 8e5, 1e4], sequences=rows)
    found = row_seconds(np, one, table.columns, np.arange(4), device)
    # Far beyond the cache: 10 bytes of each of 8192 channels, or 32 x 128 x 128 elements, of each row at 1 TB/s.
    assert found[0] == pytest.approx(1e-6 + 1e5 * 8192 * 10 / 1e12, rel=1e-3)
    assert found[1] == pytest.approx(2e-6 + 1e4 * 524288 * 10 / 1e12, rel=1e-3)
    # Chunks of 8e5 tokens: 8192 channels x (4 + 8e5) x 1 ps.
    assert found[2] == pytest.approx(3e-6 + 8192 * (4 + 8e5) * 1e-12, rel=1e-3)
    # One chunk of 1e4 tokens: its chain of 0.1 us each rules, beside 524288 x 1e4 ps on 100 units (52 us).
    work_s = 524288 * (1 + 1e4 * near(np, 1e4 * 8192 * 4, 50e6, 0.5)) * 1e-12 / 100
    assert found[3] == pytest.approx(4e-6 + ((1e-7 * 1e4) ** 4 + work_s**4) ** 0.25)
    # What fits into the cache takes half the time, what is as large as it three quarters.
    assert near(np, np.array([1.0, 1.0, 100.0]), np.array([1e9, 1.0, 1.0]), 0.5).tolist() == pytest.approx(
        [0.5, 0.75, 1.0]
    )


def test_a_fit_finds_a_known_law_on_batches_it_has_not_seen(fitted, known_table, h100):
    unseen = known_table.where(recurrent.splits(known_table, h100)["cells"])
    error = np.abs(recurrent.predict(fitted, unseen, h100).seconds / unseen.seconds - 1.0)
    assert len(unseen) > 5 and np.median(error) < 0.05 and error.max() < 0.3
    assert [fitted.kernels[code].split()[2] for code in np.argsort(fitted.arrays["role"])] == list(NAMES)


def test_the_same_seed_gives_the_same_fit(fitted, known_table, h100):
    again = recurrent.fit(known_table.where(~recurrent.splits(known_table, h100)["cells"]), h100, 0, True)
    pairs = zip(jax.tree.leaves(dict(fitted.arrays)), jax.tree.leaves(dict(again.arrays)), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def test_a_plan_costs_what_table_rows_cost(fitted, slots, h100):
    # 256 rows of 1 MiB of state and more lie beyond the cache: cold there as in a model.
    kernel, device = recurrent.kernel(fitted, h100, "vllm"), lower(load_model("llama-3.1-8b"), h100).device
    terms = kernel.terms(np, slots, device)
    size = {"heads": slots.elements[0] / 128**2, "channels": slots.channels[0]}
    columns = {name: [float(value)] * 2 for name, value in size.items()}

    def rows(roles, sequences, tokens):
        table = state_table(roles, sequences=[sequences] * 2, tokens=[tokens] * 2, **columns)
        return recurrent.predict(fitted, table, h100).seconds

    decode_s = recurrent_s(np, terms, 0.0, 0.0, np.array([2048.0]))[0]
    assert decode_s == pytest.approx(rows([0, 1], 2048.0, 2048.0).sum(), rel=0.02)
    # 4096 tokens: what the kernel before has written is where the table finds it.
    context_s = recurrent_s(np, terms, np.array([4096.0]), np.array([1.0]), 0.0)[0]
    assert context_s == pytest.approx(rows([2, 3], 1.0, 4096.0).sum(), rel=1e-3)


def test_slopes_by_finite_differences_and_at_no_rows(fitted, slots, h100):
    kernel, device = recurrent.kernel(fitted, h100, "vllm"), lower(load_model("llama-3.1-8b"), h100).device

    def price(factor, tokens, chunks, decodes):
        fast = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor)
        terms = kernel.terms(jnp, slots, fast)
        return jnp.sum(recurrent_s(jnp, terms, tokens, chunks, decodes))

    both = jax.jit(jax.value_and_grad(price))
    with jax.enable_x64(True):
        slope = float(both(1.0, 0.0, 0.0, 64.0)[1])
        high, low = (float(both(1.0 + step, 0.0, 0.0, 64.0)[0]) for step in (1e-5, -1e-5))
        assert slope < 0.0 and slope == pytest.approx((high - low) / 2e-5, rel=1e-6)
        nothing = [float(leaf) for leaf in both(1.0, 0.0, 0.0, 0.0)]
    assert nothing == [0.0, 0.0]


def test_beyond_what_was_measured_is_marked_and_claims_twice_the_error(fitted, slots, h100):
    table = state_table([3, 3, 3], tokens=[4096.0, 1e7, 4096.0], channels=[8192.0, 8192.0, 1e6])
    found = recurrent.predict(fitted, table, h100)
    assert found.outside.tolist() == [0.0, 1.0, 1.0]
    assert found.rel_error.tolist() == pytest.approx(np.array([1.0, 2.0, 2.0]) * found.rel_error[0])
    kernel, device = recurrent.kernel(fitted, h100, "vllm"), lower(load_model("llama-3.1-8b"), h100).device
    doubts = []
    for tokens in (4096.0, 1e7):
        zero = dict.fromkeys(BatchStats.__dataclass_fields__, jnp.zeros(()))
        stats = BatchStats(**zero | {"prefill_tokens": jnp.asarray(tokens)})
        doubts.append([np.asarray(leaf) for leaf in kernel.doubt(slots, device, stats)])
    # The unused slot is no gated delta network: analytic.
    assert [outside.tolist() for _, outside in doubts] == [[0.0, 1.0], [1.0, 1.0]]
    assert doubts[1][0][0] == pytest.approx(2 * doubts[0][0][0])
    # A hundred times as wide a layer, in a batch that was measured.
    wide = dataclasses.replace(slots, channels=slots.channels * 100.0)
    inside = dataclasses.replace(stats, prefill_tokens=jnp.asarray(4096.0))
    assert np.asarray(kernel.doubt(wide, device, inside)[1]).tolist() == [1.0, 1.0]


def test_kernels_by_name_role_and_engine(fitted, known_table, h100):
    # A kernel of another name of the same role stands in; verification of drafts is none.
    other = state_table([3], kernel=["gdn_other"], tokens=[4096.0])
    alike = state_table([3], tokens=[4096.0])
    assert recurrent.predict(fitted, other, h100).seconds == recurrent.predict(fitted, alike, h100).seconds
    assert role_of(state_table([0, 1], op=["verify", "decode"])).tolist() == [-1, 1]
    own, any_engine = (recurrent.kernel(fitted, h100, engine) for engine in ("vllm/0.24.0", "sglang"))
    assert own.t0.tolist() == any_engine.t0.tolist()
    without = known_table.where(role_of(known_table) != 3)
    few = dataclasses.replace(fitted, arrays=fitted.arrays | {"role": np.array([0.0, 1.0, 2.0, 2.0])})
    with pytest.raises(ValueError, match=ROLES[3]):
        recurrent.kernel(few, h100, "vllm")
    with pytest.raises(ValueError, match="no context or decode row"):
        recurrent.fit(without.where(role_of(without) < 0), h100, 0, True)


def test_splits_hold_out_whole_batches(known_table, h100):
    found = recurrent.splits(known_table, h100)
    cells = list(zip(known_table["tokens"].tolist(), known_table["sequences"].tolist(), strict=True))
    held, kept = ({c for c, out in zip(cells, found["cells"], strict=True) if out == side} for side in (True, False))
    assert held and not held & kept and set(found) == {"shapes", "cells", "top"}


def test_a_table_that_lacks_a_kernel_every_layer_runs_is_not_used(known_table):
    roles = recurrent.role_of(known_table)
    assert recurrent.used(known_table).any()
    for role in range(len(recurrent.ROLES)):
        assert not recurrent.used(known_table.where(roles != role)).any()
