"""What engine versions do differently, as named switches: facts of a profile (`conf/engine`), not settings.

A switch that is a defect of the real engine says so: it is on where that version is replayed, and off by default.
"""

from dataclasses import dataclass


@dataclass
class SchedulingRules:
    """Switches of the scheduler.

    - `skip_oversized`: without chunked prefill, a prompt that exceeds the rest of the budget is passed over.
    """

    skip_oversized: bool = False


@dataclass
class CacheRules:
    """Switches of the block pool and its prefix cache.

    - `unhashed_blocks_first`: freed blocks without a prefix hash are reused first.
    """

    unhashed_blocks_first: bool = False
