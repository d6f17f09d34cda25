"""asyncio VibeMQ client, its subscriptions and their messages. Public through `clients.vibemq`."""

from __future__ import annotations

import ssl
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex
from typing import Any, Final, Self

import msgspec

from sluicemq.clients.transport import (
    ALWAYS,
    AsyncClient,
    Backoff,
    Confirmations,
    Inbox,
    ReconnectingClient,
)
from sluicemq.clients.vibemq import commands
from sluicemq.clients.vibemq.commands import (
    ABSENT,
    OUTSTANDING,
    CommandRefused,
    Conflict,
    Declaration,
    QueueInfo,
)
from sluicemq.clients.vibemq.connection import (
    DEFAULT_PORT,
    ClientConnection,
    Target,
)
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.transcoding import text_of_json
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.mapping import BASE64, CONTENT_ENCODING
from sluicemq.protocols.vibemq.queues import QueueOptions
from sluicemq.protocols.vibemq.wire import ATTEMPTS_HEADER, NO_HEADERS, Frame

PREFETCH = 256
"""Default maximum number of received messages that the application has not taken."""
_PERMANENT: Final = ("INVALID_MESSAGE", "NOT_AUTHORIZED", "QUEUE_NOT_FOUND")
"""Refusals of a subscription that another attempt does not change."""


