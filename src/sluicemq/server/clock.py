"""The operating system's clocks, for the engine, and deadlines that are measured by them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluicemq.broker import Clock
from sluicemq.broker.scans import Deadline, StartDeadline

TOLERANCE_NS: Final = 1_000_000
"""How far wall time may be from the system's before it follows."""
ATTEMPTS: Final = 3
"""Readings of both clocks, of which the one with the least time between them counts."""


class SystemClock(Clock):
    """Wall time for what is stored and shown, monotonic time for everything that expires.

    Both are derived from one reading of the monotonic clock and the measured difference of the
    two clocks. So `epoch` changes only when the wall clock is set or slewed by a millisecond:
    rounded separately, the same expiration would be shown 1 ms early or late now and then.
    """

    __slots__ = ("_ahead", "_epoch")

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0
        self._epoch = 0
        self.refresh()

    def refresh(self) -> None:
        """Read both clocks, in whole milliseconds."""
        steady = time.monotonic_ns()
        deviation = time.time_ns() - steady - self._ahead
        if not -TOLERANCE_NS < deviation < TOLERANCE_NS:
            self._measure()
        # Zero means "never" in the engine, so the steady clock must not show it.
        self.steady = steady // 1_000_000 + 1
        self.wall = self.steady + self._epoch

    def elapsed(self) -> float:
        """Return the monotonic clock in seconds, read now."""
        return time.perf_counter()

    def _measure(self) -> None:
        """Follow the wall clock, unless the process only lost the CPU between both readings."""
        ahead = min(_ahead_ns() for _ in range(ATTEMPTS))
        if not -TOLERANCE_NS < ahead - self._ahead < TOLERANCE_NS:
            self._ahead = ahead
            self._epoch = ahead // 1_000_000 - 1


def _ahead_ns() -> int:
    """What the wall clock is ahead of the monotonic one; too much by the time between readings."""
    steady = time.monotonic_ns()
    return time.time_ns() - steady


def time_budget(seconds: float, clock: Callable[[], float] = time.perf_counter) -> StartDeadline:
    """Return what starts deadlines of `seconds`, measured by `clock`."""

    def start() -> Deadline:
        end = clock() + seconds
        return lambda: clock() >= end

    return start
