"""PHPMQ clients: one for asyncio, one that blocks. Public.

    async with await PhpmqClient.connect("127.0.0.1", 9100) as client:
        await client.send("orders", b"one pizza", ttl=3600)
        async for message in client.consume("orders", window=10):
            print(message.body)
            await message.ack()

    with BlockingPhpmqClient.connect("127.0.0.1", 9100) as client:
        client.send("orders", b"one pizza")
        for message in client.consume("orders", window=10):
            message.ack()

A connection has one subscription: consuming from another queue, or with another window, replaces
it, and what was received and not settled goes back to its queue. A window is how many messages may
be here unsettled; a message that is never settled takes up its place for good, and goes back to
its queue when the connection ends.

The protocol confirms nothing. `close` ends this side and waits until the broker has ended its own;
SluiceMQ does so when all that was sent with durability `sync` is on disk. Over TLS nothing is
waited for. A broker that refuses a message (its queue is full, its name too long) closes the
connection, which shows as ConnectionLost in the next call.

Dispatches of both generations are understood; `generation` says which sends are written.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self, cast

from sluicemq.model.destination import decode_name, encode_name
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.protocols.phpmq.wire import (
    FROM_SERVER,
    Decoder,
    Frame,
    Limits,
    encode_acknowledge,
    encode_consume,
    encode_dead_letter,
    encode_requeue,
    encode_send,
)

DEFAULT_PORT = 9100
_READ_SIZE = 1 << 18


def _name(queue: str) -> bytes:
    raw = encode_name(queue)
    if not 0 < len(raw) <= Limits().queue:
        raise ValueError(f"a queue name has 1 to {Limits().queue} bytes, this one has {len(raw)}")
    return raw


def _natural(number: int, what: str) -> int:
    if number < 0:
        raise ValueError(f"{what} is {number}, the least is 0")
    return number


class _Received:
    """A message as it came: what both kinds of client show of it.

    queue  where it was waiting     id   32 hex digits; the same each time it is delivered
    body   its content              ttl  seconds it had left when it was sent here; 0 = for ever
    """

    __slots__ = ("_raw_id", "_raw_queue", "body", "id", "queue", "ttl")

    def __init__(self, frame: Frame) -> None:
        _, self._raw_queue, self.body, self._raw_id, self.ttl = frame
        self.queue = decode_name(self._raw_queue)
        self.id = self._raw_id.decode("ascii", "backslashreplace")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue}, {len(self.body)} bytes>"


class PhpmqMessage(_Received):
    """A message received by a PhpmqClient. Settle it once: ack, requeue or dead_letter."""

    __slots__ = ("_client",)

    def __init__(self, client: PhpmqClient, frame: Frame) -> None:
        super().__init__(frame)
        self._client = client

    async def ack(self) -> None:
        """It has been dealt with. Raises ConnectionLost, RequestTimeout."""
        await self._client._write(encode_acknowledge(self._raw_queue, self._raw_id))

    async def requeue(self, ttl: int = 0) -> None:
        """Put it at the end of its queue, with `ttl` seconds to live from now (0 = for ever).

        Raises ConnectionLost, RequestTimeout, ValueError.
        """
        await self._client._write(
            encode_requeue(self._raw_queue, self._raw_id, _natural(ttl, "ttl"))
        )

    async def dead_letter(self) -> None:
        """Take it out of its queue for good. Raises ConnectionLost, RequestTimeout."""
        await self._client._write(encode_dead_letter(self._raw_queue, self._raw_id))


class BlockingPhpmqMessage(_Received):
    """A message received by a BlockingPhpmqClient. Settle it once: ack, requeue or dead_letter."""

    __slots__ = ("_client",)

    def __init__(self, client: BlockingPhpmqClient, frame: Frame) -> None:
        super().__init__(frame)
        self._client = client

    def ack(self) -> None:
        """It has been dealt with. Raises ConnectionLost, RequestTimeout."""
        self._client._write(encode_acknowledge(self._raw_queue, self._raw_id))

    def requeue(self, ttl: int = 0) -> None:
        """Put it at the end of its queue, with `ttl` seconds to live from now (0 = for ever).

        Raises ConnectionLost, RequestTimeout, ValueError.
        """
        self._client._write(encode_requeue(self._raw_queue, self._raw_id, _natural(ttl, "ttl")))

    def dead_letter(self) -> None:
        """Take it out of its queue for good. Raises ConnectionLost, RequestTimeout."""
        self._client._write(encode_dead_letter(self._raw_queue, self._raw_id))


class _Connection(asyncio.Protocol):
    """Moves bytes between a transport and a decoder; wakes whoever waits for either direction."""

    def __init__(self, limits: Limits) -> None:
        self.decoder = Decoder(limits, FROM_SERVER)
        self.frames: deque[Frame] = deque()
        self.lost: str | None = None
        self._transport: asyncio.Transport | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.frames.extend(self.decoder.feed(data))
        if self.decoder.error is not None:
            self._lose(f"the broker broke the protocol: {self.decoder.error}")
            self.abort()
        self._wake()

    def eof_received(self) -> None:
        self._lose("the broker closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "the connection is closed")
        self._ended.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def check(self) -> None:
        if self.lost is not None:
            raise ConnectionLost(self.lost)

    def write(self, data: bytes) -> None:
        self.check()
        assert self._transport is not None
        self._transport.write(data)

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
            self.check()

    async def arrival(self) -> None:
        """Wait until there is a frame, or raise ConnectionLost."""
        while not self.frames:
            self.check()
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    async def finish(self) -> None:
        """Say that nothing more is sent and wait until the other side has closed."""
        transport = self._transport
        if transport is None or self._ended.is_set():
            return
        self._lose("the client is closed")
        if transport.can_write_eof():
            transport.write_eof()
        else:  # TLS: closing flushes what is queued and tells the peer
            transport.close()
        await self._ended.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class PhpmqClient:
    """One connection to a PHPMQ broker, for asyncio. Made by `connect`.

    Several tasks may send; one at a time may receive.
    """

    def __init__(self, connection: _Connection, timeout: float, generation: int) -> None:
        self._connection = connection
        self._timeout = timeout
        self._generation = generation
        self._queue = b""

    @classmethod
    async def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        generation: int = 2,
        limits: Limits | None = None,
    ) -> Self:
        """Connect to `host` and `port`, or to the unix socket `path`.

        `timeout` (seconds, > 0) bounds connecting, each wait for the broker to take what is sent,
        and closing. `generation` 1 leaves the time to live out of what is sent, for brokers that
        know none. Raises ConnectionLost, RequestTimeout.
        """
        loop = asyncio.get_running_loop()
        connection = _Connection(limits or Limits())
        name = host if ssl_context is not None else None
        try:
            async with asyncio.timeout(timeout):
                if path is not None:
                    await loop.create_unix_connection(
                        lambda: connection, path, ssl=ssl_context, server_hostname=name
                    )
                else:
                    await loop.create_connection(
                        lambda: connection, host, port, ssl=ssl_context, server_hostname=name
                    )
        except TimeoutError:
            raise RequestTimeout(f"no connection to {path or host} in {timeout} s") from None
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {path or f'{host}:{port}'}: {error}"
            ) from error
        return cls(connection, timeout, generation)

    async def send(self, queue: str, body: bytes, ttl: int = 0) -> None:
        """Send a message that lives for `ttl` seconds (0 = for ever).

        Returns when the connection has taken it; the protocol has no confirmation.
        Raises ConnectionLost, RequestTimeout; ValueError for a name or number that has no form
        in the protocol.
        """
        ttl = _natural(ttl, "ttl")
        await self._write(encode_send(_name(queue), body, ttl, generation=self._generation))

    async def subscribe(self, queue: str, window: int = 1) -> None:
        """Let up to `window` unsettled messages be sent here; 0 ends it and gives all back.

        Replaces the subscription before. Messages of the old one that have arrived and have not
        been returned by `receive` are forgotten: the broker has taken them back.
        Raises ConnectionLost, RequestTimeout, ValueError.
        """
        request = encode_consume(_name(queue), _natural(window, "window"))
        self._connection.frames.clear()
        self._queue = _name(queue) if window else b""
        await self._write(request)

    async def receive(self, timeout: float | None = None) -> PhpmqMessage:
        """The next message; waits up to `timeout` seconds (None = for ever).

        Cancellation loses no message. Raises RequestTimeout, ConnectionLost.
        """
        connection = self._connection
        frames = connection.frames
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if not frames:
                        await connection.arrival()
                    frame = frames.popleft()
                    if frame[1] == self._queue:  # else sent before `subscribe` was read
                        return PhpmqMessage(self, frame)
        except TimeoutError:
            raise RequestTimeout(f"no message in {timeout} s") from None

    async def consume(self, queue: str, window: int = 1) -> AsyncIterator[PhpmqMessage]:
        """Subscribe, and give the messages as they come, without end. Raises ConnectionLost."""
        await self.subscribe(queue, window)
        while True:
            yield await self.receive()

    async def close(self) -> None:
        """Send what is queued, and wait until the broker has read it and closed.

        Raises RequestTimeout, when it is not known what the broker received.
        """
        try:
            async with asyncio.timeout(self._timeout):
                await self._connection.finish()
        except TimeoutError:
            self._connection.abort()
            raise RequestTimeout("the broker did not close the connection") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _write(self, data: bytes) -> None:
        connection = self._connection
        connection.write(data)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.drain()
        except TimeoutError:
            raise RequestTimeout(f"the broker takes nothing since {self._timeout} s") from None


class BlockingPhpmqClient:
    """One connection to a PHPMQ broker, for one thread. Made by `connect`."""

    def __init__(
        self, connection: socket.socket, timeout: float, generation: int, limits: Limits
    ) -> None:
        self._socket = connection
        self._timeout = timeout
        self._generation = generation
        self._decoder = Decoder(limits, FROM_SERVER)
        self._frames: deque[Frame] = deque()
        self._queue = b""

    @classmethod
    def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        generation: int = 2,
        limits: Limits | None = None,
    ) -> Self:
        """As PhpmqClient.connect. Raises ConnectionLost, RequestTimeout."""
        where = path or f"{host}:{port}"
        connection: socket.socket | None = None
        try:
            if path is not None:
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(timeout)
                connection.connect(path)
            else:
                connection = socket.create_connection((host, port), timeout)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if ssl_context is not None:
                connection = ssl_context.wrap_socket(connection, server_hostname=host)
        except OSError as error:
            if connection is not None:
                connection.close()
            if isinstance(error, TimeoutError):
                raise RequestTimeout(f"no connection to {where} in {timeout} s") from None
            raise ConnectionLost(f"cannot connect to {where}: {error}") from error
        return cls(connection, timeout, generation, limits or Limits())

    def send(self, queue: str, body: bytes, ttl: int = 0) -> None:
        """As PhpmqClient.send. Raises ConnectionLost, RequestTimeout, ValueError."""
        ttl = _natural(ttl, "ttl")
        self._write(encode_send(_name(queue), body, ttl, generation=self._generation))

    def subscribe(self, queue: str, window: int = 1) -> None:
        """As PhpmqClient.subscribe. Raises ConnectionLost, RequestTimeout, ValueError."""
        request = encode_consume(_name(queue), _natural(window, "window"))
        self._frames.clear()
        self._queue = _name(queue) if window else b""
        self._write(request)

    def receive(self, timeout: float | None = None) -> BlockingPhpmqMessage:
        """The next message; waits up to `timeout` seconds (None = for ever).

        Raises RequestTimeout, after which waiting may go on, and ConnectionLost.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            while not self._frames:
                self._read(until)
            frame = self._frames.popleft()
            if frame[1] == self._queue:  # else sent before `subscribe` was read
                return BlockingPhpmqMessage(self, frame)

    def consume(self, queue: str, window: int = 1) -> Iterator[BlockingPhpmqMessage]:
        """Subscribe, and give the messages as they come, without end. Raises ConnectionLost."""
        self.subscribe(queue, window)
        while True:
            yield self.receive()

    def close(self) -> None:
        """As PhpmqClient.close. Raises RequestTimeout."""
        if self._socket.fileno() < 0:
            return
        until = time.monotonic() + self._timeout
        try:
            self._finish_writing()
            while True:
                self._read(until)
        except (RequestTimeout, TimeoutError):
            raise RequestTimeout("the broker did not close the connection") from None
        except (ConnectionLost, OSError):
            pass
        finally:
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _finish_writing(self) -> None:
        self._socket.settimeout(self._timeout)
        if isinstance(self._socket, ssl.SSLSocket):
            with suppress(ssl.SSLError):
                self._socket = self._socket.unwrap()
        self._socket.shutdown(socket.SHUT_WR)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except TimeoutError:
            # a part of the message may have been sent: nothing can follow it
            self._socket.close()
            raise RequestTimeout(f"the broker takes nothing since {self._timeout} s") from None
        except OSError as error:
            self._socket.close()
            raise ConnectionLost(str(error)) from error

    def _read(self, until: float | None) -> None:
        """Read once. `until` on the monotonic clock."""
        if self._decoder.error is not None:
            raise ConnectionLost(f"the broker broke the protocol: {self._decoder.error}")
        try:
            if until is None:
                self._socket.settimeout(None)
            else:
                # 0 would mean "do not block", which raises BlockingIOError
                self._socket.settimeout(max(0.001, until - time.monotonic()))
            data = self._socket.recv(_READ_SIZE)
        except TimeoutError:
            raise RequestTimeout("no message in the given time") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        self._frames.extend(self._decoder.feed(data))
