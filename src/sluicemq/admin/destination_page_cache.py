"""Cache of destination pages for event streams.

Pages are built one at a time with pauses in between, so that they take at most a tenth of the event
loop's time, whatever the number of streams. Streams with the same query share a page.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from sluicemq.admin.destinations import DestinationEndpoints, DestinationQuery
    from sluicemq.model.access import Identity

FRESH_SECONDS: Final = 1.5
"""Time for which a page is reused for other streams."""
REST: Final = 9
"""Pause before the next page, as a multiple of the time that the last page took."""


class DestinationPageCache:
    """Cache of destination pages shared by event streams."""

    def __init__(self, pages: DestinationEndpoints) -> None:
        self._pages = pages
        self._lock = asyncio.Lock()
        self._free_at = 0.0
        self._made: dict[tuple[Identity, DestinationQuery], tuple[float, bytes]] = {}

    async def of(self, identity: Identity, query: DestinationQuery) -> bytes:
        """Return a page as JSON."""
        key = (identity, query)
        async with self._lock:
            now = perf_counter()
            self._made = {k: v for k, v in self._made.items() if now - v[0] < FRESH_SECONDS}
            made = self._made.get(key)
            if made is not None:
                return made[1]
            if self._free_at > now:
                await asyncio.sleep(self._free_at - now)
            started = perf_counter()
            page = msgspec.json.encode(await self._pages.page(identity, query))
            now = perf_counter()
            self._made[key] = (now, page)
            self._free_at = now + REST * (now - started)
            return page

    async def unless(
        self, leaving: asyncio.Event, identity: Identity, query: DestinationQuery
    ) -> bytes | None:
        """Return a page as JSON, or None as soon as `leaving` is set."""
        making = asyncio.ensure_future(self.of(identity, query))
        left = asyncio.ensure_future(leaving.wait())
        try:
            await asyncio.wait((making, left), return_when=asyncio.FIRST_COMPLETED)
            return making.result() if making.done() else None
        finally:
            making.cancel()
            left.cancel()
