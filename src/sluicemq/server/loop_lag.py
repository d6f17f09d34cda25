"""Lag of the event loop: the delay of every timer and connection besides its own work."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from sluicemq.model.histogram import Histogram

INTERVAL_SECONDS: Final = 0.05
"""Time between two measurements; twenty per second have no measurable cost."""


class LoopLag:
    """Timer that records its own delay in `histogram`, in seconds.

    Timers of the loop have a resolution of 1 ms, so a delay of 1 ms is not a lag."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.histogram = Histogram()

    def start(self) -> None:
        """Start measuring."""
        self._set()

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._due = monotonic() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._ring)

    def _ring(self) -> None:
        self.histogram.record(monotonic() - self._due)
        self._set()
