"""Receiving messages. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.client_transport import AsyncClient
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.client.destinations import DEAD_MESSAGES, Destination
from sluicemq.protocols.jmq.client.messages import Message, now_ms
from sluicemq.protocols.jmq.client.producer import declare
from sluicemq.protocols.jmq.client.request_channel import RequestChannel, number
from sluicemq.protocols.jmq.ids import encode_blocks
from sluicemq.protocols.jmq.packets import AckMode, BodyType, PacketType, Status
from sluicemq.protocols.jmq.wire import Packet


class Receiving(Protocol):
    """What a consumer needs of its session."""

    id: int
    ack_mode: AckMode
    transacted: bool
    halted: bool

    @property
    def shares_client_id(self) -> bool: ...

    async def ready(self) -> RequestChannel:
        """The connection. Raises ConnectionLost, RequestTimeout."""

    def touch(self) -> None:
        """Something is done in the transaction. Raises TransactionLost."""

    async def handed(self, consumer: Consumer, packet: Packet, block: bytes) -> None:
        """A message goes to the application. Raises ClientError."""

    def expired(self, channel: RequestChannel, block: bytes) -> None:
        """A message has come too late. Raises ConnectionLost."""

    async def acknowledge(self, message: JmqMessage, only: bool) -> None:
        """Raises ClientError."""

    def leave(self, consumer: Consumer) -> None:
        """It is closed."""


class Subscription(NamedTuple):
    """What a consumer receives from; see Session.consumer."""

    destination: Destination
    selector: str
    no_local: bool
    name: str
    durable: bool
    shared: bool
    prefetch: int

    def properties(self) -> dict[str, object]:
        """Of ADD_CONSUMER."""
        found: dict[str, object] = {
            "JMQDestination": self.destination.name,
            "JMQDestType": self.destination.type,
            "JMQNoLocal": self.no_local,
            "JMQReconnect": False,
            "JMQSize": self.prefetch,
        }
        if self.selector:
            found["JMQSelector"] = self.selector
        if self.durable:
            found["JMQDurableName"] = self.name
        if self.shared:
            found["JMQJMSShare"] = True
            found["JMQSharedSubscriptionName"] = self.name
        return found


class JmqMessage(Message):
    """A message received by a JmqClient.

    channel, block  the connection it came by, and its name there
    """

    __slots__ = ("_session", "block", "channel")

    def __init__(
        self, packet: Packet, session: Receiving, channel: RequestChannel, block: bytes
    ) -> None:
        super().__init__(packet)
        self._session = session
        self.channel = channel
        self.block = block

    async def acknowledge(self, *, only: bool = False) -> None:
        """In a session with AckMode.CLIENT: all that the session has handed over has been dealt
        with, or, with `only`, this message. In other sessions, and a second time, of no effect.

        Raises Refused, RequestTimeout; ConnectionLost, also when the client has connected again
        since it came: then it comes again.
        """
        await self._session.acknowledge(self, only)


class Consumer(AsyncClient):
    """The messages of one destination or subscription. Made by `Session.consumer`; ends with
    `close`, or with its `async with`. One task at a time may receive.
    """

    def __init__(self, session: Receiving, subscription: Subscription) -> None:
        self.id = 0
        self.subscription = subscription
        self.channel: RequestChannel
        self._session = session
        self._size = subscription.prefetch
        self._packets: deque[Packet] = deque()
        self._back: deque[JmqMessage] = deque()
        """Acknowledged, and not handed over after all."""
        self._paused = False
        self._last = b""
        """SysMessageID of what was handed over last."""
        self._arrival: asyncio.Future[None] | None = None
        self._end: ClientError | None = None

    @property
    def is_volatile(self) -> bool:
        """Whether nobody would miss a message that is not persistent."""
        subscription = self.subscription
        return not (subscription.destination.is_queue or subscription.durable)

    async def receive(self, timeout: float | None = None) -> JmqMessage:
        """The next message; waits up to `timeout` seconds (None = for ever), and for a new
        connection if need be. In a session with AckMode.AUTO it is acknowledged then. Cancellation
        loses no message.

        Raises RequestTimeout; ConnectionLost when there will be no more messages; Refused if the
        acknowledgement is; TransactionLost in a session whose transaction is. If the connection
        breaks before the acknowledgement is answered, the message is returned and may come again.
        """
        while True:
            await self._wait(timeout)
            if self._back:
                return self._back.popleft()
            self._session.touch()
            message = self._take()
            if message is not None:
                break
        try:
            await self._session.handed(self, message.packet, message.block)
        except (asyncio.CancelledError, RequestTimeout):
            self._back.append(message)
            raise
        except ConnectionLost:
            # perhaps the broker has the acknowledgement, and nobody would ever see the message
            return message
        return message

    async def _wait(self, timeout: float | None) -> None:
        """Until there is a message that may be handed over."""
        try:
            async with asyncio.timeout(timeout):
                while self._session.halted or not (self._packets or self._back):
                    if self._end is not None:
                        raise type(self._end)(str(self._end))
                    self._arrival = asyncio.get_running_loop().create_future()
                    await self._arrival
        except TimeoutError:
            raise RequestTimeout(f"no message in {timeout} s") from None

    def _take(self) -> JmqMessage | None:
        """The first message that is here; None for one that has expired."""
        packet = self._packets.popleft()
        channel = self.channel
        channel.held(-1)
        if self._paused and len(self._packets) <= self._size // 2:
            self._resume()
        sysid = packet.sysid
        block = encode_blocks([(self.id, sysid)])
        if 0 < packet.expiration <= now_ms() and self.subscription.destination.name != (
            DEAD_MESSAGES
        ):
            with suppress(ConnectionLost):
                self._session.expired(channel, block)
            return None
        self._last = sysid
        return JmqMessage(packet, self._session, channel, block)

    def _resume(self) -> None:
        self._paused = False
        with suppress(ConnectionLost):
            self.channel.tell(
                PacketType.RESUME_FLOW,
                {"JMQConsumerID": Long(self.id), "JMQSize": self._size - len(self._packets)},
            )

    def __aiter__(self) -> AsyncIterator[JmqMessage]:
        return self._all()

    async def _all(self) -> AsyncIterator[JmqMessage]:
        while True:
            yield await self.receive()

    async def close(self) -> None:
        """What is here and has not been handed over goes back. What has can still be acknowledged.
        Raises Refused, RequestTimeout."""
        if self._end is not None:
            return
        self._session.leave(self)
        self.finish(ConnectionLost("the consumer is closed"))
        with suppress(ConnectionLost):  # then there is nothing to close
            await self.end(await self._session.ready())

    async def begin(self, channel: RequestChannel) -> None:
        """Make it known to the broker, also a new one. Raises ClientError."""
        session = self._session
        await declare(channel, self.subscription.destination)
        properties = self.subscription.properties()
        properties["JMQSessionID"] = Long(session.id)
        if not session.transacted:
            properties["JMQAckMode"] = session.ack_mode
        if not self.subscription.shared:
            properties["JMQShare"] = session.shares_client_id
        if self.id:
            properties["JMQOldConsumerID"] = Long(self.id)

        def added(packet: Packet) -> None:
            # messages may come right behind it
            self.channel = channel
            self.id = number(packet, "JMQConsumerID")
            granted = number(packet, "JMQSize")
            self._size = granted if granted > 0 else self.subscription.prefetch
            channel.inboxes[self.id] = self

        await channel.request(PacketType.ADD_CONSUMER, properties, then=added)

    async def end(self, channel: RequestChannel) -> None:
        """Take leave of the broker, which learns what was handed over last. Raises ClientError."""
        channel.inboxes.pop(self.id, None)
        properties: dict[str, object] = {"JMQConsumerID": Long(self.id), "JMQBlock": True}
        if self._last:
            properties["JMQBodyType"] = BodyType.SYSMESSAGEID
            if self._session.transacted:
                properties["JMQLastDeliveredIDInTransaction"] = True
        else:
            properties["JMQBodyType"] = BodyType.NONE
            properties["JMQRedeliverAll"] = True
        await channel.request(
            PacketType.DELETE_CONSUMER,
            properties,
            self._last,
            accepted=(Status.OK, Status.NOT_FOUND),
        )

    def put(self, packet: Packet) -> None:
        """See request_channel.Inbox."""
        self._packets.append(packet)
        self.channel.held(1)
        if packet.flags & packets.C:
            self._paused = True
        self.go_on()

    def give_back(self) -> bytes:
        """Ack blocks of what is here and has not been handed over: it comes again."""
        blocks = encode_blocks([(self.id, packet.sysid) for packet in self._packets])
        self._clear()
        self._last = b""
        return blocks

    def forget(self) -> None:
        """What is here will come again, by another connection."""
        self._clear()
        self._paused = False
        self._last = b""

    def _clear(self) -> None:
        if self._session.ack_mode != AckMode.AUTO:
            self._back.clear()
        if self._packets:
            self.channel.held(-len(self._packets))
            self._packets.clear()

    def go_on(self) -> None:
        """There may be something to hand over, or room for more."""
        if self._paused and not self._packets and not self._session.halted:
            self._resume()
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def finish(self, reason: ClientError) -> None:
        """There will be no more messages."""
        self._end = self._end or reason
        self._clear()
        self.go_on()
