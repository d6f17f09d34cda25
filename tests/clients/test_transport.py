"""Behaviour of connections that the clients of all protocols share, async and blocking."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.transport import Inbox
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.protocols.msglite import wire as msglite
from tests.protocols.msglite.harness import Harness as MsgliteHarness
from tests.protocols.phpmq.harness import Harness as PhpmqHarness
from tests.protocols.phpmq.harness import encode_dispatch
from tests.protocols.sockets import port_of, serve, unused_port
from tests.support.sessions import SessionHarness

LONG = 60
TOO_MUCH = bytes(32 << 20)
"""More than the kernel buffers for a peer that does not read."""


class User(ABC):
    """A client with an async interface; a blocking client runs in a thread."""

    harness: ClassVar[type[SessionHarness]]
    dispatched: ClassVar[bytes]
    """A message as the broker sends it."""

    def __init__(self, opener: Callable[..., Any]) -> None:
        self.opener = opener

    async def call(self, function: Callable[..., Any], *values: Any, **options: Any) -> Any:
        if asyncio.iscoroutinefunction(function):
            return await function(*values, **options)
        return await asyncio.to_thread(function, *values, **options)

    async def connect(self, **options: Any) -> None:
        self.client = await self.call(self.opener, **options)

    async def close(self) -> None:
        await self.call(self.client.close)

    @abstractmethod
    async def send(self, body: bytes) -> None: ...

    @abstractmethod
    async def fetch(self) -> bytes: ...


class MsgliteUser(User):
    harness = MsgliteHarness
    dispatched = msglite.encode_message(LONG, b"q", b"last")

    async def send(self, body: bytes) -> None:
        await self.call(self.client.send, "q", body, timeout=LONG)

    async def fetch(self) -> bytes:
        message = await self.call(self.client.ready, "q", timeout=LONG)
        return bytes(message.body)


class PhpmqUser(User):
    harness = PhpmqHarness
    dispatched = encode_dispatch(b"q", b"last", b"f" * 32)

    async def send(self, body: bytes) -> None:
        await self.call(self.client.send, "q", body)

    async def fetch(self) -> bytes:
        await self.call(self.client.subscribe, "q")
        message = await self.call(self.client.receive, LONG)
        return bytes(message.body)


ASYNC = [(MsgliteUser, MsgliteClient.connect), (PhpmqUser, PhpmqClient.connect)]
BLOCKING = [(user, partial(BlockingClient, connect)) for user, connect in ASYNC]


def name_of(pair: tuple[type[User], Any]) -> str:
    return f"{'async' if pair in ASYNC else 'blocking'}-{pair[0].__name__}"


@pytest.fixture(params=[*ASYNC, *BLOCKING], ids=name_of)
def user(request: pytest.FixtureRequest) -> User:
    user_class, opener = request.param
    return user_class(opener)


async def connected(user: User, listener: socket.socket, timeout: float = 10.0) -> socket.socket:
    """Connect, and return the other end."""
    await user.connect(port=port_of(listener), timeout=timeout)
    return listener.accept()[0]


def received(peer: socket.socket) -> int:
    """Return the number of bytes that arrive until the connection ends."""
    peer.settimeout(60)
    count = 0
    with suppress(ConnectionResetError):
        while data := peer.recv(1 << 20):
            count += len(data)
    return count


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(limited())


def test_connecting_to_unused_address_fails(user: User, tmp_path: Path) -> None:
    async def main() -> None:
        port = unused_port()
        with pytest.raises(ConnectionLost, match=rf"127\.0\.0\.1:{port}: Connection refused$"):
            await user.connect(port=port)
        path = str(tmp_path / "none")
        with pytest.raises(
            ConnectionLost, match=f"cannot connect to {path}: No such file or directory$"
        ):
            await user.connect(path=path)

    run(main)


def test_connects_over_unix_socket(user: User, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")

    async def main() -> None:
        server, _ = await serve(user.harness(), path)
        async with server:
            await user.connect(path=path)
            await user.send(b"1")
            assert await user.fetch() == b"1"
            await user.close()

    run(main)


def test_connects_over_tls(user: User, certificates: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    body = bytes(range(256)) * 4096

    async def main() -> None:
        server, port = await serve(user.harness(), ssl_context=certificates[0])
        async with server:
            await user.connect(host="localhost", port=port, ssl_context=certificates[1])
            await user.send(body)
            assert await user.fetch() == body
            await user.close()
            with pytest.raises(ConnectionLost):
                await user.send(b"")

    run(main)


def test_tls_with_untrusted_broker_fails(
    user: User, certificates: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def main() -> None:
        server, port = await serve(user.harness(), ssl_context=certificates[0])
        async with server:
            with pytest.raises(ConnectionLost, match=r"cannot connect to .*certificate"):
                await user.connect(port=port, ssl_context=ssl.create_default_context())

    run(main)


def test_missing_tls_handshake_times_out(
    user: User, listener: socket.socket, certificates: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def main() -> None:
        with pytest.raises(RequestTimeout, match=r"no connection to .* in 0\.5 s"):
            await user.connect(port=port_of(listener), ssl_context=certificates[1], timeout=0.5)

    run(main)


def test_close_returns_only_after_broker_has_read_everything(user: User) -> None:
    bodies = [b"%d" % n * 5000 for n in range(200)]
    harness = user.harness()

    async def main() -> None:
        server, port = await serve(harness)
        async with server:
            await user.connect(port=port)
            for body in bodies:
                await user.send(body)
            await user.close()
            assert harness.bodies("q") == bodies
            await user.close()
            with pytest.raises(ConnectionLost):
                await user.send(b"")

    run(main)


def test_context_manager_closes_client(user: User) -> None:
    harness = user.harness()

    async def main() -> None:
        server, port = await serve(harness)
        async with server:
            await user.connect(port=port)
            if hasattr(user.client, "__aenter__"):
                async with user.client as client:
                    assert client is user.client
                    await user.send(b"1")
            else:
                assert user.client.__enter__() is user.client
                await user.send(b"1")
                await user.call(user.client.__exit__, None, None, None)
            assert harness.bodies("q") == [b"1"]

    run(main)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [(b"", "closed the connection"), (b"HTTP/1.1 400 Bad\r\n", "broke the protocol")],
)
def test_messages_before_close_or_protocol_error_are_received(
    user: User, listener: socket.socket, garbage: bytes, reason: str
) -> None:
    async def main() -> None:
        with await connected(user, listener) as peer:
            task = asyncio.create_task(user.fetch())
            await asyncio.to_thread(peer.recv, 1000)
            peer.sendall(user.dispatched + garbage)
            if not garbage:
                peer.shutdown(socket.SHUT_WR)
            assert await task == b"last"
            with pytest.raises(ConnectionLost, match=reason):
                await user.fetch()
            await user.close()

    run(main)


def test_close_by_broker_ends_waiting_call(user: User, listener: socket.socket) -> None:
    async def main() -> None:
        with await connected(user, listener) as peer:
            task = asyncio.create_task(user.fetch())
            await asyncio.to_thread(peer.recv, 1000)
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await task
        await user.close()

    run(main)


def test_send_times_out_if_broker_does_not_read(user: User, listener: socket.socket) -> None:
    async def main() -> None:
        with (
            await connected(user, listener, timeout=0.5),
            pytest.raises(RequestTimeout, match=r"accepted no data for 0\.5 s"),
        ):
            await user.send(TOO_MUCH)

    run(main)


def test_send_waits_for_a_broker_that_reads_slowly(listener: socket.socket) -> None:
    user = PhpmqUser(PhpmqClient.connect)

    async def main() -> None:
        with await connected(user, listener, timeout=1) as peer:

            def read() -> None:
                for _ in range(len(TOO_MUCH) >> 20):
                    peer.recv(1 << 20, socket.MSG_WAITALL)
                    time.sleep(0.05)

            reading = asyncio.create_task(asyncio.to_thread(read))
            await user.send(TOO_MUCH)
            await reading
            user.client._connection.abort()

    run(main)


def test_close_times_out_if_broker_does_not_read(user: User, listener: socket.socket) -> None:
    async def main() -> None:
        with await connected(user, listener, timeout=0.5) as peer:
            with pytest.raises(RequestTimeout):
                await user.send(TOO_MUCH)
            with pytest.raises(RequestTimeout, match="did not close"):
                await user.close()
            assert await asyncio.to_thread(received, peer) < len(TOO_MUCH)

    run(main)


def test_close_times_out_if_broker_does_not_close(user: User, listener: socket.socket) -> None:
    async def main() -> None:
        with await connected(user, listener, timeout=0.5):
            with pytest.raises(RequestTimeout, match="did not close"):
                await user.close()
            with pytest.raises(ConnectionLost):
                await user.send(b"")

    run(main)


@pytest.mark.parametrize(("user_class", "opener"), ASYNC)
def test_close_after_unread_reset(
    user_class: type[User], opener: Any, listener: socket.socket
) -> None:
    """The kernel has received the reset, but the event loop has not run since."""
    user = user_class(opener)

    async def main() -> None:
        peer = await connected(user, listener)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await user.close()
        with pytest.raises(ConnectionLost):
            await user.send(b"")

    run(main)


def test_cancellation_is_not_replaced_by_an_expired_timeout() -> None:
    async def poll() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # as asyncio.run does at Ctrl-C, while the task runs
        await Inbox[bytes]().take(0)

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(poll())

    asyncio.run(main())
