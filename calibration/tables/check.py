"""What of operator tables is set aside before anybody fits or averages: impossible times, disagreeing rows, copies."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Bool, Int

from calibration.collectives import PINNED_BUILDS, UNSOUND, UNSOUND_GROUPS
from calibration.tables.limits import limits
from calibration.tables.quarantine import Aside, Quarantine
from calibration.tables.rows import COPY
from predictors.table import FAMILIES, LABELS, OperatorTable, concatenated
from sim.hardware.read import load_device
from sim.hardware.spec import DeviceConf


BEYOND = 1.1
"""Rates may pass the datasheet's by so much: boost clocks do, and so does the resolution of a short time."""
SUSPECT_SHARE, SUSPECT_ROWS = 0.5, 3
"""A kernel of a model is set aside whole where so many of its rows, and more than this share of those that could show
it, are too fast."""
SHOWS = 0.5
"""A row could show it where its limit is at least this share of its time."""
LEAST_S = 1e-7
"""No kernel is shorter."""
SLOW, SLOW_BEYOND_S, SLOW_SHARE = 100.0, 20e-6, 0.9
"""The unit is wrong where so many rows of a kernel take so many times their roofline and the launch of a kernel."""
DISAGREE, DISAGREE_S = 1.15, 2e-6
"""Rows of one shape and origin whose longest time passes the shortest by both, as a factor and in seconds, disagree."""

Found = list[tuple[str, OperatorTable]]

KEY_LABELS = tuple(name for name in LABELS if name != "source")  # one measurement may reach us in two files
KINDS = {
    "attention": ("q_heads", "kv_heads", "qk_dim", "kv_bytes_per_element", "window"),
    "moe": ("experts", "top_k", "hidden", "inter", "tp", "ep", "skew"),
}
"""Columns that, beside the labels, tell one kernel of one model from another."""
MAY_BE_UNKNOWN = ("active", "max_load", "skew", "window")
MAY_BE_ZERO = {"attention": FAMILIES["attention"][:9] + ("warm",)}


def quarantined(tables: Iterable[OperatorTable]) -> tuple[list[OperatorTable], Quarantine]:
    """One table per device and family of the rows that can be, in the order of the first of each; and the others.

    Rows of one shape and one origin that agree become their median.

    **Raises:** ValueError for a device that is not in the catalogue.
    """
    together: dict[tuple[str, str], list[OperatorTable]] = {}
    for one in tables:
        together.setdefault((one.device, one.family), []).append(one)
    kept, aside, merged = [], [], 0
    for group in together.values():
        table = concatenated(group)
        rest, found = _possible(table)
        rest, disagreeing, equal = _agreeing(rest)
        aside += [Aside(reason, rows, len(table)) for reason, rows in found + disagreeing]
        merged += equal
        if len(rest):
            kept.append(rest)
    return kept, Quarantine(tuple(aside), merged)


def _possible(table: OperatorTable) -> tuple[OperatorTable, Found]:
    """Rows whose times can be, and the others by the first reason that holds."""
    device = _device(table.device)
    left = np.ones(len(table), bool)
    found: Found = []

    def set_aside(reason: str, wrong: Bool[np.ndarray, " row"]) -> None:
        wrong = wrong & left
        if wrong.any():
            found.append((reason, table.where(wrong)))
            left[wrong] = False

    set_aside("the file repeats another device's", np.array([COPY in name for name in table["source"].tolist()], bool))
    set_aside("the host had no access between devices beyond a pair", _unsound_host(table))
    set_aside("the time is not a positive number", ~(np.isfinite(table.seconds) & (table.seconds > 0.0)))
    set_aside(f"the time is below {1e6 * LEAST_S:g} us, shorter than any kernel", table.seconds < LEAST_S)
    set_aside("a size is not a positive number", ~_sized(table))
    seconds = np.where(left, table.seconds, np.inf)
    limit = limits(table, device)
    kinds = _codes(table, (*KEY_LABELS, *KINDS.get(table.family, ())))
    for what, least_s in (
        (f"the peak arithmetic of {device.name}", limit.arithmetic_s),
        (f"what the memory or the link of {device.name} moves once its cache is full", limit.beyond_cache_s),
    ):
        fast, showing = least_s > BEYOND * seconds, least_s > SHOWS * seconds
        whole = _mostly(kinds, fast, showing, SUSPECT_SHARE, SUSPECT_ROWS)
        set_aside(f"most rows of the kernel that could show it pass {what} more than {BEYOND:g} times", whole)
        set_aside(f"more than {BEYOND:g} times {what}", fast)
    work_s = np.maximum(limit.arithmetic_s, limit.traffic_s)
    if work_s.any():
        known = left & (work_s > 0.0)
        slow = known & (seconds > SLOW * (work_s + SLOW_BEYOND_S))
        whole = _mostly(kinds, slow, known, SLOW_SHARE)
        set_aside(f"almost all rows of the kernel take over {SLOW:g} times their roofline: a wrong unit of time", whole)
    return table.where(left), found


