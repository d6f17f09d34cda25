"""A message for asyncio, and the subscription it comes by. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.commands import Received
from sluicemq.protocols.vibemq.connection import ClientConnection
from sluicemq.protocols.vibemq.wire import Frame


class Subscriber(Protocol):
    """What a subscription needs of its client."""

    async def end(self, subscription: Subscription) -> None:
        """Subscribe no longer. Raises ClientError."""


class VibeMQMessage(Received):
    """A message received by a VibeMQClient."""

    __slots__ = ("_connection", "acknowledged")

    def __init__(self, connection: ClientConnection, frame: Frame) -> None:
        super().__init__(frame)
        self._connection = connection
        self.acknowledged = False

    async def ack(self) -> None:
        """It has been dealt with; the broker does not answer. A second time does nothing.

        Raises RequestTimeout; ConnectionLost, also after the client has connected again: then it
        comes again.
        """
        if not self.acknowledged:
            await self._connection.send(wire.encode_ack(self.id.encode()))
            self.acknowledged = True


Handler = Callable[[VibeMQMessage], Awaitable[None]]


class Subscription:
    """The messages of one queue. Made by `VibeMQClient.subscribe`; ends with `unsubscribe`, or with
    its `async with`. One task at a time may receive.
    """

    def __init__(self, client: Subscriber, queue: str) -> None:
        self.queue = queue
        self._client = client
        self._messages: deque[VibeMQMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._server: asyncio.Task[None] | None = None
        self._end: ClientError | None = None

    async def receive(self, timeout: float | None = None) -> VibeMQMessage:
        """The next message; waits up to `timeout` seconds (None = for ever), and for a new
        connection if need be. Cancellation loses no message.

        Raises RequestTimeout; ConnectionLost when there will be no more messages.
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
        """End it; the broker takes back what is here and not acknowledged. A handler that is
        working is cancelled, unless it is what calls this. Raises ClientError.
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
        with suppress(ConnectionLost):  # then there is nothing left to end
            await self.unsubscribe()

    def put(self, connection: ClientConnection, frame: Frame) -> None:
        self._messages.append(VibeMQMessage(connection, frame))
        connection.held(1)
        self._wake()

    def forget(self) -> None:
        """What is here will come again."""
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
                with suppress(ClientError):  # it comes again
                    await message.ack()
