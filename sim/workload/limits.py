"""Limits on the lengths of requests, for drawn and for replayed ones."""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from sim.workload import draws
from sim.workload.conf import WorkloadConf
from sim.workload.length import LengthLaw
from sim.workload.sessions.columns import firsts, from_then_on
from sim.workload.source import Trace
from sim.workload.trace import MOST_TOKENS


def within_limits(
    conf: WorkloadConf, law: LengthLaw, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "request 2"]:
    """`count` pairs (input, output) of the law, each at least 1, under the limits of `conf`.

    The limits count the shared prefix as prompt. Under `over_limit=drop` a longer pair is drawn again, so that the
    lengths follow the law conditioned on fitting.
    """

    def propose(u: Float[np.ndarray, "row column"]) -> tuple[Float[np.ndarray, "row 2"], Bool[np.ndarray, " row"]]:
        pairs, ok = law.draw(u)
        pairs = np.maximum(pairs, 1.0)
        return pairs, ok if conf.over_limit != "drop" else ok & ~_too_long(conf, pairs)

    limits = f"workload.max_input_tokens={conf.max_input_tokens}, workload.max_total_tokens={conf.max_total_tokens}"
    pairs = draws.accepted(
        rng,
        count,
        law.uniforms,
        propose,
        f"{limits} want some length of workload.lengths={conf.lengths} to fit, got none",
    )
    long = _too_long(conf, pairs)
    if conf.over_limit == "error" and long.any():
        first = pairs[np.argmax(long)]
        raise ValueError(
            f"{limits} want every request to fit, got {first[0] + conf.prefix_tokens:.0f} + {first[1]:.0f} tokens; "
            "workload.over_limit=drop or truncate would go on"
        )
    if conf.over_limit == "truncate":
        pairs = _truncated(conf, pairs)
    if pairs.max() > MOST_TOKENS:
        first = pairs[np.argmax(pairs.max(axis=1))]
        raise ValueError(
            f"workload.lengths={conf.lengths} wants at most {MOST_TOKENS:,} tokens of input and of output, got "
            f"{first[0]:,.0f} and {first[1]:,.0f}; lower the lengths, or their spread, or set workload.max_total_tokens"
        )
    return pairs.astype(np.int64)


def limit_trace(conf: WorkloadConf, trace: Trace) -> Trace:
    """The trace with its requests under the limits of `conf`; a note says how many were dropped or cut.

    A session ends before its first round beyond them.
    """
    pairs = np.stack([trace.prompt_tokens, trace.output_tokens], axis=1).astype(np.float64)
    long = _too_long(conf, pairs) if conf.lengths == "trace" else np.zeros(len(pairs), dtype=bool)
    if not long.any():
        return trace
    limits = f"workload.max_input_tokens={conf.max_input_tokens}, workload.max_total_tokens={conf.max_total_tokens}"
    if conf.over_limit == "error":
        row = int(np.argmax(long))
        raise ValueError(
            f"{conf.path}, line {trace.line[row]}: wanted a request within {limits}, got {trace.prompt_tokens[row]} + "
            f"{trace.output_tokens[row]} tokens; workload.over_limit=drop or truncate would go on"
        )
    if trace.session is not None:
        long = from_then_on(long, firsts(trace.session))
    elif conf.over_limit == "truncate":
        cut = _truncated(conf, pairs).astype(np.int64)
        blocks = trace.hash_block_tokens or 1
        return replace(
            trace,
            prompt_tokens=cut[:, 0],
            output_tokens=cut[:, 1],
            token_ids=_cut(trace.token_ids, cut[:, 0]),
            output_token_ids=_cut(trace.output_token_ids, cut[:, 1]),
            block_hashes=_cut(trace.block_hashes, -(-cut[:, 0] // blocks)),
            notes=(*trace.notes, f"{int(long.sum())} requests over {limits} were truncated"),
        )
    keep = np.flatnonzero(~long)
    if not len(keep):
        raise ValueError(f"{conf.path}: wanted some request within {limits}, got none")
    return trace.take(keep, f"{int(long.sum())} of {len(long)} requests over {limits} were dropped")


def _too_long(conf: WorkloadConf, pairs: Float[np.ndarray, "row 2"]) -> Bool[np.ndarray, " row"]:
    prefix = conf.prefix_tokens if conf.lengths != "trace" else 0
    prompt = pairs[:, 0] + prefix
    long = np.zeros(len(pairs), dtype=bool)
    if conf.max_input_tokens is not None:
        long |= prompt > conf.max_input_tokens
    if conf.max_total_tokens is not None:
        long |= prompt + pairs[:, 1] > conf.max_total_tokens
    return long


def _truncated(conf: WorkloadConf, pairs: Float[np.ndarray, "row 2"]) -> Float[np.ndarray, "row 2"]:
    """Prompts cut to leave room for one output token, then outputs cut to what the total leaves."""
    prefix = conf.prefix_tokens if conf.lengths != "trace" else 0
    prompt, output = pairs[:, 0] + prefix, pairs[:, 1]
    if conf.max_input_tokens is not None:
        prompt = np.minimum(prompt, conf.max_input_tokens)
    if conf.max_total_tokens is not None:
        prompt = np.minimum(prompt, conf.max_total_tokens - 1)
        output = np.minimum(output, conf.max_total_tokens - prompt)
    return np.stack([prompt - prefix, output], axis=1)


def _cut(rows: list[np.ndarray] | None, size: Int[np.ndarray, " request"]) -> list[np.ndarray] | None:
    return None if rows is None else [row[:n] for row, n in zip(rows, size, strict=True)]
