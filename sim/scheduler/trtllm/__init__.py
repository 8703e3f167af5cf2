"""TensorRT-LLM's in-flight batching, and that of its context and generation servers."""

from typing import Any

from sim.deployment.engine import EngineSettings
from sim.memory.shape import CacheShape
from sim.scheduler.hooks import Connector, Roles
from sim.scheduler.options import read_options
from sim.scheduler.trtllm.disaggregated import ContextServer, GenerationServer
from sim.scheduler.trtllm.options import Options as Options
from sim.scheduler.trtllm.scheduler import TensorRTLLM as TensorRTLLM


POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
NOT_MODELLED = (
    "TensorRT-LLM's schedule is built from its documentation and source, not compared with recordings; the batch after "
    "a request's last, in which its overlap loop still computes it, is left out",
    "chunked context is on unless engine.enable_chunked_prefill=false (trtllm-serve's own default is off)",
)


def make(settings: EngineSettings, cache: CacheShape) -> TensorRTLLM:
    """One replica's scheduler."""
    return TensorRTLLM(settings, cache, _options(settings))


def make_context(settings: EngineSettings, cache: CacheShape, connector: Connector[Any]) -> ContextServer:
    """The scheduler of a prefill instance."""
    return ContextServer(settings, cache, _options(settings), connector)


def make_generation(settings: EngineSettings, cache: CacheShape, connector: Connector[Any]) -> GenerationServer:
    """The scheduler of a decode instance."""
    return GenerationServer(settings, cache, _options(settings), connector)


ROLES = Roles(
    make_context,
    make_generation,
    keeps_token=True,
    not_modelled=("TensorRT-LLM's context and generation servers follow its documentation, not recordings",),
)


def _options(settings: EngineSettings) -> Options:
    return read_options(Options, settings.scheduler_options, "trtllm")
