"""From a configuration straight to the memory sum, without compiling a plan."""

import dataclasses

from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf
from sim.deployment.settings import resolve_engine
from sim.hardware.check import device_from
from sim.hardware.spec import DeviceConf
from sim.memory.budget import memory_budget
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf
from sim.model.spec import ModelConf


def describe(
    model_conf: ModelConf, hardware: DeviceConf, engine: EngineConf, deployment: DeploymentConf
) -> MemoryBudget:
    """The KV budget of a deployment, whether it fits or not, pipeline stages included. `ValueError` for bad input."""
    model = model_from_conf(model_conf)
    device = device_from(dataclasses.asdict(hardware), hardware.name)
    return memory_budget(model, device, resolve_engine(engine, model, device, deployment), deployment)
