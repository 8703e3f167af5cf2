"""The steps of attention instances and their FFN devices by component, and what each side and link did, afterwards."""

from typing import Any, NamedTuple

import numpy as np

from sim.cost.attention_ffn import device_s, way_prices
from sim.cost.model import CostModel
from sim.cost.ping_pong import Hops, cycles, ping_pong_s
from sim.cost.stats import LENGTHS
from sim.cost.table import BEHIND, price_steps
from sim.deployment.plan import FfnPlan, PlanArrays, Way


LONGEST = ("prefill_max_tokens", "decode_max")


class SideTimes(NamedTuple):
    """What both sides and the links did in each step, seconds, axis `step`.

    `straggler_s`: by how much the mean instance computes less than the slowest. `moving_s`: all transfers, one after
    the other; `shown_s`: what they make the step longer. `ffn_parts`: by component.
    """

    total_s: np.ndarray
    attention_s: np.ndarray
    straggler_s: np.ndarray
    ffn_s: np.ndarray
    there_s: np.ndarray
    back_s: np.ndarray
    moving_s: np.ndarray
    shown_s: np.ndarray
    padded_tokens: np.ndarray
    tokens: np.ndarray
    ffn_parts: dict[str, np.ndarray]


def attention_ffn_steps(
    cost: CostModel, ffn_cost: CostModel, own: PlanArrays, ffn: FfnPlan, columns: Any, step: np.ndarray
) -> tuple[dict[str, np.ndarray], SideTimes]:
    """Seconds by component of rows that are one attention instance's part in a step each, and what the sides did.

    `columns`: named as the fields of `BatchStats`, `[row]`; rows with the same number `step` ran together. Components
    are those of the attention devices; `wait_s` is the rest of the step's `total_s`: they wait for FFN devices, links
    and slower instances. `error_s`, `outside_s`: what the cost models claim of both sides, in proportion.
    """
    _, step = np.unique(step, return_inverse=True)
    count, parts = int(step.max(initial=-1)) + 1, ffn.micro_batches
    rows, instances = len(step), ffn.instances
    tokens = np.asarray(columns.prefill_tokens, np.int64) + np.asarray(columns.decodes, np.int64)
    padded = np.asarray(columns.padded_tokens, np.int64)
    sizes, padded_sizes = _shares(tokens, parts), _shares(padded, parts)
    mode = np.asarray(columns.graph_mode, np.int64)
    micro = _micro(columns, tokens, sizes) | {"padded_tokens": padded_sizes.ravel()}
    of_mixer = np.bincount([mixer for mixer, _ in ffn.layers], minlength=len(ffn.mixers))
    of_feed = np.bincount([feed for _, feed in ffn.layers if feed is not None], minlength=len(ffn.feeds))

    def slowest(values: np.ndarray) -> np.ndarray:
        found = np.zeros((*values.shape[:-1], count))
        for index in np.ndindex(values.shape[:-1]):
            np.maximum.at(found[index], step, values[index])
        return found

    # the attention side: what comes before and after the layers, then the layers
    ends = price_steps(cost, ffn.ends, {"padded_tokens": padded, "emitting": columns.emitting}, ffn.parts)
    found = {name: ends[name].copy() for name in (*BEHIND, "attention_s", "head_s")}
    error_s, outside_s = (ends[name] * ends["total_s"] for name in ("rel_error", "outside_share"))
    attention_s, straggler_s = [], np.zeros(count)
    for arrays, times in zip(ffn.mixers, of_mixer, strict=True):
        price = price_steps(cost, arrays, micro, ffn.parts)
        for name in (*BEHIND, "attention_s"):
            found[name] += times * price[name].reshape(parts, rows).sum(axis=0)
        error_s = error_s + times * (price["rel_error"] * price["total_s"]).reshape(parts, rows).sum(axis=0)
        outside_s = outside_s + times * (price["outside_share"] * price["total_s"]).reshape(parts, rows).sum(axis=0)
        each_s = (device_s(price) + price["attention_s"]).reshape(parts, rows)
        attention_s.append(slowest(each_s))
        straggler_s += times * (attention_s[-1].sum(axis=0) - np.bincount(step, each_s.sum(axis=0), count) / instances)
    busy_s = device_s(found) + found["attention_s"] + found["head_s"]

    # the FFN side, and the links
    everyone = np.stack([np.bincount(step, sizes_j, count) for sizes_j in padded_sizes])
    ffn_s, ffn_parts = [], {name: np.zeros(count) for name in BEHIND}
    ffn_error_s, ffn_outside_s = np.zeros(count), np.zeros(count)
    for arrays, times in zip(ffn.feeds, of_feed, strict=True):
        price = price_steps(ffn_cost, arrays, {"padded_tokens": everyone.ravel()}, ffn.parts)
        ffn_s.append(device_s(price).reshape(parts, count))
        for name in BEHIND:
            ffn_parts[name] += times * price[name].reshape(parts, count).sum(axis=0)
        ffn_error_s += times * (price["rel_error"] * price["total_s"]).reshape(parts, count).sum(axis=0)
        ffn_outside_s += times * (price["outside_share"] * price["total_s"]).reshape(parts, count).sum(axis=0)
    fed_s = np.sum([ffn_parts[name] for name in BEHIND], axis=0)
    most = slowest(padded_sizes.astype(float))
    there, back = (_hops(way, most, everyone) for way in (ffn.there, ffn.back))

    pattern = cycles(ffn.layers)
    through_s = ping_pong_s(pattern, attention_s, ffn_s, there, back, maximum=np.maximum, steady=False)
    free = Hops(np.zeros((parts, count)), 0.0)
    unlinked_s = ping_pong_s(pattern, attention_s, ffn_s, free, free, maximum=np.maximum, steady=False)

    before_s, head_s = slowest(device_s(ends)), slowest(found["head_s"])
    of_step = np.zeros(count, np.int64)
    of_step[step] = mode
    launch_s = parts * np.maximum(np.asarray(own.device.launch_s), ffn.launch_s)[of_step]
    body_s = before_s + through_s
    late_s = np.maximum(launch_s - body_s, 0.0)
    gap_s, host_s = np.asarray(own.device.gap_s)[of_step], float(own.device.host_s)
    total_s = body_s + late_s + gap_s + host_s + head_s

    found |= {"launch_s": (gap_s + late_s)[step], "host_s": np.full(rows, host_s)}
    found["wait_s"] = total_s[step] - busy_s - found["launch_s"] - host_s
    found["total_s"] = total_s[step]
    both_s = busy_s + fed_s[step]
    found["error_s"] = found["total_s"] * (error_s + ffn_error_s[step]) / both_s
    found["outside_s"] = found["total_s"] * (outside_s + ffn_outside_s[step]) / both_s
    there_s, back_s = (ffn.visits * np.sum(way.occupied_s, axis=0) for way in (there, back))
    latency_s = ffn.visits * parts * (there.latency_s + back.latency_s)
    sides = SideTimes(
        total_s=total_s,
        attention_s=np.bincount(step, busy_s, count) / instances,
        straggler_s=straggler_s,
        ffn_s=fed_s,
        there_s=there_s,
        back_s=back_s,
        moving_s=there_s + back_s + latency_s,
        shown_s=np.maximum(through_s - unlinked_s, 0.0),
        padded_tokens=everyone.sum(axis=0),
        tokens=np.bincount(step, tokens, count),
        ffn_parts=ffn_parts,
    )
    return found, sides


def _shares(total: np.ndarray, parts: int) -> np.ndarray:
    """`[part, row]`: whole shares of each row's total, the larger ones first."""
    found: np.ndarray = total // parts + (np.arange(parts)[:, None] < total % parts)
    return found


def _micro(columns: Any, tokens: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
    """The lengths of every micro-batch, `[part x row]`."""
    some = np.maximum(tokens, 1)
    found = {}
    for name in LENGTHS:
        values = np.asarray(getattr(columns, name), np.float64)
        part = np.where(sizes > 0, values, 0.0) if name in LONGEST else values * sizes / some
        found[name] = part.ravel()
    return found


def _hops(way: Way, most: np.ndarray, everyone: np.ndarray) -> Hops:
    """The transfers of every micro-batch, `[part, step]`."""
    found = way_prices(way, np.append(0.0, most.ravel()), np.append(0.0, everyone.ravel()))
    occupied_s = np.maximum(found.attention_s[1:], found.ffn_s[1:])
    return Hops(occupied_s.reshape(most.shape), found.latency_s)
