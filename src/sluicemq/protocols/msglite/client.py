"""msglite clients: one for asyncio, one that blocks. Public.

    async with await MsgliteClient.connect("127.0.0.1", 9813) as client:
        await client.send("jobs", b"one pizza", 60)
        message = await client.ready("jobs", "urgent", timeout=30)     # None if nothing came
        reply = await client.query("oven", b"temperature?", 5)         # None if nobody answered

    with BlockingMsgliteClient.connect(path="/tmp/msglite.socket") as client:
        while (request := client.ready("oven", timeout=60)) is None:
            pass
        client.send(request.reply_to, b"220", 5)

Timeouts are whole seconds, 0 or more: how long a message waits for somebody who is ready, and how
long a client is ready. Messages with 0 reach only those who wait already; with 0, `ready` takes
what is there and does not wait.

The protocol confirms nothing. `close` waits until the broker has carried out everything and closed
the connection; only after that is it certain that the last message was accepted. Delivery is at
most once: a message that `ready` returned is gone from the broker.

What these clients raise: ConnectionLost, the connection cannot be made or broke; RequestRefused,
the broker answered with an error, which always ends the connection; RequestTimeout, the broker did
not answer although it should have. An address without a form in the protocol is a ValueError.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from math import ceil
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

from sluicemq.model.destination import decode_name, encode_name
from sluicemq.model.errors import ClientError, ConnectionLost, RequestRefused, RequestTimeout
from sluicemq.protocols.msglite.wire import (
    ERROR,
    FROM_SERVER,
    MAX_ADDRESSES,
    MAX_TIMEOUT,
    MESSAGE,
    QUIT_LINE,
    Decoder,
    Frame,
    Limits,
    encode_message,
    encode_query,
    encode_ready,
    is_address,
)

DEFAULT_PORT: Final = 9813
_READ_SIZE: Final = 1 << 18
_LONGEST_WAIT: Final = 86_400.0
"""Seconds that sockets and event loops can surely wait; a longer wait is several of these."""
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)

_Names = tuple[bytes, ...]


class MsgliteMessage(NamedTuple):
    """A message as it came.

    address   the address that it was sent to: of several, which one had it
    body      its content
    timeout   seconds its sender gave it, not what is left
    reply_to  where an answer is expected, or None
    """

    address: str
    body: bytes
    timeout: int
    reply_to: str | None


def _name(address: str) -> bytes:
    raw = encode_name(address)
    if not is_address(raw):
        raise ValueError(f"an address is not empty and has no white space: {address!r}")
    return raw


def _names(addresses: tuple[str, ...]) -> _Names:
    if not 1 <= len(addresses) <= MAX_ADDRESSES:
        raise ValueError(f"one is ready on 1 to {MAX_ADDRESSES} addresses, not {len(addresses)}")
    return tuple(_name(address) for address in addresses)


def _seconds(timeout: int) -> int:
    if not 0 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"a timeout is 0 to {MAX_TIMEOUT} seconds, not {timeout}")
    return timeout


def _message(address: str, body: bytes, timeout: int, reply_to: str | None) -> bytes:
    reply = b"" if reply_to is None else _name(reply_to)
    return encode_message(_seconds(timeout), _name(address), body, reply)


def _received(frame: Frame) -> MsgliteMessage | None:
    """The message, or None for a time-out. Raises RequestRefused."""
    kind, timeout, addresses, body = frame
    if kind == ERROR:
        raise RequestRefused(body.decode("utf-8", "backslashreplace"))
    if kind != MESSAGE:
        return None
    reply = decode_name(addresses[1]) if len(addresses) > 1 else None
    return MsgliteMessage(decode_name(addresses[0]), body, timeout, reply)


class _Endpoint(NamedTuple):
    """Where a client connects, and how. `timeout` in seconds."""

    host: str
    port: int
    path: str | None
    ssl_context: ssl.SSLContext | None
    timeout: float
    limits: Limits

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


class _Connection(asyncio.Protocol):
    """Moves bytes between a transport and a decoder; wakes whoever waits for either direction."""

    def __init__(self, limits: Limits) -> None:
        self.decoder = Decoder(limits, FROM_SERVER)
        self.frames: deque[Frame] = deque()
        self.lost: str | None = None
        self.reported = False
        """The user has been told that it is lost."""
        self._transport: asyncio.Transport | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

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

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _lose(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
        self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def check(self) -> None:
        """Raise RequestRefused or ConnectionLost if there is no use in going on."""
        if self.frames and self.frames[0][0] == ERROR:
            self.reported = True
            _received(self.frames.popleft())
        if self.lost is not None:
            self.reported = True
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

    def end_writing(self) -> None:
        """Say that nothing more will be sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        else:  # TLS: closing sends what is queued and tells the peer
            transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def _dial(to: _Endpoint) -> _Connection:
    """Raises ConnectionLost, RequestTimeout."""
    loop = asyncio.get_running_loop()
    connection = _Connection(to.limits)
    name = to.host if to.ssl_context is not None else None
    try:
        async with asyncio.timeout(to.timeout):
            if to.path is not None:
                await loop.create_unix_connection(
                    lambda: connection, to.path, ssl=to.ssl_context, server_hostname=name
                )
            else:
                await loop.create_connection(
                    lambda: connection, to.host, to.port, ssl=to.ssl_context, server_hostname=name
                )
    except TimeoutError:
        raise RequestTimeout(f"no connection to {to} in {to.timeout} s") from None
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {to}: {error}") from error
    return connection


