"""What TensorRT-LLM's scheduler takes beyond the settings that engines share (`engine.scheduler_options`)."""

from dataclasses import dataclass

from sim.scheduler.options import at_least


@dataclass(frozen=True)
class Options:
    """Named as the arguments of the PyTorch backend, where it has them; defaults as there.

    - `max_output_tokens`: outputs that the reservation counts for every request, at least its own; 0: its own.
    - `batch_wait_timeout_iters`, `batch_wait_max_tokens_ratio`: while others decode, prompts wait for so many steps at
      most, until the batch would have that share of `max_num_batched_tokens`; 0: they do not wait.
    - `attention_dp_timeout_iters`: with data-parallel attention, while all ranks decode, prompts wait for so many steps
      at most until every rank has one (`attention_dp_config`); 0: they do not wait.
    """

    max_output_tokens: int = 0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0
    attention_dp_timeout_iters: int = 0

    def __post_init__(self) -> None:
        at_least(0, max_output_tokens=self.max_output_tokens, batch_wait_timeout_iters=self.batch_wait_timeout_iters)
        at_least(0, attention_dp_timeout_iters=self.attention_dp_timeout_iters)
        at_least(0.0, batch_wait_max_tokens_ratio=self.batch_wait_max_tokens_ratio)
        if self.batch_wait_max_tokens_ratio > 1.0:
            raise ValueError(
                f"batch_wait_max_tokens_ratio must be at most 1, got {self.batch_wait_max_tokens_ratio:g}."
            )
