"""Stream of server-sent events (WHATWG HTML, section 9.2).

    event: overview       every second; `/overview` without its history
    event: destinations   every two seconds, if requested; a page of `/destinations`
    event: logout         the login is no longer valid; the stream ends
    : keep-alive          if there is no other event for a while

Events are not queued: each is built from the current state once the previous one has been sent. A
slow reader misses events but gets no outdated ones, and its output buffer is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.destination_page_cache import DestinationPageCache
from sluicemq.admin.destinations import DestinationEndpoints, DestinationQuery
from sluicemq.admin.errors import RETRY_SECONDS, ApiError
from sluicemq.admin.overview import Overview
from sluicemq.admin.routing import Call, Endpoint, Need

TICK_SECONDS: Final = 1.0
ROWS_TICKS: Final = 2
"""Ticks between two pages of destinations."""
KEEP_ALIVE_TICKS: Final = 15
RETRY_MS: Final = 2000
"""Delay after which a browser reconnects when its stream has ended."""
MEDIA_TYPE: Final = "text/event-stream"
_KEEP_ALIVE: Final = b": keep-alive\n\n"


class EventQuery(DestinationQuery, kw_only=True, frozen=True):
    """Events to send; the other parameters select destinations, as for `/destinations`."""

    overview: Annotated[bool, Meta(description="Send the overview every second.")] = True
    destinations: Annotated[bool, Meta(description="Send a page of destinations every 2 s.")] = (
        False
    )


class EventStream(Response):
    """Response that lasts until its events end or its client disconnects."""

    def __init__(self, pages: EventEndpoints, call: Call) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._pages = pages
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the connection reports its end; `receive` is not read."""
        body = "http.response.body"
        self._pages.open += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for each in self._pages.events(self._call):
                await send({"type": body, "body": each, "more_body": True})
            await send({"type": body, "body": b"", "more_body": False})
        finally:
            self._pages.open -= 1


class EventEndpoints:
    """Handlers of `/events`; `open` is the number of open streams."""

    def __init__(self, context: ApiContext, tick: float = TICK_SECONDS) -> None:
        """Create the handlers; `tick` is the interval of the events in seconds."""
        self._context = context
        self._overview = Overview(context)
        self._rows = DestinationPageCache(DestinationEndpoints(context))
        self._tick = tick
        self.open = 0

    async def stream(self, call: Call) -> Response:
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
            return Response(media_type=MEDIA_TYPE)
        return EventStream(self, call)

    async def events(self, call: Call) -> AsyncIterator[bytes]:
        """Yield events until the connection is about to close or the login is no longer valid."""
        query: EventQuery = call.query
        leaving = call.caller.leaving
        silent = 0
        rows_in = 0
        yield b"retry: %d\n\n" % RETRY_MS
        while not leaving.is_set():
            self._context.broker.wake()
            identity = call.current()
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
            await _elapsed(leaving, self._tick)


async def _elapsed(leaving: asyncio.Event, seconds: float) -> None:
    """Wait for that time, or until the connection is about to close."""
    try:
        async with asyncio.timeout(seconds):
            await leaving.wait()
    except TimeoutError:
        pass


def event(name: str, data: bytes) -> bytes:
    """Return an event in wire format. `data` is JSON, which contains no line ends."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /events."""
    handlers = EventEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/events",
            "streamEvents",
            handlers.stream,
            "Stream of events",
            Need.VISIBLE,
            query=EventQuery,
            media=MEDIA_TYPE,
        )
    ]