class MsgliteClient:
    """One connection to a msglite broker, for asyncio. Made by `connect`.

    Several tasks may use it; their calls are carried out one after the other, as the protocol
    demands, so one that waits in `ready` or `query` holds up the others.

    Cancelling `ready` loses no message. The broker still takes the connection for ready, and the
    next `ready` on the same addresses goes on waiting for its answer. Any other call first calls
    it off, which needs a new connection; a message that was already on its way then is kept for the
    next `ready` that names its address, and sent back by `close`. Over TLS, which cannot be closed
    in one direction, such a message is lost. A reply to a cancelled `query` is dropped.
    """

    def __init__(self, endpoint: _Endpoint, connection: _Connection) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._lock = asyncio.Lock()
        self._outstanding: _Names | None = None
        """Addresses of a cancelled `ready`, () for a cancelled `query`; None if all is answered."""
        self._kept: list[MsgliteMessage] = []
        self._closed = False

    @classmethod
    async def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        limits: Limits | None = None,
    ) -> Self:
        """Connect to `host` and `port`, or to the unix socket `path`.

        `timeout` (seconds, > 0) bounds connecting, each wait for the broker to take what is sent,
        the delay of its answers, and closing. Raises ConnectionLost, RequestTimeout.
        """
        endpoint = _Endpoint(host, port, path, ssl_context, timeout, limits or Limits())
        return cls(endpoint, await _dial(endpoint))

    async def send(
        self, address: str, body: bytes, timeout: int, reply_to: str | None = None
    ) -> None:
        """Send a message that waits for `timeout` seconds at most.

        Returns when the connection has taken it. Raises ConnectionLost, RequestRefused (which
        may be about an earlier message), RequestTimeout, ValueError.
        """
        data = _message(address, body, timeout, reply_to)
        async with self._lock:
            await self._call_off()
            await self._write(data)

    async def ready(self, *addresses: str, timeout: int) -> MsgliteMessage | None:
        """One message from the first of 1 to 8 addresses that has one, or None in `timeout` s.

        Raises ConnectionLost, RequestRefused, RequestTimeout, ValueError.
        """
        names = _names(addresses)
        left: float = _seconds(timeout)
        async with self._lock:
            for place, message in enumerate(self._kept):
                if message.address in addresses:
                    return self._kept.pop(place)
            if self._outstanding == names:
                started = time.monotonic()
                try:
                    async with asyncio.timeout(min(left, _LONGEST_WAIT)):
                        message_or_none = await self._answer(names)
                except TimeoutError:
                    return None
                left -= time.monotonic() - started
                if message_or_none is not None or left <= 0:
                    return message_or_none
            await self._call_off()
            return await self._request(encode_ready(ceil(left), names), names, left)

    async def query(self, address: str, body: bytes, timeout: int) -> MsgliteMessage | None:
        """Send a message and wait for the reply to it; None if there is none in `timeout` s.

        Raises ConnectionLost, RequestRefused, RequestTimeout, ValueError.
        """
        data = encode_query(_seconds(timeout), _name(address), body)
        async with self._lock:
            await self._call_off()
            return await self._request(data, (), timeout)

    async def close(self) -> None:
        """Wait until the broker has carried out everything and closed the connection.

        Raises RequestRefused if it refused something, ConnectionLost if the connection broke
        before, and RequestTimeout: then it is not known what the broker accepted.
        """
        async with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                async with asyncio.timeout(self._endpoint.timeout):
                    await self._finish()
            except TimeoutError:
                raise RequestTimeout("the broker did not close the connection") from None
            finally:
                self._connection.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except ClientError:
            if kind is None:
                raise

    async def _finish(self) -> None:
        await self._call_off()
        connection = self._connection
        if connection.reported:
            return
        for message in self._kept:
            connection.write(_message(*message))
        connection.write(QUIT_LINE)
        await self._drain_frames(connection)

    async def _request(self, data: bytes, key: _Names, timeout: float) -> MsgliteMessage | None:
        self._outstanding = key
        await self._write(data)
        limit = timeout + self._endpoint.timeout
        until = time.monotonic() + limit
        while True:
            try:
                async with asyncio.timeout(min(until - time.monotonic(), _LONGEST_WAIT)):
                    return await self._answer(key)
            except TimeoutError:
                if time.monotonic() >= until:
                    self._connection.abort()
                    raise RequestTimeout(f"no answer in {limit} s") from None

    async def _answer(self, key: _Names) -> MsgliteMessage | None:
        """The answer to the outstanding request. Cancelled, it stays outstanding."""
        connection = self._connection
        await connection.arrival()
        connection.check()  # an error is the last that comes
        self._outstanding = None
        return _received(connection.frames.popleft())

    async def _write(self, data: bytes) -> None:
        connection = self._connection
        connection.write(data)
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                await connection.drain()
        except TimeoutError:
            connection.abort()
            raise RequestTimeout(
                f"the broker takes nothing since {self._endpoint.timeout} s"
            ) from None

    async def _call_off(self) -> None:
        """End a cancelled request, if there is one, and begin again with a new connection."""
        if self._outstanding is None:
            return
        connection = self._connection
        connection.end_writing()
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                await self._drain_frames(connection)
        except (TimeoutError, ConnectionLost):
            connection.abort()
        # the request was answered, or died with its connection
        self._outstanding = None
        self._connection = await _dial(self._endpoint)

    async def _drain_frames(self, connection: _Connection) -> None:
        """Read until the broker has closed. Raises RequestRefused."""
        while connection.frames or connection.lost is None:
            try:
                await connection.arrival()
            except ConnectionLost:
                break
            message = _received(connection.frames.popleft())
            if message is not None and self._outstanding:
                self._kept.append(message)


