"""Measured collectives -> three-protocol constants (`sim/hardware/collectives.csv`).

`python -m calibration.collectives TABLES OUT.csv`, with TABLES the folder that holds
`nccl_perf_normalised_bytes.csv.gz` and `custom_allreduce_perf.csv.gz` (aiconfigurator-core 0.12.0, Apache-2.0).
Deterministic. One fit per (family, library, operation, group size), and one over all its group sizes (group 0), whose
latency grows by a hop per step, for the sizes nobody measured.
"""

import csv
import dataclasses
import gzip
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from sim.cost.collective import soft_min
from sim.hardware.collectives import CollectiveRow, algorithm_factor, algorithm_steps


NCCL_TABLE = "nccl_perf_normalised_bytes.csv.gz"
CUSTOM_TABLE = "custom_allreduce_perf.csv.gz"
OPERATIONS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
FAMILIES = {"rtx_pro_6000_server": "rtx_pro_6000"}
CUSTOM_BYTES_PER_ELEMENT = 2  # `message_size` of the custom table counts bf16 elements

# The L40S host behind most tables had no peer-to-peer beyond a pair (1.4 GB/s bus at 8 GPUs); one build ran on another.
DROPPED_GROUPS = {("l40s", "nccl"): (4, 8), ("l40s", "vllm"): (4, 8), ("l40s", "trtllm"): (4, 8)}
# Which build of an engine stands for it: (family, library) -> folder of the table, newest otherwise.
PINNED_BUILDS = {("l40s", "sglang"): "sglang/0.5.12"}

STEPS = 3000
LEARNING_RATE = 0.03
HUBER = 0.05


class Series(NamedTuple):
    """Medians of one measured series: sizes, group sizes and times of its points, and where they came from."""

    family: str
    library: str
    operation: str
    group: int
    source: str
    size_bytes: np.ndarray
    groups: np.ndarray
    time_s: np.ndarray
