"""Blocking VibeMQ client. Public through `client`, whose docstring describes both clients."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Self

from sluicemq.clients.transport import BlockingClient, BlockingConnection, open_socket
from sluicemq.clients.vibemq import commands
from sluicemq.clients.vibemq.commands import (
    ABSENT,
    OUTSTANDING,
    Declaration,
    Grant,
    Ids,
    QueueInfo,
    Received,
    User,
)
from sluicemq.clients.vibemq.target import DEFAULT_PORT, Target, tls_context
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import SUPPORTED, THRESHOLD, Compression
from sluicemq.protocols.vibemq.queues import QueueOptions
from sluicemq.protocols.vibemq.wire import NO_HEADERS, Decoder, Frame, Limits


class BlockingVibeMQMessage(Received):
    """Message of a BlockingVibeMQClient."""

    __slots__ = ("_client", "acknowledged")

    def __init__(self, client: BlockingVibeMQClient, frame: Frame) -> None:
        super().__init__(frame)
        self._client = client
        self.acknowledged = False

    def ack(self) -> None:
        """Acknowledge the message as VibeMQMessage.ack does."""
        if not self.acknowledged:
            self._client._send(wire.encode_ack(self.id.encode()))
            self.acknowledged = True


class BlockingVibeMQClient(BlockingClient):
    """Blocking connection to a VibeMQ broker, for one thread. Created by `connect` or `open`.

    Its methods are those of VibeMQClient and raise the same errors. The client reads only while a
    method runs: the broker may stop sending to a subscriber that does not receive.
    """

    def __init__(
        self,
        target: Target,
        ssl_context: ssl.SSLContext | None,
        outstanding: int,
        limits: Limits,
    ) -> None:
        if outstanding < 1:
            raise ValueError("outstanding must be at least 1")
        self._ids = Ids()
        self._outstanding = outstanding
        self._posted: deque[str] = deque()
        self._timeout = target.timeout
        self._threshold = target.threshold
        self._compression = Compression.NONE
        self._messages: dict[str, deque[Frame]] = {}
        self._complaint = ""
        failure: ClientError = ConnectionLost("there is no host to connect to")
        for host, port in target.hosts if not target.path else (("", 0),):
            try:
                self._open(host, port, target, ssl_context, limits)
                return
            except ClientError as error:
                failure = error
        raise failure

    def _open(
        self,
        host: str,
        port: int,
        target: Target,
        ssl_context: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._connection: BlockingConnection[Frame] = BlockingConnection(
            open_socket(host, port, target.path or None, ssl_context, target.timeout),
            Decoder(limits),
            target.timeout,
            awaited="answer",
        )
        try:
            hello = commands.connect(
                self._ids.new(), target.username, target.password, target.token, target.compression
            )
            self._connection.send(wire.encode(hello))
            answer = self._connection.take(time.monotonic() + target.timeout)
            self._compression = commands.agreed(answer, target.compression)
        except BaseException:
            self._connection.drop()
            raise

    @classmethod
    def connect(
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
        outstanding: int = OUTSTANDING,
        limits: Limits | None = None,
    ) -> Self:
        """Connect as VibeMQClient.connect does."""
        target = Target(
            tuple(hosts) or ((host, port),),
            path or "",
            username,
            password,
            token,
            timeout=timeout,
            compression=tuple(compression),
            threshold=threshold,
        )
        return cls(target, ssl_context, outstanding, limits or Limits())

    @classmethod
    def open(cls, where: str, *, outstanding: int = OUTSTANDING) -> Self:
        """Connect as VibeMQClient.open does."""
        target = Target.parse(where)
        return cls(target, tls_context(target), outstanding, Limits())

    # --- messages

    def publish(
        self,
        queue: str,
        payload: object = ABSENT,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        id: str = "",
    ) -> str:
        """Publish as VibeMQClient.publish does."""
        identity = id or self._ids.new()
        self._put(commands.encode_publish(identity, queue, payload, headers))
        self._answer(identity)
        return identity

    def post(
        self, queue: str, payload: object = ABSENT, headers: Mapping[str, str] = NO_HEADERS
    ) -> str:
        """Publish, and return the message's id without waiting for its confirmation.

        Waits while `outstanding` messages are unconfirmed. `post`, `confirm` and `close` raise
        errors of earlier messages. Raises as `publish`.
        """
        identity = self._ids.new()
        data = commands.encode_publish(identity, queue, payload, headers)
        while len(self._posted) >= self._outstanding:
            self._answer(self._posted.popleft())
        self._put(data)
        self._posted.append(identity)
        return identity

    def confirm(self) -> None:
        """Wait until the broker has confirmed all posted messages. Raises as `publish`."""
        while self._posted:
            self._answer(self._posted.popleft())

    def publish_all(
        self, queue: str, payloads: Iterable[object], headers: Mapping[str, str] = NO_HEADERS
    ) -> int:
        """Publish as VibeMQClient.publish_all does."""
        number = 0
        for payload in payloads:
            self.post(queue, payload, headers)
            number += 1
        self.confirm()
        return number

    def subscribe(self, queue: str) -> None:
        """Subscribe to a queue, for `receive`.

        Raises CommandRefused, ConnectionLost, RequestTimeout; ValueError for a second subscription
        of the same queue.
        """
        if queue in self._messages:
            raise ValueError(f"{queue} is already subscribed")
        self._messages[queue] = deque()
        try:
            self._ask(wire.SUBSCRIBE, queue)
        except ClientError:
            del self._messages[queue]
            raise

    def unsubscribe(self, queue: str) -> None:
        """Unsubscribe; the broker requeues unacked messages.

        Raises CommandRefused, ConnectionLost, RequestTimeout.
        """
        if self._messages.pop(queue, None) is not None:
            self._ask(wire.UNSUBSCRIBE, queue)

    def receive(self, queue: str, timeout: float | None = None) -> BlockingVibeMQMessage:
        """Return the next message of a subscribed queue.

        Waits up to `timeout` seconds (None = for ever). Raises RequestTimeout, after which it may
        be called again, and ConnectionLost; ValueError if the queue is not subscribed.
        """
        messages = self._messages.get(queue)
        if messages is None:
            raise ValueError(f"{queue} is not subscribed")
        until = None if timeout is None else time.monotonic() + timeout
        while not messages:
            self._take(until)
        return BlockingVibeMQMessage(self, messages.popleft())

    def consume(self, queue: str) -> Iterator[BlockingVibeMQMessage]:
        """Subscribe and yield the messages as they arrive, without end. Raises as `subscribe`."""
        self.subscribe(queue)
        while True:
            yield self.receive(queue)

    # --- queues; as VibeMQClient's

    def create_queue(self, queue: str, options: QueueOptions | None = None) -> None:
        self._request(commands.create_queue(self._ids.new(), queue, options or QueueOptions()))

    def delete_queue(self, queue: str) -> None:
        self._ask(wire.DELETE_QUEUE, queue)

    def queue_info(self, queue: str) -> QueueInfo | None:
        return commands.read_info(self._ask(wire.QUEUE_INFO, queue))

    def list_queues(self) -> list[str]:
        return commands.read_names(self._ask(wire.LIST_QUEUES))

    def declare(self, *declarations: Declaration) -> None:
        for declared in declarations:
            found = self.queue_info(declared.queue)
            if found is not None:
                if not commands.must_replace(declared, found):
                    continue
                self.delete_queue(declared.queue)
            self.create_queue(declared.queue, declared.options)

    # --- users; as VibeMQClient's

    def create_user(self, username: str, password: str) -> None:
        self._admin(wire.CREATE_USER, username=username, password=password)

    def delete_user(self, username: str) -> None:
        self._admin(wire.DELETE_USER, username=username)

    def change_password(self, username: str, password: str) -> None:
        self._admin(wire.CHANGE_PASSWORD, username=username, newPassword=password)

    def grant(self, username: str, pattern: str, operations: Sequence[str]) -> None:
        fields = {"username": username, "queuePattern": pattern}
        self._admin(wire.GRANT_PERMISSION, **fields, operations=list(operations))

    def revoke(self, username: str, pattern: str) -> None:
        self._admin(wire.REVOKE_PERMISSION, username=username, queuePattern=pattern)

    def users(self) -> list[User]:
        return commands.read_users(self._admin(wire.LIST_USERS))

    def permissions(self, username: str) -> list[Grant]:
        return commands.read_grants(self._admin(wire.GET_USER_PERMISSIONS, username=username))

    # --- the connection

    def ping(self) -> float:
        """Return the response time as VibeMQClient.ping does."""
        begun = time.monotonic()
        self._ask(wire.PING)
        return time.monotonic() - begun

    def close(self) -> None:
        """Confirm posted messages, send DISCONNECT, and wait until the broker has closed.

        Raises RequestTimeout; CommandRefused for a posted message that was refused.
        """
        try:
            if not self._connection.closed:
                self.confirm()
        finally:
            goodbye = wire.encode(Frame(wire.DISCONNECT, "bye"))
            self._connection.close(self._connection.read, goodbye)

    def _ask(self, kind: int, queue: str = "") -> Frame:
        return self._request(Frame(kind, self._ids.new(), queue))

    def _admin(self, kind: int, **fields: str | list[str]) -> Frame:
        return self._request(commands.administer(kind, self._ids.new(), **fields))

    def _request(self, frame: Frame) -> Frame:
        self._put(commands.encode(frame))
        return self._answer(frame.id)

    def _put(self, data: bytes) -> None:
        self._send(commands.packed(data, self._compression, self._threshold))

    def _send(self, data: bytes) -> None:
        try:
            self._connection.send(data)
        except ConnectionLost:
            self._hear()
            raise

    def _hear(self) -> None:
        """After a failed write, read the last frames: they may have the broker's reason."""
        until = time.monotonic() + self._timeout
        with suppress(RequestTimeout):
            while True:
                self._take(until)

    def _answer(self, identity: str) -> Frame:
        """Return a response. Raises CommandRefused, ConnectionLost, RequestTimeout."""
        until = time.monotonic() + self._timeout
        while True:
            frame = self._take(until)
            if frame.id == identity and frame.type != wire.DELIVER:
                if frame.type == wire.ERROR:
                    raise commands.refusal(frame)
                return frame

    def _take(self, until: float | None) -> Frame:
        """Return the next frame, and keep it for `receive` if it is a message."""
        try:
            frame = self._connection.take(until)
        except ConnectionLost as error:
            self._connection.drop()
            if self._complaint:
                raise ConnectionLost(f"{error}: {self._complaint}") from None
            raise
        if frame.type == wire.DELIVER:
            messages = self._messages.get(frame.queue)
            if messages is not None:
                messages.append(frame)
        elif frame.type == wire.ERROR:
            self._complaint = str(commands.refusal(frame))
        elif frame.type == wire.DISCONNECT:
            self._complaint = frame.headers.get("reason", "Disconnect without a reason")
        return frame
