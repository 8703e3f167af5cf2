"""Small engines with hand-made prices."""

from collections.abc import Sequence

import numpy as np
import pytest

from sim.cost.lengths import LengthTerms
from sim.cost.table import PriceTable
from sim.deployment.engine import EngineProfile, EngineSettings
from sim.event.client import Client
from sim.event.cluster import Entry
from sim.event.replica import Replica


def make_settings(**changes) -> EngineSettings:
    values = {
        "name": "vllm",
        "version": "test",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 512,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "prefix_caching": False,
        "chunked_prefill": True,
        "async_scheduling": False,
        "reserve_full_input": False,
        "graph_mode": "NONE",
        "graph_sizes": (),
        "kv_bytes_per_element": 2.0,
        "profile": EngineProfile(),
    }
    values.update(changes)
    if values["async_scheduling"] and "batches_in_flight" not in values:
        values["batches_in_flight"] = 2
    return EngineSettings(**values)


def make_table(base_s=1e-3, token_s=1e-5, row_s=1e-6, tokens=4096, rows=1024) -> PriceTable:
    """A step costs `base + token t + row r` seconds, whatever the lengths."""
    by_tokens = base_s + token_s * np.arange(tokens + 1)
    return PriceTable(np.stack([by_tokens] * 3), row_s * np.arange(rows + 1), LengthTerms())


@pytest.fixture
def settings():
    return make_settings


@pytest.fixture
def table():
    return make_table


def one_pool(client: Client, replicas: Sequence[Replica]) -> Entry:
    """The entry to replicas that can serve everything, all requests to the first of them."""

    def make(rank: int, i: int, outputs: int):
        return replicas[rank].scheduler.request_type(i, int(client.workload.prompt_tokens[i]), outputs)

    return Entry([lambda prompt, outputs: outputs], lambda i, able: 0, [0] * len(replicas), make)
