"""Checks one device's content and fills what a device file may leave out."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from sim.documents import nearest
from sim.hardware.collectives import family_names
from sim.hardware.plausible import why_implausible
from sim.hardware.spec import ATTENTION_KERNELS, DTYPES, LINK_KINDS, TOPOLOGIES, DeviceConf, LinkConf


LINKS = ("scale_up", "pcie", "nic")
BY_DTYPE = ("peak_flops_per_s", "matmul_efficiency")
REQUIRED = ("name", "peak_flops_per_s", "memory_bytes", "memory_bytes_per_s")
COUNTS = ("compute_units", "devices_per_node", "max_group", "ports")

# What a file that says nothing gets; each is written into `sources`, so that a report can print it.
DEFAULT_MATMUL_EFFICIENCY = 0.75
UNIT_STREAM_OVER_SHARE = 8.0
UNIT_FLOPS_PER_S = 5.0e12  # between an A100's (2.9) and an H100's (7.5) unit, 16-bit
LEAST_UNITS = 64


def device_from(content: Mapping[str, Any], origin: str) -> DeviceConf:
    """A checked `DeviceConf` from plain keys and values.

    Only `REQUIRED` must be there. An absent `matmul_efficiency` of a dtype is 0.75, an absent
    `unit_stream_bytes_per_s` eight shares of the memory rate, an absent `cache_bytes_per_s` the memory rate,
    and an absent `memory_nominal_bytes` the reported size; `sources` says so.

    **Arguments:**

    - `content`: keys of `DeviceConf`.
    - `origin`: name or path for the messages.

    **Raises:** `ValueError` with one sentence that names the key: unknown key or dtype, missing number,
    text for a number, NaN, a number outside its range (`sim.hardware.plausible`), an impossible or unknown link.
    """
    where = f"Device {origin}"
    kinds = {field.name: field.type for field in dataclasses.fields(DeviceConf)}
    _known(content, kinds, where, "")
    for key in REQUIRED:
        if content.get(key) in (None, "", {}, "???"):
            raise ValueError(f"{where} lacks {key}, which every device needs; add {key} to its file.")
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key in LINKS:
            values[key] = _link(value, where, key)
        elif key in BY_DTYPE:
            values[key] = _by_dtype(value, where, key)
        elif key == "sources":
            values[key] = {str(k): str(v) for k, v in _mapping(value, where, key).items()}
        elif kinds[key] is bool:
            if not isinstance(value, bool):
                raise ValueError(f"{where}: {key} must be true or false, got {value!r}; correct {key}.")
            values[key] = value
        elif kinds[key] is str:
            values[key] = "" if value is None else str(value).strip()
        else:
            values[key] = _number(value, where, key)
    device = _completed(values, origin)
    _check(device, where)
    return device


def _completed(values: dict[str, Any], origin: str) -> DeviceConf:
    sources = values.setdefault("sources", {})

    def default(key: str, value: float, why: str) -> None:
        if not values.get(key):
            values[key] = value
            sources[key] = why

    rate = values["memory_bytes_per_s"]
    efficiency = values.setdefault("matmul_efficiency", {})
    for dtype in values["peak_flops_per_s"]:
        if dtype not in efficiency:
            efficiency[dtype] = DEFAULT_MATMUL_EFFICIENCY
            sources[f"matmul_efficiency.{dtype}"] = "class default: median of published matmul ceilings"
    default("memory_nominal_bytes", values["memory_bytes"], "the reported size")
    default("cache_bytes_per_s", rate, "the memory rate: no cache rate given")
    peak = max(values["peak_flops_per_s"].values())
    peak = values["peak_flops_per_s"].get("bf16") or values["peak_flops_per_s"].get("fp16") or peak
    units = max(LEAST_UNITS, round(peak / UNIT_FLOPS_PER_S))
    default("compute_units", units, f"class default: 16-bit peak / {UNIT_FLOPS_PER_S:g} FLOP/s, at least {LEAST_UNITS}")
    units = values["compute_units"]
    if not values.get("attention_efficiency"):
        sources["attention_efficiency"] = "none measured: a share of the 16-bit matrix ceiling is taken"
    default("unit_stream_bytes_per_s", UNIT_STREAM_OVER_SHARE * rate / units, "class default: 8 x memory rate / units")
    device = DeviceConf(**values)
    for key in numbers(device):
        if not source_of(device, key):
            sources[key] = f"{origin}, which names no source" if key.split(".")[0] in values else "schema default"
    return device


def numbers(device: DeviceConf) -> dict[str, float]:
    """Every number of a device by its dotted key."""
    found: dict[str, float] = {}
    for key, value in dataclasses.asdict(device).items():
        if key == "sources":
            continue
        entries = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        found.update({k: v for k, v in entries.items() if isinstance(v, int | float) and not isinstance(v, bool)})
    return found


def source_of(device: DeviceConf, key: str) -> str:
    """Where a number was read: the entry of its dotted key, or of the part before the dot; "" if none."""
    return device.sources.get(key) or device.sources.get(key.split(".")[0], "")


def _known(content: Mapping[str, Any], known: Iterable[str], where: str, prefix: str) -> None:
    names = list(known)
    for key in content:
        if key not in names:
            raise ValueError(
                f"{where} has an unknown key {prefix}{key}{nearest(str(key), names)}; correct or remove it."
            )


def _mapping(value: Any, where: str, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: {key} must hold keys and values, got {value!r}; correct {key}.")
    return value


def _number(value: Any, where: str, key: str) -> float | int:
    wanted = "a whole number" if _counts(key) else f"a number in {_unit(key)}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: {key} must be {wanted}, got {value!r}; correct {key}.")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{where}: {key} must be {wanted}, finite and at least 0, got {value}; correct {key}.")
    if _counts(key):
        if value != int(value):
            raise ValueError(f"{where}: {key} must be a whole number, got {value}; correct {key}.")
        return int(value)
    return float(value)


def _counts(key: str) -> bool:
    return key.split(".")[-1] in COUNTS


def _unit(key: str) -> str:
    units = {
        "bytes_per_s": "bytes per second",
        "flops_per_s": "FLOP per second",
        "bytes": "bytes",
        "usd_per_hour": "USD per hour",
        "_w": "watts",
        "_s": "seconds",
    }
    return next((unit for suffix, unit in units.items() if _measured(key).endswith(suffix)), "SI units")


def _measured(key: str) -> str:
    """The part of a dotted key that names the unit: before a dtype, after a link."""
    head, _, tail = key.partition(".")
    return tail if head in LINKS else head


def _by_dtype(value: Any, where: str, key: str) -> dict[str, float]:
    rates = _mapping(value, where, key)
    for dtype in rates:
        if dtype not in DTYPES:
            raise ValueError(
                f"{where}: {key} has an unknown dtype {dtype}{nearest(str(dtype), DTYPES)}; "
                f"known are {', '.join(DTYPES)}."
            )
    return {str(dtype): _number(rate, where, f"{key}.{dtype}") for dtype, rate in rates.items()}


def _link(value: Any, where: str, key: str) -> LinkConf:
    entries = _mapping(value, where, key)
    _known(entries, (field.name for field in dataclasses.fields(LinkConf)), where, f"{key}.")
    values = {
        name: str(entry) if name in ("kind", "topology") else _number(entry, where, f"{key}.{name}")
        for name, entry in entries.items()
    }
    link = LinkConf(**values)  # type: ignore[arg-type]
    if link.kind not in LINK_KINDS:
        raise ValueError(
            f"{where}: {key}.kind must be one of {', '.join(LINK_KINDS)}, got {link.kind}"
            f"{nearest(link.kind, LINK_KINDS)}; correct {key}.kind."
        )
    if link.topology not in TOPOLOGIES:
        raise ValueError(
            f"{where}: {key}.topology must be one of {', '.join(TOPOLOGIES)}, got {link.topology}; "
            f"correct {key}.topology."
        )
    if link.kind != "none" and link.bytes_per_s == 0:
        raise ValueError(
            f"{where}: {key}.bytes_per_s must be positive for a {link.kind} link, got 0; set it or {key}.kind=none."
        )
    return link


def _check(device: DeviceConf, where: str) -> None:
    for key, value in numbers(device).items():
        wanted = why_implausible(key, value)
        if wanted:
            unit = (
                "a share" if "efficiency" in key else "a whole number" if _counts(key) else f"a number in {_unit(key)}"
            )
            raise ValueError(f"{where}: {key} must be {unit} {wanted}, got {value:g}; correct {key}.")
    if device.collectives and device.collectives not in family_names():
        raise ValueError(
            f"{where}: collectives must be one of {', '.join(family_names())} or empty, got {device.collectives}"
            f"{nearest(device.collectives, family_names())}; correct collectives."
        )
    if device.attention not in ATTENTION_KERNELS:
        raise ValueError(
            f"{where}: attention must be one of {', '.join(ATTENTION_KERNELS)}, got {device.attention}"
            f"{nearest(device.attention, ATTENTION_KERNELS)}; correct attention."
        )
    for dtype in device.matmul_efficiency:
        if dtype not in device.peak_flops_per_s:
            raise ValueError(
                f"{where}: matmul_efficiency.{dtype} has no peak_flops_per_s.{dtype}; add the peak or remove it."
            )
    if device.memory_bytes > device.memory_nominal_bytes:
        raise ValueError(
            f"{where}: memory_bytes ({device.memory_bytes:.0f}) must not exceed memory_nominal_bytes "
            f"({device.memory_nominal_bytes:.0f}); correct one of them."
        )
