"""One self-contained HTML page of a run: text and tables from here, charts drawn in the browser from embedded data."""

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from sim.report.console import claim_warning, percent
from sim.report.cut import cut_note
from sim.report.fleet import WORDS, link_rows, pool_shares, ttft_parts
from sim.report.metrics import Metrics, latencies, meets
from sim.report.page.behind import behind_html
from sim.report.page.data import chart_data
from sim.report.page.parts import quantity, table
from sim.report.plain import plain, to_json
from sim.report.priority import by_priority
from sim.report.result import FINISHED, SimulationResult
from sim.report.retrieval import retrieval_lines
from sim.report.sessions import session_figures
from sim.report.speculation import speculation_fields
from sim.report.summary import ms, percentile_word
from sim.report.verdict import Verdict
from sim.units import GIB


MOST_LINKS = 12
"""Links shown, the busiest."""

ROWS = (
    ("ttft", "TTFT", "time to first token, from arrival"),
    ("ttft_queued", "TTFT from pick-up", "from when the engine took the request up"),
    ("ttft_not_queued", "TTFT, at once", "of requests scheduled within 1 ms of their pick-up"),
    ("tpot", "TPOT", "time per output token after the first"),
    ("itl", "ITL", "inter-token latency, over all tokens"),
    ("e2el", "E2EL", "end-to-end latency"),
    ("queue", "Queue", "arrival to first batch"),
    ("prefill", "Prefill", "first batch to first token"),
    ("decode", "Decode", "first token to last"),
)


def page(result: SimulationResult, metrics: Metrics, found: Verdict | None) -> str:
    """The page as HTML text. It asks nothing of the network, and reads without scripts but for the charts."""
    data = chart_data(result, metrics)
    label = title(result)
    body = fill(
        "page.html",
        {
            "headline": headline(result, metrics),
            "latency_table": latency_table(metrics),
            "slo": slo_html(result, metrics),
            "priorities": priority_table(result),
            "sessions": sessions_html(result) + retrieval_html(result),
            "hits": hits_html(metrics),
            "step_note": step_note(metrics),
            "pools": pools_html(result) + sides_html(result) + drafts_html(result) + behind_html(result),
            "replicas": replica_table(result),
            "memory": memory_html(result),
            "workload": workload_html(result),
            "assumptions": assumption_table(result),
            "not_modelled": bullets(result.not_modelled),
            "run": run_html(result),
        },
    )
    lead = verdict_html(found) + claim_html(result)
    return framed("simulated serving run", label, subtitle(result), body, data, "page.js", lead=lead, wide=False)


