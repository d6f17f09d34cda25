"""Client side of a connection, shared by all protocols.

`ClientTransport` moves bytes between a socket and the decoder of a protocol without interpreting
the frames; the client of the protocol does that. All protocols report failures by the same errors:

    ConnectionLost  the connection cannot be made, breaks, is closed, or violates the protocol
    RequestTimeout  the broker does not accept, read, respond or close in time

`RequestTransport` is for protocols whose responses name their request: it passes each response to
the receiver that expects it. `Confirmations` collects the results of pipelined requests, whose
responses are awaited together. A request that fails because of its connection has that error as its
response.

`ReconnectingClient` is the base of clients that reconnect when their connection breaks.

A connection is closed in two steps, so that nothing sent before is lost: the client signals that it
sends no more, then waits until the broker has read everything and closes. TCP and Unix sockets have
a half-close for that. TLS has none that leaves the other direction open, so over TLS either a
command or a message of the protocol has this effect or the connection is closed at once.

All times are seconds.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from sluicemq.clients.urls import Target, reason_of
from sluicemq.model.errors import (
    ClientError,
    ConfigurationError,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
)

FrameT = TypeVar("FrameT")
ConnectionT = TypeVar("ConnectionT", bound="ClientTransport[Any]")
TargetT = TypeVar("TargetT", bound=Target)
ResponseT = TypeVar("ResponseT")
HolderT = TypeVar("HolderT")


class Decoder(Protocol[FrameT]):
    """Decoder of a protocol, as connections use it."""

    @property
    def error(self) -> ProtocolError | None:
        """Protocol violation of the broker; None if there is none."""

    def feed(self, data: bytes) -> list[FrameT]:
        """Return the frames that are complete, those before an error included. Never raises."""


@asynccontextmanager
async def time_limit(
    seconds: float | None, error_text: str | Callable[[], str]
) -> AsyncIterator[None]:
    """Limit the time of the statements in the context; None = no limit.

    Raises RequestTimeout with the text `error_text`, or the one that it returns at the end.
    """
    await raise_cancellation()
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        text = error_text if isinstance(error_text, str) else error_text()
        raise RequestTimeout(text) from None


async def raise_cancellation() -> None:
    """Raise a cancellation of this task that has not been raised yet: an `asyncio.timeout` that
    expires at once would replace it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def copy_error(error: ClientError) -> ClientError:
    """Return a new error like one that other callers have raised, without their traceback."""
    return type(error)(str(error))


