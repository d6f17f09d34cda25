"""Pipelined requests whose replies are awaited together, for sent messages and for acknowledgements
in a transaction, and the interface of the session that they belong to."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sluicemq.clients.jmq.request_channel import RequestChannel, StatusError, check
from sluicemq.clients.transport import again, time_limit
from sluicemq.model.errors import ClientError
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
        self._news = asyncio.Event()

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
        self._failure = self._failure or again(reason)
        self._end()

    def _end(self) -> None:
        self._left -= 1
        self._news.set()

    async def wait_for_capacity(self, most: int, timeout: float) -> None:
        """Wait until fewer than `most` replies are outstanding.

        Raises RequestTimeout if no reply arrives within `timeout` seconds.
        """
        while self._left >= most:
            self._news.clear()
            async with time_limit(timeout, f"no answer in {timeout} s"):
                await self._news.wait()

    async def wait_for_all(self, timeout: float) -> None:
        """Wait until no reply is outstanding. Raises the first failure, once; RequestTimeout."""
        await self.wait_for_capacity(1, timeout)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


class SessionPort(Protocol):
    """Session as its parts use it: producers, consumers, browsers and the XA resource."""

    id: int
    transacted: bool
    transaction: int
    confirmations: Confirmations

    async def ready(self) -> RequestChannel:
        """Return the connection once it is usable. Raises ConnectionLost, RequestTimeout."""

    def touch(self) -> None:
        """Mark the transaction as used. Raises TransactionLost."""

    def enter(self, transaction: int) -> None:
        """Add the following sends and acknowledgements to a transaction; 0 = none."""

    def leave(self, part: object) -> None:
        """Remove a closed consumer or producer."""
