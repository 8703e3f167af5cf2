"""What a run tells of attention and feed-forward parts on different devices: who was busy, who waited, the links."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AttentionFfn:
    """Attention instances and their FFN devices over all steps of a run. Shares are of step time.

    - `instances` of `attention_devices` each, `ffn_devices` for all of them, `replicas` of that; the kinds of device.
    - `attention_busy`, `ffn_busy`: shares in which a device of the side computes (its own collectives included); what
      is left of the time is its bubble. `straggler`: share in which an instance on average computes less than the
      slowest.
    - `there_occupied`, `back_occupied`: shares in which the links carry activations, latency apart.
    - `there_bytes`, `back_bytes`: carried. `hidden_share`: of the time that transfers take, latency included, what does
      not make steps longer; None without any.
    - `padding_share`: of the tokens that the FFN devices compute, those that are padding or dummies.
    - `ffn_time_s`: seconds of an FFN device by component.
    """

    replicas: int
    instances: int
    attention_devices: int
    ffn_devices: int
    attention_device: str
    ffn_device: str
    micro_batches: int
    link: str
    attention_busy: float
    ffn_busy: float
    straggler: float
    there_occupied: float
    back_occupied: float
    there_bytes: float
    back_bytes: float
    hidden_share: float | None
    padding_share: float
    ffn_time_s: dict[str, float]

    @property
    def attention_bubble(self) -> float:
        """Share of step time in which attention devices wait."""
        return 1.0 - self.attention_busy

    @property
    def ffn_bubble(self) -> float:
        """Share of step time in which FFN devices wait."""
        return 1.0 - self.ffn_busy

    @property
    def sizes(self) -> str:
        """`2 x 4 / 8`: attention instances and their devices, FFN devices."""
        each = f"{self.instances} x {self.attention_devices}" if self.instances > 1 else f"{self.attention_devices}"
        return f"{each} / {self.ffn_devices}"


FULL = 0.75
"""A side that computes for a smaller share of step time, and so does the other, waits for want of micro-batches."""


def attention_ffn_bottleneck(found: AttentionFfn) -> tuple[str, str, str, dict[str, float]]:
    """Kind, sentence, setting to change and evidence: the side or link that is busiest, or that none is busy."""
    busy, fed = found.attention_busy, found.ffn_busy
    linked = max(found.there_occupied, found.back_occupied)
    evidence = {"attention_busy": busy, "ffn_busy": fed, "links_occupied": linked}
    both = f"attention devices compute {busy:.0%} of step time, FFN devices {fed:.0%}"
    if linked > max(busy, fed):
        sentence = f"Communication-bound: activations occupy the links for {linked:.0%} of step time; {both}."
        return "communication-bound", sentence, "deployment.ffn.dispatch_dtype=fp8, or faster links.", evidence
    if max(busy, fed) < FULL:
        more = f"deployment.ffn.micro_batches: more than {found.micro_batches}, with batches large enough for them."
        why = "neither side is kept at work by the micro-batches in flight"
        return "pipeline-bound", f"Pipeline-bound: {both}; {why}.", more, evidence
    if fed >= busy:
        change = "deployment.ffn.devices: more of them"
        change += ", or fewer deployment.ffn.micro_batches: each reads all weights." if found.micro_batches > 1 else "."
        return "ffn-bound", f"FFN-bound: {both}.", change, evidence
    change = "deployment.data_parallel or tensor_parallel: more attention devices, or fewer deployment.ffn.devices."
    return "attention-bound", f"Attention-bound: {both}.", change, evidence


def attention_ffn_fields(found: AttentionFfn | None) -> dict[str, Any] | None:
    """As a summary has it."""
    if found is None:
        return None
    bubbles = {"attention_bubble": found.attention_bubble, "ffn_bubble": found.ffn_bubble}
    return dict(vars(found)) | bubbles
