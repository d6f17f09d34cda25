"""Connection of a client: matches replies to requests, dispatches messages to consumers, and
applies flow control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from sluicemq.clients.transport import ClientTransport, broken, fail, time_limit
from sluicemq.model.errors import (
    ClientError,
    ConnectionLost,
    ProtocolError,
    RequestRefused,
    RequestTimeout,
)
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import (
    Decoder,
    Limits,
    Oversized,
    Packet,
    encode_packet,
    encode_reply,
)

_OK: Final = (Status.OK,)


class StatusError(RequestRefused):
    """The broker answered with a JMQStatus other than OK.

    status  a number; see packets.Status
    reason  the broker's reason text, or ""
    """

    def __init__(self, what: str, status: int, reason: str = "") -> None:
        words = packets.Status(status).name if status in set(packets.Status) else ""
        super().__init__(
            f"{what}: {status}{f' {words}' if words else ''}{f' ({reason})' if reason else ''}"
        )
        self.status = status
        self.reason = reason


def check(packet: Packet, accepted: Collection[int] = _OK) -> Packet:
    """Return the reply if its status is accepted. Raises Refused."""
    status = number(packet, "JMQStatus", Status.ERROR)
    if status in accepted:
        return packet
    kind = packet.type
    name = PacketType(kind).name if kind in set(PacketType) else f"packet {kind}"
    raise StatusError(name.lower().replace("_", " "), status, text(packet, "JMQReason"))


def number(packet: Packet, name: str, default: int = 0) -> int:
    """Return an integer property of a packet, or the default."""
    value = packet.properties.get(name)
    return value if isinstance(value, int) else default


def text(packet: Packet, name: str) -> str:
    """Return a string property of a packet, or ""."""
    value = packet.properties.get(name)
    return value if isinstance(value, str) else ""


class Awaiting(Protocol):
    """Receiver of a reply. Neither method raises."""

    def answered(self, packet: Packet) -> None:
        """Handle the reply; called before any later packet is processed."""

    def broken(self, reason: ClientError) -> None:
        """Handle the loss of the connection: no reply will arrive."""


class Inbox(Protocol):
    """Receiver of messages: a consumer or a browser."""

    def put(self, packet: Packet) -> None:
        """Accept a message. Does not raise."""


class _Request:
    """Request with a future for its reply. Calls `then` as soon as the reply arrives."""

    __slots__ = ("_then", "future")

    def __init__(self, then: Callable[[Packet], None] | None) -> None:
        self.future: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._then = then

    def answered(self, packet: Packet) -> None:
        if self._then is not None:
            self._then(packet)
        if not self.future.done():
            self.future.set_result(packet)

    def broken(self, reason: ClientError) -> None:
        fail(self.future, reason)


class Credit:
    """Number of messages that may be sent before the next RESUME_FLOW (section 6.2); None = no
    limit.
    """

    __slots__ = ("_left", "_open")

    def __init__(self, granted: int = -1) -> None:
        self._open = asyncio.Event()
        self.grant(granted)

    def grant(self, granted: int) -> None:
        """Set the number of messages that may be sent; negative = no limit."""
        self._left = None if granted < 0 else granted
        if granted:
            self._open.set()
        else:
            self._open.clear()

    def spend(self) -> bool:
        """Count one sent message; return True if the credit is now exhausted."""
        if self._left is None:
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._open.clear()
        return True

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self, timeout: float) -> None:
        """Wait until a message may be sent. Raises RequestTimeout."""
        if self._open.is_set():
            return
        async with time_limit(timeout, f"the broker wants no message since {timeout} s"):
            await self._open.wait()


class RequestChannel(ClientTransport["Packet | Oversized"]):
    """Client side of one JMQ connection.

    inboxes    receivers of messages by consumer id
    producers  credit by producer id
    credit     credit of the whole connection
    level      negotiated JMQProtocolLevel
    id         JMQConnectionID
    final      True if the broker asked the client not to reconnect
    heard      True if data was received or sent since it was last set to False
    """

    def __init__(
        self,
        limits: Limits,
        timeout: float,
        flow: int,
        lost: Callable[[RequestChannel, ClientError], None],
    ) -> None:
        """`flow` limits the messages the broker sends before RESUME_FLOW; 0 = no limit."""
        super().__init__(Decoder(limits), timeout)
        self.inboxes: dict[int, Inbox] = {}
        self.producers: dict[int, Credit] = {}
        self.credit = Credit()
        self.level = 0
        self.id = 0
        self.heard = False
        self._challenge: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._lost = lost
        self._flow = flow
        self._held = 0
        self._paused = False
        self._count = 0
        self._pending: dict[int, Awaiting] = {}
        self._complaint = ""

    def local(self) -> tuple[str, int]:
        """Return the local address and port; ("", 0) for a Unix socket."""
        assert self._transport is not None
        name = self._transport.get_extra_info("sockname")
        return (name[0], name[1]) if isinstance(name, tuple) else ("", 0)

    # --- requests

    async def request(
        self,
        kind: PacketType,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        header: bytes = b"",
        accepted: Collection[int] = _OK,
        then: Callable[[Packet], None] | None = None,
    ) -> Packet:
        """Send a request and return the reply. A RETRY reply is retried once (section 3.1).

        Calls `then` with an accepted reply before any later packet is processed.
        Raises Refused, ConnectionLost, RequestTimeout.
        """

        def take(packet: Packet) -> None:
            if then is not None and number(packet, "JMQStatus") in accepted:
                then(packet)

        reply = await self._ask(kind, properties, body, header, take)
        if number(reply, "JMQStatus") == Status.RETRY:
            reply = await self._ask(kind, properties, body, header, take)
        return check(reply, accepted)

    async def _ask(
        self,
        kind: PacketType,
        properties: Mapping[str, object] | None,
        body: bytes,
        header: bytes,
        then: Callable[[Packet], None],
    ) -> Packet:
        waiting = _Request(then)
        identity = self.expect(waiting)
        try:
            await self.send(
                encode_packet(kind, packets.A, identity, properties, header=header, body=body)
            )
            await asyncio.wait([waiting.future], timeout=self.timeout)
        finally:
            self.forget(identity)
            if waiting.future.done() and not waiting.future.cancelled():
                waiting.future.exception()  # marks it as retrieved, so asyncio logs no warning
        if not waiting.future.done():
            raise RequestTimeout(f"no answer in {self.timeout} s")
        return waiting.future.result()

    async def challenged(self) -> Packet:
        """Return the broker's first AUTHENTICATE_REQUEST. Raises ConnectionLost, RequestTimeout."""
        await asyncio.wait([self._challenge], timeout=self.timeout)
        if not self._challenge.done():
            raise RequestTimeout(f"the broker does not ask who this is since {self.timeout} s")
        return self._challenge.result()

    def ask(
        self, kind: PacketType, waiting: Awaiting, body: bytes = b"", header: bytes = b""
    ) -> None:
        """Send a request whose reply goes to `waiting`. Raises as `write`."""
        identity = self.expect(waiting)
        self.write(encode_packet(kind, packets.A, identity, header=header, body=body))

    def expect(self, waiting: Awaiting) -> int:
        """Register for a reply; return the consumer id for the request. Raises as `check`."""
        self.check()
        self._count += 1
        self._pending[self._count] = waiting
        return self._count

    def forget(self, identity: int) -> None:
        """Stop waiting for a reply."""
        self._pending.pop(identity, None)

    def notify(
        self,
        kind: PacketType,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        header: bytes = b"",
    ) -> None:
        """Send a packet that has no reply. Raises as `write`."""
        self.write(encode_packet(kind, 0, 0, properties, header=header, body=body))

    # --- flow

    def held(self, change: int) -> None:
        """Adjust the number of buffered messages; resume the flow at half of the limit."""
        self._held += change
        if self._paused and self._held <= self._flow // 2 and self.lost is None:
            self._paused = False
            self.notify(PacketType.RESUME_FLOW)

    # --- Connection

    def write(self, data: bytes) -> None:
        """Send bytes. Raises as Connection.write."""
        self.heard = True
        super().write(data)

    def arrived(self, frames: list[Packet | Oversized]) -> None:
        """Dispatch received packets; a protocol error ends the connection."""
        self.heard = True
        try:
            for packet in frames:
                if isinstance(packet, Oversized):
                    raise ProtocolError(f"a packet of {packet.size} bytes came")
                if not packet.is_message:
                    packet.properties  # noqa: B018 - decode here, so that an error ends the connection
                self._take(packet)
                if self.lost is not None:  # packets after a GOODBYE are ignored
                    return
        except ProtocolError as error:
            self.lose(broken(error))
            self.abort()

    def _take(self, packet: Packet) -> None:
        kind = packet.type
        if 0 < kind <= packets.LAST_MESSAGE_TYPE:
            inbox = self.inboxes.get(packet.consumer_id)
            if packet.flags & packets.F:
                self._paused = True
            if inbox is not None:
                inbox.put(packet)
            else:  # its consumer has just been closed
                self.held(0)
        elif kind == PacketType.RESUME_FLOW:
            self._resume(packet)
        elif kind == PacketType.PING:
            if packet.flags & packets.A:
                self.write(encode_reply(PacketType.PING_REPLY, packet.consumer_id, Status.OK))
        elif kind == PacketType.AUTHENTICATE_REQUEST and packet.consumer_id not in self._pending:
            # it follows HELLO_REPLY; further rounds replace the reply to AUTHENTICATE
            if not self._challenge.done():
                self._challenge.set_result(packet)
        elif kind == PacketType.GOODBYE:
            self.final = packet.properties.get("JMQExit") is True
            self._complaint = text(packet, "JMQGoodbyeReasonString") or "it said goodbye"
            self.lose(ConnectionLost(f"the broker ended the connection: {self._complaint}"))
            self.abort()  # the broker may wait for the client to close
        else:
            self._answer(packet)

    def _answer(self, packet: Packet) -> None:
        waiting = self._pending.pop(packet.consumer_id, None)
        if waiting is not None:
            waiting.answered(packet)

    def _resume(self, packet: Packet) -> None:
        granted = number(packet, "JMQSize", -1)
        identity = number(packet, "JMQProducerID")
        credit = self.producers.get(identity) if identity else self.credit
        if credit is not None:
            credit.grant(granted)

    def eof_received(self) -> None:
        """Handle the end of the broker's data: the connection is lost."""
        reason = f": {self._complaint}" if self._complaint else ""
        self.lose(ConnectionLost(f"the broker closed the connection{reason}"))

    def release(self, reason: ClientError) -> None:
        """Fail all pending requests and wake all waiting senders."""
        pending = [*self._pending.values()]
        self._pending.clear()
        for waiting in pending:
            waiting.broken(reason)
        for credit in (self.credit, *self.producers.values()):
            credit.grant(-1)  # a waiting sender fails on its next send
        if not self._challenge.done():
            fail(self._challenge, reason)
            self._challenge.exception()
        self._lost(self, reason)

    def discard(self) -> None:
        """Close the connection at once."""
        self.lose(ConnectionLost("the client is closed"))
        if self._transport is not None:
            self._transport.close()

    def leave(self, transport: asyncio.Transport) -> None:
        """Close after GOODBYE: the client closes the connection (section 5.5)."""
        self.lose(ConnectionLost("the client is closed"))
        transport.close()
