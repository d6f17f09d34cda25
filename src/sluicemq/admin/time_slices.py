"""Time slices of long requests, so that other requests need not wait for their end."""

from __future__ import annotations

import asyncio
from functools import partial

from sluicemq.broker import Broker


class TimeSlices:
    """Time slices of one request, shared with other scans (broker/scans.py).

    Callers run `if slices.due: await slices.rest()` after each message or item. State that was read
    before `rest` may have changed after it.
    """

    __slots__ = ("_broker", "_rested", "_scans")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scans = broker.scans
        self._rested = False

    @property
    def due(self) -> bool:
        """True if the slice is used up. The first slice is empty if other scans are waiting."""
        return self._scans.over() or bool(not self._rested and self._scans.waiting)

    async def rest(self) -> None:
        """Wait for the next slice."""
        self._rested = True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scans.schedule(partial(_resume, turn), outside=True)
        await turn
        self._broker.wake()  # flushes what the request changes next


def _resume(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # the request may be cancelled
        turn.set_result(None)
