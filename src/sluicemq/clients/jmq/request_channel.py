"""Connection of a client: matches replies to requests, dispatches messages to consumers, and
applies flow control; and the state of the sessions that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from math import inf
from typing import Final

from sluicemq.clients.jmq.messages import properties_of
from sluicemq.clients.jmq.target import Target
from sluicemq.clients.transport import (
    Confirmations,
    ReconnectingClient,
    RequestTransport,
    copy_error,
    fail,
    protocol_violation,
    time_limit,
)
from sluicemq.model.destination import Address, is_jms_temporary
from sluicemq.model.errors import (
    ClientError,
    ConnectionLost,
    ProtocolError,
    RequestRefused,
)
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import AckMode, AckType, DeadReason, PacketType, Status
from sluicemq.protocols.jmq.wire import (
    Decoder,
    Oversized,
    Packet,
    encode_packet,
    encode_reply,
)

_OK: Final = (Status.OK,)
ACCEPTED: Final = (Status.OK, Status.NOT_MODIFIED)
"""Successful statuses of messages. NOT_MODIFIED: the broker has already received the message."""


class StatusError(RequestRefused):
    """The broker replied with a JMQStatus other than OK.

    status  a number; see packets.Status
    reason  the broker's reason text, or ""
    """

    def __init__(self, operation: str, status: int, reason: str = "") -> None:
        words = packets.Status(status).name if status in set(packets.Status) else ""
        super().__init__(
            f"{operation}: {status}{f' {words}' if words else ''}{f' ({reason})' if reason else ''}"
        )
        self.status = status
        self.reason = reason


def check(packet: Packet, accepted: Collection[int] = _OK) -> Packet:
    """Return the reply if its status is accepted. Raises StatusError."""
    failure = failure_of(packet, accepted)
    if failure is not None:
        raise failure
    return packet


def failure_of(packet: Packet, accepted: Collection[int]) -> StatusError | None:
    """Return the error that a reply reports; None if its status is accepted."""
    status = number(packet, "JMQStatus", Status.ERROR)
    if status in accepted:
        return None
    kind = packet.type
    name = PacketType(kind).name if kind in set(PacketType) else f"packet {kind}"
    return StatusError(name.lower().replace("_", " "), status, text(packet, "JMQReason"))


def number(packet: Packet, name: str, default: int = 0) -> int:
    """Return an integer property of a packet, or the default."""
    value = packet.properties.get(name)
    return value if isinstance(value, int) else default


def text(packet: Packet, name: str) -> str:
    """Return a string property of a packet, or ""."""
    value = packet.properties.get(name)
    return value if isinstance(value, str) else ""


class Credit:
    """Number of messages that may be sent before the next RESUME_FLOW (section 6.2)."""

    __slots__ = ("_open", "_remaining")

    def __init__(self, granted: int = -1) -> None:
        self._open = asyncio.Event()
        self.grant(granted)

    def grant(self, granted: int) -> None:
        """Set the number of messages that may be sent; negative = no limit."""
        self._remaining = inf if granted < 0 else granted
        if granted:
            self._open.set()
        else:
            self._open.clear()

    def spend(self) -> bool:
        """Count one sent message; return True if the credit is now exhausted."""
        self._remaining -= 1
        if self._remaining > 0:
            return False
        self._open.clear()
        return True

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    async def wait(self, timeout: float) -> None:
        """Wait until a message may be sent. Raises RequestTimeout."""
        async with time_limit(timeout, f"the broker has accepted no message for {timeout} s"):
            await self._open.wait()


class RequestChannel(RequestTransport[Packet, Packet]):
    """Client side of one JMQ connection.

    inboxes            receivers of messages by consumer id: of consumers and browsers. They do not
                       raise
    producers          credit by producer id
    credit             credit of the whole connection
    ids                ids for requests
    level              negotiated JMQProtocolLevel
    id                 JMQConnectionID
    forbids_reconnect  True if the broker asked the client not to reconnect
    was_active         True if data was received or sent since it was last set to False
    """

    def __init__(
        self,
        timeout: float,
        flow: int,
        on_lost: Callable[[RequestChannel, ClientError], None],
    ) -> None:
        """`flow` limits the messages the broker sends before RESUME_FLOW; 0 = no limit."""
        super().__init__(Decoder(), timeout, on_lost)
        self.inboxes: dict[int, Callable[[Packet], None]] = {}
        self.producers: dict[int, Credit] = {}
        self.credit = Credit()
        self.level = 0
        self.id = 0
        self.was_active = False
        self.ids = count(1)
        self._challenge: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._flow = flow
        self._buffered = 0
        self._paused = False

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
        accepted: Collection[int] = _OK,
        on_response: Callable[[Packet], None] | None = None,
    ) -> Packet:
        """Send a request and return the reply. A RETRY reply is retried once (section 3.1).

        Calls `on_response` with an accepted reply before any later packet is processed, also if the
        call has been cancelled or has timed out.

        Raises StatusError, ConnectionLost, RequestTimeout.
        """

        def receive(reply: Packet) -> None:
            if on_response is not None and number(reply, "JMQStatus") in accepted:
                on_response(reply)

        for _ in range(2):
            request_id = next(self.ids)
            data = encode_packet(kind, packets.A, request_id, properties, body=body)
            reply = await self.send_request(
                request_id, data, on_response=receive if on_response else None
            )
            if number(reply, "JMQStatus") != Status.RETRY:
                break
        return check(reply, accepted)

    async def authentication_request(self) -> Packet:
        """Return the broker's first AUTHENTICATE_REQUEST. Raises ConnectionLost, RequestTimeout."""
        async with time_limit(
            self.timeout, f"the broker has sent no AUTHENTICATE_REQUEST for {self.timeout} s"
        ):
            return await self._challenge

    def failure_of(self, response: Packet) -> ClientError | None:
        """Return the failure of a message or an acknowledgement, if the reply reports one."""
        return failure_of(response, ACCEPTED)

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

    def count_buffered(self, change: int) -> None:
        """Adjust the number of buffered messages; resume the flow at half of the limit."""
        self._buffered += change
        if self._paused and self._buffered <= self._flow // 2 and self.failure is None:
            self._paused = False
            self.notify(PacketType.RESUME_FLOW)

    # --- Connection

    def write(self, data: bytes) -> None:
        """Send bytes. Raises as Connection.write."""
        self.was_active = True
        super().write(data)

    def handle_frames(self, frames: list[Packet]) -> None:
        """Dispatch received packets; a protocol error ends the connection."""
        self.was_active = True
        try:
            for packet in frames:
                if isinstance(packet, Oversized):
                    raise ProtocolError(f"a packet of {packet.size} bytes is above the limit")
                if not packet.is_message:
                    packet.properties  # noqa: B018 - decode here, so that an error ends the connection
                self._take(packet)
                if self.failure is not None:  # packets after a GOODBYE are ignored
                    return
        except ProtocolError as error:
            self.mark_lost(protocol_violation(error))
            self.abort()

    def _take(self, packet: Packet) -> None:
        kind = packet.type
        if 0 < kind <= packets.LAST_MESSAGE_TYPE:
            inbox = self.inboxes.get(packet.consumer_id)
            if packet.flags & packets.F:
                self._paused = True
            if inbox is not None:
                inbox(packet)
            else:  # its consumer has just been closed
                self.count_buffered(0)
        elif kind == PacketType.RESUME_FLOW:
            producer_id = number(packet, "JMQProducerID")
            credit = self.producers.get(producer_id) if producer_id else self.credit
            if credit is not None:
                credit.grant(number(packet, "JMQSize", -1))
        elif kind == PacketType.PING:
            if packet.flags & packets.A:
                self.write(encode_reply(PacketType.PING_REPLY, packet.consumer_id, Status.OK))
        elif kind == PacketType.AUTHENTICATE_REQUEST and packet.consumer_id not in self.pending:
            # it follows HELLO_REPLY; further rounds replace the reply to AUTHENTICATE
            if not self._challenge.done():
                self._challenge.set_result(packet)
        elif kind == PacketType.GOODBYE:
            self.forbids_reconnect = packet.properties.get("JMQExit") is True
            reason = text(packet, "JMQGoodbyeReasonString") or "it sent GOODBYE"
            self.mark_lost(ConnectionLost(f"the broker ended the connection: {reason}"))
            self.abort()  # the broker may wait for the client to close
        else:
            self.deliver_response(packet.consumer_id, packet)

    def release(self, reason: ClientError) -> None:
        """Fail all pending requests and wake all waiting senders."""
        for credit in (self.credit, *self.producers.values()):
            credit.grant(-1)  # a waiting sender fails on its next send
        fail(self._challenge, copy_error(reason))
        super().release(reason)

    def discard(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self.request_close(self._transport)

    def request_close(self, transport: asyncio.Transport) -> None:
        """Close the connection, as the client does after GOODBYE (section 5.5)."""
        self.mark_lost(ConnectionLost("the client is closed"))
        transport.close()


async def declare(channel: RequestChannel, destination: Address) -> None:
    """Send CREATE_DESTINATION, which must precede other requests for a destination.

    The destination may exist. Temporary destinations are skipped, because only the connection that
    owns one may create it. Raises ClientError.
    """
    if not is_jms_temporary(destination.name):
        await create(channel, destination)


async def create(channel: RequestChannel, destination: Address) -> None:
    """Create a destination, which may exist. Raises ClientError."""
    await channel.request(
        PacketType.CREATE_DESTINATION,
        properties_of(destination),
        accepted=(Status.OK, Status.CONFLICT),
    )


# --- sessions

LAZY_BLOCKS: Final = 10
LAZY_SECONDS: Final = 7.0
"""Number of messages, and seconds, a DUPS_OK session delays acknowledgements (section 7.2)."""


class TransactionLost(ConnectionLost):
    """The connection was lost during the transaction; none of its work has taken effect."""


class SessionState:
    """Acknowledgements and transaction of a session, which its producers and consumers share.

    transaction  id of the transaction that sends and acknowledgements belong to; 0 = none
    halted       True while messages return to the broker; consumers deliver none meanwhile
    """

    def __init__(
        self,
        client: ReconnectingClient[RequestChannel, Target],
        ack_mode: AckMode,
        transacted: bool,
    ) -> None:
        self.client = client
        self.id = 0
        self.ack_mode = AckMode.NONE if transacted else ack_mode
        self.transacted = transacted
        self.transaction = 0
        self.confirmations = Confirmations[Packet](client.timeout)
        self.halted = False
        self.closed = False
        self._unacked: dict[bytes, None] = {}
        """Ack blocks of delivered messages that are not yet acknowledged or committed."""
        self._delayed_acks: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._transaction_used = False
        self._lost_work = False

    async def ready(self) -> RequestChannel:
        """Return the connection once it is usable. Raises ConnectionLost, RequestTimeout."""
        if self.closed:
            raise ConnectionLost("the session is closed")
        return await self.client.ready()

    # --- acknowledgements

    async def acknowledge(self, channel: RequestChannel, block: bytes, only: bool) -> None:
        """Acknowledge all delivered messages of a CLIENT session, or one with `only`.

        Raises as JmqMessage.acknowledge.
        """
        if self.ack_mode != AckMode.CLIENT:
            return
        channel.check()
        if self.transaction:
            return  # acknowledged within the transaction
        requested = [block] if only else [*self._unacked]
        blocks = [block for block in requested if block in self._unacked]
        if blocks:
            await channel.request(PacketType.ACKNOWLEDGE, body=b"".join(blocks))
            for block in blocks:
                self._unacked.pop(block, None)

    async def acknowledge_delivered(
        self, channel: RequestChannel, block: bytes, *, reliable: bool
    ) -> None:
        """Acknowledge a message delivered to the application, depending on the session's mode.

        `reliable`: the broker confirms the acknowledgement of an AUTO session.

        Raises StatusError, ConnectionLost, RequestTimeout.
        """
        if self.transaction:
            if self.transacted:
                self._unacked[block] = None
            header = encode_header(transaction_id=self.transaction)
            request_id = next(channel.ids)
            self.confirmations.expect(channel, request_id)
            channel.write(
                encode_packet(
                    PacketType.ACKNOWLEDGE, packets.A, request_id, header=header, body=block
                )
            )
        elif self.ack_mode == AckMode.CLIENT:
            self._unacked[block] = None
        elif self.ack_mode == AckMode.DUPS_OK:
            self._delayed_acks.append(block)
            if len(self._delayed_acks) >= LAZY_BLOCKS:
                self._flush(channel)
            elif self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(LAZY_SECONDS, self._flush, channel)
        elif self.ack_mode == AckMode.AUTO:
            if reliable:
                await channel.request(PacketType.ACKNOWLEDGE, body=block)
            else:
                channel.notify(PacketType.ACKNOWLEDGE, body=block)

    def acknowledge_expired(self, channel: RequestChannel, block: bytes) -> None:
        """Acknowledge a message that expired before delivery as dead. Raises ConnectionLost."""
        header = encode_header(transaction_id=self.transaction)
        channel.notify(
            PacketType.ACKNOWLEDGE,
            {"JMQAckType": AckType.DEAD, "JMQDeadReason": DeadReason.EXPIRED},
            block,
            header=header,
        )

    def _flush(self, channel: RequestChannel) -> None:
        """Send the delayed acknowledgements of a DUPS_OK session."""
        blocks = self._take_delayed_acks()
        if blocks:
            with suppress(ConnectionLost):  # the broker redelivers; DUPS_OK allows duplicates
                channel.notify(PacketType.ACKNOWLEDGE, body=b"".join(blocks))

    def _take_delayed_acks(self) -> list[bytes]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        blocks, self._delayed_acks = self._delayed_acks, []
        return blocks

    # --- transactions

    def mark_transaction_used(self) -> None:
        """Mark the transaction as used. Raises TransactionLost if a part of it is lost."""
        if self._lost_work:
            raise TransactionLost(
                "the connection broke within the transaction: "
                f"{'roll back' if self.transacted else 'end it'}"
            )
        if self.transaction:
            self._transaction_used = True

    def join_transaction(self, transaction: int) -> None:
        """Add the following sends and acknowledgements to a global transaction; 0 = none."""
        self.transaction = transaction
        self._transaction_used = False
        self._lost_work = False

    def forget(self) -> None:
        """Reset the state that belonged to the lost connection."""
        # work for a global transaction that has been started must not be done outside of it
        global_transaction = not self.transacted and bool(self.transaction)
        self._lost_work = self._lost_work or self._transaction_used or global_transaction
        self._transaction_used = False
        self._unacked.clear()
        self._take_delayed_acks()
        if not self.transacted:
            self.transaction = 0
