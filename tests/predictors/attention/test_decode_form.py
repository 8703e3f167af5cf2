"""The physics of decode attention, worked by hand: splits, streams, waves, the cache, and the limits."""

import jax
import numpy as np
import pytest

from predictors.attention.decode_form import KERNEL, MEMORY, Rates, Rows, seconds, work
from predictors.attention.decode_kernels import names_of
from tests.predictors.attention.conftest import attention_table


RATES = Rates(memory_bytes_per_s=1e12, cache_bytes=50e6, units=100.0, flops_per_s=1e14)
BASE = {
    "rows": 1.0,
    "mean": 4096.0,
    "variance": 0.0,
    "longest": 4096.0,
    "reach": 1.0,
    "q_heads": 32.0,
    "kv_heads": 8.0,
    "dims": 256.0,
    "kv_bytes": 4096.0,
    "windowed": 0.0,
    "latent": 0.0,
    "warm": 0.0,
    "packed": 64.0,
    "slots": 1.0,
    "rule": 0.0,
}
CASES = {
    "idle": {},
    "waves": {"rule": 1.0},
    "never": {"rule": 2.0},
    "short": {"rule": 1.0, "mean": 300.0, "longest": 300.0},
    "nearly full": {"rule": 1.0, "rows": 11.0},
    "apart": {"rule": 2.0, "packed": 0.0},
    "tiled": {"rule": 2.0, "packed": 2.0},
    "many": {"rule": 2.0, "rows": 1000.0, "mean": 8192.0, "longest": 8192.0},
    "warm": {"rule": 2.0, "warm": 1.0},
    "too large": {"rule": 2.0, "warm": 1.0, "rows": 1000.0, "mean": 8192.0, "longest": 8192.0},
    "heavy": {"rule": 2.0, "rows": 1000.0, "q_heads": 8 * 512.0, "mean": 8192.0, "longest": 8192.0},
}
FREE = {"floor": 1e-6, "split": 2e-6, "several": 5e-7, "row": 0.0, "block": 0.0, "key": 5e-9, "add": 0.0, "io": 0.0}


@pytest.fixture(scope="module")
def done():
    """Work and seconds of every case, without blocks' fixed times; streams at full rate but in the cache."""
    columns = {name: np.array([(BASE | case)[name] for case in CASES.values()]) for name in BASE}
    constants = MEMORY | KERNEL | FREE | {"ramp": 0.0, "power": 8.0}

    def both(batch):
        found = work(batch, RATES)
        return found, seconds(batch, found, RATES, constants)

    with jax.enable_x64(True):
        found, times = jax.tree.map(np.asarray, jax.jit(both)(Rows(**columns)))
    return {name: (jax.tree.map(lambda leaf, i=i: float(leaf[i]), found), times[i]) for i, name in enumerate(CASES)}


def test_splits(done):
    # 8 blocks on 100 units: 12.5 parts over the idle ones. By waves: 12 or 25 parts fill 0.96 or 1 of their waves, and
    # the fewest within 0.85 of the best are 11, which fill 0.88.
    assert done["idle"][0].splits == 12.5
    assert done["waves"][0].splits == 11.0
    assert done["never"][0].splits == 1.0
    # 300 keys are three steps of 128: no more parts than that.
    assert done["short"][0].splits == 3.0
    # 88 blocks of 100 are four fifths of a wave: not split.
    assert done["nearly full"][0].splits == 1.0


def test_blocks_of_query_heads(done):
    # Four query heads share a KV head: in one block, in one each, in blocks of two.
    assert [done[name][0].blocks for name in ("never", "apart", "tiled")] == [8.0, 32.0, 16.0]


def test_times_by_hand(done):
    # One row, not split: its block steps through 4096 keys of 5 ns (20.5 us); 16.8 MB take 16.8 us beside
    # it, and the products of 64 query rows, of which 4 are used, 10.7 us.
    block_s, stream_s = 4096 * 5e-9, 4096 * 4096 / 1e12
    compute_s = 2 * 8 * 64 * 4096 * 256 / 1e14
    together = (block_s**8 + stream_s**8 + compute_s**8) ** 0.125
    assert done["never"][1] == pytest.approx(1e-6 + together)
    # In 11 parts the block is an eleventh; two microseconds, less an eleventh, to bring them together.
    wave_s = 8 / 100 * 4096 * 5e-9
    split_s = ((block_s / 11) ** 8 + stream_s**8 + compute_s**8) ** 0.125
    assert wave_s < block_s / 11
    assert done["waves"][1] == pytest.approx(1e-6 + 2e-6 * (1 - 1 / 11) + split_s)


def test_limits(done):
    # A thousand rows of 8192 keys: 8000 blocks in 80 waves (3.3 ms), 33.6 GB at 1 TB/s (33.6 ms).
    work, time = done["many"]
    assert work.bytes == 1000 * 8192 * 4096
    assert time == pytest.approx(work.bytes / 1e12, rel=0.01)
    # 512 query heads on each KV head: 2 x rows x heads x keys x 256 FLOP at 0.1 PFLOP/s, five times the stream.
    work, time = done["heavy"]
    assert work.flops == 2 * 1000 * 4096 * 8192 * 256
    assert time == pytest.approx(work.flops / 1e14, rel=0.01)


def test_keys_that_fit_are_read_from_the_cache(done):
    # 16.8 MB are 0.48 of the knee, 0.7 of 50 MB: 0.48^8 = 0.003 of it comes from memory. Then the block rules.
    assert done["warm"][1] == pytest.approx(1e-6 + 4096 * 5e-9, rel=1e-3)
    assert done["too large"][1] == pytest.approx(done["many"][1])


def test_names_tell_what_makes_another_kernel():
    table = attention_table(
        {"engine": "trtllm", "kernel": "torch_flow", "engine_version": "1.3", "op": "decode"},
        decodes=[1.0] * 4,
        decode_sum=[512.0] * 4,
        decode_max=[512.0] * 4,
        q_heads=[8.0, 32.0, 32.0, 32.0],
        window=[np.inf, np.inf, 128.0, np.inf],
        kv_bytes_per_element=[2.0, 2.0, 2.0, 1.0],
    )
    assert names_of(table).tolist() == [
        "trtllm|torch_flow|1.3|2|128|1|",
        "trtllm|torch_flow|1.3|2|128|2|",
        "trtllm|torch_flow|1.3|2|128|2|past window",
        "trtllm|torch_flow|1.3|1|128|2|",
    ]
