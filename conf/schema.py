"""The schema of a whole configuration, and its registration with Hydra.

The dataclass of each group lives in the room that owns it; the YAML files of `conf/<group>` are plain mappings that are
merged into it, so a misspelt key or a wrong type fails when a configuration is composed.
"""

from dataclasses import dataclass, field

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.hardware.spec import DeviceConf
from sim.model.spec import ModelConf
from sim.workload.conf import WorkloadConf
from sim.workload.experts.conf import ExpertsConf


GROUPS = ("model", "hardware", "workload", "engine", "deployment")


@dataclass
class SloConf:
    """Bounds that a request has to meet to count as good, in milliseconds; None: no bound on this metric."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2el_ms: float | None = None


@dataclass
class SimulateConf:
    """Everything one simulation reads.

    - `seed`: of arrivals and lengths; the same seed gives the same result, bit for bit.
    - `experts`: which of a model's experts the tokens choose.
    - `slo`: bounds for goodput.
    - `percentiles`: of every latency, 0 to 100.
    - `log_interval_s`: seconds between two lines of the engine's log, where its engine goes by time (vLLM's
      VLLM_LOG_STATS_INTERVAL).
    - `timeline_layers`: steps that the timeline shows layer by layer, as 3, 3-7 or 0,5-9, by their number in order of
      their start.
    - `predictor`: prices of steps: "auto", learned kernels where some are shipped for the device, and what measured
      servers taught; "kernels", without the latter; "analytic", without either; or a folder or file that
      `headway calibrate` wrote.
    - `results`: the folder to write; None: `results/<date and time>` under the current folder.
    """

    model: ModelConf = field(default_factory=ModelConf)
    hardware: DeviceConf = field(default_factory=lambda: DeviceConf(name="device"))
    workload: WorkloadConf = field(default_factory=WorkloadConf)
    engine: EngineConf = field(default_factory=EngineConf)
    deployment: DeploymentConf = field(default_factory=DeploymentConf)
    experts: ExpertsConf = field(default_factory=ExpertsConf)
    slo: SloConf = field(default_factory=SloConf)
    seed: int = 0
    percentiles: list[float] = field(default_factory=lambda: [50.0, 90.0, 95.0, 99.0])
    log_interval_s: float = 10.0
    timeline_layers: str = ""
    predictor: str = "auto"
    results: str | None = None


SCHEMAS: dict[str, type] = {
    "model": ModelConf,
    "hardware": DeviceConf,
    "workload": WorkloadConf,
    "engine": EngineConf,
    "deployment": DeploymentConf,
    "experts": ExpertsConf,
    "slo": SloConf,
}


def register() -> None:
    """Make the schema known to Hydra as `schema`, the first entry of `conf/config.yaml`'s defaults."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=SimulateConf, provider="headway")