class VibeMQMessage:
    """Message of a VibeMQClient.

    id        publisher's id, the same for each delivery
    queue     name of its queue
    payload   JSON as it was published; b"" if it has none
    headers   publisher's headers, and `deliveryAttempts` if the broker adds it
    """

    __slots__ = ("_connection", "acknowledged", "headers", "id", "payload", "queue")

    def __init__(self, connection: ClientConnection, frame: Frame) -> None:
        self.id = frame.id
        self.queue = frame.queue
        self.payload = frame.payload
        self.headers = frame.headers
        self._connection = connection
        self.acknowledged = False

    async def ack(self) -> None:
        """Acknowledge the message; the broker does not respond. A second call does nothing.

        Raises RequestTimeout; ConnectionLost, also after the client has reconnected: the broker
        then redelivers the message.
        """
        if not self.acknowledged:
            await self._connection.send(wire.encode(Frame(wire.ACK, self.id)))
            self.acknowledged = True

    @property
    def attempts(self) -> int:
        """Number of deliveries including this one; 0 if the broker does not report it."""
        text = self.headers.get(ATTEMPTS_HEADER, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0

    @property
    def body(self) -> bytes:
        """Payload, decoded if its header marks it as base64."""
        if self.headers.get(CONTENT_ENCODING) == BASE64:
            with suppress(msgspec.MsgspecError, ValueError):
                return b64decode(msgspec.json.decode(self.payload, type=str), validate=True)
        return self.payload

    @property
    def text(self) -> bytes:
        """Body; for a JSON string its text. The inverse of `commands.payload_of`."""
        body = self.body
        return text_of_json(body) if body is self.payload else body

    def json(self, type: Any = Any) -> Any:
        """Decode the payload with `msgspec.json.decode`. None if there is none.

        Raises msgspec.MsgspecError if it does not match `type`.
        """
        return msgspec.json.decode(self.payload, type=type) if self.payload else None

    def __repr__(self) -> str:
        return f"<VibeMQMessage {self.id} of {self.queue}, {len(self.payload)} bytes>"


class VibeMQClient(ReconnectingClient[ClientConnection, Target]):
    """asyncio client. Created by `connect` or `open`. Any number of tasks may use it."""

    def __init__(
        self,
        target: Target,
        ssl_context: ssl.SSLContext | None,
        queues: Sequence[Declaration],
        reconnect: Backoff | None,
        outstanding: int,
        prefetch: int,
    ) -> None:
        super().__init__(target, reconnect, outstanding, prefetch)
        self._ssl = ssl_context
        self._queues = queues
        self._prefix = token_hex(8)
        self._numbers = count(1)
        self._post_confirmations = Confirmations[Frame](self.timeout)
        self._subscriptions: dict[str, Subscription] = {}

    @classmethod
    async def connect(
        cls,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        hosts: Sequence[tuple[str, int]] = (),
        path: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
        username: str = "",
        password: str = "",
        token: str = "",
        compression: Sequence[Compression] = SUPPORTED,
        threshold: int = THRESHOLD,
        keep_alive: float = 30.0,
        reconnect: Backoff | None = ALWAYS,
        queues: Sequence[Declaration] = (),
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect, log in and declare `queues`.

        Connects to the first of `hosts` that responds, else to `host` and `port`, or to the Unix
        socket `path`.

        timeout      seconds, > 0; for connecting, each response, and closing
        token        for brokers that need one instead of user and password
        compression  offered algorithms, in order of preference; used for frames of at least
                     `threshold` bytes
        keep_alive   seconds between two pings, 0 = none. A ping without a response within
                     `timeout` ends the connection
        reconnect    None: do not reconnect

        Raises CommandRefused, also for wrong credentials; ConnectionLost, RequestTimeout;
        ClientError for a queue that conflicts with its declaration.
        """
        target = Target(
            tuple(hosts) or ((host, port),),
            path or "",
            username,
            password,
            token=token,
            timeout=timeout,
            keep_alive=keep_alive,
            compression=tuple(compression),
            threshold=threshold,
        )
        return await cls(target, ssl_context, queues, reconnect, outstanding, prefetch)._start()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        reconnect: Backoff | None = ALWAYS,
        queues: Sequence[Declaration] = (),
        outstanding: int = OUTSTANDING,
        prefetch: int = PREFETCH,
    ) -> Self:
        """Connect to the target of a URL or a connection string (module `connection`).

        `ssl_context` replaces the options for TLS. Raises as `connect`; ConfigurationError.
        """
        target = Target.parse(url)
        if target.tls:
            ssl_context = ssl_context or target.tls_context()
        return await cls(target, ssl_context, queues, reconnect, outstanding, prefetch)._start()

    # --- messages

    async def publish(
        self,
        queue: str,
        payload: object = ABSENT,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        id: str = "",
    ) -> str:
        """Publish, and return the message's id once the broker has confirmed it.

        `headers` are text; known ones are priority (Low, Normal, High, Critical), correlationId and
        replyTo. `id` is generated by default. Frames over 1 MiB are compressed if that has been
        negotiated. Raises CommandRefused; ConnectionLost and RequestTimeout, after which it is
        unknown whether the broker has the message; ValueError for values that the protocol cannot
        represent, and for a frame that is over 1 MiB when it is sent.
        """
        identity = id or self._new_id()
        data = commands.encode_publish(identity, queue, payload, headers)
        connection = await self.ready()
        await connection.pending.wait_for_capacity(self.outstanding)
        await connection.request(identity, data)
        return identity

    async def publish_all(
        self, queue: str, payloads: Iterable[object], headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        """Publish many messages, with up to `outstanding` unconfirmed ones at a time.

        Returns their number once the broker has confirmed all. Raises as `publish` for the first
        that fails: those after it may have been published.
        """
        connection = await self.ready()
        unconfirmed = Confirmations[Frame](self.timeout)
        number = 0
        try:
            for payload in payloads:
                identity = self._new_id()
                data = commands.encode_publish(identity, queue, payload, headers)
                await connection.publish(identity, data, self.outstanding, unconfirmed)
                number += 1
            await unconfirmed.wait_for_all()
        finally:
            unconfirmed.forget()
        return number

    async def post(
        self, queue: str, payload: object = ABSENT, headers: Mapping[str, str] = NO_HEADERS
    ) -> str:
        """Publish, and return the message's id without waiting for its confirmation.

        Waits while `outstanding` messages are unconfirmed. `post`, `confirm` and `close` raise
        errors of earlier messages. Raises as `publish`.
        """
        identity = self._new_id()
        data = commands.encode_publish(identity, queue, payload, headers)
        connection = await self.ready()
        await connection.publish(identity, data, self.outstanding, self._post_confirmations)
        return identity

    async def confirm(self) -> None:
        """Wait until the broker has confirmed all posted messages. Raises as `publish`."""
        await self._post_confirmations.wait_for_all()

    async def subscribe(self, queue: str) -> Subscription:
        """Subscribe to a queue and return the subscription, from which to receive the messages.

        Raises CommandRefused, ConnectionLost, RequestTimeout; ValueError for a second subscription
        of the same queue.
        """
        connection = await self.ready()
        if queue in self._subscriptions:
            raise ValueError(f"{queue} is already subscribed")
        # messages may arrive together with the response
        subscription = self._subscriptions[queue] = Subscription(self, queue)
        try:
            await self._ask(wire.SUBSCRIBE, queue, connection=connection)
        except BaseException as error:
            self._subscriptions.pop(queue, None)
            subscription.forget()
            if not isinstance(error, CommandRefused):
                # the broker may have subscribed the client, which would drop the messages
                request = Frame(wire.UNSUBSCRIBE, self._new_id(), queue)
                with suppress(ConnectionLost):
                    connection.write(commands.encode(request))
            raise
        return subscription

    async def end_subscription(
        self, subscription: Subscription, acknowledged: Iterable[VibeMQMessage]
    ) -> None:
        """End a subscription, for `Subscription.unsubscribe`."""
        connection = None
        unacked = [message for message in acknowledged if not message.acknowledged]
        if self._subscriptions.get(subscription.queue) is subscription:
            del self._subscriptions[subscription.queue]
            subscription.finish(ConnectionLost("the subscription has ended"))
            connection = await self.ready()
            sent = [message for message in unacked if message._connection is connection]
            acks = b"".join(wire.encode(Frame(wire.ACK, message.id)) for message in sent)
            frame = Frame(wire.UNSUBSCRIBE, self._new_id(), subscription.queue)
            await connection.request(frame.id, commands.encode(frame), acks)
            for message in sent:
                message.acknowledged = True
        for message in unacked:
            if message._connection is not connection:
                await message.ack()

    # --- queues

    async def create_queue(self, queue: str, options: QueueOptions | None = None) -> None:
        """Create a queue. An existing queue keeps its options, unless it was created by use.

        Raises CommandRefused (code QUEUE_EXISTS if the listener has `strict_create`),
        ConnectionLost, RequestTimeout.
        """
        frame = commands.create_queue(self._new_id(), queue, options or QueueOptions())
        await self._request(frame)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages.

        Raises CommandRefused, ConnectionLost, RequestTimeout.
        """
        await self._ask(wire.DELETE_QUEUE, queue)

    async def queue_info(self, queue: str) -> QueueInfo | None:
        """Return information on a queue; None if it does not exist.

        Raises CommandRefused, ConnectionLost, RequestTimeout.
        """
        return commands.read_info(await self._ask(wire.QUEUE_INFO, queue))

    async def list_queues(self) -> list[str]:
        """Return the names of all queues that the user may see.

        Raises CommandRefused, ConnectionLost, RequestTimeout.
        """
        return commands.read_names(await self._ask(wire.LIST_QUEUES))

    async def declare(self, *declarations: Declaration) -> None:
        """Create the declared queues that do not exist; not repeated after a reconnect.

        Raises ClientError for a queue that conflicts with its declaration; CommandRefused,
        ConnectionLost, RequestTimeout.
        """
        connection = await self.ready()
        for declaration in declarations:
            await self._declare(connection, declaration, declaration.conflict)

    # --- the connection

    async def ping(self) -> float:
        """Return the response time in seconds. Raises ConnectionLost, RequestTimeout."""
        start = time.monotonic()
        await self._ask(wire.PING)
        return time.monotonic() - start

    async def close(self) -> None:
        """Wait for pending responses, send DISCONNECT, and wait until the broker has closed.

        Raises RequestTimeout; CommandRefused and ConnectionLost for posted messages.
        """
        connection = self._connection
        try:
            await self.confirm()
            if connection is not None and connection.failure is None:
                with suppress(RequestTimeout):
                    await connection.pending.wait_for_capacity(1)
        finally:
            self._finish(ConnectionLost("the client is closed"))
            if connection is not None:
                await connection.close()

    def _ended(self, reason: ClientError) -> None:
        # a message that still arrives must not pause the reading of the connection's end
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.finish(reason)

    def _forget(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.forget()

    async def _ping(self, connection: ClientConnection) -> None:
        await self._ask(wire.PING, connection=connection)

    async def _open(self, host: str, port: int) -> ClientConnection:
        """Connect, declare queues and restore subscriptions. One that the broker will never accept
        again ends."""
        target = self.target
        connection = ClientConnection(
            target.timeout,
            self.prefetch,
            target.threshold,
            self._put_message,
            self.handle_lost_connection,
        )
        try:
            await connection.dial(host, port, target.path or None, self._ssl)
            hello = commands.connect(
                self._new_id(),
                target.username,
                target.password,
                target.token,
                target.compression,
            )
            await connection.log_in(hello, target.compression)
            for declaration in self._queues:
                conflict = Conflict.IGNORE if self._established else declaration.conflict
                await self._declare(connection, declaration, conflict)
            for queue, subscription in [*self._subscriptions.items()]:
                try:
                    await self._ask(wire.SUBSCRIBE, queue, connection=connection)
                except CommandRefused as error:
                    if error.code not in _PERMANENT:
                        raise
                    if self._subscriptions.get(queue) is subscription:
                        del self._subscriptions[queue]
                    reason = f"the subscription is refused on reconnect: {error}"
                    subscription.finish(ConnectionLost(reason))
        except BaseException:
            connection.abort()
            self._forget()
            raise
        return connection

    def _put_message(self, connection: ClientConnection, frame: Frame) -> None:
        subscription = self._subscriptions.get(frame.queue)
        if subscription is not None:
            subscription.put(connection, frame)

    def _new_id(self) -> str:
        """Return a unique id of 32 hex digits."""
        return f"{self._prefix}{next(self._numbers):016x}"

    async def _ask(
        self, kind: int, queue: str = "", *, connection: ClientConnection | None = None
    ) -> Frame:
        return await self._request(Frame(kind, self._new_id(), queue), connection)

    async def _request(self, frame: Frame, connection: ClientConnection | None = None) -> Frame:
        connection = connection or await self.ready()
        return await connection.request(frame.id, commands.encode(frame))

    async def _declare(
        self, connection: ClientConnection, declared: Declaration, conflict: Conflict
    ) -> None:
        queue, options, _ = declared
        existing = commands.read_info(
            await self._ask(wire.QUEUE_INFO, queue, connection=connection)
        )
        if existing is not None:
            if not commands.must_replace(declared._replace(conflict=conflict), existing):
                return
            await self._ask(wire.DELETE_QUEUE, queue, connection=connection)
        frame = commands.create_queue(self._new_id(), queue, options)
        await self._request(frame, connection)


class Subscription(AsyncClient):
    """Subscription to one queue. Created by `VibeMQClient.subscribe`; ended by `unsubscribe` or its
    `async with`. One task at a time may receive.
    """

    def __init__(self, client: VibeMQClient, queue: str) -> None:
        self.queue = queue
        self._client = client
        self._inbox = Inbox[VibeMQMessage]()

    async def receive(self, timeout: float | None = None) -> VibeMQMessage:
        """Return the next message; waits up to `timeout` seconds (None = no limit).

        Waits for a new connection if necessary. Cancellation loses no message. Raises
        RequestTimeout; ConnectionLost if there will be no more messages.
        """
        message = await self._inbox.take(timeout)
        message._connection.count_buffered(-1)
        return message

    async def __aiter__(self) -> AsyncGenerator[VibeMQMessage]:
        while True:
            yield await self.receive()

    async def unsubscribe(self, *acknowledged: VibeMQMessage) -> None:
        """Unsubscribe; the broker requeues unacked messages.

        The messages `acknowledged` are acknowledged in the same write: no message that `receive`
        has not returned then counts an attempt. Raises ClientError; ConnectionLost, too, if one of
        them was received on an earlier connection.
        """
        await self._client.end_subscription(self, acknowledged)

    async def close(self) -> None:
        """Unsubscribe, unless the subscription has ended. Raises ClientError."""
        with suppress(ConnectionLost):  # the subscription has ended with the connection
            await self.unsubscribe()

    def put(self, connection: ClientConnection, frame: Frame) -> None:
        self._inbox.put(VibeMQMessage(connection, frame))
        connection.count_buffered(1)

    def forget(self) -> None:
        """Drop the received messages: the broker redelivers them."""
        for message in self._inbox.messages:
            message._connection.count_buffered(-1)
        self._inbox.messages.clear()

    def finish(self, reason: ClientError) -> None:
        self.forget()
        self._inbox.finish(reason)
