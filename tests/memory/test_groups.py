"""KV-cache groups and block counts, against configurations recorded from three vLLM versions."""

import csv
import json
import re
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from sim.memory.groups import LayerCache, RequestShape, largest_length, layer_caches, layout
from sim.model.linear import CacheSpec


FULL32 = [("full", 32, 4096, None)]
GEMMA = [("swa", 40, 8192, 1024), ("full", 8, 8192, None)]
SCOUT = [("chunk", 36, 1024, 8192), ("full", 12, 1024, None)]
DRAFT = [("swa", 12, 2048, 128), ("full", 13, 2048, None)]
SIZES = [("full", 16, 4096, None), ("full", 8, 2048, None)]
PAGES = [("swa", 20, 1536, 1024), ("full", 10, 4096, None)]
NEXT = [("mamba", 36, 1097728, None), ("full", 12, 2048, None)]
ODD = [("swa", 45, 2048, 512), ("full", 7, 2048, None)]
MLA = [("mla", 61, 1152, None)]

# version, layers (kind, count, bytes per token or state, window), block size, length, batch tokens, in flight, hybrid,
# available bytes -> blocks, reported tokens, concurrency, bytes per block, groups
ROWS = [
    ("0.10.2", FULL32, 16, 131072, 8192, 1, True, 53687091200, 25600, 409600, 3.125, 2097152, 1),
    ("0.10.2", GEMMA, 16, 131072, 8192, 1, True, 48318382080, 46080, 122880, 4.159971, 1048576, 6),
    ("0.10.2", DRAFT, 16, 131072, 8192, 1, True, 59055800320, 150186, 800992, 8.88, 393216, 3),
    ("0.10.2", NEXT, 544, 262144, 8192, 1, True, 21474836480, 1606, 218144, 3.31134, 13369344, 4),
    ("0.19.0", FULL32, 16, 131072, 8192, 1, True, 53687091200, 25600, 409600, 3.125, 2097152, 1),
    ("0.19.0", GEMMA, 16, 131072, 8192, 1, True, 48318382080, 46080, 122880, 4.159971, 1048576, 6),
    ("0.19.0", DRAFT, 16, 131072, 8192, 1, True, 59055800320, 138633, 1109056, 15.911052, 425984, 2),
    ("0.19.0", ODD, 16, 32768, 8192, 1, True, 21474836480, 93622, 187232, 15.968276, 229376, 8),
    ("0.19.0", SCOUT, 16, 131072, 16384, 1, False, 19327352832, 24576, 393216, 3.0, 786432, 1),
    ("0.33.0", MLA, 64, 163840, 8192, 1, True, 32212254720, 7162, 458368, 2.797656, 4497408, 1),
    ("0.33.0", GEMMA, 16, 131072, 8192, 1, True, 48318382080, 46080, 545255, 4.159971, 1048576, 6),
    ("0.33.0", GEMMA, 16, 131072, 8192, 2, True, 48318382080, 46080, 442897, 3.379042, 1048576, 6),
    ("0.33.0", SCOUT, 16, 131072, 16384, 2, True, 19327352832, 98304, 811800, 6.193548, 196608, 4),
    ("0.33.0", PAGES, 16, 32768, 8192, 2, True, 21474836480, 32768, 254079, 7.753904, 655360, 3),
    ("0.33.0", SIZES, 16, 32768, 8192, 1, True, 21474836480, 16384, 262144, 8.0, 1310720, 1),
    ("0.33.0", NEXT, 544, 262144, 8192, 1, True, 21474836480, 1606, 868047, 3.31134, 13369344, 4),
]


def caches(layers):
    return [
        LayerCache(kind, count, state_bytes=size)
        if kind == "mamba"
        else LayerCache(kind, count, bytes_per_token=size, window=window)
        for kind, count, size, window in layers
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1][0][0]}{row[1][0][1]}-{row[5]}")
def test_recorded_configurations(row):
    version, layers, block_size, length, tokens, in_flight, hybrid, available, *expected = row
    found = layout(version, caches(layers), block_size, hybrid=hybrid, max_model_len=length)
    shape = RequestShape(length, tokens, in_flight)
    blocks = found.num_blocks(available)
    assert blocks == expected[0]
    assert found.tokens(blocks, shape) == expected[1]
    assert found.concurrency(blocks, shape) == pytest.approx(expected[2], abs=0.005)
    assert found.bytes_per_block == expected[3]
    assert len(found.groups) == expected[4]
    assert found.needed_bytes(shape) <= available


