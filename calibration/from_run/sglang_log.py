"""SGLang's log: a line per prefill batch, and one per so many decode batches (40, `--decode-log-interval`).

    Prefill batch, #new-seq: 1, #new-token: 158, #cached-token: 0, token usage: 0.08, #running-req: 31, ...
    Decode batch, #running-req: 32, #token: 11179, token usage: 0.08, cuda graph: True, gen throughput (token/s): ...

`gen throughput` is of all time since the decode line before, prefills included, and of the tokens of decode batches.

Sources: sgl-project/sglang, its scheduler's metrics; lines quoted in its issues 3909, 4407 and pull request 22166.
"""

import re

import numpy as np

from calibration.from_run.spans import EngineLog, prefills_of


LINE = re.compile(r"^(?P<head>.*?)(?P<kind>Decode|Prefill) batch[.,:]? (?P<rest>.*#running-req: \d+.*)$", re.MULTILINE)
RANK = re.compile(r"\b(DP|TP|PP)(\d+)")
RUNNING = re.compile(r"#running-req: (\d+)")
TOKENS = re.compile(r"#(?:full )?token: (\d+)")
USAGE = re.compile(r"(?:full )?token usage: ([\d.]+)")
RATE = re.compile(r"gen throughput \(token/s\): ([\d.]+)")
NEW_SEQS, NEW_TOKENS = re.compile(r"#new-seq: (\d+)"), re.compile(r"#new-token: (\d+)")
CACHED = re.compile(r"#cached-token: (\d+)")
DRAFTS = re.compile(r"accept len: |speculative_algorithm='")
LOCKSTEP = re.compile(r"enable_dp_attention=True")
INTERVAL = re.compile(r"decode_log_interval=(\d+)")
CACHE_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")
SETTINGS = {
    "model": re.compile(r"ServerArgs\(model_path='([^']+)'"),
    "deployment.tensor_parallel": re.compile(r"\btp_size=(\d+)"),
    "deployment.pipeline_parallel": re.compile(r"\bpp_size=(\d+)"),
}
USUAL_INTERVAL = 40


def read(text: str, name: str, digest: str) -> EngineLog:
    """A span from each decode line to the next one of the same replica, with the prefills between.

    **Raises:** ValueError for lines without tokens in use, for speculative decoding, and for ranks in lockstep.
    """
    if LOCKSTEP.search(text):
        raise ValueError(
            f"{name} is of data-parallel attention, whose ranks wait for each other: not learned from yet."
        )
    if DRAFTS.search(text):
        raise ValueError(
            f"{name} is of speculative decoding, whose rates do not tell the time of a step; give a log without drafts."
        )
    before: dict[int, tuple[float, ...]] = {}
    open_prefills: dict[int, list[tuple[float, ...]]] = {}
    spans: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    prefills: list[tuple[float, ...]] = []
    idle: list[bool] = []
    decodes: list[float] = []
    in_tokens = True
    for found in LINE.finditer(text):
        ranks = {kind: int(number) for kind, number in RANK.findall(found["head"])}
        if ranks.get("TP") or ranks.get("PP"):
            continue
        replica, rest = ranks.get("DP", 0), found["rest"]
        requests = _number(RUNNING, rest)
        if found["kind"] == "Prefill":
            batch = tuple(_number(pattern, rest, 0.0) for pattern in (NEW_TOKENS, NEW_SEQS, CACHED))
            open_prefills.setdefault(replica, []).append((*batch, requests))
            continue
        tokens = _number(TOKENS, rest)
        in_tokens = in_tokens and not np.isnan(tokens)
        line = (requests, tokens, _number(USAGE, rest), _number(RATE, rest))
        between = open_prefills.pop(replica, [])
        if replica in before:
            prefills += [(len(spans), *batch[:3]) for batch in between]
            idle.append(any(batch[3] == 0 for batch in between))
            decodes.append(_mean_running(before[replica][0], requests, between))
            spans.append((before[replica], line))
        before[replica] = line
    table = np.array(spans, np.float64).reshape(-1, 2, 4)
    kv = table[:, :, 1] if in_tokens else table[:, :, 2]
    if len(table) and np.isnan(kv).all():
        raise ValueError(f"{name} has no tokens in use in its lines, so the length of contexts is not known.")
    found_prefills = prefills_of(prefills)
    steps, note = _interval(text, table, in_tokens, found_prefills.span)
    cache, rate = CACHE_TOKENS.search(text), table[:, 1, 3]
    mean = np.array(decodes)
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.where(rate > 0, steps * mean / rate, np.nan)
    return EngineLog(
        name=name,
        sha256=digest,
        engine="sglang",
        running=table[:, :, 0],
        decodes=mean,
        kv=kv,
        output_tokens_per_s=rate,
        prompt_tokens_per_s=np.full(len(table), np.nan),
        decode_steps=np.full(len(table), float(steps)),
        seconds=seconds,
        idle=np.array(idle, bool),
        hit_rate=np.zeros(len(table)),
        prefills=found_prefills,
        kv_in_tokens=in_tokens,
        joint=False,
        rounded=True,
        cache_tokens=int(cache[1]) if cache else None,
        settings={key: match[1] for key, pattern in SETTINGS.items() if (match := pattern.search(text))},
        notes=note,
    )


def _mean_running(first: float, last: float, prefills: list[tuple[float, ...]]) -> float:
    """Mean requests that decode, straight lines between what is known; prefills are taken to be evenly spaced."""
    ends = [*(batch[3] for batch in prefills), last]
    starts = [first, *(batch[3] + batch[1] for batch in prefills)]
    return float(np.mean([*starts, *ends]))


def _interval(text: str, table: np.ndarray, in_tokens: bool, with_prefill: np.ndarray) -> tuple[int, tuple[str, ...]]:
    """Decode batches per line: as told, else by how many tokens each request gained where none came or went."""
    told = INTERVAL.search(text)
    if told:
        return int(told[1]), ()
    same = (table[:, 0, 0] == table[:, 1, 0]) & (table[:, 0, 0] > 0)
    same[with_prefill] = False
    gained = (table[:, 1, 1] - table[:, 0, 1])[same] / table[same, 0, 0]
    if in_tokens and np.count_nonzero(gained > 0) >= 3:
        return max(round(float(np.median(gained[gained > 0]))), 1), ()
    return USUAL_INTERVAL, (f"the log does not tell how many decode batches a line stands for: {USUAL_INTERVAL} taken",)


def _number(pattern: re.Pattern[str], text: str, absent: float = np.nan) -> float:
    found = pattern.search(text)
    return float(found[1]) if found else absent
