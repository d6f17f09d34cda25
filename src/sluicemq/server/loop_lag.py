"""How late the event loop comes to what is due: what everybody waits for beside their own work."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from sluicemq.model.histogram import Histogram

INTERVAL_SECONDS: Final = 0.05
"""Between two looks: twenty a second cost nothing that can be measured."""


class LoopLag:
    """A timer that notes by how much it is late. `histogram` has all of that; the loop's timers go
    by the millisecond, so that one of them is nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.histogram = Histogram()

    def start(self) -> None:
        """Look from now on."""
        self._set()

    def stop(self) -> None:
        """No more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._due = monotonic() + INTERVAL_SECONDS
        self._timer = self._loop.call_later(INTERVAL_SECONDS, self._ring)

    def _ring(self) -> None:
        self.histogram.record(monotonic() - self._due)
        self._set()
