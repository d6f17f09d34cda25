"""Stream of server-sent events (WHATWG HTML, section 9.2).

    event: overview       every second; `/overview` without its history
    event: destinations   every two seconds, if requested; a page of `/destinations`
    event: logout         the login is no longer valid; the stream ends
    : keep-alive          if there is no other event for a while

Events are not queued: each is built from the current state once the previous one has been sent. A
slow reader misses events but gets no outdated ones, and its output buffer is bounded.

Pages of destinations are built one at a time with pauses in between, so that they take at most a
tenth of the event loop's time, whatever the number of streams. Streams with the same query share a
page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from time import perf_counter
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destinations import DestinationService
from sluicemq.admin.errors import RETRY_SECONDS, ApiError
from sluicemq.admin.overview import Overview
from sluicemq.admin.routing import Call, handles
from sluicemq.management.broker import EVENT_STREAM, STREAM_EVENTS, EventQuery
from sluicemq.management.destinations import DestinationQuery
from sluicemq.model.access import Identity

FRESH_SECONDS: Final = 1.5
"""Time for which a page is reused for other streams."""
REST: Final = 9
"""Pause before the next page, as a multiple of the time that the last page took."""


class DestinationPageCache:
    """Cache of destination pages shared by event streams."""

    def __init__(self, pages: DestinationService) -> None:
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


TICK_SECONDS: Final = 1.0
ROWS_TICKS: Final = 2
"""Ticks between two pages of destinations."""
KEEP_ALIVE_TICKS: Final = 15
RETRY_MS: Final = 2000
"""Delay after which a browser reconnects when its stream has ended."""
_KEEP_ALIVE: Final = b": keep-alive\n\n"


class EventStream(Response):
    """Response that lasts until its events end or its client disconnects."""

    def __init__(self, pages: EventService, call: Call, query: EventQuery) -> None:
        super().__init__(media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self._pages = pages
        self._call = call
        self._query = query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the connection reports its end; `receive` is not read."""
        body = "http.response.body"
        self._pages.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for each in self._pages.events(self._call, self._query):
                await send({"type": body, "body": each, "more_body": True})
            await send({"type": body, "body": b"", "more_body": False})
        finally:
            self._pages.open -= 1


class EventService:
    """Handlers of `/events`; `open` is the number of open streams."""

    def __init__(self, context: ApiContext, tick: float = TICK_SECONDS) -> None:
        """Create the handlers; `tick` is the interval of the events in seconds."""
        self._context = context
        self._overview = Overview(context)
        self._rows = DestinationPageCache(DestinationService(context))
        self._tick = tick
        self.open = 0

    @handles(STREAM_EVENTS)
    async def stream(self, call: Call, query: EventQuery) -> Response:
        """GET /events"""
        most = self._context.limits.streams
        if self.open >= most:
            raise ApiError(
                503,
                "too-many-streams",
                f"{most} streams of events are open, and http.max_event_streams allows no more",
                {"Retry-After": str(RETRY_SECONDS)},
            )
        if call.request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        return EventStream(self, call, query)

    async def events(self, call: Call, query: EventQuery) -> AsyncIterator[bytes]:
        """Yield events until the connection is about to close or the login is no longer valid."""
        leaving = call.caller.leaving
        silent = 0
        rows_in = 0
        yield b"retry: %d\n\n" % RETRY_MS
        while not leaving.is_set():
            self._context.broker.wake()
            identity = call.who.current()
            if identity is None:
                yield event("logout", b"{}")
                return
            silent += 1
            if query.overview:
                silent = 0
                yield event("overview", msgspec.json.encode(self._overview.now(identity)))
            if query.destinations:
                rows_in -= 1
            if rows_in < 0:
                rows_in = ROWS_TICKS - 1
                rows = await self._rows.unless(leaving, identity, query)
                if rows is None:
                    return
                silent = 0
                yield event("destinations", rows)
            if silent >= KEEP_ALIVE_TICKS:
                silent = 0
                yield _KEEP_ALIVE
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick):
                    await leaving.wait()


def event(name: str, data: bytes) -> bytes:
    """Return an event in wire format. `data` is JSON, which contains no line ends."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
