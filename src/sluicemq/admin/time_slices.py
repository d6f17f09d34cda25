"""Time slices of long operations, and waiting until changes are on disk, before a response is
sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeVar

from sluicemq.admin.caller import Caller
from sluicemq.admin.errors import ApiError
from sluicemq.broker import Broker, Cursor, Delivery
from sluicemq.management.operation import Page, SortedPageQuery
from sluicemq.security.access import wait_for_callback

ItemT = TypeVar("ItemT")
ViewT = TypeVar("ViewT")
STEP: Final = 20
"""Messages scanned between two checks of the conditions that end a scan."""
RUN: Final = 500
"""Items that are sorted at once, which takes less than 1 ms."""


@dataclass(slots=True, eq=False)
class TimeSlices:
    """Time slices of one request, shared with other scans (broker/scheduler.py).

    With a `_caller`, the request ends once its connection has closed: otherwise a client could
    leave any number of requests behind. Requests with the same `turns` wait for their slices one
    after the other; all of a user have the same, so that users have equal parts of the time.

    Callers iterate with `iterate`, or await `wait_if_due` after each item. State that was read
    before may have changed after it.
    """

    _broker: Broker
    _caller: Caller | None = None
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)
    _has_waited: bool = False

    @property
    def due(self) -> bool:
        """True if the slice is used up. The first slice is empty if other scans are waiting."""
        scans = self._broker.scans
        return scans.is_time_up() or bool(not self._has_waited and scans.waiting)

    async def iterate(self, items: Iterable[ItemT], every: int = 1) -> AsyncIterator[ItemT]:
        """Yield the items; after `every` of them, wait for the next slice if it is due."""
        for count, item in enumerate(items, 1):
            yield item
            if not count % every and self.due:
                await self.wait_if_due()

    async def sorted_page(
        self,
        query: SortedPageQuery,
        items: AsyncIterable[ItemT],
        sort_value: Callable[[ItemT], Any],
        tie_breaker: Callable[[ItemT], Any],
    ) -> Page[ItemT]:
        """Return the requested page of the items, sorted by `sort_value`; `tie_breaker` decides
        between items with equal values.

        Both are called once per item, because its values can change between slices. Runs of items
        are sorted one at a time, and merged up to the end of the page.
        """
        is_descending = query.order == "desc"
        unsorted = [((sort_value(item), tie_breaker(item)), item) async for item in items]
        runs = [
            sorted(unsorted[start : start + RUN], key=itemgetter(0), reverse=is_descending)
            async for start in self.iterate(range(0, len(unsorted), RUN))
        ]
        merged = islice(merge(*runs, key=itemgetter(0), reverse=is_descending), query.part.stop)
        first_items = [item async for _, item in self.iterate(merged, STEP)]
        return query.page_with(first_items[query.part.start :], len(unsorted))

    async def sorted_views(
        self,
        query: SortedPageQuery,
        items: AsyncIterable[ItemT],
        sort_value: Callable[[ItemT], Any],
        tie_breaker: Callable[[ItemT], Any],
        view: Callable[[ItemT], ViewT],
    ) -> Page[ViewT]:
        """Return the views of the items of the page that `sorted_page` returns."""
        page = await self.sorted_page(query, items, sort_value, tie_breaker)
        views = [view(item) async for item in self.iterate(page.items)]
        return Page(items=views, total=page.total, next_cursor=page.next_cursor)

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
        """Wait for the next slice if this one is used up. Raises ApiError instead if the connection
        of the request has closed."""
        if not self.due:
            return
        self._has_waited = True
        async with self.turns:
            if self._caller is not None and self._caller.is_closed:
                raise ApiError(400, "client-disconnected", "the connection has closed")
            await wait_for_callback(partial(self._broker.scans.schedule, outside=True))
        self._broker.schedule_flush()  # flushes what the request changes next


async def wait_until_durable(broker: Broker, sequence: int) -> None:
    """Wait until the record with that sequence number is on disk; 0 = return at once."""
    broker.schedule_flush()
    await wait_for_callback(broker.when_durable, sequence)
