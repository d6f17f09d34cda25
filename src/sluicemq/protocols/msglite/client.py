"""msglite clients: one for asyncio, one that blocks. Public.

    async with await MsgliteClient.connect("127.0.0.1", 9813) as client:
        await client.send("orders", b"one pizza", timeout=3600)
        message = await client.ready("orders", "returns", timeout=30)

    with BlockingMsgliteClient.connect(path="/tmp/msglite.socket") as client:
        reply = client.query("capitals", b"Burkina Faso?", timeout=5)

Timeouts of messages, of `ready` and of `query` are whole seconds and are kept by the broker, which
answers None when one is over. The `timeout` of `connect` is this side's patience with the broker:
for connecting, for each write, for closing, and for how much later than promised an answer comes.

The broker carries out one command of a connection after the other, so a `ready` that waits holds
up all that is sent behind it. Work that must not wait needs a connection of its own.

A call that is cancelled, interrupted or out of patience leaves its command with the broker. If a
message comes in answer to a `ready` that nobody waits for any more, it is kept for the next `ready`
that names its address; a reply to such a query is dropped.

The protocol confirms nothing and answers bad data with an error, after which it closes: that shows
as RequestRefused in the call that waits, in the next one, or in `close`. Messages that have been
sent are known to be accepted when `close` returns.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from math import ceil
from types import TracebackType
from typing import Self, cast

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

DEFAULT_PORT = 9813
_READ_SIZE = 1 << 18


class MsgliteMessage:
    """A message that has been received; the broker has forgotten it.

    address  the one it was sent to; of a query's reply, the reply address
    body     its content
    timeout  seconds, the number its sender gave
    reply_to where the sender wants an answer, or None
    """

    __slots__ = ("address", "body", "reply_to", "timeout")

    def __init__(self, frame: Frame) -> None:
        _, self.timeout, addresses, self.body = frame
        self.address = decode_name(addresses[0])
        self.reply_to = decode_name(addresses[1]) if len(addresses) > 1 else None

    def __repr__(self) -> str:
        return f"<MsgliteMessage to {self.address}, {len(self.body)} bytes>"


def _address(name: str) -> bytes:
    raw = encode_name(name)
    if not is_address(raw):
        raise ValueError(f"{name!r} is no address: it is empty or has white space")
    return raw


def _addresses(names: tuple[str, ...]) -> tuple[bytes, ...]:
    if not 1 <= len(names) <= MAX_ADDRESSES:
        raise ValueError(f"ready takes 1 to {MAX_ADDRESSES} addresses, not {len(names)}")
    return tuple(_address(name) for name in names)


def _seconds(timeout: int) -> int:
    if not 0 <= timeout <= MAX_TIMEOUT:
        raise ValueError(f"a timeout is 0 to {MAX_TIMEOUT} seconds, not {timeout}")
    return timeout


def _message_command(address: str, body: bytes, timeout: int, reply_to: str | None) -> bytes:
    reply = b"" if reply_to is None else _address(reply_to)
    return encode_message(_seconds(timeout), _address(address), body, reply)


class _Kept:
    """Messages that came in answer to a ready nobody waited for any more."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[MsgliteMessage] = deque()

    def add(self, message: MsgliteMessage) -> None:
        self._messages.append(message)

    def take(self, names: tuple[str, ...]) -> MsgliteMessage | None:
        for message in self._messages:
            if message.address in names:
                self._messages.remove(message)
                return message
        return None


class _Request:
    """A command the broker owes an answer to. `names` are a ready's addresses, () of a query."""

    __slots__ = ("answer", "names")

    def __init__(self, names: tuple[str, ...], answer: asyncio.Future[MsgliteMessage | None]):
        self.names = names
        self.answer = answer