def recorded_groups(text: str) -> Counter:
    """`5x[swa1024/bs16/page131072]*8L;...` counted by (kind, window, block size, page, layers)."""
    counts: Counter = Counter()
    for part in text.split(";"):
        count, kind, window, size, page, layers = re.match(
            r"(\d+)x\[([a-z]+)(\d*)/bs(\d+)/page(\d+)\]\*(\d+)L", part
        ).groups()
        counts[kind, int(window) if window else None, int(size), int(page), int(layers)] += int(count)
    return counts


def test_every_recorded_configuration(shared):
    with (shared / "data/tables/vllm_kv_budget.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) > 80
    for row in table:
        layers = [
            (
                x["type"],
                x["n"],
                x.get("state_bytes") or (1 if x["type"] == "mla" else 2) * x["kv"] * x["hd"] * x.get("eb", 2),
                x.get("window"),
            )
            for x in json.loads(row["layers_per_worker"])
        ]
        length, version = int(row["max_model_len"]), row["version"]
        shape = RequestShape(length, int(row["max_num_batched_tokens"]), int(row["in_flight_batches"]))
        arguments = {"hybrid": row["hybrid_manager"] == "on", "max_model_len": length}
        if row["error"].startswith("NotImplementedError"):
            with pytest.raises(ValueError, match="refuses layers whose pages differ"):
                layout(version, caches(layers), int(row["block_size"]), **arguments)
            continue
        found = layout(version, caches(layers), int(row["block_size"]), **arguments)
        available = [int(value) for value in row["available_bytes"].split("|")]
        assert (found.needed_bytes(shape) > min(available)) is bool(row["error"]), row
        if row["error"]:
            continue
        per_worker = [int(row["override"]) if row["override"] else found.num_blocks(left) for left in available]
        blocks = min(per_worker)
        # 0.10.2 logs each worker's own numbers before the minimum is taken
        logged = per_worker if version == "0.10.2" else [blocks]
        digits = 6 if version == "0.33.0" else 2
        assert blocks == int(row["num_blocks"]), row
        assert "|".join(str(found.tokens(b, shape)) for b in logged) == row["tokens"], row
        assert "|".join(f"{found.concurrency(b, shape):.{digits}f}" for b in logged) == row["max_concurrency"], row
        assert found.bytes_per_block == int(row["bytes_per_block"]), row
        if "uniform" not in row["groups"]:
            ours = Counter((g.kind, g.window, g.block_size, g.page_bytes, g.layers) for g in found.groups)
            assert ours == recorded_groups(row["groups"]), row


def test_start_check_by_version():
    # one request of 131,072 tokens: 8,192 blocks of 2 MiB = 16 GiB; 0.33.0 wants one block more
    shape = RequestShape(131072, 8192)
    for version, extra in (("0.10.2", 0), ("0.19.0", 0), ("0.33.0", 2**21)):
        assert layout(version, caches(FULL32), 16).needed_bytes(shape) == 16 * 2**30 + extra
    # 0.10.2 counts windows although its block tables ignore them: 40 layers of ceil(9215 / 16) + 1 = 577 blocks
    needed = layout("0.10.2", caches(GEMMA), 16, hybrid=False).needed_bytes(shape)
    assert needed == (8 * 8192 + 40 * 577) * 131072


def test_states_kept_for_reuse_take_two_blocks():
    once, twice = (RequestShape(8192, 2048, state_blocks=n) for n in (1, 2))
    found = layout("0.19.0", caches(NEXT), 544)
    assert found.blocks_per_request(twice) - found.blocks_per_request(once) == 3
    assert {group.block_size for group in found.groups} == {544}


def test_small_pages_get_more_tokens_or_padding():
    halves = [("swa", 10, 2048, 1024), ("full", 10, 4096, None)]
    found = layout("0.19.0", caches(halves), 16)
    assert {(g.kind, g.block_size, g.page_bytes) for g in found.groups} == {
        ("swa", 32, 65536),
        ("full", 16, 65536),
    }
    padded = layout("0.33.0", caches(PAGES), 16)
    assert {(g.kind, g.block_size, g.page_bytes) for g in padded.groups} == {
        ("swa", 16, 65536),
        ("full", 16, 65536),
    }
    with pytest.raises(ValueError, match="refuses layers whose pages differ"):
        layout("0.33.0", caches([("mla", 10, 1152, None), ("full", 10, 4096, None)]), 64)


def test_only_states():
    # every layer keeps one state of 1 MiB: a block is one request
    found = layout("0.19.0", caches([("mamba", 64, 2**20, None)]), 16, max_model_len=8192)
    assert found.bytes_per_block == 64 * 2**20
    assert found.blocks_per_request(RequestShape(8192, 2048)) == 1


def test_layers_are_counted_together():
    full, slides, none = (
        CacheSpec("full", 8, 128, 4096.0),
        CacheSpec("swa", 8, 128, 4096.0, window=64),
        CacheSpec("full"),
    )
    found = layer_caches([slides, full, slides, none])
    assert found == (LayerCache("swa", 2, 4096.0, 64), LayerCache("full", 1, 4096.0))


def test_bad_layouts():
    with pytest.raises(ValueError, match="group rule must be one of 0.10.2, 0.19.0, 0.33.0, got '1.0'"):
        layout("1.0", caches(FULL32), 16)
    with pytest.raises(ValueError, match="keeps no KV cache and no state"):
        layout("0.19.0", [], 16)


KINDS = st.sampled_from(["full", "swa", "chunk"])
LAYERS = st.lists(st.tuples(KINDS, st.integers(1, 40), st.just(4096), st.just(1024)), min_size=1, max_size=3).map(
    lambda layers: [(kind, n, size, None if kind == "full" else window) for kind, n, size, window in layers]
)


@given(LAYERS, st.sampled_from(["0.10.2", "0.19.0", "0.33.0"]), st.integers(0, 2**36), st.integers(0, 2**34))
def test_more_memory_is_never_fewer_blocks(layers, version, available, more):
    found = layout(version, caches(layers), 16)
    blocks = found.num_blocks(available)
    assert blocks * found.bytes_per_block <= available < (blocks + 1) * found.bytes_per_block
    assert found.num_blocks(available + more) >= blocks
    assert sum(group.layers for group in found.groups) == sum(count for _, count, _, _ in layers)
    assert found.bytes_per_block == max(group.page_bytes * group.layers for group in found.groups)


@given(LAYERS, st.integers(1, 30000), st.integers(1, 30000), st.integers(1, 3))
def test_longer_requests_need_no_fewer_blocks(layers, one, two, in_flight):
    short, long = sorted((one, two))
    for version in ("0.10.2", "0.19.0", "0.33.0"):
        found = layout(version, caches(layers), 16)
        shapes = [RequestShape(length, 2048, in_flight) for length in (short, long)]
        assert found.blocks_per_request(shapes[0]) <= found.blocks_per_request(shapes[1])
        assert found.needed_bytes(shapes[0]) <= found.needed_bytes(shapes[1])


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_largest_length_is_the_boundary(boundary, limit):
    assert largest_length(lambda length: length <= boundary, limit) == min(boundary, limit)


def test_the_engine_s_own_suggestion():
    # an 8B model (128 KiB per token) at 131,072 tokens with 0.71 GiB in blocks of 256: floor(0.71 x 32) = 22 blocks
    found = layout("0.10.2", caches(FULL32), 256)
    available = 0.71 * 2**30
    fits = lambda length: found.needed_bytes(RequestShape(length, 8192)) <= available  # noqa: E731
    assert not fits(131072)
    assert largest_length(fits, 131072) == 22 * 256 == 5632
