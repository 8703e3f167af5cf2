"""The schemes a `quantization_config` may name: bytes per parameter with scales, and which modules they hold for.

Each scheme reads its section and returns a name and rules (pattern, format), the first that matches holds.
"""

from collections.abc import Callable, Mapping

from sim.model.config import Config
from sim.model.linear import Dtype, WeightFormat


Rules = list[tuple[str, WeightFormat]]
Scheme = Callable[[Config], tuple[str, Rules]]

EVERY = "Linear"
FP8, INT8 = WeightFormat("fp8", 1.0), WeightFormat("int8", 1.0)
# one byte of scale per 32 elements, per 16 elements
MXFP4, NVFP4 = WeightFormat("fp4", 0.5 + 1 / 32), WeightFormat("fp4", 0.5 + 1 / 16)


def grouped(bits: int, group: int, zero_points: bool) -> WeightFormat:
    """Integers of 4 or 8 bits with a 16-bit scale (and a zero point) per `group` inputs; -1: per row, not counted."""
    dtype: Dtype = "int4" if bits == 4 else "int8"
    extra = 0.0 if group <= 0 else (2 + (bits / 8 if zero_points else 0)) / group
    return WeightFormat(dtype, bits / 8 + extra)


def block_scale(section: Config, key: str) -> float:
    """Bytes per parameter of one float32 scale per block of `key`; 0 without blocks."""
    block = section.sequence(key, of=int, default=None)
    if block is None:
        return 0.0
    if len(block) != 2 or min(block) < 1:
        raise ValueError(f"{section.where}: '{key}' must be two sizes, got {block!r}.")
    return 4 / (block[0] * block[1])


def width(section: Config, *names: str) -> int:
    """A width of 4 or 8 bits."""
    key, bits = section.get(*names)
    if bits not in (4, 8) or isinstance(bits, bool):
        raise ValueError(f"{section.where}: '{key}' must be 4 or 8, got {bits!r}.")
    return int(bits)


def fp8(section: Config) -> tuple[str, Rules]:
    """8-bit floats, scaled per tensor, per row (not counted) or per `weight_block_size`."""
    return "fp8", [(EVERY, WeightFormat("fp8", 1 + block_scale(section, "weight_block_size")))]


def gptq(section: Config) -> tuple[str, Rules]:
    """Integers in groups along the input, with zero points."""
    stored = grouped(width(section, "bits"), section.integer("group_size", least=-1), True)
    return f"gptq {stored.dtype}", [(EVERY, stored)]


def awq(section: Config) -> tuple[str, Rules]:
    """Integers in groups along the input, with or without zero points."""
    group = section.integer("group_size", "q_group_size", least=-1)
    stored = grouped(width(section, "bits", "w_bit"), group, section.flag("zero_point", default=True))
    return f"awq {stored.dtype}", [(EVERY, stored)]


def bitsandbytes(section: Config) -> tuple[str, Rules]:
    """8-bit integers, or 4-bit values with one scale per 64."""
    if section.flag("load_in_8bit", "_load_in_8bit", default=False):
        return "bitsandbytes int8", [(EVERY, INT8)]
    # the scale is a float, or with double quantisation a byte and a float per 256 of those
    scale = (1 + 4 / 256) if section.flag("bnb_4bit_use_double_quant", default=False) else 4
    return "bitsandbytes int4", [(EVERY, WeightFormat("int4", 0.5 + scale / 64))]


def mxfp4(section: Config) -> tuple[str, Rules]:
    """Experts only: engines keep every other matrix in 16 bits, listed or not."""
    return "mxfp4", [("experts", MXFP4)]


def int8(section: Config) -> tuple[str, Rules]:
    """8-bit integers with a scale per row."""
    return "int8", [(EVERY, INT8)]


def experts_int8(section: Config) -> tuple[str, Rules]:
    """8-bit integers for the experts only."""
    return "experts int8", [("experts", INT8)]


ALGORITHMS = {
    "FP8": FP8,
    "FP8_PB_WO": WeightFormat("fp8", 1 + 4 / 128**2),
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "MXFP8": WeightFormat("fp8", 1 + 1 / 32),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A16": grouped(4, 128, False),
    "W4A16_AWQ": grouped(4, 128, False),
    "W4A8_AWQ": grouped(4, 128, False),
    "INT8_SQ": INT8,
}


def modelopt(section: Config) -> tuple[str, Rules]:
    """One algorithm for all matrices, or one for each layer named."""

    def known(name: object) -> WeightFormat:
        if name not in ALGORITHMS:
            raise ValueError(f"{section.where}: 'quant_algo' must be one of {', '.join(ALGORITHMS)}, got {name!r}.")
        return ALGORITHMS[str(name)]

    algorithm = section.text("quant_algo")
    if algorithm != "MIXED_PRECISION":
        return f"modelopt {algorithm}", [(EVERY, known(algorithm))]
    layers = section.mapping("quantized_layers")
    found: Rules = [(name, known(Config(entry, section.where).text("quant_algo"))) for name, entry in layers.items()]
    return "modelopt mixed", found


def compressed_tensors(section: Config) -> tuple[str, Rules]:
    """Groups of targets, each with a scheme for its weights; specific targets go before the general one."""
    rules: Rules = []
    for name, group in section.mapping("config_groups").items():
        where = f"{section.where}, config_groups, {name}"
        if not isinstance(group, Mapping):
            raise ValueError(f"{where}: a group must be a mapping, got {group!r}.")
        entry = Config(group, where)
        weights = entry.part("weights")
        if weights is not None:
            stored = weight_scheme(weights)
            rules += [(target, stored) for target in entry.sequence("targets", of=str, default=[EVERY])]
    rules.sort(key=lambda rule: rule[0] == EVERY)
    return f"compressed-tensors {'/'.join(sorted({stored.dtype for _, stored in rules}))}", rules


def weight_scheme(weights: Config) -> WeightFormat:
    """Element type, and scales per group, per block, or per row or tensor (not counted)."""
    bits, kind = width(weights, "num_bits"), weights.text("type", default="int")
    group = weights.integer("group_size", default=-1, least=-1)
    strategy = weights.text("strategy", default="group" if group > 0 else "channel")
    in_groups = strategy in ("group", "tensor_group")
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "float":
        scale = 2 / group if in_groups and group > 0 else block_scale(weights, "block_structure")
        return WeightFormat("fp8", 1 + scale)
    return grouped(bits, group if in_groups else -1, not weights.flag("symmetric", default=True))


SCHEMES: dict[str, Scheme] = {
    "fp8": fp8,
    "fbgemm-fp8": fp8,
    "gptq": gptq,
    "gptq-marlin": gptq,
    "awq": awq,
    "awq-marlin": awq,
    "bitsandbytes": bitsandbytes,
    "mxfp4": mxfp4,
    "int8": int8,
    "experts-int8": experts_int8,
    "modelopt": modelopt,
    "modelopt-fp4": modelopt,
    "modelopt-mixed": modelopt,
    "compressed-tensors": compressed_tensors,
}

# what a section without `quant_method` is known by, in this order
SIGNS = {"quant_algo": "modelopt", "config_groups": "compressed-tensors"}