class _Connection(asyncio.Protocol):
    """Gives each answer to the request it belongs to: they come in the order of the requests."""

    def __init__(self, limits: Limits) -> None:
        self.requests: deque[_Request] = deque()
        self.kept = _Kept()
        self.lost: ClientError | None = None
        self._decoder = Decoder(limits, FROM_SERVER)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if frame[0] == ERROR:
                self._lose(RequestRefused(frame[3].decode("utf-8", "replace")))
            elif not self.requests:
                self._lose(ConnectionLost("the broker answered what was not asked"))
                self.abort()
            else:
                self._answer(
                    self.requests.popleft(), MsgliteMessage(frame) if frame[0] == MESSAGE else None
                )
        if self._decoder.error is not None:
            self._lose(ConnectionLost(f"the broker broke the protocol: {self._decoder.error}"))
            self.abort()

    def _answer(self, request: _Request, message: MsgliteMessage | None) -> None:
        if not request.answer.done():
            request.answer.set_result(message)
        elif message is not None and request.names:
            self.kept.add(message)

    def eof_received(self) -> None:
        self._lose(ConnectionLost("the broker closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionLost(str(exc) if exc else "the connection is closed"))
        self._ended.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _lose(self, reason: ClientError) -> None:
        if self.lost is None:
            self.lost = reason
        for request in self.requests:
            if not request.answer.done():
                request.answer.set_exception(type(reason)(str(reason)))
        self.requests.clear()

    def check(self) -> None:
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))

    def write(self, data: bytes) -> None:
        self.check()
        assert self._transport is not None
        self._transport.write(data)

    async def drain(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
            self.check()

    async def finish(self) -> None:
        """Quit, and wait until the broker has carried out everything and closed."""
        transport = self._transport
        if transport is None or self._ended.is_set():
            return
        known = self.lost
        if known is None:
            transport.write(QUIT_LINE)
            if transport.can_write_eof():
                transport.write_eof()  # ends a ready that nobody waits for any more
            elif self.requests:  # TLS has no half-close, and the quit would wait behind it
                transport.close()
        await self._ended.wait()
        if known is None and isinstance(self.lost, RequestRefused):
            self.check()
        self.lost = self.lost or ConnectionLost("the client is closed")

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class MsgliteClient:
    """One connection to a msglite broker, for asyncio. Made by `connect`.

    Several tasks may use it; their commands are carried out in the order of the calls.
    """

    def __init__(self, connection: _Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._free_at = 0.0
        """When the broker will have answered everything asked so far, at the latest."""

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

        `timeout` in seconds, > 0: see the module. Raises ConnectionLost, RequestTimeout.
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
        return cls(connection, timeout)

    async def send(
        self, address: str, body: bytes, timeout: int, reply_to: str | None = None
    ) -> None:
        """Send a message that waits up to `timeout` seconds for a receiver.

        With 0 it is for somebody who waits already, or nobody. Returns when the connection has
        taken it; the protocol has no confirmation. Raises ConnectionLost, RequestRefused,
        RequestTimeout; ValueError for what has no form in the protocol.
        """
        await self._write(_message_command(address, body, timeout, reply_to))

    async def ready(self, *addresses: str, timeout: int) -> MsgliteMessage | None:
        """One message from the first of 1 to 8 addresses that has one.

        Waits up to `timeout` seconds, 0 = not at all; None if none came. Cancellation loses no
        message: see the module. Raises as `send`.
        """
        raw = _addresses(addresses)
        command = encode_ready(_seconds(timeout), raw)
        connection = self._connection
        message = connection.kept.take(addresses)
        if message is not None:
            return message
        until = time.monotonic() + timeout
        for request in connection.requests:
            # the command of a cancelled call still waits: its answer may as well be ours
            if request.answer.cancelled() and request.names == addresses:
                request.answer = asyncio.get_running_loop().create_future()
                message = await self._wait(request)
                left = ceil(until - time.monotonic())
                if message is not None or left <= 0:
                    return message
                command = encode_ready(left, raw)
                timeout = left
                break
        return await self._ask(command, timeout, addresses)

    async def query(self, address: str, body: bytes, timeout: int) -> MsgliteMessage | None:
        """Send a message and wait up to `timeout` seconds for the reply; None if none came.

        Raises as `send`.
        """
        command = encode_query(_seconds(timeout), _address(address), body)
        return await self._ask(command, timeout, ())

    async def close(self) -> None:
        """Send what is queued, and wait until the broker has carried it out and closed.

        Raises RequestRefused if the broker took exception to something sent before, and
        RequestTimeout, when it is not known what the broker received.
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

    async def _ask(
        self, command: bytes, timeout: int, names: tuple[str, ...]
    ) -> MsgliteMessage | None:
        connection = self._connection
        connection.write(command)
        request = _Request(names, asyncio.get_running_loop().create_future())
        connection.requests.append(request)
        self._free_at = max(self._free_at, time.monotonic()) + timeout
        return await self._wait(request)

    async def _wait(self, request: _Request) -> MsgliteMessage | None:
        patience = max(0.0, self._free_at - time.monotonic()) + self._timeout
        answer = request.answer
        try:
            async with asyncio.timeout(patience):
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"no answer in {patience:.0f} s") from None
        except asyncio.CancelledError:
            # cancelled together with the message's arrival: it belongs to the next ready
            if answer.done() and not answer.cancelled() and request.names:
                message = None if answer.exception() else answer.result()
                if message is not None:
                    self._connection.kept.add(message)
            raise

    async def _write(self, data: bytes) -> None:
        connection = self._connection
        connection.write(data)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.drain()
        except TimeoutError:
            raise RequestTimeout(f"the broker takes nothing since {self._timeout} s") from None


class BlockingMsgliteClient:
    """One connection to a msglite broker, for one thread. Made by `connect`."""

    def __init__(self, connection: socket.socket, timeout: float, limits: Limits) -> None:
        self._socket = connection
        self._quick = connection.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK")
        self._timeout = timeout
        self._decoder = Decoder(limits, FROM_SERVER)
        self._frames: deque[Frame] = deque()
        self._owed: deque[tuple[str, ...]] = deque()
        """The addresses of each ready that is not answered yet, () for a query."""
        self._kept = _Kept()

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
        return cls(connection, timeout, limits or Limits())

    def send(self, address: str, body: bytes, timeout: int, reply_to: str | None = None) -> None:
        """As MsgliteClient.send. Raises ConnectionLost, RequestTimeout, ValueError."""
        self._write(_message_command(address, body, timeout, reply_to))

    def ready(self, *addresses: str, timeout: int) -> MsgliteMessage | None:
        """As MsgliteClient.ready. Raises as `query`."""
        command = encode_ready(_seconds(timeout), _addresses(addresses))
        message = self._kept.take(addresses)
        return message or self._ask(command, timeout, addresses)

    def query(self, address: str, body: bytes, timeout: int) -> MsgliteMessage | None:
        """As MsgliteClient.query.

        Raises ConnectionLost, RequestRefused, RequestTimeout, ValueError.
        """
        command = encode_query(_seconds(timeout), _address(address), body)
        return self._ask(command, timeout, ())

    def close(self) -> None:
        """As MsgliteClient.close. Raises RequestRefused, RequestTimeout."""
        if self._socket.fileno() < 0:
            return
        until = time.monotonic() + self._timeout
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(QUIT_LINE)
            if not isinstance(self._socket, ssl.SSLSocket):
                self._socket.shutdown(socket.SHUT_WR)
            while True:
                self._frame(until)
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

    def _ask(self, command: bytes, timeout: int, names: tuple[str, ...]) -> MsgliteMessage | None:
        if self._frames and not self._owed:
            self._frame(0)
            self._socket.close()
            raise ConnectionLost("the broker answered what was not asked")
        self._write(command)
        self._owed.append(names)
        until = time.monotonic() + timeout + self._timeout
        while True:
            frame = self._frame(until)
            asked = self._owed.popleft()
            message = MsgliteMessage(frame) if frame[0] == MESSAGE else None
            if not self._owed:
                return message
            if message is not None and asked:  # the answer to a call that was interrupted
                self._kept.add(message)

    def _frame(self, until: float) -> Frame:
        """The next answer. `until` on the monotonic clock."""
        while not self._frames:
            self._read(until)
        frame = self._frames.popleft()
        if frame[0] == ERROR:
            self._socket.close()
            raise RequestRefused(frame[3].decode("utf-8", "replace"))
        return frame

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except TimeoutError:
            # a part of the command may have been sent: nothing can follow it
            self._socket.close()
            raise RequestTimeout(f"the broker takes nothing since {self._timeout} s") from None
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """Writing failed. If the broker has said why, that is the better error."""
        try:
            while self._socket.fileno() >= 0:
                self._frame(time.monotonic() + self._timeout)
        except (ConnectionLost, RequestTimeout):
            pass
        finally:
            self._socket.close()
        raise ConnectionLost(str(error)) from error

    def _read(self, until: float) -> None:
        """Read once. `until` on the monotonic clock."""
        if self._decoder.error is not None:
            raise ConnectionLost(f"the broker broke the protocol: {self._decoder.error}")
        try:
            # 0 would mean "do not block", which raises BlockingIOError
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            data = self._socket.recv(_READ_SIZE)
            if self._quick:
                # another program's server may write an answer in two pieces
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except TimeoutError:
            raise RequestTimeout("no answer in the given time") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        self._frames.extend(self._decoder.feed(data))
