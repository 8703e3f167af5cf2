"""What servers took against what the kernels' prices say: factors on their time, carried by the plan.

A kernel measured alone in a loop, or priced by a form, is not quite the kernel of a server, which overlaps, fuses or
tunes it. Where servers were measured, the ratio is known by kind of kernel (`predictors.served`). It scales how often a
slot is counted for its price, or all seconds of an attention kernel's form; bytes and operations of the step stay as
they are.
"""

from dataclasses import replace
from typing import NamedTuple

from sim.cost.lengths import AttentionTerms
from sim.cost.number import Number
from sim.cost.recurrent import RecurrentTerms
from sim.deployment.plan import DeviceArrays, PlanArrays


def in_service(plan: PlanArrays) -> PlanArrays:
    """The plan whose slots are counted as often as their kernels' time in a server says; attention and states apart."""
    device = plan.device
    return replace(
        plan,
        gemm=replace(plan.gemm, count=plan.gemm.count * device.product_time[..., None]),
        moe=replace(plan.moe, count=plan.moe.count * device.expert_time[..., None]),
        elementwise=replace(plan.elementwise, count=plan.elementwise.count * device.elementwise_time[..., None]),
    )


def attention_in_service(terms: AttentionTerms, device: DeviceArrays) -> AttentionTerms:
    """The two kernels of attention, each as long as in a server."""
    decode, prefill = device.decode_attention_time, device.prefill_attention_time
    return terms._replace(
        decode=_longer(terms.decode, decode),
        prefill=_longer(terms.prefill, prefill),
        verify=None if terms.verify is None else _longer(terms.verify, decode),
    )


def states_in_service(terms: RecurrentTerms, device: DeviceArrays) -> RecurrentTerms:
    """State layers: rows that decode as decode attention, chunks as that of prefill."""
    chunks = ("chunk_floor_s", "chunk_s", "token_s", "chain_s", "beside_s")
    rows = terms._replace(**{name: getattr(terms, name) * device.prefill_attention_time for name in chunks})
    return rows._replace(
        floor_s=rows.floor_s * device.decode_attention_time, sequence_s=rows.sequence_s * device.decode_attention_time
    )


def _longer[T: NamedTuple](terms: T, factor: Number) -> T:
    """A form is homogeneous in its seconds: with all of them longer, so is what it gives."""
    return terms._replace(**{name: getattr(terms, name) * factor for name in terms._fields if name.endswith("_s")})
