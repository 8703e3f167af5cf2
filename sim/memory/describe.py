"""From a configuration straight to the memory sum, without compiling a plan."""

import dataclasses

from sim.deployment.attention_ffn import check_ffn, side_of_ranks
from sim.deployment.conf import DeploymentConf
from sim.deployment.engine import EngineConf, EngineSettings
from sim.deployment.settings import resolve_engine
from sim.hardware.check import device_from
from sim.hardware.spec import DeviceConf
from sim.memory.budget import memory_budget
from sim.memory.terms import MemoryBudget
from sim.model.read import model_from_conf
from sim.model.spec import ModelConf, ModelSpec


AUTO_LENGTH = -1


def describe(
    model_conf: ModelConf, hardware: DeviceConf, engine: EngineConf, deployment: DeploymentConf
) -> MemoryBudget:
    """The KV budget of a deployment, whether it fits or not, pipeline stages included. `ValueError` for bad input."""
    return describe_engine(model_conf, hardware, engine, deployment)[1]


def describe_engine(
    model_conf: ModelConf, hardware: DeviceConf, engine: EngineConf, deployment: DeploymentConf
) -> tuple[EngineSettings, MemoryBudget]:
    """The settings that `describe` finds, and the budget."""
    model = model_from_conf(model_conf)
    device = device_from(dataclasses.asdict(hardware), hardware.name)
    settings = _settings(with_fitting_length(engine, model, device, deployment), model, device, deployment)
    return settings, memory_budget(model, device, settings, deployment)


def with_fitting_length(
    engine: EngineConf, model: ModelSpec, device: DeviceConf, deployment: DeploymentConf
) -> EngineConf:
    """The settings with `max_model_len` -1 (vLLM's `auto`) replaced by the longest that fits, at most the model's."""
    if engine.max_model_len != AUTO_LENGTH:
        return engine
    longest = dataclasses.replace(engine, max_model_len=None)
    budget = memory_budget(model, device, _settings(longest, model, device, deployment), deployment)
    return longest if budget.fits else dataclasses.replace(engine, max_model_len=budget.longest_model_len or None)


def _settings(engine: EngineConf, model: ModelSpec, device: DeviceConf, deployment: DeploymentConf) -> EngineSettings:
    if deployment.ffn.devices:
        check_ffn(model, device, deployment)
    return resolve_engine(engine, side_of_ranks(model, deployment), device, deployment)
