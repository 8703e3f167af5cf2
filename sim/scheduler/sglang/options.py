"""What SGLang's scheduler takes beyond the settings that engines share (`engine.scheduler_options`)."""

from dataclasses import dataclass

from sim.scheduler.options import at_least, one_of
from sim.scheduler.sglang.order import AGNOSTIC


@dataclass(frozen=True)
class Options:
    """Named as the server arguments (`--schedule-conservativeness` and so on), defaults as there.

    - `schedule_conservativeness`: scales the share of outputs that is reserved.
    - `enable_mixed_chunk`: decodes ride along with prefill batches.
    - `max_prefill_tokens`: bound of a prefill batch where prompts are not cut.
    - `disable_radix_cache`: no prefix is reused (as `engine.enable_prefix_caching=false`).
    - `enable_priority_scheduling`, `schedule_low_priority_values_first`, `priority_scheduling_preemption_threshold`,
      `disable_priority_preemption`: urgent requests first, and instead of others.
    - `scheduler_recv_interval`: the loop looks for new requests only after so many turns that decoded (a turn that
      prefilled counts as 1,000, and a loop without work looks at once).
    - `num_reserved_decode_tokens`: on a decode instance, free tokens for each request there before it takes another.
    - `retraction_policy`: who is retracted first: by `length` (fewest outputs), or by `priority` before that.

    And of the clients: `ignore_eos`: requests say that they run to their length; if not, `max_new_tokens` is what
    each allows if that is more than it gets (0: just what it gets).
    """

    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    max_prefill_tokens: int = 16384
    disable_radix_cache: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    disable_priority_preemption: bool = False
    scheduler_recv_interval: int = 1
    num_reserved_decode_tokens: int = 512
    retraction_policy: str = "length"
    ignore_eos: bool = True
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        at_least(0.0, schedule_conservativeness=self.schedule_conservativeness)
        at_least(1, max_prefill_tokens=self.max_prefill_tokens, scheduler_recv_interval=self.scheduler_recv_interval)
        at_least(0, max_new_tokens=self.max_new_tokens, num_reserved_decode_tokens=self.num_reserved_decode_tokens)
        one_of(("length", "priority"), retraction_policy=self.retraction_policy)
        if self.max_new_tokens and self.ignore_eos:
            raise ValueError("max_new_tokens lets requests end before they reach it, so it wants ignore_eos=false.")
        if not self.enable_priority_scheduling:
            for name in ("schedule_low_priority_values_first", "disable_priority_preemption"):
                if getattr(self, name):
                    raise ValueError(f"{name} has no effect without enable_priority_scheduling=true.")


def check_policy(options: Options, policy: str) -> None:
    """Raise `ValueError` for a policy that the options exclude."""
    if options.enable_priority_scheduling and policy not in AGNOSTIC:
        raise ValueError(
            f"engine.scheduler_options.enable_priority_scheduling goes with the policies {' and '.join(AGNOSTIC)}, got "
            f"engine.scheduling_policy={policy}."
        )
    if options.disable_radix_cache and policy == "shortest-prefill-first":
        raise ValueError("engine.scheduling_policy=shortest-prefill-first needs the radix cache: leave it on.")
