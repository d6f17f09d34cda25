"""A client's end of a connection, the same for every protocol.

`Connection` serves the clients for asyncio, `BlockingConnection` those that block. Both move bytes
between a socket and the decoder of a protocol and know nothing of what the frames mean; a room's
`client` gives them their meaning. What goes wrong shows in the same errors everywhere:

    ConnectionLost  the connection cannot be made, breaks, is closed, or does not keep the protocol
    RequestTimeout  the broker does not accept, read, answer or close in time

Ending a connection takes two steps, so that nothing sent before is lost: this side says that it
sends no more, then waits until the broker, having read everything, closes. TCP and unix sockets
have the half-close for that. TLS has none that leaves the other direction open, so over TLS either
the protocol has a word for it or the connection is closed at once.

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
"""As a socket's timeout 0 would mean "do not block", which raises BlockingIOError."""

FrameT = TypeVar("FrameT")
ConnectedT = TypeVar("ConnectedT")


class Decoder(Protocol[FrameT]):
    """What is asked of a protocol's decoder."""

    @property
    def error(self) -> ProtocolError | None:
        """How the broker broke the protocol, None while it has not."""

    def feed(self, data: bytes) -> list[FrameT]:
        """The frames that are complete now, those before an error included. Never raises."""


class Backoff(NamedTuple):
    """When to connect again: `initial` seconds after the connection broke, then twice as long
    each time, but never longer than `longest`. After `attempts` without success it is given up;
    0 = never.
    """

    initial: float = 1.0
    longest: float = 300.0
    attempts: int = 0

    def delay(self, attempt: int) -> float:
        """Seconds before attempt 1, 2, …"""
        return min(self.initial * 2.0 ** min(attempt - 1, 60), self.longest)

    async def persist(
        self, connect: Callable[[], Awaitable[ConnectedT]], reason: ClientError
    ) -> ConnectedT:
        """What `connect` returns, once it does not raise ClientError. Raises ConnectionLost when it
        is given up, with the last error; `reason` is that of an attempt before the first."""
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
"""As the .NET client of VibeMQ does it, for every protocol."""


# --- asyncio -----------------------------------------------------------------------------------


class Connection(asyncio.Protocol, ABC, Generic[FrameT]):
    """A connection for asyncio. A room says what to do with frames, and with those who wait."""

    def __init__(self, decoder: Decoder[FrameT], timeout: float) -> None:
        """`timeout` > 0 bounds `dial`, the wait in `send`, and `close`."""
        self.timeout = timeout
        self.lost: ClientError | None = None
        """Why nothing can be sent any more; None while it can."""
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
        """Raises what `lost` says."""
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
            raise RequestTimeout(f"the broker takes nothing since {self.timeout} s") from None
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
        """Nothing can be sent any more. The first reason stays the one that is told."""
        if self.lost is None:
            self.lost = reason
        self.release(reason)

    @abstractmethod
    def arrived(self, frames: list[FrameT]) -> None:
        """Frames from the broker, in order."""

    @abstractmethod
    def release(self, reason: ClientError) -> None:
        """Wake those who wait for what cannot come any more. Called once or more often."""

    @abstractmethod
    def leave(self, transport: asyncio.Transport) -> None:
        """Say that nothing more is sent, so that the broker closes when it has read it all."""

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
    """A client for asyncio that is closed by the end of its `async with`."""

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
    """Connect as Connection.dial does. Raises ConnectionLost, RequestTimeout."""
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
    """A connection for one thread."""

    def __init__(
        self,
        connection: socket.socket,
        decoder: Decoder[FrameT],
        timeout: float,
        *,
        awaited: str,
        quick: bool = False,
    ) -> None:
        """`timeout` > 0 bounds `send` and `close`. `awaited` is what errors call a frame.

        `quick` confirms TCP segments at once, for servers that write an answer in two pieces and
        keep the second one back until the first is confirmed.
        """
        self.timeout = timeout
        self.frames: deque[FrameT] = deque()
        """What has arrived and has not been taken by `take`."""
        self._socket = connection
        self._decoder = decoder
        self._awaited = awaited
        self._quick = (
            quick and connection.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK")
        )

    @property
    def closed(self) -> bool:
        """Whether this side has closed; that the broker has shows in reading and writing."""
        return self._socket.fileno() < 0

    def send(self, data: bytes) -> None:
        """Raises RequestTimeout, after which it is closed, and ConnectionLost.

        After ConnectionLost what the broker has said before can still be read.
        """
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(data)
        except TimeoutError:
            # a part of the data may have been sent: nothing can follow it
            self.drop()
            raise RequestTimeout(f"the broker takes nothing since {self.timeout} s") from None
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error

    def take(self, until: float | None) -> FrameT:
        """The next frame. Waits and raises as `read`."""
        while not self.frames:
            self.read(until)
        return self.frames.popleft()

    def read(self, until: float | None) -> None:
        """Read once into `frames`; wait `until` then, None = for ever.

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
            raise RequestTimeout(f"no {self._awaited} in the given time") from None
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        self.frames.extend(self._decoder.feed(data))

    def close(self, read: Callable[[float], object], goodbye: bytes = b"") -> None:
        """Send no more, and wait until the broker has closed.

        `read(until)` is called until then, `self.read` or one that looks at what comes. `goodbye`
        is the word of a protocol that has one. Raises RequestTimeout, and what `read` raises
        other than ConnectionLost, which is what it should end in.
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
            if goodbye:  # the broker knows, and its answers still come through TLS
                return
            with suppress(ssl.SSLError):
                self._socket = self._socket.unwrap()
        self._socket.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Close, without waiting for anything."""
        self._socket.close()


class BlockingClient(ABC):
    """A client that blocks and is closed by the end of its `with`."""

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
    """What went wrong, in words; OpenSSL's own are names and places in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        return str(error)
    match error.reason or "":
        case "WRONG_VERSION_NUMBER":
            return "what answers does not speak TLS"
        case "UNEXPECTED_EOF_WHILE_READING":
            return "the broker closed the connection; does it speak TLS there?"
        case "TLSV13_ALERT_CERTIFICATE_REQUIRED":
            return "the broker wants a client certificate"
        case "TLSV1_ALERT_UNKNOWN_CA":
            return "the broker does not trust the client certificate"
        case "":
            return str(error)
        case other:
            return other.replace("_", " ").lower()
