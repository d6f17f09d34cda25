"""Request bodies: of known length, within limits, and in total within a memory budget.

Bodies require Content-Length. The broker can therefore reject one that is too large before it is
sent, and reserve memory for one that it accepts. A request that finds none waits, and its
connection is not read meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from sluicemq.admin.errors import ApiError

SMALL_BYTES: Final = 64 * 1024
"""Default maximum size of a body in bytes."""

_MOST_DIGITS: Final = 15


class BodyBudget:
    """Memory in bytes that bodies may occupy in total; granted in order of the requests."""

    def __init__(self, size: int) -> None:
        self._free = self.size = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Wait until a body of that size fits into the budget; reserve the memory in the
        context."""
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
            first_size, future = self._waiting.popleft()
            self._free -= first_size
            future.set_result(None)


def announced(request: Request, limit: int, what_to_do: str) -> int:
    """Return the length of the body. Raises ApiError if it is unknown or above the limit."""
    text = request.headers.get("content-length", "")
    if not text:
        raise ApiError(411, "length-required", "the request needs a Content-Length")
    # h11 has verified that it is a number
    if len(text) > _MOST_DIGITS or int(text) > limit:
        raise ApiError(
            413,
            "too-large",
            f"the body has more than {limit} bytes; {what_to_do}",
            more={"limit": limit},
        )
    return int(text)


async def read_chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body in chunks. Raises ApiError if the client disconnects before its end."""
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except ClientDisconnect:
        raise ApiError(400, "client-disconnected", "the body was not sent to its end") from None


def may_be_unread(request: Request) -> bool:
    """Return whether a large part of the request body may be unread."""
    text = request.headers.get("content-length", "0")
    large = len(text) > _MOST_DIGITS or int(text) > SMALL_BYTES
    return large or "transfer-encoding" in request.headers