class BlockingMsgliteClient:
    """One connection to a msglite broker, for one thread. Made by `connect`.

    A call that ends with an exception other than ValueError ends the connection too.
    """

    def __init__(self, endpoint: _Endpoint, connection: socket.socket) -> None:
        self._socket = connection
        self._timeout = endpoint.timeout
        self._decoder = Decoder(endpoint.limits, FROM_SERVER)
        self._frames: deque[Frame] = deque()
        self._quick_ack = (
            _QUICKACK if connection.family in (socket.AF_INET, socket.AF_INET6) else None
        )

    @classmethod
    def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        limits: Limits | None = None,
    ) -> Self:
        """As MsgliteClient.connect. Raises ConnectionLost, RequestTimeout."""
        endpoint = _Endpoint(host, port, path, ssl_context, timeout, limits or Limits())
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
                raise RequestTimeout(f"no connection to {endpoint} in {timeout} s") from None
            raise ConnectionLost(f"cannot connect to {endpoint}: {error}") from error
        return cls(endpoint, connection)

    def send(self, address: str, body: bytes, timeout: int, reply_to: str | None = None) -> None:
        """As MsgliteClient.send. Raises ConnectionLost, RequestRefused, RequestTimeout."""
        self._write(_message(address, body, timeout, reply_to))

    def ready(self, *addresses: str, timeout: int) -> MsgliteMessage | None:
        """As MsgliteClient.ready. Raises ConnectionLost, RequestRefused, RequestTimeout."""
        return self._request(encode_ready(_seconds(timeout), _names(addresses)), timeout)

    def query(self, address: str, body: bytes, timeout: int) -> MsgliteMessage | None:
        """As MsgliteClient.query. Raises ConnectionLost, RequestRefused, RequestTimeout."""
        return self._request(encode_query(_seconds(timeout), _name(address), body), timeout)

    def close(self) -> None:
        """As MsgliteClient.close. Raises ConnectionLost, RequestRefused, RequestTimeout."""
        if self._socket.fileno() < 0:
            return
        try:
            self._write(QUIT_LINE)
            until = time.monotonic() + self._timeout
            while self._read(until):
                pass
            for frame in self._frames:
                _received(frame)
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
        try:
            self.close()
        except ClientError:
            if kind is None:
                raise

    def _request(self, data: bytes, timeout: int) -> MsgliteMessage | None:
        self._write(data)
        until = time.monotonic() + timeout + self._timeout
        try:
            while not self._frames:
                if not self._read(until):
                    raise ConnectionLost("the broker closed the connection")
            return _received(self._frames.popleft())
        except BaseException:
            # an answer that comes later would be taken for that to the next request
            self._socket.close()
            raise

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except TimeoutError:
            # a part of the command may have been sent: nothing can follow it
            self._socket.close()
            raise RequestTimeout(f"the broker takes nothing since {self._timeout} s") from None
        except OSError as error:
            self._refused()
            self._socket.close()
            raise ConnectionLost(str(error)) from error

    def _refused(self) -> None:
        """Raise RequestRefused if the broker has said why it closed the connection."""
        try:
            while self._read(time.monotonic()):
                pass
        except ClientError:
            pass
        error = next((frame for frame in self._frames if frame[0] == ERROR), None)
        if error is not None:
            self._socket.close()
            _received(error)

    def _read(self, until: float) -> bool:
        """Read once; False at the end. `until` on the monotonic clock."""
        while True:
            left = until - time.monotonic()
            try:
                # 0 would mean "do not block", which raises BlockingIOError
                self._socket.settimeout(min(max(0.001, left), _LONGEST_WAIT))
                data = self._socket.recv(_READ_SIZE)
                if self._quick_ack is not None:
                    self._socket.setsockopt(socket.IPPROTO_TCP, self._quick_ack, 1)
                break
            except TimeoutError:
                if time.monotonic() >= until:
                    raise RequestTimeout("no answer in the given time") from None
            except OSError as error:
                raise ConnectionLost(str(error)) from error
        self._frames.extend(self._decoder.feed(data))
        if self._decoder.error is not None:
            raise ConnectionLost(f"the broker broke the protocol: {self._decoder.error}")
        return bool(data)
