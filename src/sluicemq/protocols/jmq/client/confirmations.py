"""Replies that are waited for together: of messages sent, and of acknowledgements in a transaction,
one behind the other without a wait between them."""

from __future__ import annotations

import asyncio

from sluicemq.model.errors import ClientError, RequestTimeout
from sluicemq.protocols.jmq.client.request_channel import Refused, check
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.jmq.wire import Packet

_TAKEN = (Status.OK, Status.NOT_MODIFIED)
"""NOT_MODIFIED: the broker has had it before."""


class Confirmations:
    """Await any number of replies, as `request_channel.Awaiting`.

    The first failure is kept until `settled` raises it.
    """

    __slots__ = ("_failure", "_left", "_news")

    def __init__(self) -> None:
        self._left = 0
        self._failure: ClientError | None = None
        self._news: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """One more is waited for."""
        self._left += 1

    def answered(self, packet: Packet) -> None:
        """See Awaiting."""
        try:
            check(packet, _TAKEN)
        except Refused as refused:
            self._failure = self._failure or refused
        self._end()

    def broken(self, reason: ClientError) -> None:
        """See Awaiting."""
        self._failure = self._failure or type(reason)(str(reason))
        self._end()

    def _end(self) -> None:
        self._left -= 1
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def room(self, most: int, timeout: float) -> None:
        """Until fewer than `most` are waited for. Raises RequestTimeout if nothing comes."""
        while self._left >= most:
            if self._news is None or self._news.done():
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._news], timeout=timeout)
            if not self._news.done():
                raise RequestTimeout(f"no answer in {timeout} s")

    async def settled(self, timeout: float) -> None:
        """Until none is waited for. Raises the first failure, once; RequestTimeout."""
        await self.room(1, timeout)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
