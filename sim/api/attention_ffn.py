"""What attention instances and their FFN devices did over a whole run."""

import numpy as np

from sim.cost.attention_ffn_steps import SideTimes
from sim.deployment.plan import Plan
from sim.report.attention_ffn import AttentionFfn
from sim.report.result import StepTable


def attention_ffn_use(plan: Plan, sides: SideTimes) -> AttentionFfn:
    """Shares of all step time, bytes, and what the FFN devices computed."""
    ffn = plan.ffn
    assert ffn is not None
    total_s = float(sides.total_s.sum())
    moving_s, padded = float(sides.moving_s.sum()), float(sides.padded_tokens.sum())

    def share(seconds: np.ndarray) -> float:
        return float(seconds.sum()) / total_s if total_s else 0.0

    return AttentionFfn(
        replicas=plan.deployment.replicas,
        instances=ffn.instances,
        attention_devices=plan.deployment.tensor_parallel,
        ffn_devices=ffn.devices,
        attention_device=plan.device.name,
        ffn_device=ffn.device.name,
        micro_batches=ffn.micro_batches,
        link=ffn.link,
        attention_busy=share(sides.attention_s),
        ffn_busy=share(sides.ffn_s),
        straggler=share(sides.straggler_s),
        there_occupied=share(sides.there_s),
        back_occupied=share(sides.back_s),
        there_bytes=padded * ffn.visits * ffn.there.bytes_per_token,
        back_bytes=padded * ffn.visits * ffn.back.bytes_per_token,
        hidden_share=max(0.0, 1.0 - float(sides.shown_s.sum()) / moving_s) if moving_s else None,
        padding_share=1.0 - float(sides.tokens.sum()) / padded if padded else 0.0,
        ffn_time_s={name.removesuffix("_s"): float(values.sum()) for name, values in sides.ffn_parts.items()},
    )


def sent_bytes(plan: Plan, steps: StepTable) -> float:
    """What the attention instances sent, each for itself: padded tokens x layers x bytes."""
    assert plan.ffn is not None
    return float(np.asarray(steps.padded_tokens).sum()) * plan.ffn.visits * plan.ffn.there.bytes_per_token
