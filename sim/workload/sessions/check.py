"""Whether the part of a configuration about sessions makes sense, and is read."""

from dataclasses import fields

from sim.workload.conf import WorkloadConf
from sim.workload.sessions.conf import NONE, LawConf, SessionsConf
from sim.workload.sessions.law import check_law, reads
from sim.workload.trace import MOST_REQUESTS


LEAST = {"rounds": 1.0, "first_tokens": 1.0, "latency_s": 0.0}
"""The smallest number that each law may give."""


def is_drawn(conf: WorkloadConf) -> bool:
    """Whether sessions are drawn."""
    return conf.sessions.rounds.law != NONE


def check_sessions(conf: WorkloadConf) -> None:
    """Raise `ValueError`, one sentence with the key, for a value out of range or a combination that can't be."""
    sessions = conf.sessions
    for name, least in LEAST.items():
        check_law(getattr(sessions, name), f"workload.sessions.{name}", least)
    if not 0 <= sessions.reasoning_share <= 1:
        raise ValueError(
            f"workload.sessions.reasoning_share wants a number from 0 to 1, got {sessions.reasoning_share}"
        )
    if not 1 <= sessions.system_prompts <= MOST_REQUESTS:
        raise ValueError(
            f"workload.sessions.system_prompts wants an integer from 1 to {MOST_REQUESTS:,}, got "
            f"{sessions.system_prompts}"
        )
    drawn, replayed = is_drawn(conf), conf.lengths == "trace"
    law = "workload.sessions.rounds.law"
    wrong = [
        (drawn and replayed, f"{law}={sessions.rounds.law} wants drawn lengths: a trace has its own sessions"),
        (
            sessions.system_prompts > 1 and not conf.prefix_tokens,
            "workload.sessions.system_prompts wants workload.prefix_tokens, how long they are",
        ),
        (
            not drawn and (sessions.system_prompts > 1 or sessions.first_tokens.law != NONE),
            f"workload.sessions.system_prompts and first_tokens want {law}, got none",
        ),
        (
            not drawn and not replayed and (sessions.latency_s.law != NONE or sessions.reasoning_share > 0),
            f"workload.sessions.latency_s and reasoning_share want {law}, or a trace with sessions",
        ),
    ]
    for bad, sentence in wrong:
        if bad:
            raise ValueError(sentence)


def unread_of_sessions(sessions: SessionsConf, key: str) -> str:
    """What `key` (`rounds.mean`) wants in order to be read; empty where it is, or is no number of a law."""
    name, _, number = key.partition(".")
    law = getattr(sessions, name, None)
    if not isinstance(law, LawConf) or number not in {field.name for field in fields(LawConf)} - {"law"}:
        return ""
    return "" if number in reads(law.law) else f"a law that reads it, got workload.sessions.{name}.law={law.law}"
