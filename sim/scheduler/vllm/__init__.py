"""vLLM V1's continuous batching."""

from sim.scheduler.vllm.continuous import ContinuousBatching as ContinuousBatching
