"""Units: SI base units inside, conversions only where a person reads."""

NS_PER_S = 1_000_000_000
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9


def to_ns(seconds: float) -> int:
    """Round seconds to integer nanoseconds, halves up: `floor(1e9 t + 1/2)`.

    Every clock of the project (arrivals, step prices, transfers) uses this one rule,
    so that engines written apart keep equal times.
    """
    return int(seconds * 1e9 + 0.5) if seconds >= 0 else -int(-seconds * 1e9 + 0.5)
