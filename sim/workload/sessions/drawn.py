"""Sessions drawn from laws: how many rounds, what each adds to the prompt, and how long it takes until it is sent."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sim.workload import draws
from sim.workload.conf import WorkloadConf
from sim.workload.length import length_law
from sim.workload.limits import within_limits
from sim.workload.sessions.columns import Sessions, from_then_on
from sim.workload.sessions.conf import NONE, LawConf
from sim.workload.sessions.law import described, sample
from sim.workload.trace import MOST_REQUESTS, MOST_TOKENS, seconds_to_ns


def drawn_sessions(conf: WorkloadConf, seed: int, arrival_ns: Int[np.ndarray, " session"]) -> dict[str, Any]:
    """The fields of a workload whose sessions begin at `arrival_ns`.

    Each round has a new part and an output of `workload.lengths`; its prompt is the prompt before, the output before
    without its first `reasoning_share`, and the new part. A session ends before the first round beyond the limits.
    """
    rounds, law = _rounds(conf, seed, len(arrival_ns)), length_law(conf)
    first = np.concatenate([[0], np.cumsum(rounds)])
    total = int(first[-1])
    lengths = within_limits(conf, law, total, draws.stream(seed, draws.LENGTHS))
    new, output = lengths[:, 0], lengths[:, 1]
    if conf.sessions.first_tokens.law != NONE:
        new[first[:-1]] = _whole(conf.sessions.first_tokens, len(rounds), seed, draws.FIRST_PROMPTS)
    dropped = dropped_tokens(conf, output)
    said = np.cumsum(new + output - dropped)
    begins = np.zeros(total, bool)
    begins[first[:-1]] = True
    before = said - (new + output - dropped)
    history = np.where(begins, 0, conf.prefix_tokens + before - np.repeat(before[first[:-1]], rounds))
    prompt = np.where(begins, conf.prefix_tokens, history) + new
    keep = ~from_then_on(_too_long(conf, prompt, output), first)
    latency_ns = np.where(begins, 0, drawn_latency_ns(conf, seed, total))
    left = np.add.reduceat(keep, first[:-1])
    kept = left > 0  # sessions
    if not kept.any():
        raise ValueError(
            f"workload.max_input_tokens={conf.max_input_tokens}, workload.max_total_tokens={conf.max_total_tokens} "
            "want some session's first round to fit, got none; lower workload.sessions.first_tokens"
        )
    sessions = Sessions(
        first=np.concatenate([[0], np.cumsum(left[kept])]),
        latency_ns=latency_ns[keep],
        history_tokens=history[keep],
        dropped_tokens=dropped[keep],
        system=_system(conf, seed, len(rounds))[kept],
        system_tokens=conf.prefix_tokens,
    )
    return {
        "arrival_ns": np.repeat(arrival_ns[kept], left[kept]),
        "prompt_tokens": prompt[keep],
        "output_tokens": output[keep],
        "sessions": sessions,
        "provenance": (*law.provenance, *_provenance(conf)),
        "notes": _notes(conf, keep, left, rounds),
    }


def _rounds(conf: WorkloadConf, seed: int, count: int) -> Int[np.ndarray, " session"]:
    rounds = _whole(conf.sessions.rounds, count, seed, draws.ROUNDS)
    if rounds.sum() > MOST_REQUESTS:
        raise ValueError(
            f"workload.sessions.rounds wants at most {MOST_REQUESTS:,} rounds in all, got {rounds.sum():,} of "
            f"{count:,} sessions; lower workload.num_requests"
        )
    return rounds


def _whole(law: LawConf, count: int, seed: int, purpose: int) -> Int[np.ndarray, " n"]:
    """Whole numbers of a law, 1 at least."""
    values = sample(law, count, draws.stream(seed, purpose))
    return np.maximum(np.floor(values + 0.5), 1).astype(np.int64)


def dropped_tokens(conf: WorkloadConf, output: Int[np.ndarray, " request"]) -> Int[np.ndarray, " request"]:
    """Of each output, the tokens that later prompts leave out."""
    return np.floor(conf.sessions.reasoning_share * output + 0.5).astype(np.int64)


def drawn_latency_ns(conf: WorkloadConf, seed: int, count: int) -> Int[np.ndarray, " request"]:
    """Latencies of the configuration's law, zeros without one."""
    law = conf.sessions.latency_s
    if law.law == NONE:
        return np.zeros(count, np.int64)
    return seconds_to_ns(np.maximum(sample(law, count, draws.stream(seed, draws.LATENCIES)), 0.0))


def _system(conf: WorkloadConf, seed: int, count: int) -> Int[np.ndarray, " session"]:
    """Which system prompt each session begins with, all equally likely."""
    uniforms: Float[np.ndarray, " session"] = draws.stream(seed, draws.SYSTEM_PROMPTS).random(count)
    return np.floor(uniforms * conf.sessions.system_prompts).astype(np.int64)


def _too_long(
    conf: WorkloadConf, prompt: Int[np.ndarray, " request"], output: Int[np.ndarray, " request"]
) -> Bool[np.ndarray, " request"]:
    """Rounds beyond the limits; `ValueError` where there may be none, or beyond what a workload can have."""
    long = np.zeros(len(prompt), bool)
    if conf.max_input_tokens is not None:
        long |= prompt > conf.max_input_tokens
    if conf.max_total_tokens is not None:
        long |= prompt + output > conf.max_total_tokens
    if conf.over_limit == "error" and long.any():
        row = int(np.argmax(long))
        raise ValueError(
            f"workload.max_input_tokens={conf.max_input_tokens}, workload.max_total_tokens={conf.max_total_tokens} "
            f"want every round to fit, got {prompt[row]} + {output[row]} tokens; workload.over_limit=drop would end "
            "the session before"
        )
    most = prompt[~long].max(initial=0)
    if most > MOST_TOKENS:
        raise ValueError(
            f"workload.sessions wants prompts of at most {MOST_TOKENS:,} tokens, got one of {most:,}; lower "
            "workload.sessions.rounds or the lengths, or set workload.max_total_tokens"
        )
    return long


def _provenance(conf: WorkloadConf) -> tuple[str, ...]:
    sessions = conf.sessions
    parts = [f"rounds {described(sessions.rounds)}"]
    if sessions.first_tokens.law != NONE:
        parts.append(f"new tokens of the first {described(sessions.first_tokens)}")
    pause = "none" if sessions.latency_s.law == NONE else f"{described(sessions.latency_s)} s"
    parts.append(f"latency before each further one {pause}")
    if sessions.reasoning_share:
        parts.append(f"{sessions.reasoning_share:g} of each output left out later")
    if conf.prefix_tokens:
        parts.append(f"{sessions.system_prompts} system prompts of {conf.prefix_tokens} tokens")
    return (f"sessions: {', '.join(parts)}; lengths are of what a round adds",)


def _notes(
    conf: WorkloadConf,
    keep: Bool[np.ndarray, " request"],
    left: Int[np.ndarray, " session"],
    rounds: Int[np.ndarray, " session"],
) -> tuple[str, ...]:
    if keep.all():
        return ()
    return (
        f"{int((left < rounds).sum()):,} of {len(rounds):,} sessions end before a round over workload.max_input_tokens="
        f"{conf.max_input_tokens}, workload.max_total_tokens={conf.max_total_tokens} ({int((~keep).sum()):,} rounds)",
    )
