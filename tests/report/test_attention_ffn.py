"""What is said of attention and FFN devices: the busier side, the links, or neither."""

import pytest

from sim.report.attention_ffn import AttentionFfn, attention_ffn_bottleneck, attention_ffn_fields


def used(**changes) -> AttentionFfn:
    values = {
        "replicas": 1,
        "instances": 2,
        "attention_devices": 4,
        "ffn_devices": 8,
        "attention_device": "H800",
        "ffn_device": "H20",
        "micro_batches": 2,
        "link": "RoCE",
        "attention_busy": 0.6,
        "ffn_busy": 0.9,
        "straggler": 0.0,
        "there_occupied": 0.1,
        "back_occupied": 0.2,
        "there_bytes": 1e9,
        "back_bytes": 1e9,
        "hidden_share": 0.9,
        "padding_share": 0.0,
        "ffn_time_s": {"moe": 1.0},
    }
    return AttentionFfn(**values | changes)


@pytest.mark.parametrize(
    ("changes", "kind", "setting"),
    [
        ({}, "ffn-bound", "deployment.ffn.devices: more"),
        ({"attention_busy": 0.95}, "attention-bound", "deployment.data_parallel"),
        ({"ffn_busy": 0.5}, "pipeline-bound", "deployment.ffn.micro_batches: more than 2"),
        ({"back_occupied": 0.95}, "communication-bound", "dispatch_dtype=fp8"),
    ],
)
def test_the_bottleneck_is_what_is_busiest(changes, kind, setting):
    found = attention_ffn_bottleneck(used(**changes))
    assert found[0] == kind
    assert setting in found[2]
    assert set(found[3]) == {"attention_busy", "ffn_busy", "links_occupied"}


def test_one_micro_batch_cannot_be_fewer():
    assert "micro_batches" not in attention_ffn_bottleneck(used(micro_batches=1))[2]


def test_bubbles_are_what_is_left():
    fields = attention_ffn_fields(used())
    assert fields is not None
    assert (fields["attention_bubble"], fields["ffn_bubble"]) == pytest.approx((0.4, 0.1))
    assert attention_ffn_fields(None) is None
    assert used().sizes == "2 x 4 / 8"
