"""KV that lay behind the devices' caches, on a page: in tiers, or of preempted requests in the host."""

from html import escape

from sim.report.console import percent
from sim.report.page.parts import quantity, table
from sim.report.result import SimulationResult
from sim.report.swap import swap_fields
from sim.report.tiers import begun_tokens, tier_fields
from sim.units import GB


def behind_html(result: SimulationResult) -> str:
    """Both; nothing where there was neither."""
    return tiers_html(result) + swap_html(result)


def tiers_html(result: SimulationResult) -> str:
    """What became of KV in the tiers behind the cache; nothing without any."""
    found = tier_fields(result.cache_tiers, result.block_size, begun_tokens(result))
    if not found:
        return ""
    head = ["tier", *(tier["name"] + (", shared" if tier["shared"] else "") for tier in found)]
    rows = [
        ["room, thousand tokens", *(quantity(tier["size_tokens"] / 1e3) for tier in found)],
        ["most used (%)", *(quantity(percent(tier["most_used_share"])) for tier in found)],
        ["requests with a recall", *(f"{tier['recalls']:,}" for tier in found)],
        ["recalled, of all prompt tokens (%)", *(quantity(percent(tier["recalled_share"])) for tier in found)],
        ["a recall takes, mean (ms)", *(quantity(tier["recall_ms_mean"]) for tier in found)],
        ["a recall takes, P99 (ms)", *(quantity(tier["recall_ms_p99"]) for tier in found)],
        ["recalled, GB", *(quantity(tier["recalled_bytes"] / GB) for tier in found)],
        ["prefetched, thousand tokens", *(quantity(tier["prefetched_tokens"] / 1e3) for tier in found)],
        ["written, GB", *(quantity(tier["written_bytes"] / GB) for tier in found)],
        ["lost to make room, thousand tokens", *(quantity(tier["dropped_tokens"] / 1e3) for tier in found)],
    ]
    return "<h3>Tiers behind the KV cache</h3>" + table(head, rows, "numbers")


def swap_html(result: SimulationResult) -> str:
    """What became of preempted requests' KV in the host; nothing where it does not go there."""
    found = swap_fields(result.swap, result.block_size)
    if found is None:
        return ""
    rows = [
        ["requests", f"{found['swaps']:,}", f"{found['back']:,}"],
        ["GB", quantity(found["out_bytes"] / GB), quantity(found["in_bytes"] / GB)],
        ["steps waited (s)", quantity(found["out_wait_s"]), quantity(found["in_wait_s"])],
    ]
    said = f"At most {quantity(percent(found['most_used_share']))} % of the host memory for it was used"
    if found["refused"]:
        said += f"; {found['refused']:,} preemptions found no room there, and their KV was computed again"
    if found["away_ms_mean"] is not None:
        said += f". A request was away for {quantity(found['away_ms_mean'])} ms on average"
    note = f'<p class="note">{escape(said)}.</p>'
    return "<h3>Preempted requests, swapped to the host</h3>" + note + table(["", "out", "in"], rows, "numbers")