def fail(future: asyncio.Future[Any], error: ClientError) -> None:
    """Fail a future with an error, unless it is done. asyncio logs nothing if no caller awaits it
    any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def protocol_violation(description: object) -> ConnectionLost:
    """Return the error for a broker that violates the protocol."""
    return ConnectionLost(f"the broker broke the protocol: {description}")


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


ALWAYS: Final = Backoff()
"""Reconnects without limit, as the .NET client of VibeMQ does; the default of all protocols."""


class ClientTransport(asyncio.Protocol, ABC, Generic[FrameT]):
    """asyncio connection. A protocol's subclass handles its frames and pending requests."""

    def __init__(self, decoder: Decoder[FrameT], timeout: float) -> None:
        """`timeout` > 0 bounds `dial`, the wait in `send`, and `close`."""
        self.timeout = timeout
        self.failure: ClientError | None = None
        """Error that ended the connection; None while it is usable."""
        self.forbids_reconnect = False
        """True if the broker will accept no other connection."""
        self.reset: ConnectionLost | None = None
        """Error of a connection that did not end in order; None until then."""
        self._decoder = decoder
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_closing = False
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
            async with time_limit(
                self.timeout, f"no connection to {path or host} in {self.timeout} s"
            ):
                if path is not None:
                    await loop.create_unix_connection(
                        lambda: self, path, ssl=ssl_context, server_hostname=name
                    )
                else:
                    await loop.create_connection(
                        lambda: self, host, port, ssl=ssl_context, server_hostname=name
                    )
        except OSError as error:
            raise ConnectionLost(
                f"cannot connect to {path or f'{host}:{port}'}: {reason_of(error)}"
            ) from error

    def check(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self.failure is not None:
            raise copy_error(self.failure)

    def write(self, data: bytes) -> None:
        """Queue bytes, without waiting. Raises as `check`; ConnectionLost after `close`."""
        self.check()
        if self._is_closing:
            raise ConnectionLost("the client is closed")
        assert self._transport is not None
        self._transport.write(data)

    async def send(self, data: bytes) -> None:
        """Queue bytes, and wait while too many are queued. Raises as `write`; RequestTimeout."""
        self.write(data)
        if not self._writable.is_set():
            await self.drain()

    async def drain(self) -> None:
        """Wait while too many bytes are queued. Raises as `check`; RequestTimeout if none of them
        are accepted in time."""
        assert self._transport is not None
        while not self._writable.is_set():
            queued = self._transport.get_write_buffer_size()
            try:
                async with asyncio.timeout(self.timeout):
                    await self._writable.wait()
            except TimeoutError:
                if self._transport.get_write_buffer_size() >= queued:
                    description = f"the broker has accepted no data for {self.timeout} s"
                    raise RequestTimeout(description) from None
        self.check()

    async def close(self) -> None:
        """Send the queued output, and wait until the broker has closed. Raises RequestTimeout."""
        transport = self._transport
        if transport is None or self._ended.is_set():
            return
        self._is_closing = True
        self.request_close(transport)
        try:
            async with time_limit(self.timeout, "the broker did not close the connection"):
                await self._ended.wait()
        except RequestTimeout:
            self.abort()
            raise

    def abort(self) -> None:
        """Drop the connection and the queued output."""
        if self._transport is not None:
            self._transport.abort()

    def mark_lost(self, reason: ClientError) -> None:
        """Mark the connection as unusable. The first reason is kept."""
        if self.failure is None:
            self.failure = reason
        self.release(reason)

    @abstractmethod
    def handle_frames(self, frames: list[FrameT]) -> None:
        """Handle frames from the broker, in order."""

    @abstractmethod
    def release(self, reason: ClientError) -> None:
        """Fail all pending requests. May be called more than once."""

    @abstractmethod
    def request_close(self, transport: asyncio.Transport) -> None:
        """Signal that the client sends no more, so that the broker closes after reading."""

    def end_output(self, transport: asyncio.Transport) -> None:
        """Send EOF after the queued output. A connection that the broker has reset is dropped."""
        try:
            transport.write_eof()
        except OSError as error:  # the reset is known to the kernel, not yet to the event loop
            self.reset = ConnectionLost(reason_of(error))
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.handle_frames(self._decoder.feed(data))
        if self._decoder.error is not None:
            self.mark_lost(protocol_violation(self._decoder.error))
            self.abort()

    def eof_received(self) -> None:
        self.mark_lost(ConnectionLost("the broker closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.reset is None:
            self.reset = ConnectionLost(reason_of(exc) if isinstance(exc, OSError) else str(exc))
        self.mark_lost(self.reset or ConnectionLost("the connection is closed"))
        self._ended.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


# --- requests and responses -----------------------------------------------------------------------

Receiver = Callable[[Hashable, ResponseT | ClientError], None]
"""Receives the id of a request and its response, before any later frame is processed, or the error
because of which none will arrive. Does not raise."""


class Pending(dict[Hashable, HolderT]):
    """Requests without a response, by their ids. Set `changed` when one is removed."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for the next response."""
        super().__init__()
        self.changed = asyncio.Event()
        self._timeout = timeout

    async def wait_for_capacity(self, limit: int) -> None:
        """Wait until fewer than `limit` requests are pending.

        Raises RequestTimeout if no response arrives in time.
        """
        while len(self) >= limit:
            self.changed.clear()
            async with time_limit(self._timeout, f"no answer in {self._timeout} s"):
                await self.changed.wait()


class RequestTransport(ClientTransport[FrameT], Generic[FrameT, ResponseT]):
    """Connection that matches responses to requests by their ids.

    pending  receivers of the responses
    """

    def __init__(
        self,
        decoder: Decoder[FrameT],
        timeout: float,
        on_lost: Callable[[Any, ClientError], None],
    ) -> None:
        """`on_lost` is called with the connection and the reason when it is lost. It may be called
        more than once."""
        super().__init__(decoder, timeout)
        self._on_lost = on_lost
        self.pending: Pending[Receiver[ResponseT]] = Pending(timeout)

    def expect(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Register a request. Raises as `check`; ValueError if the id is already in use."""
        self.check()
        if identity in self.pending:
            raise ValueError(f"the message id {identity!r} is already in use")
        self.pending[identity] = receive

    def forget(self, identity: Hashable, receive: Receiver[ResponseT]) -> None:
        """Unregister a request, if it has had no response; `receive` is its receiver."""
        if self.pending.get(identity) == receive:
            del self.pending[identity]
            self.pending.changed.set()

    def deliver_response(self, identity: Hashable, response: ResponseT | ClientError) -> bool:
        """Pass a response on to the receiver of its request. Return False if there is none."""
        receive = self.pending.pop(identity, None)
        if receive is None:
            return False
        receive(identity, response)
        self.pending.changed.set()
        return True

    async def send_request(
        self,
        identity: Hashable,
        data: bytes,
        *,
        on_response: Callable[[ResponseT], None] | None = None,
        timeout_text: str = "no answer",
    ) -> ResponseT:
        """Send a request and return the response.

        Calls `on_response` with the response before any later frame is processed, also if the call
        has been cancelled or has timed out. Raises as `send`, the error that is the response, and
        RequestTimeout, which begins with `timeout_text`.
        """
        future: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

        def receive(_: Hashable, response: ResponseT | ClientError) -> None:
            if isinstance(response, ClientError):
                fail(future, response)
                return
            if on_response is not None:
                on_response(response)
            if not future.done():
                future.set_result(response)

        self.expect(identity, receive)
        try:
            await self.send(data)
            async with time_limit(self.timeout, f"{timeout_text} in {self.timeout} s"):
                return await future
        finally:
            if on_response is None:
                self.forget(identity, receive)

    def failure_of(self, response: ResponseT) -> ClientError | None:
        """Return the failure that a response to a pipelined request reports, if it is one."""
        return None

    def release(self, reason: ClientError) -> None:
        """Fail all pending requests."""
        for identity in [*self.pending]:
            self.deliver_response(identity, copy_error(reason))
        self._on_lost(self, reason)


class Confirmations(Generic[ResponseT]):
    """Pipelined requests whose responses are awaited together.

    The first failure is kept until `check` or `wait_for_all` raises it.

    pending  connections of the requests
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds to wait for the next response."""
        self.pending: Pending[RequestTransport[Any, ResponseT]] = Pending(timeout)
        self._failure: ClientError | None = None

    def expect(self, connection: RequestTransport[Any, ResponseT], identity: Hashable) -> None:
        """Register a request. Raises as `RequestTransport.expect`."""
        connection.expect(identity, self._receive)
        self.pending[identity] = connection

    def _receive(self, identity: Hashable, response: ResponseT | ClientError) -> None:
        connection = self.pending.pop(identity)
        failure = response if isinstance(response, ClientError) else connection.failure_of(response)
        self._failure = self._failure or failure
        self.pending.changed.set()

    def check(self) -> None:
        """Raise the first failure, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def wait_for_all(self) -> None:
        """Wait until no request is pending. Raises the first failure, once; RequestTimeout."""
        await self.pending.wait_for_capacity(1)
        self.check()

    def forget(self) -> None:
        """Unregister the pending requests."""
        while self.pending:
            identity, connection = self.pending.popitem()
            connection.forget(identity, self._receive)


# --- clients --------------------------------------------------------------------------------------


class Inbox(Generic[FrameT]):
    """Received messages that the application has not taken, for one task at a time."""

    def __init__(self) -> None:
        self.messages: deque[FrameT] = deque()
        self.end: ClientError | None = None
        """Error that `wait` raises once there are no more messages; None until then."""
        self._changed = asyncio.Event()

    def put(self, message: FrameT) -> None:
        """Add a message and wake the receiver."""
        self.messages.append(message)
        self._changed.set()

    def wake(self) -> None:
        """Let the receiver check again whether there are messages."""
        self._changed.set()

    def finish(self, reason: ClientError) -> None:
        """End the inbox: no message will follow. The first reason is kept."""
        self.end = self.end or reason
        self._changed.set()

    async def take(self, timeout: float | None) -> FrameT:
        """Remove and return the next message. Waits and raises as `wait`."""
        if not self.messages:
            await self.wait(timeout)
        return self.messages.popleft()

    async def wait(self, timeout: float | None, ready: Callable[[], object] | None = None) -> None:
        """Wait for a message, or until `ready` is true; up to `timeout` seconds, None = no limit.

        Raises RequestTimeout; a new error like `end`.
        """
        async with time_limit(timeout, f"no message in {timeout} s"):
            while not (self.messages if ready is None else ready()):
                if self.end is not None:
                    raise copy_error(self.end)
                self._changed.clear()
                await self._changed.wait()


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
        # an error in the context, such as a cancellation, is raised instead of one from closing
        with suppress(ClientError) if error is not None else nullcontext():
            await self.close()


class ReconnectingClient(AsyncClient, Generic[ConnectionT, TargetT]):
    """Client that tries its hosts in turn. A protocol's subclass opens the connections, restores
    its state on them, and passes `handle_lost_connection` to them.

    target       address and login
    outstanding  maximum number of unconfirmed messages
    prefetch     maximum number of received messages that the application has not taken
    """

    def __init__(
        self,
        target: TargetT,
        reconnect: Backoff | None,
        outstanding: int,
        prefetch: int,
    ) -> None:
        """`reconnect` None: do not reconnect.

        Raises ValueError unless `outstanding` and `prefetch` are at least 1.
        """
        if outstanding < 1 or prefetch < 1:
            raise ValueError("outstanding and prefetch must be at least 1")
        self.target = target
        self.timeout = target.timeout
        self.outstanding = outstanding
        self.prefetch = prefetch
        self._backoff = reconnect
        self._connection: ConnectionT | None = None
        self._established = False
        """True once there has been a connection."""
        self._connected = asyncio.Event()
        self._end: ClientError | None = None
        self._failure = ""
        """Text of the error of the lost connection, or of the latest attempt to connect again."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def ready(self) -> ConnectionT:
        """Return the connection; waits for a new one. Raises ConnectionLost, RequestTimeout."""
        if not self._connected.is_set():
            async with time_limit(
                self.timeout, lambda: f"no connection in {self.timeout} s: {self._failure}"
            ):
                while not self._connected.is_set():  # it may break before this task continues
                    await self._connected.wait()
        if self._end is not None:
            raise copy_error(self._end)
        assert self._connection is not None
        return self._connection

    async def _start(self) -> Self:
        """Connect, and return the client. Raises the error of the last host."""
        connection = await self._connect()
        if self.target.keep_alive:
            self._run(self._ping_regularly())
        self._adopt(connection)
        return self

    def handle_lost_connection(self, connection: ConnectionT, reason: ClientError) -> None:
        """Reconnect after a connection has broken."""
        if connection is not self._connection or self._end is not None:
            return
        self._connection = None
        self._forget()
        if self._backoff is None or connection.forbids_reconnect:
            self._finish(reason)
            return
        self._connected.clear()
        self._failure = str(reason)
        self._run(self._reconnect(self._backoff))

    @abstractmethod
    async def _open(self, host: str, port: int) -> ConnectionT:
        """Connect to a host and restore the client's state there. Raises ClientError."""

    @abstractmethod
    async def _ping(self, connection: ConnectionT) -> None:
        """Ping the broker. Raises ClientError."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what belonged to the lost connection."""

    @abstractmethod
    def _ended(self, reason: ClientError) -> None:
        """Handle the end of the client: no connection will follow."""

    def _finish(self, reason: ClientError) -> None:
        self._end = self._end or reason
        for task in self._tasks:
            task.cancel()
        self._ended(self._end)
        self._connected.set()

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> ConnectionT:
        failure: ClientError = ConnectionLost("the list of hosts is empty")
        for host, port in (("", 0),) if self.target.path else self.target.hosts:
            try:
                return await self._open(host, port)
            except ClientError as error:
                failure = error
        raise failure

    def _adopt(self, connection: ConnectionT) -> None:
        self._connection = connection
        self._established = True
        if connection.failure is not None:  # it broke before this call
            self.handle_lost_connection(connection, connection.failure)
        else:
            self._connected.set()

    async def _reconnect(self, backoff: Backoff) -> None:
        """Connect again; end the client after the last attempt."""
        attempt = 0
        while not backoff.attempts or attempt < backoff.attempts:
            attempt += 1
            await asyncio.sleep(backoff.delay(attempt))
            try:
                connection = await self._connect()
            except (ClientError, ConfigurationError) as error:  # such as a missing CA file
                self._failure = str(error)
            else:
                self._adopt(connection)
                return
        self._finish(ConnectionLost(f"gave up after {attempt} attempts: {self._failure}"))

    async def _ping_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.target.keep_alive)
            connection = self._connection
            if connection is None:
                continue
            try:
                await self._ping(connection)
            except RequestTimeout as error:
                connection.mark_lost(ConnectionLost(f"the broker does not answer: {error}"))
                connection.abort()
            except ClientError:
                continue