def asset(name: str) -> str:
    """The text of a file beside this one."""
    return (files("sim.report.page") / name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: no `<` that could end it."""
    return to_json(value).replace("<", "\\u003c")


def fill(template: str, slots: dict[str, str]) -> str:
    """The template with each `<!--slot-->` replaced, in one pass so that no content is taken for a slot."""
    return re.sub(r"<!--([a-z_]+)-->", lambda match: slots[match[1]], asset(template))


def framed(
    kicker: str, heading: str, facts: str, body: str, data: Any, script: str, *, lead: str = "", wide: bool = True
) -> str:
    """A self-contained page around `body`; `facts`, `lead` and `body` are HTML, `script` draws `data` into its charts.

    It asks nothing of the network, and reads without scripts but for the charts.
    """
    return fill(
        "frame.html",
        {
            "title": escape(heading),
            "style": asset("style.css"),
            "width": ' class="wide"' if wide else "",
            "kicker": escape(kicker),
            "heading": escape(heading),
            "facts": facts,
            "lead": lead,
            "body": body,
            "data": embedded(data),
            "script": asset("charts.js") + "\n" + asset(script),
        },
    )


def duration(milliseconds: float | None) -> tuple[str, str]:
    """Milliseconds as (number, unit), in seconds from 1 s on."""
    if milliseconds is None:
        return "–", ""
    return (quantity(milliseconds / 1e3), "s") if milliseconds >= 1e3 else (quantity(milliseconds), "ms")


def title(result: SimulationResult) -> str:
    """`Llama-3.1-8B on 2 × H100 SXM`."""
    return f"{result.model} on {f'{result.gpus} × ' if result.gpus > 1 else ''}{result.device}"


def subtitle(result: SimulationResult) -> str:
    """Who served what, and how it was simulated, as a list of facts."""
    workload = result.workload
    load = f"{len(workload):,} requests of {workload.name}"
    if workload.sessions is not None:
        load = f"{len(workload.sessions):,} sessions of {len(workload):,} rounds of {workload.name}"
    rate = (result.config.get("workload") or {}).get("rate")
    if isinstance(rate, int | float) and np.isfinite(rate):
        load += f" at {rate:g} {'req' if workload.sessions is None else 'sessions'}/s"
    if workload.concurrency is not None:
        load += f", at most {workload.concurrency} at a time"
    facts = [result.engine_label, load, f"{result.engine} engine, seed {result.seed}"]
    if result.ranks > 1:
        facts.insert(1, shape(result))
    return "".join(f"<li>{escape(fact)}</li>" for fact in facts)


def shape(result: SimulationResult) -> str:
    """Replicas and the data-parallel ranks of each, as far as there are several."""
    replicas, ranks = f"{result.replicas} replicas", f"{result.data_parallel} data-parallel ranks"
    if result.data_parallel == 1:
        return replicas
    return ranks if result.replicas == 1 else f"{replicas} of {ranks}"


def verdict_html(found: Verdict | None) -> str:
    """The bottleneck as a sentence, and the setting to try."""
    if found is None:
        return '<p class="verdict">No request finished, so there is no bottleneck to name.</p>'
    name, _, rest = found.sentence.partition(":")
    return (
        f'<p class="verdict"><strong>{escape(name)}.</strong> {escape(rest.strip()[:1].upper() + rest.strip()[1:])} '
        f'<span class="try">Try {escape(found.change)}</span></p>'
    )


def claim_html(result: SimulationResult) -> str:
    """Outputs that were cut; what the step times are expected to be off by, and whether measurements say so."""
    cut = " ".join(cut_note(result))
    said = f'<p class="verdict"><span class="try">{escape(cut)}</span></p>' if cut else ""
    if result.claim is None:
        return said
    warning = " ".join(claim_warning(result))
    plain = (
        f"Step times: {result.claim.rel_error:.1%} expected median error, {result.claim.outside_share:.1%} of them "
        "outside what was measured."
    )
    return f'{said}<p class="verdict"><span class="try">{escape(warning or plain)}</span></p>'


def headline(result: SimulationResult, metrics: Metrics) -> str:
    """The numbers one looks for first."""
    latency = metrics.latency

    def figure(label: str, value: str, unit: str, detail: str, tone: str = "") -> str:
        return (
            f'<div class="figure {tone}"><dt>{label}</dt><dd><span class="value">{value}</span>'
            f'<span class="unit">{unit}</span><span class="detail">{detail}</span></dd></div>'
        )

    def timed(name: str, label: str) -> str:
        found = latency[name]
        value, unit = duration(ms(found.median_s))
        tail, tail_unit = duration(ms(found.percentile_s(99.0)))
        return figure(f"Median {label}", value, unit, f"P99 {tail} {tail_unit}")

    everyone = metrics.completed + metrics.aborted + metrics.failed
    done = (
        f"all {everyone:,} finished"
        if everyone == metrics.completed
        else f"{metrics.completed:,} of {everyone:,} finished"
    )
    if metrics.aborted:
        done += f", {metrics.aborted:,} given up"
    kv = "–" if metrics.kv_usage_max is None else f"{100 * metrics.kv_usage_max:.0f}"
    preempted = f"{metrics.preemptions:,} preemptions" if metrics.preemptions else "no preemptions"
    price = metrics.usd_per_1m_output
    figures = [
        figure(
            "Output throughput",
            quantity(metrics.output_throughput),
            "tok/s",
            f"{quantity(metrics.request_throughput)} req/s<br>{done}",
        ),
        timed("ttft", "TTFT"),
        timed("tpot", "TPOT"),
        timed("e2el", "E2EL"),
        figure("Peak KV cache use", kv, "%", preempted, "alert" if metrics.preemptions else ""),
    ]
    if price is not None:
        figures.append(
            figure(
                "Price of 1M output tokens",
                f"${price:.2f}",
                "",
                f"${metrics.usd_per_1m_total:.3f} per 1M of all tokens",
            )
        )
    else:
        per_user = quantity(metrics.output_throughput_per_user)
        figures.append(
            figure("Per user", per_user, "tok/s", f"{quantity(metrics.output_throughput_per_gpu)} tok/s per GPU")
        )
    return '<dl class="headline">' + "".join(figures) + "</dl>"


def hits_html(metrics: Metrics) -> str:
    """The place of the hit-rate chart, with the run's rate; nothing where no prefix was looked up."""
    found = metrics.prefix_cache
    if found is None:
        return ""
    words = f"{quantity(percent(found.hit_rate))}% of the tokens looked up"
    if found.preempted_lookups:
        words += f", {quantity(percent(found.hit_rate_with_preempted))}% with preempted requests"
    return (
        f"<figure><figcaption>Prefix cache hits <span>{words}</span></figcaption>"
        '<div class="chart" id="time-hits"></div></figure>'
    )


def latency_table(metrics: Metrics) -> str:
    """Every latency with its statistics, in ms; where no request queued, TTFT stands once."""
    # The median has its column.
    percentiles = [p for p, _ in metrics.latency["ttft"].percentiles_s if p != 50]
    head = ["ms", "mean", "median", "std", *(f"P{percentile_word(p)}" for p in percentiles), "max"]
    rows = []
    for name, label, meaning in ROWS:
        found = metrics.latency[name]
        values = [found.mean_s, found.median_s, found.std_s, *(found.percentile_s(p) for p in percentiles), found.max_s]
        if found.count and not (name == "ttft_not_queued" and found.count == metrics.latency["ttft"].count):
            rows.append([f"{label} <small>{meaning}</small>", *(quantity(ms(value), 4) for value in values)])
    return table(head, rows, "numbers") if rows else "<p>No request finished.</p>"


def priority_table(result: SimulationResult) -> str:
    """TTFT of each priority class, in ms; nothing where requests have none."""
    classes = by_priority(result)
    if not classes:
        return ""
    rows = [
        [
            f"priority {one.priority}",
            f"{one.completed:,}",
            *(quantity(ms(value), 4) for value in (one.ttft.mean_s, one.ttft.median_s, one.ttft.percentile_s(99.0))),
        ]
        for one in classes
    ]
    head = ["the smallest first", "finished", "mean (ms)", "median (ms)", "P99 (ms)"]
    return "<h3>TTFT by priority</h3>" + table(head, rows, "numbers")


def sessions_html(result: SimulationResult) -> str:
    """How long sessions take and when their last answer comes; nothing where requests stand alone."""
    found = session_figures(result)
    if found is None:
        return ""
    rows = [
        [label, *(quantity(ms(value), 4) for value in (times.mean_s, times.median_s, times.percentile_s(99.0)))]
        for label, times in (
            ("Answer TTFT <small>last round sent to its first token</small>", found.answer_ttft),
            (
                "From session start <small>first round sent to the last round's first token</small>",
                found.answer_from_start,
            ),
            ("Duration <small>first round sent to last token</small>", found.duration),
        )
    ]
    said = f"{found.completed:,} of {found.sessions:,} sessions completed, {found.rounds:,} rounds"
    said += f", {found.unsent:,} never sent" if found.unsent else ""
    if found.latency_share is not None:
        said += f"; {100 * found.latency_share:.0f}% of their time passes between rounds"
    if found.repeated_tokens:
        said += f"; {100 * found.found_tokens / found.repeated_tokens:.1f}% of the tokens said before were found again"
    if result.ranks > 1 and found.same_replica_share is not None:
        said += f"; {100 * found.same_replica_share:.0f}% of further rounds went where the round before had been"
    head = ["sessions", "mean (ms)", "median (ms)", "P99 (ms)"]
    return f'<h3>Sessions</h3><p class="note">{said}.</p>' + table(head, rows, "numbers")


def retrieval_html(result: SimulationResult) -> str:
    """How long retrieval takes, and how much of what it brings was found in the prefix cache; nothing without it."""
    rows = [
        [escape(label.rstrip(":")), quantity(value, 4) if isinstance(value, int | float) else escape(value)]
        for label, value in retrieval_lines(result)
    ]
    return "<h3>Retrieval</h3>" + table(["of finished requests", ""], rows, "numbers") if rows else ""


def slo_html(result: SimulationResult, metrics: Metrics) -> str:
    """How many requests meet the bounds, all together and one by one."""
    if not result.slo_ms:
        return ""
    found = latencies(result.requests)
    everyone = max(len(result.requests), 1)
    each = [
        f"{escape(name.upper())} ≤ {bound:g} ms: {100 * meets(found, {name: bound}).sum() / everyone:.1f}%"
        for name, bound in result.slo_ms.items()
    ]
    share = f"{100 * (metrics.goodput_share or 0):.1f}% of requests meet every bound"
    whole = f"Goodput {quantity(metrics.request_goodput)} req/s: {share}"
    return f'<p class="note">{whole} ({"; ".join(each)}).</p>'


def step_note(metrics: Metrics) -> str:
    """Steps in one line."""
    if not metrics.steps:
        return '<p class="note">Steps were not recorded in this run.</p>'
    return (
        f'<p class="note">{metrics.steps:,} steps; a batch holds {quantity(metrics.batch_requests_mean)} requests and '
        f"{quantity(metrics.batch_tokens_mean)} tokens on average; "
        f"steps fill {100 * (metrics.busy_share or 0):.0f}% of the time.</p>"
    )


def pools_html(result: SimulationResult) -> str:
    """A fleet's pools, the parts of the time to the first token, and the links that carried KV; "" without pools."""
    if not result.pools:
        return ""
    rows = []
    verdicts = []
    for share in pool_shares(result):
        pool, metrics = share.pool, share.metrics
        rows.append(
            [
                escape(pool.name),
                escape(pool.role),
                escape(share.what),
                quantity(percent(metrics.busy_share)),
                quantity(metrics.batch_requests_mean),
                quantity(percent(metrics.kv_usage_mean)),
                quantity(percent(metrics.kv_usage_max)),
                quantity(ms(metrics.latency["queue"].mean_s)),
                f"{int(np.sum(pool.result.steps.preempted)):,}",
            ]
        )
        if share.verdict is not None:
            verdicts.append(f"{pool.name}: {share.verdict.sentence}")
    head = [
        "pool",
        "role",
        "replicas",
        "busy (%)",
        "mean batch",
        "mean KV use (%)",
        "peak (%)",
        "queue (ms)",
        "preemptions",
    ]
    text = f"<h3>By pool</h3>{table(head, rows, 'numbers')}{bullets(verdicts)}"
    parts = ttft_parts(result)
    if parts:
        cells = [
            [WORDS[name], *(quantity(ms(x)) for x in (found.mean_s, found.median_s, found.percentile_s(99.0)))]
            for name, found in parts.items()
        ]
        text += "<h3>Time to first token by part (ms)</h3>"
        text += table(["part", "mean", "median", "P99"], cells, "numbers")
    links = link_rows(result)[:MOST_LINKS]
    if links:
        cells = [
            [
                escape(row["link"]),
                quantity(row["bytes"] / GIB),
                quantity(row["bytes_per_s"] / 1e9),
                quantity(100 * row["busy_share"]),
                f"{row['most_flows']:,}",
            ]
            for row in links
        ]
        text += "<h3>Links</h3>"
        text += table(["link", "GiB moved", "GB/s usable", "in use (%)", "most transfers at once"], cells, "numbers")
    return text


def sides_html(result: SimulationResult) -> str:
    """Attention and FFN devices of each pool that has them apart: busy, waiting, and the links between them."""
    every = [(pool.name, pool.result.attention_ffn) for pool in result.pools] or [("", result.attention_ffn)]
    apart = [(name, found) for name, found in every if found is not None]
    if not apart:
        return ""
    shares = (
        ("attention devices compute", "attention_busy"),
        ("they wait (bubble)", "attention_bubble"),
        ("of that, for slower instances", "straggler"),
        ("FFN devices compute", "ffn_busy"),
        ("they wait (bubble)", "ffn_bubble"),
        ("link to the FFN devices in use", "there_occupied"),
        ("link back in use", "back_occupied"),
    )
    rows = [["micro-batches", *(f"{found.micro_batches}" for _, found in apart)]]
    rows += [
        [f"{label}, % of step time", *(quantity(percent(getattr(found, name))) for _, found in apart)]
        for label, name in shares
    ]
    rows.append(["transfer time hidden, %", *(quantity(percent(found.hidden_share)) for _, found in apart)])
    moved = (quantity((found.there_bytes + found.back_bytes) / GIB) for _, found in apart)
    rows.append(["activations moved, GiB", *moved])
    names = [escape(f"{name}: {found.sizes} {found.ffn_device}".removeprefix(": ")) for name, found in apart]
    links = " and ".join(dict.fromkeys(found.link for _, found in apart))
    note = f'<p class="note">Activations travel over {escape(links)}.</p>'
    head = ["attention / FFN devices", *names]
    return "<h3>Attention and FFN devices</h3>" + note + table(head, rows, "numbers")


def drafts_html(result: SimulationResult) -> str:
    """What became of drafts, position by position; nothing without speculative decoding."""
    found = speculation_fields(result.speculation)
    if found is None:
        return ""
    said = (
        f"{found['drafted_tokens']:,} tokens drafted by {found['method']}, {found['accepted_tokens']:,} accepted, "
        f"{found['committed_tokens']:,} tokens committed in all; a row with drafts brings "
        f"{quantity(found['mean_accepted_length'])} tokens."
    )
    rates = found["acceptance_by_position"]
    head = ["draft", *(str(place) for place in range(1, len(rates) + 1))]
    cells = [["accepted, with all before it (%)", *(quantity(percent(rate)) for rate in rates)]]
    return f'<h3>Drafts</h3><p class="note">{escape(said)}</p>' + table(head, cells, "numbers")


def replica_table(result: SimulationResult) -> str:
    """How evenly the replicas, or their data-parallel ranks, were used; nothing for one."""
    if result.ranks < 2:
        return ""
    steps, requests = result.steps, result.requests
    finished_at = np.asarray(requests.replica)
    if result.transfers is not None:
        moved = np.asarray(result.transfers.target)
        finished_at = np.where(moved >= 0, moved, finished_at)
    given = np.where(np.asarray(requests.status) == FINISHED, np.asarray(requests.output_tokens), 0)
    rows = []
    for r in range(result.ranks):
        mine, here = finished_at == r, np.asarray(steps.replica) == r
        served = mine | (np.asarray(requests.replica) == r)
        span_s = result.busy_ns[here].sum() / 1e9
        used = 1 - np.asarray(steps.free_blocks)[here] / np.maximum(result.step_blocks, 1)[here]
        rows.append(
            [
                result.rank_name(r),
                f"{served.sum():,}",
                f"{given[mine].sum():,}",
                f"{here.sum():,}",
                quantity(float(span_s)),
                f"{100 * used.max():.1f}" if here.any() else "–",
                f"{np.asarray(requests.preemptions)[mine].sum():,}",
            ]
        )
    head = ["", "requests", "output tokens", "steps", "step time (s)", "peak KV use (%)", "preemptions"]
    what = "replica" if result.data_parallel == 1 else "data-parallel rank"
    return f"<h3>By {what}</h3>" + table(head, rows, "numbers")


def memory_html(result: SimulationResult) -> str:
    """The memory sum term by term."""
    if result.pools:
        parts = [f"<h3>{escape(pool.name)}</h3>{memory_html(pool.result)}" for pool in result.pools]
        return "".join(part.replace(' id="memory-chart"', "") for part in parts)
    memory = result.memory
    if memory is None or not memory.terms:
        return '<p class="note">The memory sum was not part of this run.</p>'
    rows = [[escape(t.name), f"{t.bytes / GIB:,.2f}", escape(t.note), escape(t.source)] for t in memory.terms]
    rows.append(["Device memory", f"{memory.device_bytes / GIB:,.2f}", "", ""])
    text = memory.verdict or f"{result.num_gpu_blocks:,} blocks of {result.block_size} tokens"
    text = f"{text[:1].upper()}{text[1:].rstrip('.')}" + (
        "." if result.ranks == 1 else ", per replica." if result.data_parallel == 1 else ", per data-parallel rank."
    )
    head = ["per GPU", "GiB", "what it is", "source"]
    return f'<p class="note">{escape(text)}</p><div class="chart" id="memory-chart"></div>' + table(head, rows, "terms")


def workload_html(result: SimulationResult) -> str:
    """Provenance and digest."""
    workload = result.workload
    lines = [*workload.provenance, *workload.notes]
    text = bullets(lines) if lines else ""
    return f'{text}<p class="note">SHA-256 of the workload <code>{escape(workload.digest or "not computed")}</code></p>'


def assumption_table(result: SimulationResult) -> str:
    """Every value that was assumed, with its source."""
    if not result.assumptions:
        return "<p>None recorded.</p>"
    rows = [[escape(str(what)), escape(str(value)), escape(str(source))] for what, value, source in result.assumptions]
    return table(["assumption", "value", "source"], rows, "terms")


def bullets(lines: Iterable[str]) -> str:
    """A plain list."""
    items = "".join(f"<li>{escape(str(item))}</li>" for item in lines)
    return f"<ul>{items}</ul>" if items else "<p>Nothing known to be missing.</p>"


def run_html(result: SimulationResult) -> str:
    """Checks, timing, versions and the resolved configuration."""
    parts = []
    for name, values in (
        ("Checks", result.checks),
        ("Cost of the simulation", result.timing),
        ("Versions", result.versions),
    ):
        if values:
            items = "".join(
                f"<dt>{escape(str(key))}</dt><dd>{escape(_short(value))}</dd>" for key, value in plain(values).items()
            )
            parts.append(f'<div><h3>{name}</h3><dl class="facts">{items}</dl></div>')
    config = ""
    if result.config:
        import yaml

        text = yaml.safe_dump(plain(result.config), sort_keys=False, allow_unicode=True)
        config = f"<details><summary>Resolved configuration</summary><pre>{escape(text)}</pre></details>"
    return f'<div class="columns">{"".join(parts)}</div>{config}'


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "holds" if value else "FAILS"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