def _unsound_host(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Collectives of the hosts that `calibration.collectives` leaves out, by device and library or build."""
    if table.family != "collective":
        return np.zeros(len(table), bool)
    builds = zip(table["engine"].tolist(), table["engine_version"].tolist(), strict=True)
    pins = {engine: build for (device, engine), build in PINNED_BUILDS.items() if device == table.device}
    wrong = [
        (table.device, engine) in UNSOUND or (engine in pins and f"{engine}/{version}" != pins[engine])
        for engine, version in builds
    ]
    here = any(device == table.device for device, _ in UNSOUND)
    return np.array(wrong, bool) & np.isin(table["ranks"], UNSOUND_GROUPS) & here


def _sized(table: OperatorTable) -> Bool[np.ndarray, " row"]:
    """Whether every size that must be known is, and is positive."""
    right = np.ones(len(table), bool)
    for name in FAMILIES[table.family]:
        column = table[name]
        if name not in MAY_BE_UNKNOWN:
            zero = name in MAY_BE_ZERO.get(table.family, ())
            right &= np.isfinite(column) & ((column >= 0.0) if zero else (column > 0.0))
    if table.family == "attention":
        right &= table["prefill_tokens"] + table["decodes"] > 0.0
    return right


def _mostly(
    kinds: Int[np.ndarray, " row"],
    wrong: Bool[np.ndarray, " row"],
    showing: Bool[np.ndarray, " row"],
    share: float,
    least: int = 1,
) -> Bool[np.ndarray, " row"]:
    """Rows of the kinds of which `least` rows or more, and over `share` of those that could show it, are wrong."""
    if not wrong.any():
        return wrong
    bad, all_of = (np.bincount(kinds[chosen], minlength=int(kinds.max()) + 1) for chosen in (wrong, showing | wrong))
    return ((bad >= least) & (bad > share * all_of))[kinds]


def _agreeing(table: OperatorTable) -> tuple[OperatorTable, Found, int]:
    """Distinct rows: the median of those that repeat a shape and agree; those that disagree; how many were merged."""
    if not len(table):
        return table, [], 0
    codes = _codes(table, (*KEY_LABELS, *FAMILIES[table.family]))
    order = np.lexsort((table.seconds, codes))
    start = np.flatnonzero(np.r_[True, np.diff(codes[order]) != 0])
    count = np.diff(np.r_[start, len(order)])
    sorted_s = table.seconds[order]
    shortest, longest = sorted_s[start], sorted_s[start + count - 1]
    median = 0.5 * (sorted_s[start + (count - 1) // 2] + sorted_s[start + count // 2])
    apart = (longest > DISAGREE * shortest) & (longest - shortest > DISAGREE_S)
    first = np.minimum.reduceat(order, start)
    seconds = table.seconds.copy()
    seconds[first] = median
    kept = np.zeros(len(table), bool)
    kept[first[~apart]] = True
    found: Found = []
    if apart.any():
        disagreeing = apart[codes]
        worst = float(np.max((longest / shortest)[apart]))
        found.append((f"rows of one shape are up to {worst:.3g} times apart", table.where(disagreeing)))
    merged = int(np.sum(count[~apart] - 1))
    return replace(table, seconds=seconds).where(kept), found, merged


def _codes(table: OperatorTable, names: Iterable[str]) -> Int[np.ndarray, " row"]:
    """A number per row, the same for rows that are equal in the named columns and labels; from 0 without a gap."""
    codes = np.zeros(len(table), np.int64)
    for name in names:
        column = table[name]
        if column.dtype == object:
            known = {word: code for code, word in enumerate(sorted(set(column.tolist())))}
            mine = np.fromiter((known[word] for word in column.tolist()), np.int64, len(column))
        else:
            mine = np.unique(column, return_inverse=True)[1]
        if mine.any():
            codes = np.unique(codes * (int(mine.max()) + 1) + mine, return_inverse=True)[1]
    return codes


@cache
def _device(name: str) -> DeviceConf:
    return load_device(name)
