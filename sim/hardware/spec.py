"""What it runs on: one accelerator, its memory, its links and the node it sits in, in SI units.

A device is one YAML file (`conf/hardware/*.yaml`) that fills this schema; `sources` names, for every
number, where it was read. Rates are per direction; peaks are dense (no sparsity).
"""

from dataclasses import dataclass, field


DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
TOPOLOGIES = ("switch", "mesh", "torus")
LINK_KINDS = (
    "NVLink",
    "NVLink-C2C",
    "xGMI",
    "ICI",
    "NeuronLink",
    "HCCS",
    "PCIe",
    "RoCE",
    "InfiniBand",
    "Ethernet",
    "EFA",
    "other",
    "none",
)


ATTENTION_KERNELS = ("fa2", "fa3", "balanced")
"""FlashAttention-2 (whole waves of blocks), FlashAttention-3 (persistent blocks), or perfectly balanced work."""


@dataclass
class LinkConf:
    """One link of a device: latency and bandwidth, per direction.

    `kind` names the technology, one of `LINK_KINDS`; `none` is no link, whatever the rate says.
    `bytes_per_s` is what one device can send with all its ports. `topology` says how much of it a smaller
    group can use: `switch` all of it, `mesh` one share per peer of the group, `torus` the ports (`ports` in
    all) whose axes the group spans. `max_group` devices share the link's domain; 0 means no limit.
    """

    kind: str = "none"
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    max_group: int = 1
    topology: str = "switch"
    ports: int = 1

    @property
    def exists(self) -> bool:
        """Whether anything can be sent over it."""
        return self.kind != "none" and self.bytes_per_s > 0


@dataclass
class DeviceConf:
    """Schema of one accelerator; every number has an entry in `sources`, by its dotted key or its parent's.

    - `peak_flops_per_s`, `matmul_efficiency`: keyed by dtype (`DTYPES`): the dense datasheet peak, and the share
      of it that large matrix products reach. A dtype that is absent is one the matrix units do not compute in.
    - `memory_bytes`: what the runtime reports (CUDA: total of `cudaMemGetInfo`); `memory_nominal_bytes`: the
      size behind the catalogue's figure (GPU vendors mostly count GiB). `memory_bytes_estimated` marks a
      reported size that was derived by a rule, which `sources` states.
    - `memory_bytes_per_s`, `memory_efficiency`: datasheet stream rate, and the share a weight stream reaches.
    - `cache_bytes`, `cache_bytes_per_s`: last-level cache and its read rate.
    - `compute_units`: units that take one tile each (SM, CU, MXU, core); `unit_stream_bytes_per_s`: what one of
      them can stream; `kernel_floor_s`: the shortest kernel.
    - `attention`: how attention kernels cut their work, one of `ATTENTION_KERNELS`; `attention_efficiency`: the
      share of the 16-bit peak that causal attention over long contexts reaches, 0 where nobody measured it.
    - `kernel_launch_s`: host time per kernel launched one by one; `graph_launch_s`: host time per captured
      graph; `host_step_s`: host time per step beyond what the engine profile counts.
    - `devices_per_node`: devices behind one host. `scale_up`, `pcie`, `nic`: links between devices of a
      domain, to the host, and between nodes.
    - `collectives`: family of measured collective constants (`sim/hardware/collectives.csv`), `astra-sim` for rules in
      their place (`sim/hardware/collectives_ruled.py`), "" for neither.
    - `kernels_of`: catalogue name of a device of the same chip, whose measured kernels price this one's steps while
      none of its own come with Headway; "" for none.
    - `usd_per_hour`: price of one device for an hour, 0 where none is known.
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
    memory_efficiency: float = 0.8
    cache_bytes: float = 0.0
    cache_bytes_per_s: float = 0.0
    compute_units: int = 0
    unit_stream_bytes_per_s: float = 0.0
    attention: str = "balanced"
    attention_efficiency: float = 0.0
    kernel_floor_s: float = 2.5e-6
    kernel_launch_s: float = 5.0e-6
    graph_launch_s: float = 20.0e-6
    host_step_s: float = 0.0
    devices_per_node: int = 8
    scale_up: LinkConf = field(default_factory=LinkConf)
    pcie: LinkConf = field(default_factory=LinkConf)
    nic: LinkConf = field(default_factory=LinkConf)
    collectives: str = ""
    kernels_of: str = ""
    tdp_w: float = 0.0
    idle_w: float = 0.0
    usd_per_hour: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)
    notes: str = ""
