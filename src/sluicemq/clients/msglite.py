"""msglite client.

    async with await MsgliteClient.connect("127.0.0.1", 9813) as client:
        await client.send("orders", b"one pizza", timeout=3600)
        message = await client.ready("orders", "returns", timeout=30)

    async with await MsgliteClient.connect(path="/tmp/msglite.socket") as client:
        reply = await client.query("capitals", b"Burkina Faso?", timeout=5)

Timeouts of messages, of `ready` and of `query` are whole seconds. The broker enforces them and
answers None when one expires. The `timeout` of `connect` limits how long the client waits for the
broker: to connect, for each write, to close, and for responses after their own timeout.

The broker processes the commands of a connection one after the other, so a waiting `ready` delays
all later commands. Work that must not wait needs a connection of its own.

A call that is cancelled, interrupted or timed out leaves its command with the broker. If a message
arrives for a `ready` that was abandoned, the client keeps it for the next `ready` with its address;
a reply to an abandoned query is dropped.

The protocol confirms nothing. The broker answers invalid data with an error and closes; the client
raises it as RequestRefused in the waiting call, in the next one, or in `close`. It raises
ConnectionLost likewise if the connection breaks after a `send`, before the broker has answered a
later command. Sent messages are known to be accepted when `close` returns. Over TLS, `close` cannot
end a waiting `ready`, and raises ConnectionLost if messages have been sent that it delays.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import time
from asyncio.trsock import TransportSocket
from collections import deque
from math import ceil
from typing import Any, Final, Self

from sluicemq.clients import urls
from sluicemq.clients.transport import (
    AsyncClient,
    ClientTransport,
    copy_error,
    fail,
    raise_cancellation,
)
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
PROBE_PREFIX: Final = "sluicemq.probe."
"""Prefix of the addresses that `confirm` uses."""
_RESPONSE_SECONDS = 0.2
"""Seconds within which an immediate response of the broker should arrive."""


class MsgliteMessage:
    """Received message. The broker has already acknowledged it.

    address  address it was sent to; the reply address for a query's reply
    body     content
    timeout  seconds, as the publisher gave it
    reply_to address for a response, or None
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
        raise ValueError(f"{name!r} is not a valid address: it is empty or has white space")
    return raw


def _addresses(names: tuple[str, ...]) -> tuple[bytes, ...]:
    if not 1 <= len(names) <= MAX_ADDRESSES:
        raise ValueError(f"ready takes 1 to {MAX_ADDRESSES} addresses, not {len(names)}")
    return tuple(_address(name) for name in names)


def _seconds(timeout: int) -> int:
    if not 0 <= timeout <= MAX_TIMEOUT or timeout % 1:
        raise ValueError(f"a timeout is 0 to {MAX_TIMEOUT} whole seconds, not {timeout}")
    return timeout


class _Request:
    """Pending command. `names` are the addresses of a `ready`; () for a query.

    sends    number of messages sent before the command
    timeout  seconds that the broker may wait after it has started the command
    started  time of the event loop at which the broker started the command: it has answered all
             commands before
    answer   message or None; done while the command is pending if no call waits for it. Another
             call with the same addresses may take over such a `ready` instead of sending its own,
             which would wait behind it
    """

    def __init__(self, names: tuple[str, ...], sends: int, timeout: int) -> None:
        self.names = names
        self.sends = sends
        self.timeout = timeout
        self.started: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.expect_answer()

    def expect_answer(self) -> None:
        """Let a call wait for the answer."""
        self.answer: asyncio.Future[MsgliteMessage | None] = (
            asyncio.get_running_loop().create_future()
        )


