"""Time slices of long requests, so that other requests need not wait for their end."""

from __future__ import annotations

import asyncio
from functools import partial

from sluicemq.broker import Broker


class TimeSlices:
    """The share of one request in the time of scans (broker/scans.py).

    `if slices.due: await slices.rest()` after each message or item. What was looked at before may
    have changed after it.
    """

    __slots__ = ("_broker", "_rested", "_scans")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scans = broker.core.scans
        self._rested = False

    @property
    def due(self) -> bool:
        """The slice is over. The first slice is none if other scans wait already."""
        return self._scans.over() or bool(not self._rested and self._scans.waiting)

    async def rest(self) -> None:
        """Wait for the next slice."""
        self._rested = True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._scans.schedule(partial(_resume, turn), outside=True)
        await turn
        self._broker.wake()  # what the request does now ends with a flush, too


def _resume(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # its request may have been cancelled
        turn.set_result(None)
