"""Base of brokers whose replies a test defines."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from tests.protocols.sockets import port_of

Frame = TypeVar("Frame")
Decode = Callable[[bytes], list[Frame]]
"""Decoder of the bytes of one connection."""


class ScriptedListener(ABC, Generic[Frame]):
    """Listener of a scripted broker; `received` has the frames of the clients."""

    def __init__(self) -> None:
        self.received: list[Frame] = []
        self.connections: list[asyncio.StreamWriter] = []
        self._received_more = asyncio.Condition()

    @abstractmethod
    def decoder(self) -> Decode[Frame]:
        """Return the decoder of a new connection."""

    @abstractmethod
    def handle(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        """Reply to a frame."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        decode = self.decoder()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for frame in decode(data):
                    self.received.append(frame)
                    self.handle(frame, writer)
                async with self._received_more:
                    self._received_more.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the received frames holds."""
        async with self._received_more:
            await self._received_more.wait_for(condition)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with asyncio.timeout(120), server:
            yield port_of(server.sockets[0])
            for connection in self.connections:
                connection.close()
