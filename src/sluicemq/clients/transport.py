"""Client side of a connection, shared by all protocols.

`ClientTransport` is for asyncio clients, `BlockingConnection` for blocking ones. Both move bytes
between a socket and the decoder of a protocol without interpreting the frames; the `client` module
of a protocol does that. All protocols report failures by the same errors:

    ConnectionLost  the connection cannot be made, breaks, is closed, or violates the protocol
    RequestTimeout  the broker does not accept, read, respond or close in time

A connection is closed in two steps, so that nothing sent before is lost: the client signals that it
sends no more, then waits until the broker has read everything and closes. TCP and Unix sockets have
a half-close for that. TLS has none that leaves the other direction open, so over TLS either the
protocol has a command for it or the connection is closed at once.

All times are seconds; points in time are on the monotonic clock.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from sluicemq.model.errors import ClientError, ConnectionLost, ProtocolError, RequestTimeout

_READ_SIZE = 1 << 18
_SHORTEST_WAIT = 0.001
"""Minimum socket timeout: with 0 the socket would raise BlockingIOError instead of waiting."""

FrameT = TypeVar("FrameT")
ConnectedT = TypeVar("ConnectedT")


class Decoder(Protocol[FrameT]):
    """Decoder of a protocol, as connections use it."""

    @property
    def error(self) -> ProtocolError | None:
        """Protocol violation of the broker; None if there is none."""

    def feed(self, data: bytes) -> list[FrameT]:
        """Return the frames that are complete, those before an error included. Never raises."""


class Backoff(NamedTuple):
    """Delays before reconnecting: `initial` seconds after the connection broke, then doubled up
    to `longest`. After `attempts` failures the client stops trying; 0 = never.
    """

    initial: float = 1.0
    longest: float = 300.0
    attempts: int = 0

    def delay(self, attempt: int) -> float:
        """Return the seconds before attempt 1, 2, …"""
        return min(self.initial * 2.0 ** min(attempt - 1, 60), self.longest)

    async def persist(
        self, connect: Callable[[], Awaitable[ConnectedT]], reason: ClientError
    ) -> ConnectedT:
        """Call `connect` until it succeeds, and return its result.

        Raises ConnectionLost with the last error after the last attempt. `reason` is the error of
        the attempt before the first.
        """
        attempt = 0
        while not self.attempts or attempt < self.attempts:
            attempt += 1
            await asyncio.sleep(self.delay(attempt))
            try:
                return await connect()
            except ClientError as error:
                reason = error
        raise ConnectionLost(f"given up after {attempt} attempts: {reason}")


ALWAYS: Final = Backoff()
"""Reconnects without limit, as the .NET client of VibeMQ does; the default of all protocols."""


# --- asyncio -----------------------------------------------------------------------------------


class ClientTransport(asyncio.Protocol, ABC, Generic[FrameT]):
    """asyncio connection. A protocol's subclass handles its frames and pending requests."""

    def __init__(self, decoder: Decoder[FrameT], timeout: float) -> None:
        """`timeout` > 0 bounds `dial`, the wait in `send`, and `close`."""
        self.timeout = timeout
        self.lost: ClientError | None = None
        """Error that ended the connection; None while it is usable."""
        self._decoder = decoder
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._leaving = False
        self._ended = asyncio.Event()

    async def dial(
        self, host: str, port: int, path: str | None, ssl_context: ssl.SSLContext | None
    ) -> None:
        """Connect to the unix socket `path`, or to `host` and `port`; `host` names the certificate.

        Raises ConnectionLost, RequestTimeout.
        """
        loop = asyncio.get_running_loop()
        name = host if ssl_context is not None else None
        try:
            async with asyncio.timeout(self.timeout):
                if path is not None:
                    await loop.create_unix_connection(
                        lambda: self, path, ssl=ssl_context, server_hostname=name
                    )
                else:
                    await loop.create_connection(
                        lambda: self, host, port, ssl=ssl_context, server_hostname=name
                    )
        except TimeoutError:
            raise RequestTimeout(f"no connection to {path or host} in {self.timeout} s") from None
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {path or f'{host}:{port}'}: {reason_of(error)}"
            ) from error

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))

    def write(self, data: bytes) -> None:
        """Queue bytes, without waiting. Raises as `check`; ConnectionLost after `close`."""
        self.check()
        if self._leaving:
            raise ConnectionLost("the client is closed")
        assert self._transport is not None
        self._transport.write(data)

    async def send(self, data: bytes) -> None:
        """Queue bytes, and wait while too many are queued. Raises as `write`; RequestTimeout."""
        self.write(data)
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self.timeout):
                await self._writable.wait()
        except TimeoutError:
            raise RequestTimeout(f"the broker has accepted no data for {self.timeout} s") from None
        self.check()

    async def close(self) -> None:
        """Send what is queued, and wait until the broker has closed. Raises RequestTimeout."""
        transport = self._transport
        if transport is None or self._ended.is_set():
            return
        self._leaving = True
        self.leave(transport)
        try:
            async with asyncio.timeout(self.timeout):
                await self._ended.wait()
        except TimeoutError:
            self.abort()
            raise RequestTimeout("the broker did not close the connection") from None

    def abort(self) -> None:
        """Drop the connection and what is queued."""
        if self._transport is not None:
            self._transport.abort()

    def lose(self, reason: ClientError) -> None:
        """Mark the connection as unusable. The first reason is kept."""
        if self.lost is None:
            self.lost = reason
        self.release(reason)

    @abstractmethod
    def arrived(self, frames: list[FrameT]) -> None:
        """Handle frames from the broker, in order."""

    @abstractmethod
    def release(self, reason: ClientError) -> None:
        """Fail all pending requests. May be called more than once."""

    @abstractmethod
    def leave(self, transport: asyncio.Transport) -> None:
        """Signal that the client sends no more, so that the broker closes after reading."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.arrived(self._decoder.feed(data))
        if self._decoder.error is not None:
            self.lose(_broken(self._decoder.error))
            self.abort()

    def eof_received(self) -> None:
        self.lose(ConnectionLost("the broker closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = reason_of(exc) if isinstance(exc, OSError) else str(exc or "")
        self.lose(ConnectionLost(reason or "the connection is closed"))
        self._ended.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


class AsyncClient(ABC):
    """asyncio client that its `async with` statement closes."""

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


# --- blocking ----------------------------------------------------------------------------------


def open_socket(
    host: str, port: int, path: str | None, ssl_context: ssl.SSLContext | None, timeout: float
) -> socket.socket:
    """Connect as `ClientTransport.dial` does. Raises ConnectionLost, RequestTimeout."""
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
        raise ConnectionLost(f"cannot connect to {where}: {reason_of(error)}") from error
    return connection


class BlockingConnection(Generic[FrameT]):
    """Blocking connection, for one thread."""

    def __init__(
        self,
        connection: socket.socket,
        decoder: Decoder[FrameT],
        timeout: float,
        *,
        awaited: str,
        quick: bool = False,
    ) -> None:
        """`timeout` > 0 bounds `send` and `close`. `awaited` is the name of a frame in errors.

        `quick` acknowledges TCP segments at once, for servers that write a response in two pieces
        and send the second one only after the first is acknowledged.
        """
        self.timeout = timeout
        self.frames: deque[FrameT] = deque()
        """Received frames that `take` has not returned yet."""
        self._socket = connection
        self._decoder = decoder
        self._awaited = awaited
        self._quick = (
            quick and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK")
        )

    @property
    def closed(self) -> bool:
        """True if this side has closed. `send` and `read` report a close by the broker."""
        return self._socket.fileno() < 0

    def send(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionLost, or RequestTimeout, after which it is closed.

        After ConnectionLost, frames that the broker has sent before can still be read.
        """
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(data)
        except TimeoutError:
            # a part of the data may have been sent, so nothing can follow it
            self.drop()
            raise RequestTimeout(f"the broker has accepted no data for {self.timeout} s") from None
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error

    def take(self, until: float | None) -> FrameT:
        """Return the next frame. Waits and raises as `read`."""
        while not self.frames:
            self.read(until)
        return self.frames.popleft()

    def read(self, until: float | None) -> None:
        """Read once into `frames`. Waits `until` that time, None = without limit.

        Raises RequestTimeout, after which it can be called again, and ConnectionLost.
        """
        if self._decoder.error is not None:
            raise _broken(self._decoder.error)
        try:
            self._socket.settimeout(
                None if until is None else max(_SHORTEST_WAIT, until - time.monotonic())
            )
            data = self._socket.recv(_READ_SIZE)
            if self._quick:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except TimeoutError:
            raise RequestTimeout(f"no {self._awaited} within the timeout") from None
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        self.frames.extend(self._decoder.feed(data))

    def close(self, read: Callable[[float], object], goodbye: bytes = b"") -> None:
        """Send no more, and wait until the broker has closed.

        Calls `read(until)` until then: `self.read`, or a function that checks the frames. `goodbye`
        is the closing command of a protocol that has one. Raises RequestTimeout, and the errors of
        `read` except ConnectionLost, which is the expected end.
        """
        if self.closed:
            return
        until = time.monotonic() + self.timeout
        try:
            self._leave(goodbye)
            while True:
                read(until)
        except (RequestTimeout, TimeoutError):
            raise RequestTimeout("the broker did not close the connection") from None
        except (ConnectionLost, OSError):
            pass
        finally:
            self.drop()

    def _leave(self, goodbye: bytes) -> None:
        self._socket.settimeout(self.timeout)
        if goodbye:
            self._socket.sendall(goodbye)
        if isinstance(self._socket, ssl.SSLSocket):
            if goodbye:  # the broker will close, and its responses still arrive through TLS
                return
            with suppress(ssl.SSLError):
                self._socket = self._socket.unwrap()
        self._socket.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Close at once."""
        self._socket.close()


class BlockingClient(ABC):
    """Blocking client that its `with` statement closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _broken(error: ProtocolError) -> ConnectionLost:
    return ConnectionLost(f"the broker broke the protocol: {error}")


def reason_of(error: OSError) -> str:
    """Return the error in words: OpenSSL's own text has symbols and source positions."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return str(error)
    match error.reason or "":
        case "WRONG_VERSION_NUMBER":
            return "the peer does not speak TLS"
        case "UNEXPECTED_EOF_WHILE_READING":
            return "the broker closed the connection; check that the port uses TLS"
        case "TLSV13_ALERT_CERTIFICATE_REQUIRED":
            return "the broker requires a client certificate"
        case "TLSV1_ALERT_UNKNOWN_CA":
            return "the broker does not trust the client certificate"
        case "":
            return str(error)
        case other:
            return other.replace("_", " ").lower()
