"""Bodies of requests: with a known length, within limits, and all together within a budget.

A body is announced by Content-Length, so that what cannot be taken is refused before it is sent,
and so that room is kept for what is taken: who finds none waits, and is not read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from sluicemq.admin.errors import Problem

SMALL_BYTES: Final = 64 * 1024
"""Of a body, where an endpoint does not say otherwise."""

_MOST_DIGITS: Final = 15


class BodyBudget:
    """Bytes that bodies may take up together. First come, first served."""

    def __init__(self, size: int) -> None:
        self._free = self.size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for a body of that size, and keep it for so long."""
        size = min(size, self.size)
        if self._waiting or size > self._free:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (size, future)
            self._waiting.append(entry)
            try:
                await future
            except BaseException:
                if future.done() and not future.cancelled():
                    self._give_back(size)
                else:
                    self._waiting.remove(entry)
                    self._give_back(0)
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._give_back(size)

    def _give_back(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, future = self._waiting.popleft()
            self._free -= wanted
            future.set_result(None)


def announced(request: Request, limit: int, what_to_do: str) -> int:
    """Return the length of the body. Raises Problem if it is unknown or above the limit."""
    text = request.headers.get("content-length", "")
    if not text:
        raise Problem(
            411, "length-required", "say how long the body is: a Content-Length is needed here"
        )
    # h11 has made sure that it is a number
    if len(text) > _MOST_DIGITS or int(text) > limit:
        raise Problem(
            413,
            "too-large",
            f"the body has more than {limit} bytes; {what_to_do}",
            more={"limit": limit},
        )
    return int(text)


async def read_chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in chunks. Raises Problem if the client disconnects before its end."""
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the body was not sent to its end") from None


def may_be_unread(request: Request) -> bool:
    """Return whether a large part of the request body may be unread."""
    text = request.headers.get("content-length", "0")
    large = len(text) > _MOST_DIGITS or int(text) > SMALL_BYTES
    return large or "transfer-encoding" in request.headers
