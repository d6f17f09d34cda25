"""Real sockets for the tests of clients: a listening broker, and unused ports."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from random import randrange
from typing import TypeVar, cast

from sluicemq.protocols.transport import Session
from tests.support.sessions import SessionHarness

HarnessT = TypeVar("HarnessT", bound=SessionHarness)


class SocketTransport(asyncio.Protocol):
    """A session on a real socket; each read runs an event loop iteration of the broker."""

    def __init__(self, harness: SessionHarness) -> None:
        self.harness = harness
        self.peer = "test"
        self.peer_user = ""
        self.unsent = False
        self.stalled = False
        self.ended = False
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.session = self.harness.open(self)
        self.harness.transports.append(self)

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self.session.receive(data)
            self.harness.run_event_loop()

    def eof_received(self) -> bool:
        self.ended = True
        if self.closing:
            return False
        self.session.end_of_input()
        self.harness.run_event_loop()
        return self.transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self.harness.transports.remove(self)
        self.session.closed()
        self.harness.run_event_loop()

    def write(self, chunks: Iterable[bytes]) -> None:
        self.transport.writelines(chunks)
        self.unsent = True

    def close(self, reason: str = "") -> None:
        # closing with unread input would reset the connection and lose the data written last
        self.closing = True
        self.unsent = True
        if self.ended or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()

    def abort(self, reason: str) -> None:
        self.closing = True
        self.transport.abort()

    def quick_ack(self) -> None:
        pass  # the tests do not depend on it

    @property
    def is_suspended(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def claim_user(self, user: str) -> None:
        pass  # the tests have no limit

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        callback(*arguments)

    def replace_session(self, session: Session) -> None:
        self.session = session

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def call() -> None:
            self.harness.clock.advance(round(delay * 1000))
            callback()
            self.harness.run_event_loop()

        return asyncio.get_running_loop().call_later(delay, call)


async def serve(
    harness: SessionHarness, path: str | None = None, ssl_context: ssl.SSLContext | None = None
) -> tuple[asyncio.Server, int]:
    """Start a broker that listens on `path` or on a free port."""
    loop = asyncio.get_running_loop()

    def accept() -> SocketTransport:
        return SocketTransport(harness)

    if path is not None:
        return await loop.create_unix_server(accept, path, ssl=ssl_context), 0
    server = await loop.create_server(accept, "127.0.0.1", 0, ssl=ssl_context)
    return server, port_of(server.sockets[0])


def run_against(
    harness: HarnessT, scenario: Callable[[HarnessT, int], Coroutine[None, None, None]]
) -> HarnessT:
    """Run a scenario against a broker that listens on a port."""

    async def main() -> None:
        server, port = await serve(harness)
        async with server:
            async with asyncio.timeout(120):
                await scenario(harness, port)

    asyncio.run(main())
    return harness


def port_of(listener: socket.socket | TransportSocket) -> int:
    return cast(int, listener.getsockname()[1])


def unused_port() -> int:
    """Return an unused port outside the range of ports that the system assigns automatically.

    A port in that range may be assigned to a test that runs at the same time.
    """
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with (
            suppress(OSError),
            socket.create_server(("127.0.0.1", randrange(10_000, first_ephemeral))) as server,
        ):
            return port_of(server)
