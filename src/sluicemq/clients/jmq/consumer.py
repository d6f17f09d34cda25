"""Consumers and queue browsers. Public through the package."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Final

from sluicemq.clients.jmq.messages import Message, now_ms, properties_of
from sluicemq.clients.jmq.request_channel import (
    RequestChannel,
    SessionState,
    check,
    declare,
    number,
)
from sluicemq.clients.transport import AsyncClient, Inbox
from sluicemq.model.destination import Address
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import DEAD_MESSAGES, SYSID_SIZE, encode_blocks
from sluicemq.protocols.jmq.packets import AckMode, BodyType, PacketType, Status
from sluicemq.protocols.jmq.wire import Packet


class JmqMessage(Message):
    """A message received by a JmqClient.

    channel, block  the connection that delivered it, and its ack block there
    """

    def __init__(
        self, packet: Packet, session: SessionState, channel: RequestChannel, block: bytes
    ) -> None:
        super().__init__(packet)
        self._session = session
        self.channel = channel
        self.block = block

    async def acknowledge(self, *, only: bool = False) -> None:
        """Acknowledge all messages the session has delivered or, with `only`, this message.

        Has an effect only in a session with AckMode.CLIENT, and only once per message.
        Raises StatusError, RequestTimeout; ConnectionLost, also if the client has reconnected since
        the message was delivered, in which case the broker redelivers it.
        """
        await self._session.acknowledge(self.channel, self.block, only)


class Consumer(AsyncClient):
    """Consumer of one destination or subscription. Made by `Session.consumer`; closed by `close`
    or by its `async with`. One task at a time may receive.
    """

    def __init__(
        self,
        session: SessionState,
        destination: Address,
        properties: Mapping[str, object],
        prefetch: int,
        reliable: bool,
        unregister: Callable[[Consumer], None],
    ) -> None:
        """Set up a consumer that `create_on_broker` creates.

        properties  of its ADD_CONSUMER packet, without ids
        prefetch    messages buffered in the client
        reliable    the broker confirms the acknowledgements of non-persistent messages, too
        unregister  removes the consumer from its session
        """
        self.id = 0
        self.channel: RequestChannel
        self._session = session
        self._destination = destination
        self._properties = properties
        self._prefetch = prefetch
        self._reliable = reliable
        self._unregister = unregister
        self._size = prefetch
        self._inbox = Inbox[Packet]()
        self._undelivered: deque[JmqMessage] = deque()
        """Acknowledged messages whose delivery to the caller was interrupted."""
        self._paused = False
        self._last_delivered = b""
        """SysMessageID of the last delivered message."""

    async def receive(self, timeout: float | None = None) -> JmqMessage:
        """Return the next message.

        Waits up to `timeout` seconds (None = no limit), also for a reconnect. A session with
        AckMode.AUTO acknowledges the message. Cancellation loses no message.

        Raises RequestTimeout; ConnectionLost if no more messages can arrive; StatusError if the
        broker refuses the acknowledgement; TransactionLost if the session's transaction is lost.
        If the connection breaks before the broker confirms the acknowledgement, the message is
        returned and may be redelivered.
        """
        session = self._session
        while True:
            if session.transaction:
                await session.confirmations.pending.wait_for_capacity(session.client.outstanding)
            await self._inbox.wait(timeout, self._is_ready)
            if self._undelivered:
                return self._undelivered.popleft()
            session.mark_transaction_used()
            message = self._take()
            if message is not None:
                break
        reliable = self._reliable or message.persistent
        try:
            await session.acknowledge_delivered(self.channel, message.block, reliable=reliable)
        except (asyncio.CancelledError, RequestTimeout):
            self._undelivered.append(message)
            raise
        except ConnectionLost:
            # the broker may have the acknowledgement, and would then never redeliver the message
            return message
        return message

    def _is_ready(self) -> bool:
        return not self._session.halted and bool(self._inbox.messages or self._undelivered)

    def _take(self) -> JmqMessage | None:
        """Return the first buffered message, or None if it has expired."""
        packet = self._inbox.messages.popleft()
        channel = self.channel
        channel.count_buffered(-1)
        if self._paused and len(self._inbox.messages) <= self._size // 2:
            self._resume()
        sysid = packet.sysid
        block = encode_blocks([(self.id, sysid)])
        if 0 < packet.expiration <= now_ms() and self._destination != DEAD_MESSAGES:
            with suppress(ConnectionLost):
                self._session.acknowledge_expired(channel, block)
            return None
        self._last_delivered = sysid
        return JmqMessage(packet, self._session, channel, block)

    def _resume(self) -> None:
        self._paused = False
        with suppress(ConnectionLost):
            self.channel.notify(
                PacketType.RESUME_FLOW,
                {"JMQConsumerID": Long(self.id), "JMQSize": self._size - len(self._inbox.messages)},
            )

    async def __aiter__(self) -> AsyncGenerator[JmqMessage]:
        while True:
            yield await self.receive()

    async def close(self) -> None:
        """Close the consumer; the broker requeues its buffered messages. Messages already delivered
        can still be acknowledged. Raises StatusError, RequestTimeout."""
        if self._inbox.end is not None:
            return
        self._unregister(self)
        self.finish(ConnectionLost("the consumer is closed"))
        with suppress(ConnectionLost):  # a lost connection has closed the consumer
            await self.delete_on_broker(await self._session.ready())

    async def create_on_broker(self, channel: RequestChannel) -> None:
        """Create the consumer on the broker, again after a reconnect. Raises ClientError."""
        await declare(channel, self._destination)
        properties = {**self._properties, "JMQSessionID": Long(self._session.id)}
        if self.id:
            properties["JMQOldConsumerID"] = Long(self.id)

        def added(packet: Packet) -> None:
            # messages may follow the reply immediately
            self.channel = channel
            self.id = number(packet, "JMQConsumerID")
            size = number(packet, "JMQSize")
            self._size = size if size > 0 else self._prefetch
            channel.inboxes[self.id] = self.put
            if self._inbox.end is not None:
                self._delete()

        await channel.request(PacketType.ADD_CONSUMER, properties, on_response=added)

    def abandon(self) -> None:
        """Delete the consumer on the broker, now or once it is created: its caller has left."""
        self.finish(ConnectionLost("the consumer is closed"))
        if self.id:
            self._delete()

    def _delete(self) -> None:
        self.channel.inboxes.pop(self.id, None)
        with suppress(ConnectionLost):
            self.channel.notify(
                PacketType.DELETE_CONSUMER,
                {
                    "JMQConsumerID": Long(self.id),
                    "JMQBodyType": BodyType.NONE,
                    "JMQRedeliverAll": True,
                },
            )

    async def delete_on_broker(self, channel: RequestChannel) -> None:
        """Delete the consumer on the broker, naming the last delivered message.

        Raises ClientError.
        """
        channel.inboxes.pop(self.id, None)
        properties: dict[str, object] = {"JMQConsumerID": Long(self.id), "JMQBlock": True}
        if self._last_delivered:
            properties["JMQBodyType"] = BodyType.SYSMESSAGEID
            if self._session.transacted:
                properties["JMQLastDeliveredIDInTransaction"] = True
        else:
            properties["JMQBodyType"] = BodyType.NONE
            properties["JMQRedeliverAll"] = True
        await channel.request(
            PacketType.DELETE_CONSUMER,
            properties,
            self._last_delivered,
            accepted=(Status.OK, Status.NOT_FOUND),
        )

    def put(self, packet: Packet) -> None:
        """Buffer a message from the broker."""
        self.channel.count_buffered(1)
        if packet.flags & packets.C:
            self._paused = True
        self._inbox.put(packet)

    def drop_buffered(self) -> bytes:
        """Drop the buffered messages and return their ack blocks, for redelivery."""
        blocks = encode_blocks([(self.id, packet.sysid) for packet in self._inbox.messages])
        self._clear()
        self._last_delivered = b""
        return blocks

    def forget(self) -> None:
        """Drop the buffered messages: the broker redelivers them on the next connection."""
        self._clear()
        self._paused = False
        self._last_delivered = b""

    def _clear(self) -> None:
        if self._session.ack_mode != AckMode.AUTO:
            self._undelivered.clear()
        buffered = self._inbox.messages
        if buffered:
            self.channel.count_buffered(-len(buffered))
            buffered.clear()

    def wake_receiver(self) -> None:
        """Wake the receiver, and resume the flow if the buffer is empty."""
        if self._paused and not self._inbox.messages and not self._session.halted:
            self._resume()
        self._inbox.wake()

    def finish(self, reason: ClientError) -> None:
        """Mark the consumer closed; `receive` raises `reason`."""
        self._clear()
        self._inbox.finish(reason)


# --- browsers

BATCH: Final = 1000
"""Number of messages requested at a time."""


class Browser:
    """Messages of a queue, in queue order, without consuming them. Made by `Session.browser`.

    Each iteration takes a new snapshot and skips messages that have left the queue since.

        async for message in session.browser("orders"): …

    Raises StatusError (400 for a wrong selector, 403, …), ConnectionLost, RequestTimeout.
    """

    def __init__(self, session: SessionState, queue: Address, selector: str) -> None:
        self._session = session
        self._properties = properties_of(queue)
        if selector:
            self._properties["JMQSelector"] = selector

    async def __aiter__(self) -> AsyncGenerator[Message]:
        channel = await self._session.ready()
        for kind in (PacketType.VERIFY_DESTINATION, PacketType.BROWSE):
            reply = await channel.request(
                kind, self._properties, accepted=(Status.OK, Status.NOT_FOUND)
            )
            if number(reply, "JMQStatus") == Status.NOT_FOUND:
                if reply.properties.get("JMQCanCreate") is True:
                    return
                check(reply)
        consumer_id = number(reply, "JMQConsumerID")
        size = BATCH * SYSID_SIZE
        inbox = Inbox[Packet]()
        channel.inboxes[consumer_id] = inbox.put
        try:
            for position in range(0, len(reply.body), size):
                answer = await channel.request(
                    PacketType.DELIVER,
                    {"JMQConsumerID": Long(consumer_id)},
                    reply.body[position : position + size],
                    accepted=(Status.OK, Status.NOT_FOUND),
                )
                last = number(answer, "JMQStatus") == Status.NOT_FOUND
                while not last:
                    try:
                        packet = await inbox.take(channel.timeout)
                    except RequestTimeout:
                        channel.check()  # the connection may be lost
                        raise
                    last = bool(packet.flags & packets.L)
                    yield Message(packet)
        finally:
            channel.inboxes.pop(consumer_id, None)
