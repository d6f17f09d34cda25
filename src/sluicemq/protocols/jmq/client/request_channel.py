"""One connection of a client: knows who waits for which reply, whom messages are for, and how much
may be on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from sluicemq.model.errors import (
    ClientError,
    ConnectionLost,
    ProtocolError,
    RequestRefused,
    RequestTimeout,
)
from sluicemq.protocols.client_transport import Connection
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


class Refused(RequestRefused):
    """The broker answered with a JMQStatus other than OK.

    status  a number; see packets.Status
    reason  the broker's words, or ""
    """

    def __init__(self, what: str, status: int, reason: str = "") -> None:
        words = packets.Status(status).name if status in set(packets.Status) else ""
        super().__init__(
            f"{what}: {status}{f' {words}' if words else ''}{f' ({reason})' if reason else ''}"
        )
        self.status = status
        self.reason = reason


def check(packet: Packet, accepted: Collection[int] = _OK) -> Packet:
    """The reply, if its status is one of these. Raises Refused."""
    status = number(packet, "JMQStatus", Status.ERROR)
    if status in accepted:
        return packet
    kind = packet.type
    name = PacketType(kind).name if kind in set(PacketType) else f"packet {kind}"
    raise Refused(name.lower().replace("_", " "), status, text(packet, "JMQReason"))


def number(packet: Packet, name: str, default: int = 0) -> int:
    """An integer property of a packet."""
    value = packet.properties.get(name)
    return value if isinstance(value, int) else default


def text(packet: Packet, name: str) -> str:
    """A string property of a packet; "" without."""
    value = packet.properties.get(name)
    return value if isinstance(value, str) else ""


class Awaiting(Protocol):
    """What waits for a reply. Neither method raises."""

    def answered(self, packet: Packet) -> None:
        """The reply has come; called at once, before anything that came after it is looked at."""

    def broken(self, reason: ClientError) -> None:
        """It cannot come any more."""


class Inbox(Protocol):
    """What messages are for: a consumer, a browser."""

    def put(self, packet: Packet) -> None:
        """A message. Does not raise."""


class _Request:
    """One that somebody awaits. `then` is called with the reply as soon as it has come."""

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
        if not self.future.done():
            self.future.set_exception(type(reason)(str(reason)))


class Credit:
    """Messages that may be sent until the broker says RESUME_FLOW (section 6.2); None = any number.

    `waiting` is set while there may be one.
    """

    __slots__ = ("_left", "_open")

    def __init__(self, granted: int = -1) -> None:
        self._open = asyncio.Event()
        self.grant(granted)

    def grant(self, granted: int) -> None:
        """So many from now on; negative = any number."""
        self._left = None if granted < 0 else granted
        if granted:
            self._open.set()
        else:
            self._open.clear()

    def spend(self) -> bool:
        """One is sent; whether it is the last that may be."""
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
        """Until one may be sent. Raises RequestTimeout."""
        if self._open.is_set():
            return
        try:
            async with asyncio.timeout(timeout):
                await self._open.wait()
        except TimeoutError:
            raise RequestTimeout(f"the broker wants no message since {timeout} s") from None


class RequestChannel(Connection["Packet | Oversized"]):
    """A connection, from its first packet to its last.

    inboxes    by consumer id
    producers  by producer id: what may be sent
    credit     the same for the connection
    level      JMQProtocolLevel that was agreed
    id         JMQConnectionID
    final      the broker said that it is no use to connect again
    heard      something has come, or gone, since it was last set to False
    """

    def __init__(
        self,
        limits: Limits,
        timeout: float,
        flow: int,
        lost: Callable[[RequestChannel, ClientError], None],
    ) -> None:
        """`flow` is how many messages the broker sends until RESUME_FLOW; 0 = any number."""
        super().__init__(Decoder(limits), timeout)
        self.inboxes: dict[int, Inbox] = {}
        self.producers: dict[int, Credit] = {}
        self.credit = Credit()
        self.level = 0
        self.id = 0
        self.final = False
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
        """This end's address and port; ("", 0) over a Unix socket."""
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
        """Ask, and return the reply. One refused with RETRY is asked a second time (section 3.1).

        `then` is called with a reply that is accepted, before what came behind it is looked at.
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
                waiting.future.exception()  # it is known, or nobody wants to
        if not waiting.future.done():
            raise RequestTimeout(f"no answer in {self.timeout} s")
        return waiting.future.result()

    async def challenged(self) -> Packet:
        """The broker's first AUTHENTICATE_REQUEST. Raises ConnectionLost, RequestTimeout."""
        await asyncio.wait([self._challenge], timeout=self.timeout)
        if not self._challenge.done():
            raise RequestTimeout(f"the broker does not ask who this is since {self.timeout} s")
        return self._challenge.result()

    def ask(
        self, kind: PacketType, waiting: Awaiting, body: bytes = b"", header: bytes = b""
    ) -> None:
        """Ask, and let `waiting` have the reply. Raises as `write`."""
        identity = self.expect(waiting)
        self.write(encode_packet(kind, packets.A, identity, header=header, body=body))

    def expect(self, waiting: Awaiting) -> int:
        """The consumer id of a packet whose reply this waits for. Raises as `check`."""
        self.check()
        self._count += 1
        self._pending[self._count] = waiting
        return self._count

    def forget(self, identity: int) -> None:
        """Wait for that reply no longer."""
        self._pending.pop(identity, None)

    def tell(
        self,
        kind: PacketType,
        properties: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        header: bytes = b"",
    ) -> None:
        """Say something that has no reply. Raises as `write`."""
        self.write(encode_packet(kind, 0, 0, properties, header=header, body=body))

    # --- flow

    def held(self, change: int) -> None:
        """So many messages more, or fewer, wait here to be taken."""
        self._held += change
        if self._paused and self._held <= self._flow // 2 and self.lost is None:
            self._paused = False
            self.tell(PacketType.RESUME_FLOW)

    # --- Connection

    def write(self, data: bytes) -> None:
        """See Connection."""
        self.heard = True
        super().write(data)

    def arrived(self, frames: list[Packet | Oversized]) -> None:
        """See Connection."""
        self.heard = True
        try:
            for packet in frames:
                if isinstance(packet, Oversized):
                    raise ProtocolError(f"a packet of {packet.size} bytes came")
                if not packet.is_message:
                    packet.properties  # noqa: B018 - a fault is the connection's, not the reader's
                self._take(packet)
                if self.lost is not None:  # nothing counts that comes behind a goodbye
                    return
        except ProtocolError as error:
            self.lose(ConnectionLost(f"the broker broke the protocol: {error}"))
            self.abort()

    def _take(self, packet: Packet) -> None:
        kind = packet.type
        if 0 < kind <= packets.LAST_MESSAGE_TYPE:
            inbox = self.inboxes.get(packet.consumer_id)
            if packet.flags & packets.F:
                self._paused = True
            if inbox is not None:
                inbox.put(packet)
            else:  # of a consumer that has just been closed
                self.held(0)
        elif kind == PacketType.RESUME_FLOW:
            self._resume(packet)
        elif kind == PacketType.PING:
            if packet.flags & packets.A:
                self.write(encode_reply(PacketType.PING_REPLY, packet.consumer_id, Status.OK))
        elif kind == PacketType.AUTHENTICATE_REQUEST and packet.consumer_id not in self._pending:
            # behind HELLO_REPLY; further rounds of it come instead of a reply
            if not self._challenge.done():
                self._challenge.set_result(packet)
        elif kind == PacketType.GOODBYE:
            self.final = packet.properties.get("JMQExit") is True
            self._complaint = text(packet, "JMQGoodbyeReasonString") or "it said goodbye"
            self.lose(ConnectionLost(f"the broker ended the connection: {self._complaint}"))
            self.abort()  # the broker may leave that to us
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
        """See Connection."""
        said = f": {self._complaint}" if self._complaint else ""
        self.lose(ConnectionLost(f"the broker closed the connection{said}"))

    def release(self, reason: ClientError) -> None:
        """See Connection."""
        pending = [*self._pending.values()]
        self._pending.clear()
        for waiting in pending:
            waiting.broken(reason)
        for credit in (self.credit, *self.producers.values()):
            credit.grant(-1)  # who waits finds out when it sends
        if not self._challenge.done():
            self._challenge.set_exception(type(reason)(str(reason)))
            self._challenge.exception()
        self._lost(self, reason)

    def discard(self) -> None:
        """Close, without waiting for anything."""
        self.lose(ConnectionLost("the client is closed"))
        if self._transport is not None:
            self._transport.close()

    def leave(self, transport: asyncio.Transport) -> None:
        """See Connection. The goodbye has been said; it is this side that closes (section 5.5)."""
        self.lose(ConnectionLost("the client is closed"))
        transport.close()