class _Connection(ClientTransport[Frame]):
    """Matches responses to requests: they arrive in the order of the requests."""

    def __init__(self, limits: Limits, timeout: float) -> None:
        super().__init__(Decoder(limits, FROM_SERVER), timeout)
        self.requests: deque[_Request] = deque()
        self.unclaimed: list[MsgliteMessage] = []
        """Messages that arrived for an abandoned `ready`."""
        self.sends = 0
        """Number of sent messages."""
        self._accepted = 0
        """Number of those that the broker is known to have accepted."""
        self._is_error_raised = False
        """A call has raised the error that ended the connection."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The original broker writes a response in two pieces, and sends the second one only when
        # the first is acknowledged.
        assert self._transport is not None
        peer: TransportSocket | None = self._transport.get_extra_info("socket")
        if peer is not None and peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def ask(self, command: bytes, names: tuple[str, ...], timeout: int) -> _Request:
        self.write(command)
        request = _Request(names, self.sends, timeout)
        self.requests.append(request)
        if len(self.requests) == 1:
            self._start_first()
        return request

    def _start_first(self) -> None:
        self.requests[0].started.set_result(asyncio.get_running_loop().time())

    def answered_by(self, request: _Request) -> float:
        """Return the latest time of the event loop at which the broker answers a pending command:
        it processes them one after the other."""
        answered = self.requests[0].started.result()
        for pending in self.requests:
            answered += pending.timeout
            if pending is request:
                break
        return answered

    def take_unclaimed(self, names: tuple[str, ...]) -> MsgliteMessage | None:
        """Remove and return the first unclaimed message for these addresses."""
        for index, message in enumerate(self.unclaimed):
            if message.address in names:
                return self.unclaimed.pop(index)
        return None

    def find_abandoned(self, names: tuple[str, ...]) -> _Request | None:
        """Return an abandoned `ready` for these addresses, or None."""
        abandoned = (request for request in self.requests if request.answer.done())
        return next((request for request in abandoned if request.names == names), None)

    def handle_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame[0] == ERROR:
                self.mark_lost(RequestRefused(frame[3].decode("utf-8", "replace")))
            elif not self.requests:
                self.mark_lost(ConnectionLost("the broker sent an unexpected response"))
                self.abort()
            else:
                self._answer(MsgliteMessage(frame) if frame[0] == MESSAGE else None)

    def _answer(self, message: MsgliteMessage | None) -> None:
        request = self.requests.popleft()
        self._accepted = request.sends
        if not request.answer.done():
            request.answer.set_result(message)
        elif message is not None and request.names:
            self.unclaimed.append(message)
        if self.requests:
            self._start_first()

    def release(self, reason: ClientError) -> None:
        for request in self.requests:
            self._is_error_raised = self._is_error_raised or not request.answer.done()
            fail(request.started, copy_error(reason))
            fail(request.answer, copy_error(reason))
        self.requests.clear()

    def request_close(self, transport: asyncio.Transport) -> None:
        if self.failure is not None:
            return
        transport.write(QUIT_LINE)
        if transport.can_write_eof():
            self.end_output(transport)  # ends an abandoned ready
        elif self.requests:  # TLS has no half-close, and the quit would wait behind the command
            self.reset = ConnectionLost(
                "the client was closed while a command waited; over TLS, it is then unknown which "
                "messages the broker has accepted"
            )
            transport.close()

    def check(self) -> None:
        self._is_error_raised = self.failure is not None
        super().check()

    async def close(self) -> None:
        unknown = self.failure is not None and self.sends > self._accepted
        await super().close()
        unknown = unknown or (self.reset is not None and self.sends > self._accepted)
        if not self._is_error_raised and (unknown or isinstance(self.failure, RequestRefused)):
            self.check()
        self._accepted = self.sends


class MsgliteClient(AsyncClient):
    """asyncio connection to a msglite broker. Created by `connect`.

    Several tasks may use it; the broker processes their commands in the order of the calls.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

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
        """Connect to `host` and `port`, or to the Unix socket `path`.

        `timeout` in seconds, > 0: see the module. Raises ConnectionLost, RequestTimeout.
        """
        connection = _Connection(limits or Limits(), timeout)
        await connection.dial(host, port, path, ssl_context)
        return cls(connection)

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Connect to `msglite[+tls]://host[:port]` or `msglite+unix:///path`.

        The URL's options are those of all clients (module `connect`); `options` are those of
        `connect`. Raises as `connect`; ConfigurationError.
        """
        return await cls.connect(**{**urls.parse_single(url, "msglite", {}), **options})

    async def send(
        self, address: str, body: bytes, timeout: int, reply_to: str | None = None
    ) -> None:
        """Send a message that waits up to `timeout` seconds for a consumer.

        With 0 only a waiting consumer receives it. Returns once the connection has accepted it; the
        protocol has no confirmation. Raises ConnectionLost, RequestRefused, RequestTimeout;
        ValueError for values that the protocol cannot represent.
        """
        reply = b"" if reply_to is None else _address(reply_to)
        command = encode_message(_seconds(timeout), _address(address), body, reply)
        self._connection.sends += 1
        await self._connection.send(command)

    async def ready(self, *addresses: str, timeout: int) -> MsgliteMessage | None:
        """Return one message from the first of 1 to 8 addresses that has one.

        Waits up to `timeout` seconds, 0 = not at all; None if no message arrived. Cancellation
        loses no message: see the module. Raises as `send`.
        """
        raw = _addresses(addresses)
        command = encode_ready(_seconds(timeout), raw)
        connection = self._connection
        message = connection.take_unclaimed(addresses)
        if message is not None:
            return message
        request = connection.find_abandoned(addresses)
        if request is not None:
            # take over the waiting command of a cancelled call
            deadline = time.monotonic() + timeout
            request.expect_answer()
            message = await self._wait(request, timeout)
            timeout = ceil(deadline - time.monotonic())
            if request.answer.cancelled() or message is not None or timeout <= 0:
                return message
            command = encode_ready(timeout, raw)
        return await self._ask(command, timeout, addresses)

    async def query(self, address: str, body: bytes, timeout: int) -> MsgliteMessage | None:
        """Send a message and wait up to `timeout` seconds for the reply; None if none arrived.

        Raises as `send`.
        """
        command = encode_query(_seconds(timeout), _address(address), body)
        return await self._ask(command, timeout, ())

    async def confirm(self) -> None:
        """Wait until the broker has accepted all sent messages.

        Sends a ready with timeout 0 for an unused address: the response arrives after all earlier
        commands were processed, or an error if one of them was refused. An error about the address
        itself also confirms them: the user may not consume there. The connection is closed after an
        error. Raises as `send`.
        """
        probe = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
        try:
            if await self.ready(probe, timeout=0) is not None:
                raise ConnectionLost("the broker sent an unexpected response")
        except RequestRefused as error:
            if probe not in str(error):
                raise

    async def close(self) -> None:
        """Send queued data, and wait until the broker has processed it and closed.

        Raises RequestRefused if the broker refused an earlier command, and ConnectionLost or
        RequestTimeout if it is unknown which commands the broker received.
        """
        await self._connection.close()

    async def _ask(
        self, command: bytes, timeout: int, names: tuple[str, ...]
    ) -> MsgliteMessage | None:
        return await self._wait(self._connection.ask(command, names, timeout))

    async def _wait(self, request: _Request, timeout: float | None = None) -> MsgliteMessage | None:
        """Return the answer. With `timeout`, None if there is none so many seconds after the broker
        started the command, which it continues: another call may take it over.
        """
        connection = self._connection
        loop = asyncio.get_running_loop()
        now = loop.time()
        answered_by = connection.answered_by(request)
        end = max(now, answered_by) + connection.timeout
        answer = request.answer
        try:
            await raise_cancellation()
            async with asyncio.timeout_at(end) as limit:
                if timeout is not None:
                    start = await asyncio.shield(request.started)
                    # a command that has just started may still return a message that was ready
                    limit.reschedule(
                        min(end, max(loop.time() + timeout, start + _RESPONSE_SECONDS))
                    )
                return await answer
        except TimeoutError:
            if answer.done() and not answer.cancelled():  # it arrived in the last moment
                return answer.result()
            if timeout is None or loop.time() > answered_by + connection.timeout:
                raise RequestTimeout(f"no answer in {end - now:.0f} s") from None
            return None
        except asyncio.CancelledError:
            # cancelled in the moment the message arrived: keep it for the next ready
            if answer.done() and not answer.cancelled() and request.names:
                message = None if answer.exception() else answer.result()
                if message is not None:
                    connection.unclaimed.append(message)
            raise
        finally:
            answer.cancel()
