"""What a run measured, and percentiles of latency."""

from __future__ import annotations

import msgspec


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from the moment a message *should* have been sent to its receipt, so that a
    broker that stalls the sender is not flattered (coordinated omission)."""

    p50: float
    p99: float
    p999: float
    maximum: float

    @classmethod
    def of(cls, nanoseconds: list[int]) -> Latency:
        """Percentiles by nearest rank. `nanoseconds` must not be empty; it is sorted in place."""
        nanoseconds.sort()
        last = len(nanoseconds) - 1

        def at(share: float) -> float:
            return round(nanoseconds[min(last, int(share * len(nanoseconds)))] / 1e6, 3)

        return cls(at(0.5), at(0.99), at(0.999), round(nanoseconds[last] / 1e6, 3))


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scenario, run once. `rate` is messages (or round trips) per second, end to end."""

    scenario: str
    messages: int
    size: int
    seconds: float
    rate: int
    durability: str = ""
    consumers: int = 1
    paced: int = 0
    latency: Latency | None = None
    resident_bytes: int = 0
