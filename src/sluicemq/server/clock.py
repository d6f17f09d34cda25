"""The operating system's clocks, for the engine."""

from __future__ import annotations

import time

from sluicemq.broker import Clock


class SystemClock(Clock):
    """Wall time for what is stored and shown, monotonic time for everything that expires."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.refresh()

    def refresh(self) -> None:
        """Read both clocks, in whole milliseconds."""
        self.wall = time.time_ns() // 1_000_000
        # Zero means "never" in the engine, so the steady clock must not show it.
        self.steady = time.monotonic_ns() // 1_000_000 + 1
