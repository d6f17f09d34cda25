"""Subscription of the asyncio client, and its messages. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from sluicemq.clients.vibemq.commands import Received
from sluicemq.clients.vibemq.connection import ClientConnection
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
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
            await self._connection.send(wire.encode_ack(self.id.encode()))
            self.acknowledged = True


Handler = Callable[[VibeMQMessage], Awaitable[None]]


class Subscription:
    """Subscription to one queue. Created by `VibeMQClient.subscribe`; ended by `unsubscribe` or its
    `async with`. One task at a time may receive.
    """

    def __init__(self, client: SubscriptionClient, queue: str) -> None:
        self.queue = queue
        self._client = client
        self._messages: deque[VibeMQMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._server: asyncio.Task[None] | None = None
        self._end: ClientError | None = None

    async def receive(self, timeout: float | None = None) -> VibeMQMessage:
        """Return the next message; waits up to `timeout` seconds (None = for ever).

        Waits for a new connection if necessary. Cancellation loses no message. Raises
        RequestTimeout; ConnectionLost if there will be no more messages.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._messages:
                    if self._end is not None:
                        raise type(self._end)(str(self._end))
                    self._arrival = asyncio.get_running_loop().create_future()
                    await self._arrival
        except TimeoutError:
            raise RequestTimeout(f"no message in {timeout} s") from None
        message = self._messages.popleft()
        message._connection.held(-1)
        return message

    def __aiter__(self) -> AsyncIterator[VibeMQMessage]:
        return self._all()

    async def _all(self) -> AsyncIterator[VibeMQMessage]:
        while True:
            yield await self.receive()

    async def unsubscribe(self) -> None:
        """Unsubscribe; the broker requeues unacked messages. Raises ClientError.

        A running handler is cancelled, unless it makes this call.
        """
        await self._client.end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(ConnectionLost):  # the subscription has ended with the connection
            await self.unsubscribe()

    def put(self, connection: ClientConnection, frame: Frame) -> None:
        self._messages.append(VibeMQMessage(connection, frame))
        connection.held(1)
        self._wake()

    def forget(self) -> None:
        """Drop the received messages: the broker redelivers them."""
        for message in self._messages:
            message._connection.held(-1)
        self._messages.clear()

    def finish(self, reason: ClientError) -> None:
        self._end = self._end or reason
        self.forget()
        if self._server is not None and self._server is not asyncio.current_task():
            self._server.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def serve(self, handler: Handler) -> None:
        self._server = asyncio.create_task(self._handle(handler))

    async def _handle(self, handler: Handler) -> None:
        while True:
            try:
                message = await self.receive()
            except ConnectionLost:
                return
            try:
                await handler(message)
            except Exception as error:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"the handler of {self.queue} failed", "exception": error}
                )
            else:
                with suppress(ClientError):  # the broker redelivers it
                    await message.ack()
