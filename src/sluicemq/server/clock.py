"""System clocks for the engine, and deadlines measured by them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluicemq.broker import Clock, Deadline, StartDeadline

TOLERANCE_NS: Final = 1_000_000
"""Largest deviation from the system's wall time before it is measured again, in ns."""
ATTEMPTS: Final = 3
"""Number of readings of both clocks; the one with the shortest gap counts."""


class SystemClock(Clock):
    """Wall time for stored and displayed times, monotonic time for expirations.

    Both are derived from one reading of the monotonic clock and the measured difference of the
    two clocks. So `epoch` changes only when the wall clock is set or slewed by a millisecond:
    rounded separately, the same expiration would be shown 1 ms early or late now and then.
    """

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
        # Zero means "never" in the engine, so the steady clock must not be zero.
        self.steady = steady // 1_000_000 + 1
        self.wall = self.steady + self._epoch

    def _measure(self) -> None:
        """Follow the wall clock, unless the process only lost the CPU between both readings."""
        difference = min(_ahead_ns() for _ in range(ATTEMPTS))
        if not -TOLERANCE_NS < difference - self._ahead < TOLERANCE_NS:
            self._ahead = difference
            self._epoch = difference // 1_000_000 - 1


def _ahead_ns() -> int:
    """Return wall time minus monotonic time in ns, too large by the gap between the readings."""
    steady = time.monotonic_ns()
    return time.time_ns() - steady


def time_budget(seconds: float, clock: Callable[[], float] = time.perf_counter) -> StartDeadline:
    """Return a function that starts a deadline of `seconds`, measured by `clock`."""

    def start() -> Deadline:
        end = clock() + seconds
        return lambda: clock() >= end

    return start
