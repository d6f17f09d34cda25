"""PHPMQ client.

    async with await PhpmqClient.connect("127.0.0.1", 9100) as client:
        await client.send("orders", b"one pizza", ttl=3600)
        async for message in client.consume("orders", window=10):
            print(message.body)
            await message.ack()

A connection has one subscription: consuming from another queue, or with another window, replaces
it, and the broker requeues its unacked messages. The window limits the unacked messages of the
client; a message that is never acknowledged occupies its place in the window, and is requeued when
the connection ends.

The protocol confirms nothing. `close` ends the client's output and waits until the broker closes;
SluiceMQ does so once all messages sent with durability `sync` are on disk. Over TLS, which has no
half-close, `close` waits for unconfirmed messages as `confirm` does. `close` raises ConnectionLost
if the connection is reset instead: SluiceMQ does that if it has to close while sent messages wait
for capacity. A broker that refuses a message (its queue is full, its name too long) closes the
connection: the next call raises ConnectionLost, but `close` does so only over TLS. `confirm` always
raises it.

Dispatches of both versions are accepted. `dispatch_version` is the form of sent messages: 2 writes
a TTL packet with each message, 1 with none, "auto" with those that have a `ttl`. A released PHP
consumer can only read messages that were sent without one.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator
from typing import Any, Final, Self

from sluicemq.clients import urls
from sluicemq.clients.transport import AsyncClient, ClientTransport, Inbox, copy_error
from sluicemq.model.destination import decode_name, encode_name
from sluicemq.model.errors import ClientError, ConfigurationError, ConnectionLost, RequestTimeout
from sluicemq.protocols.phpmq.wire import (
    DISPATCH_VERSIONS,
    FROM_SERVER,
    PROBE,
    REPLY_PREFIX,
    Decoder,
    DispatchVersion,
    Frame,
    Limits,
    encode_acknowledge,
    encode_consume,
    encode_dead_letter,
    encode_requeue,
    encode_send,
)

DEFAULT_PORT = 9100
PROBE_SECONDS: Final = 60
"""Time to live of the message of a probe, in case the connection breaks."""


def _dispatch_version(name: str, value: str) -> DispatchVersion:
    if value not in DISPATCH_VERSIONS:
        raise ConfigurationError(f"{name} is 1 or 2 (or auto), not {value}")
    return DISPATCH_VERSIONS[value]


_URL_OPTIONS: Final[urls.Known] = {"dispatchversion": ("dispatch_version", _dispatch_version)}


def _name(queue: str) -> bytes:
    raw = encode_name(queue)
    if not 0 < len(raw) <= Limits().queue:
        raise ValueError(f"a queue name has 1 to {Limits().queue} bytes, this one has {len(raw)}")
    return raw


def _whole(number: int, name: str) -> int:
    if number < 0 or number % 1:
        raise ValueError(f"{name} is {number}, not a whole number of at least 0")
    return number


class PhpmqMessage:
    """Message of a PhpmqClient. Call one of ack, requeue and dead_letter, once.

    queue  name of its queue        id   32 hex digits, the same for each delivery
    body   content                  ttl  seconds left when it was dispatched; 0 = unlimited
    """

    __slots__ = ("_client", "_raw_id", "_raw_queue", "body", "id", "queue", "ttl")

    def __init__(self, client: PhpmqClient, frame: Frame) -> None:
        self._client = client
        _, self._raw_queue, self.body, self._raw_id, self.ttl = frame
        self.queue = decode_name(self._raw_queue)
        self.id = self._raw_id.decode("ascii", "backslashreplace")

    def __repr__(self) -> str:
        return f"<PhpmqMessage {self.id} of {self.queue}, {len(self.body)} bytes>"

    async def ack(self) -> None:
        """Acknowledge the message. Raises ConnectionLost, RequestTimeout."""
        await self._client._connection.send(encode_acknowledge(self._raw_queue, self._raw_id))

    async def answer(self, body: bytes, ttl: int = 0) -> None:
        """Send a response to the message's reply address, if it has one.

        Must be called before the message is acknowledged. `ttl` in seconds, 0 = unlimited. Raises
        ConnectionLost, RequestTimeout, ValueError.
        """
        await self._client.send(decode_name(REPLY_PREFIX + self._raw_id), body, ttl)

    async def requeue(self, ttl: int = 0) -> None:
        """Requeue the message at the end of its queue, with `ttl` seconds to live (0 = unlimited).

        Raises ConnectionLost, RequestTimeout, ValueError.
        """
        await self._client._connection.send(
            encode_requeue(self._raw_queue, self._raw_id, _whole(ttl, "ttl"))
        )

    async def dead_letter(self) -> None:
        """Dead-letter the message. Raises ConnectionLost, RequestTimeout."""
        await self._client._connection.send(encode_dead_letter(self._raw_queue, self._raw_id))


class _Connection(ClientTransport[Frame]):
    """Connection that keeps the messages of the subscribed queue until `receive` takes them."""

    def __init__(self, limits: Limits, timeout: float, dispatch_version: DispatchVersion) -> None:
        super().__init__(Decoder(limits, FROM_SERVER), timeout)
        self.dispatch_version = dispatch_version
        self.queue = b""
        self.inbox = Inbox[Frame]()
        self.sends = 0
        """Number of sent messages."""
        self.confirmed = 0
        """Number of those that are confirmed, or whose loss a call has raised."""
        self._is_probing = False
        """The connection closes when the message of the last probe arrives."""

    def check(self) -> None:
        if self.failure is not None:
            self.count_reported()
        super().check()

    def count_reported(self) -> None:
        """Count the unconfirmed messages as reported, because a call raises `failure`.

        While the client closes, `failure` says only that: `close` reports the loss.
        """
        if not self._is_closing:
            self.confirmed = self.sends

    def subscribe(self, queue: bytes, requests: bytes) -> None:
        """Write requests that replace the subscription. `queue` b"": by none. Raises as `write`."""
        self.write(requests)
        self.queue = queue
        self.inbox.messages.clear()

    def new_probe(self) -> tuple[bytes, bytes]:
        """Return a unique name of a queue, and requests to consume from it and send to it."""
        queue = PROBE + secrets.token_hex(8).encode()
        version = 1 if self.dispatch_version == 1 else 2
        message = encode_send(queue, b"confirm", PROBE_SECONDS, dispatch_version=version)
        return queue, encode_consume(queue, 1) + message

    async def close(self) -> None:
        await super().close()
        if self.sends == self.confirmed:
            return
        assert self._transport is not None
        # over TLS, an orderly end confirms nothing
        if self.reset is not None or not self._transport.can_write_eof():
            self.confirmed = self.sends
            raise copy_error(self.reset or ConnectionLost("the broker closed the connection"))

    def handle_frames(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame[1] == self.queue:  # else sent before the last `subscribe` was read
                self.inbox.put(frame)
        if self._is_probing and self.inbox.messages:
            _, queue, _, message_id, _ = self.inbox.messages.popleft()
            self.confirmed = self.sends
            assert self._transport is not None
            self._transport.write(encode_acknowledge(queue, message_id))
            self._transport.close()

    def release(self, reason: ClientError) -> None:
        self.inbox.finish(reason)

    def request_close(self, transport: asyncio.Transport) -> None:
        self.mark_lost(ConnectionLost("the client is closed"))
        if transport.can_write_eof():
            self.end_output(transport)
        elif self.sends > self.confirmed:
            # Data that arrives after the end of a TLS connection breaks it. The message of the
            # probe is the last: the probe replaces the subscription.
            self.queue, requests = self.new_probe()
            self.inbox.messages.clear()
            self._is_probing = True
            transport.write(requests)
        else:  # close flushes queued data and notifies the peer
            transport.close()


class PhpmqClient(AsyncClient):
    """asyncio connection to a PHPMQ broker. Created by `connect`.

    Several tasks may send; one at a time may subscribe, receive and confirm.
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
        dispatch_version: DispatchVersion = 2,
        limits: Limits | None = None,
    ) -> Self:
        """Connect to `host` and `port`, or to the Unix socket `path`.

        `timeout` (seconds, > 0) bounds connecting, each wait for the broker to accept data, and
        closing. `dispatch_version`: see the module; 1 is for brokers without TTL packets. Raises
        ConnectionLost, RequestTimeout.
        """
        connection = _Connection(limits or Limits(), timeout, dispatch_version)
        await connection.dial(host, port, path, ssl_context)
        return cls(connection)

    @classmethod
    async def open(cls, url: str, **options: Any) -> Self:
        """Connect to `phpmq[+tls]://host[:port]` or `phpmq+unix:///path`.

        The URL's options are those of all clients (module `connect`) and dispatch_version (1, 2 or
        auto); `options` are those of `connect`. Raises as `connect`; ConfigurationError.
        """
        return await cls.connect(**{**urls.parse_single(url, "phpmq", _URL_OPTIONS), **options})

    async def send(self, queue: str, body: bytes, ttl: int = 0) -> None:
        """Send a message that lives for `ttl` seconds (0 = unlimited).

        Returns once the connection has accepted it; the protocol has no confirmation. Raises
        ConnectionLost, RequestTimeout; ValueError for a name or number that the protocol cannot
        represent.
        """
        connection = self._connection
        ttl, version = _whole(ttl, "ttl"), connection.dispatch_version
        if version == "auto":
            version = 2 if ttl else 1
        frame = encode_send(_name(queue), body, ttl, dispatch_version=version)
        connection.write(frame)
        connection.sends += 1
        await connection.drain()

    async def subscribe(self, queue: str, window: int = 1, *acknowledged: PhpmqMessage) -> None:
        """Subscribe with up to `window` unacked messages; 0 unsubscribes and requeues all.

        Replaces the previous subscription. Its messages that `receive` has not returned are
        dropped: the broker has requeued them. The messages `acknowledged` are acknowledged in the
        same write, so that the broker dispatches no others instead. Raises ConnectionLost,
        RequestTimeout, ValueError.
        """
        name, connection = _name(queue), self._connection
        request = encode_consume(name, _whole(window, "window"))
        acks = [encode_acknowledge(item._raw_queue, item._raw_id) for item in acknowledged]
        connection.subscribe(name if window else b"", b"".join((*acks, request)))
        await connection.drain()

    async def receive(self, timeout: float | None = None) -> PhpmqMessage:
        """Return the next message; waits up to `timeout` seconds (None = no limit).

        Cancellation loses no message. Raises RequestTimeout, ConnectionLost.
        """
        connection = self._connection
        try:
            return PhpmqMessage(self, await connection.inbox.take(timeout))
        except ConnectionLost:
            connection.count_reported()
            raise

    async def consume(self, queue: str, window: int = 1) -> AsyncIterator[PhpmqMessage]:
        """Subscribe and yield the messages as they arrive, without end. Raises ConnectionLost."""
        await self.subscribe(queue, window)
        while True:
            yield await self.receive()

    async def confirm(self) -> None:
        """Wait until the broker has accepted all sent messages. Replaces the subscription.

        Sends a message to a queue with a unique name and receives it: it arrives after all earlier
        messages were accepted. SluiceMQ does not store it; other brokers delete the queue with it.
        Raises ConnectionLost, RequestTimeout: it is then unknown which messages the broker has
        accepted.
        """
        connection = self._connection
        timeout = connection.timeout
        sent = connection.sends
        try:
            connection.subscribe(*connection.new_probe())
            await connection.drain()
            await (await self.receive(timeout)).ack()
        except RequestTimeout:
            raise RequestTimeout(f"no confirmation in {timeout:g} s") from None
        except ConnectionLost as error:
            raise ConnectionLost(
                f"{error}; it refused a message, or does not speak PHPMQ"
            ) from None
        connection.confirmed = max(connection.confirmed, sent)

    async def close(self) -> None:
        """Send queued data, and wait until the broker has read it and closed.

        Raises RequestTimeout or ConnectionLost if it is unknown which messages the broker received.
        """
        await self._connection.close()
