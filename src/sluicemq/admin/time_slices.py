"""Time slices of long operations, and waiting until changes are on disk, before a response is
sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from sluicemq.broker import Broker, Cursor, Delivery
from sluicemq.security.access import wait_for_callback

ItemT = TypeVar("ItemT")
STEP: Final = 20
"""Messages scanned between two checks of the conditions that end a scan."""


class TimeSlices:
    """Time slices of one request, shared with other scans (broker/scheduler.py).

    Callers iterate with `iterate`, or await `wait_if_due` after each item. State that was read
    before may have changed after it.
    """

    __slots__ = ("_broker", "_has_waited", "_scans")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scans = broker.scans
        self._has_waited = False

    @property
    def due(self) -> bool:
        """True if the slice is used up. The first slice is empty if other scans are waiting."""
        return self._scans.is_time_up() or bool(not self._has_waited and self._scans.waiting)

    async def iterate(self, items: Iterable[ItemT], every: int = 1) -> AsyncIterator[ItemT]:
        """Yield the items; after `every` of them, wait for the next slice if it is due."""
        for count, item in enumerate(items, 1):
            yield item
            if not count % every and self.due:
                await self.wait_if_due()

    async def scan(
        self, cursor: Cursor[Delivery], requested: Callable[[], int]
    ) -> AsyncIterator[Delivery]:
        """Yield the messages after the cursor until `requested`, the number of messages that the
        caller still needs, returns 0. The cursor is behind the last message when the iteration has
        ended; the caller does not break it off."""
        while (count := min(STEP, requested())) > 0 and cursor.priority >= 0:
            for delivery in cursor.examine(count):
                yield delivery
                if self.due:
                    cursor.rewind_to(delivery)
                    break
            await self.wait_if_due()

    async def wait_if_due(self) -> None:
        """Wait for the next slice if this one is used up."""
        if not self.due:
            return
        self._has_waited = True
        await wait_for_callback(partial(self._scans.schedule, outside=True))
        self._broker.schedule_flush()  # flushes what the request changes next


async def wait_until_durable(broker: Broker, sequence: int) -> None:
    """Wait until the record with that sequence number is on disk; 0 = return at once."""
    broker.schedule_flush()
    await wait_for_callback(broker.when_durable, sequence)
