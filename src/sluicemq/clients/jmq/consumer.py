"""Consumers. Public through `client`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import NamedTuple, Protocol

from sluicemq.clients.jmq.confirmations import SessionPort
from sluicemq.clients.jmq.destinations import DEAD_MESSAGES, Destination
from sluicemq.clients.jmq.messages import Message, now_ms
from sluicemq.clients.jmq.producer import declare
from sluicemq.clients.jmq.request_channel import RequestChannel, number
from sluicemq.clients.transport import AsyncClient, again, time_limit
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_blocks
from sluicemq.protocols.jmq.packets import AckMode, BodyType, PacketType, Status
from sluicemq.protocols.jmq.wire import Packet


class Receiving(SessionPort, Protocol):
    """Session as its consumers use it."""

    ack_mode: AckMode
    halted: bool

    @property
    def shares_client_id(self) -> bool: ...

    async def handed(self, consumer: Consumer, packet: Packet, block: bytes) -> None:
        """Acknowledge a delivered message if the session's mode requires it. Raises ClientError."""

    def expired(self, channel: RequestChannel, block: bytes) -> None:
        """Acknowledge an expired message as dead. Raises ConnectionLost."""

    async def acknowledge(self, message: JmqMessage, only: bool) -> None:
        """Acknowledge one message, or all delivered ones. Raises ClientError."""


class ConsumerOptions(NamedTuple):
    """Destination and options of a consumer, as passed to Session.consumer."""

    destination: Destination
    selector: str
    no_local: bool
    name: str
    durable: bool
    shared: bool
    prefetch: int

    def properties(self) -> dict[str, object]:
        """Return the properties of the ADD_CONSUMER packet."""
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

    channel, block  the connection that delivered it, and its ack block there
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
        """Acknowledge all messages the session has delivered or, with `only`, this message.

        Has an effect only in a session with AckMode.CLIENT, and only once per message.
        Raises Refused, RequestTimeout; ConnectionLost, also if the client has reconnected since
        the message was delivered, in which case the broker redelivers it.
        """
        await self._session.acknowledge(self, only)


class Consumer(AsyncClient):
    """Consumer of one destination or subscription. Made by `Session.consumer`; closed by `close`
    or by its `async with`. One task at a time may receive.
    """

    def __init__(self, session: Receiving, subscription: ConsumerOptions) -> None:
        self.id = 0
        self.subscription = subscription
        self.channel: RequestChannel
        self._session = session
        self._size = subscription.prefetch
        self._packets: deque[Packet] = deque()
        self._back: deque[JmqMessage] = deque()
        """Acknowledged messages whose delivery to the caller was interrupted."""
        self._paused = False
        self._last = b""
        """SysMessageID of the last delivered message."""
        self._news = asyncio.Event()
        self._end: ClientError | None = None

    @property
    def is_volatile(self) -> bool:
        """True if a lost non-persistent message is acceptable (non-durable topic subscription)."""
        subscription = self.subscription
        return not (subscription.destination.is_queue or subscription.durable)

    async def receive(self, timeout: float | None = None) -> JmqMessage:
        """Return the next message.

        Waits up to `timeout` seconds (None = for ever), also for a reconnect. A session with
        AckMode.AUTO acknowledges the message. Cancellation loses no message.

        Raises RequestTimeout; ConnectionLost if no more messages can arrive; Refused if the
        broker refuses the acknowledgement; TransactionLost if the session's transaction is lost.
        If the connection breaks before the broker confirms the acknowledgement, the message is
        returned and may be redelivered.
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
            # the broker may have the acknowledgement, and would then never redeliver the message
            return message
        return message

    async def _wait(self, timeout: float | None) -> None:
        """Wait until a message can be delivered."""
        async with time_limit(timeout, f"no message in {timeout} s"):
            while self._session.halted or not (self._packets or self._back):
                if self._end is not None:
                    raise again(self._end)
                self._news.clear()
                await self._news.wait()

    def _take(self) -> JmqMessage | None:
        """Return the first buffered message, or None if it has expired."""
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
            self.channel.notify(
                PacketType.RESUME_FLOW,
                {"JMQConsumerID": Long(self.id), "JMQSize": self._size - len(self._packets)},
            )

    async def __aiter__(self) -> AsyncGenerator[JmqMessage]:
        while True:
            yield await self.receive()

    async def close(self) -> None:
        """Close the consumer; the broker requeues its buffered messages. Messages already delivered
        can still be acknowledged. Raises Refused, RequestTimeout."""
        if self._end is not None:
            return
        self._session.leave(self)
        self.finish(ConnectionLost("the consumer is closed"))
        with suppress(ConnectionLost):  # a lost connection has closed the consumer
            await self.end(await self._session.ready())

    async def begin(self, channel: RequestChannel) -> None:
        """Create the consumer on the broker, again after a reconnect. Raises ClientError."""
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
            # messages may follow the reply immediately
            self.channel = channel
            self.id = number(packet, "JMQConsumerID")
            granted = number(packet, "JMQSize")
            self._size = granted if granted > 0 else self.subscription.prefetch
            channel.inboxes[self.id] = self

        await channel.request(PacketType.ADD_CONSUMER, properties, then=added)

    async def end(self, channel: RequestChannel) -> None:
        """Delete the consumer on the broker, naming the last delivered message.

        Raises ClientError.
        """
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
        """Buffer a message from the broker."""
        self._packets.append(packet)
        self.channel.held(1)
        if packet.flags & packets.C:
            self._paused = True
        self.go_on()

    def give_back(self) -> bytes:
        """Drop the buffered messages and return their ack blocks, for redelivery."""
        blocks = encode_blocks([(self.id, packet.sysid) for packet in self._packets])
        self._clear()
        self._last = b""
        return blocks

    def forget(self) -> None:
        """Drop the buffered messages: the broker redelivers them on the next connection."""
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
        """Wake the receiver, and resume the flow if the buffer is empty."""
        if self._paused and not self._packets and not self._session.halted:
            self._resume()
        self._news.set()

    def finish(self, reason: ClientError) -> None:
        """Mark the consumer closed; `receive` raises `reason`."""
        self._end = self._end or reason
        self._clear()
        self.go_on()
