"""Moments of a run that no table of requests or steps has."""

from typing import NamedTuple


CUT = "KV transfer cut"
"""A transfer from a prefill to a decode instance was broken off."""


class Moment(NamedTuple):
    """At `at_ns` (ns) something happened to the rank of number `replica`, to a request, or to both; -1: to none."""

    at_ns: int
    what: str
    replica: int = -1
    request: int = -1
