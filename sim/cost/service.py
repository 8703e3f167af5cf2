"""What servers took against what the kernels' prices say: factors on their time, carried by the plan.

A kernel measured alone in a loop, or priced by a form, is not quite the kernel of a server, which overlaps, fuses or
tunes it. Where servers were measured, the ratio is known by kind of kernel (`predictors.served`). It scales how often a
slot is counted for its price; bytes and operations of the step stay as they are.
"""

from dataclasses import replace

from sim.deployment.plan import PlanArrays


def in_service(plan: PlanArrays) -> PlanArrays:
    """The plan whose slots are counted as often as their kernels' time in a server says."""
    device = plan.device
    return replace(
        plan,
        gemm=replace(plan.gemm, count=plan.gemm.count * device.product_time[..., None]),
        attention=replace(plan.attention, count=plan.attention.count * device.attention_time[..., None]),
        recurrent=replace(plan.recurrent, count=plan.recurrent.count * device.attention_time[..., None]),
        moe=replace(plan.moe, count=plan.moe.count * device.expert_time[..., None]),
        elementwise=replace(plan.elementwise, count=plan.elementwise.count * device.elementwise_time[..., None]),
    )
