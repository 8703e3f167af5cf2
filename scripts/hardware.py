"""`headway hardware`: the shipped devices, or one device in full."""

import dataclasses
from typing import Any

from scripts.answer import Answer
from scripts.arguments import Arguments
from scripts.table import table


GIB = 1 << 30


def run(arguments: Arguments) -> Answer:
    """A table of all devices, or every number of one (a name or the path of a YAML file) with its source."""
    from sim.hardware.read import list_devices, load_device
    from sim.report.collect import natural

    if len(arguments.words) > 1:
        raise ValueError(f"headway hardware wants one name, got {' '.join(arguments.words)}.")
    if arguments.words:
        device = load_device(arguments.words[0])
        return Answer({"status": "ok", "device": dataclasses.asdict(device)}, in_full(device))
    devices = {name: load_device(name) for name in sorted(list_devices(), key=natural)}
    head = ("name", "device", "bf16 TFLOP/s", "fp8", "memory GiB", "TB/s", "in-node GB/s", "USD/h")
    rows = [
        (
            name,
            device.name,
            number(device.peak_flops_per_s.get("bf16") or device.peak_flops_per_s.get("fp16"), 1e12),
            number(device.peak_flops_per_s.get("fp8"), 1e12),
            f"{device.memory_bytes / GIB:.2f}" + ("~" if device.memory_bytes_estimated else " "),
            f"{device.memory_bytes_per_s / 1e12:.2f}",
            number(device.scale_up.bytes_per_s, 1e9),
            f"{device.usd_per_hour:.2f}" if device.usd_per_hour else "",
        )
        for name, device in devices.items()
    ]
    text = (
        table(head, rows, left=2) + "\n\n~ memory estimated, not read from a device; peaks are dense datasheet rates."
    )
    return Answer({"status": "ok", "devices": {name: dataclasses.asdict(d) for name, d in devices.items()}}, text)


def number(value: float | None, unit: float) -> str:
    """A rate in `unit`, nothing where the device has none."""
    return f"{value / unit:,.0f}" if value else ""


def in_full(device: Any) -> str:
    """One line per number with the source it was read from."""
    from sim.hardware.check import numbers, source_of

    kind = ", ".join(filter(None, (device.vendor, device.kind)))
    lines = [f"{device.name} ({kind})"]
    found = numbers(device)
    width = max(map(len, found))
    lines += [f"  {key:<{width}}  {value:<14.6g} {source_of(device, key)}" for key, value in found.items()]
    return "\n".join([*lines, *([f"  {device.notes}"] if device.notes else [])])
