"""What it runs on: one accelerator, its memory and its links, in SI units.

A device is one YAML file (`conf/hardware/*.yaml`) that fills this schema; `sources` names, for every
number, where it was read. Rates are per direction; peaks are dense (no sparsity).
"""

from dataclasses import dataclass, field


@dataclass
class LinkConf:
    """One link of a device: latency and bandwidth, per direction."""

    kind: str = "none"
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    max_group: int = 1


@dataclass
class DeviceConf:
    """Schema of one accelerator; every number has an entry in `sources`.

    `peak_flops_per_s` and `matmul_efficiency` are keyed by dtype (fp32, bf16, fp16, fp8, int8, fp4, int4): the
    datasheet peak, and the share of it that large matrix products reach. `memory_bytes` is
    what the runtime reports (CUDA: total of `cudaMemGetInfo`), not the catalogue's figure.
    """

    name: str
    vendor: str = ""
    kind: str = "gpu"
    peak_flops_per_s: dict[str, float] = field(default_factory=dict)
    matmul_efficiency: dict[str, float] = field(default_factory=dict)
    memory_bytes: float = 0.0
    memory_bytes_estimated: bool = False
    memory_nominal_bytes: float = 0.0
    memory_bytes_per_s: float = 0.0
    memory_efficiency: float = 0.92
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0
    compute_units: int = 1
    unit_stream_bytes_per_s: float = 0.0
    kernel_floor_s: float = 2.5e-6
    kernel_launch_s: float = 5.0e-6
    graph_launch_s: float = 20.0e-6
    host_step_s: float = 0.0
    scale_up: LinkConf = field(default_factory=LinkConf)
    pcie: LinkConf = field(default_factory=LinkConf)
    nic: LinkConf = field(default_factory=LinkConf)
    collectives: str = ""
    tdp_w: float = 0.0
    idle_w: float = 0.0
    usd_per_hour: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)
    notes: str = ""
