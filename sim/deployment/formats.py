"""Which rate a matrix product reaches on a device: the stored type decides the type it is computed in.

Which kernel runs also depends on what one scale is shared by: `FORMATS` are the kinds that have kernels of their own.
"""

from typing import NamedTuple

from sim.hardware.spec import DeviceConf


# Stored type -> types it can be computed in, best first. A type that is not computed in as stored is dequantised to
# 16 bits inside the product; 4-bit integers always are (weight-only formats).
COMPUTED_IN = {
    "fp32": ("fp32", "tf32", "bf16", "fp16"),
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8", "bf16", "fp16"),
    "int8": ("int8", "bf16", "fp16"),
    "fp4": ("fp4", "bf16", "fp16"),
    "int4": ("bf16", "fp16"),
}
FORMATS = ("bf16", "fp32", "fp8", "fp8_block", "mxfp8", "int8", "int4", "nvfp4", "mxfp4")
"""Stored formats in the order of their codes; "bf16" is either 16-bit float. One scale belongs to:

fp8, int8: a tensor or a row; fp8_block: a block of 128 inputs, or 128 x 128 weights; mxfp8, mxfp4: 32 inputs; nvfp4: 16
inputs; int4: a group of inputs, the product runs in 16 bits.
"""
INPUT_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5}


class Format(NamedTuple):
    """How a stored type is multiplied: the computed type, its achieved FLOP/s, bytes of one input element."""

    stored: str
    computed: str
    flops_per_s: float
    input_bytes: float

    @property
    def quantises_input(self) -> bool:
        """Whether the activation is quantised before the product."""
        return self.input_bytes < 2.0


def format_of(dtype: str, device: DeviceConf) -> Format:
    """The format of stored type `dtype` on `device`; ValueError if the device can compute in none of its types."""
    peaks = device.peak_flops_per_s
    for computed in COMPUTED_IN[dtype]:
        if peaks.get(computed):
            return Format(dtype, computed, peaks[computed] * efficiency(computed, device), INPUT_BYTES[computed])
    known = ", ".join(name for name, peak in peaks.items() if peak) or "none"
    raise ValueError(
        f"{device.name} has no peak rate for {dtype} weights, nor for {' or '.join(COMPUTED_IN[dtype][1:])}, in which "
        f"they could be computed (it has: {known}); add hardware.peak_flops_per_s.{COMPUTED_IN[dtype][-1]} to its file."
    )


def format_code(dtype: str, bytes_per_param: float) -> int:
    """Index in `FORMATS` of a stored type; the bytes of its scales, `bytes_per_param`, tell what shares one."""
    if dtype == "fp8":
        scale = bytes_per_param - 1.0
        name = "fp8" if scale <= 0.0 else "fp8_block" if scale < 1 / 32 else "mxfp8"
    elif dtype == "fp4":
        name = "nvfp4" if bytes_per_param - 0.5 > 1 / 32 else "mxfp4"
    else:
        name = "bf16" if dtype == "fp16" else dtype
    return FORMATS.index(name)


def efficiency(dtype: str, device: DeviceConf) -> float:
    """Share of the peak that large products of `dtype` reach; the device's lowest share where its own is not known."""
    shares = device.matmul_efficiency
    if dtype in shares:
        return shares[dtype]
    if not shares:
        raise ValueError(
            f"{device.name} has no hardware.matmul_efficiency; add the share of its peak that products reach."
        )
    return min(shares.values())
