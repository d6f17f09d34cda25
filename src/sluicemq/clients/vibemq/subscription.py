"""Subscription of the asyncio client, and its messages. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

from sluicemq.clients.transport import AsyncClient, again, time_limit
from sluicemq.clients.vibemq.commands import Received
from sluicemq.clients.vibemq.connection import ClientConnection
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame


class SubscriptionClient(Protocol):
    """Client of a subscription."""

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe. Raises ClientError."""


class VibeMQMessage(Received):
    """Message of a VibeMQClient."""

    __slots__ = ("_connection", "acknowledged")

    def __init__(self, connection: ClientConnection, frame: Frame) -> None:
        super().__init__(frame)
        self._connection = connection
        self.acknowledged = False

    async def ack(self) -> None:
        """Acknowledge the message; the broker does not respond. A second call does nothing.

        Raises RequestTimeout; ConnectionLost, also after the client has reconnected: the broker
        then redelivers the message.
        """
        if not self.acknowledged:
            await self._connection.send(wire.encode(Frame(wire.ACK, self.id)))
            self.acknowledged = True


class Subscription(AsyncClient):
    """Subscription to one queue. Created by `VibeMQClient.subscribe`; ended by `unsubscribe` or its
    `async with`. One task at a time may receive.
    """

    def __init__(self, client: SubscriptionClient, queue: str) -> None:
        self.queue = queue
        self._client = client
        self._messages: deque[VibeMQMessage] = deque()
        self._news = asyncio.Event()
        self._end: ClientError | None = None

    async def receive(self, timeout: float | None = None) -> VibeMQMessage:
        """Return the next message; waits up to `timeout` seconds (None = for ever).

        Waits for a new connection if necessary. Cancellation loses no message. Raises
        RequestTimeout; ConnectionLost if there will be no more messages.
        """
        if not self._messages:
            async with time_limit(timeout, f"no message in {timeout} s"):
                await self._wait()
        message = self._messages.popleft()
        message._connection.held(-1)
        return message

    async def _wait(self) -> None:
        while not self._messages:
            if self._end is not None:
                raise again(self._end)
            self._news.clear()
            await self._news.wait()

    async def __aiter__(self) -> AsyncGenerator[VibeMQMessage]:
        while True:
            yield await self.receive()

    async def unsubscribe(self) -> None:
        """Unsubscribe; the broker requeues unacked messages. Raises ClientError."""
        await self._client.end(self)

    async def close(self) -> None:
        """Unsubscribe, unless the subscription has ended. Raises ClientError."""
        with suppress(ConnectionLost):  # the subscription has ended with the connection
            await self.unsubscribe()

    def put(self, connection: ClientConnection, frame: Frame) -> None:
        self._messages.append(VibeMQMessage(connection, frame))
        connection.held(1)
        self._news.set()

    def forget(self) -> None:
        """Drop the received messages: the broker redelivers them."""
        for message in self._messages:
            message._connection.held(-1)
        self._messages.clear()

    def finish(self, reason: ClientError) -> None:
        self._end = self._end or reason
        self.forget()
        self._news.set()
