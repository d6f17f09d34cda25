"""Pipelined requests whose replies are awaited together.

Used for sent messages and for acknowledgements in a transaction."""

from __future__ import annotations

import asyncio

from sluicemq.clients.jmq.request_channel import StatusError, check
from sluicemq.model.errors import ClientError, RequestTimeout
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.jmq.wire import Packet

_TAKEN = (Status.OK, Status.NOT_MODIFIED)
"""Successful statuses. NOT_MODIFIED: the broker has already received the message."""


class Confirmations:
    """Await any number of replies, as `request_channel.Awaiting`.

    The first failure is kept until `wait_for_all` raises it.
    """

    __slots__ = ("_failure", "_left", "_news")

    def __init__(self) -> None:
        self._left = 0
        self._failure: ClientError | None = None
        self._news: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Count one more outstanding reply."""
        self._left += 1

    def answered(self, packet: Packet) -> None:
        """Record a reply, and its failure if its status is not a success."""
        try:
            check(packet, _TAKEN)
        except StatusError as refused:
            self._failure = self._failure or refused
        self._end()

    def broken(self, reason: ClientError) -> None:
        """Record that a reply is lost because the connection is lost."""
        self._failure = self._failure or type(reason)(str(reason))
        self._end()

    def _end(self) -> None:
        self._left -= 1
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait_for_capacity(self, most: int, timeout: float) -> None:
        """Wait until fewer than `most` replies are outstanding.

        Raises RequestTimeout if no reply arrives within `timeout` seconds.
        """
        while self._left >= most:
            if self._news is None or self._news.done():
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._news], timeout=timeout)
            if not self._news.done():
                raise RequestTimeout(f"no answer in {timeout} s")

    async def wait_for_all(self, timeout: float) -> None:
        """Wait until no reply is outstanding. Raises the first failure, once; RequestTimeout."""
        await self.wait_for_capacity(1, timeout)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
