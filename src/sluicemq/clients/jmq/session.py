"""Sessions: the scope of acknowledgements and transactions. Public through `client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar

from sluicemq.clients.jmq.browser import Browser
from sluicemq.clients.jmq.confirmations import Confirmations
from sluicemq.clients.jmq.consumer import Consumer, ConsumerOptions, JmqMessage
from sluicemq.clients.jmq.destinations import (
    Destination,
    TemporaryQueue,
    TemporaryTopic,
    Topic,
    named,
    temporary_name,
)
from sluicemq.clients.jmq.messages import SendOptions
from sluicemq.clients.jmq.producer import Producer
from sluicemq.clients.jmq.request_channel import RequestChannel, number
from sluicemq.clients.jmq.xa import XaResource
from sluicemq.clients.transport import AsyncClient
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import (
    AckMode,
    AckType,
    DeadReason,
    Level,
    PacketType,
    Status,
)
from sluicemq.protocols.jmq.wire import Packet

LAZY_BLOCKS: Final = 10
LAZY_SECONDS: Final = 7.0
"""Number of messages, and seconds, a DUPS_OK session delays acknowledgements (section 7.2)."""

ANY: Final = SendOptions()
TemporaryT = TypeVar("TemporaryT", TemporaryQueue, TemporaryTopic)


class TransactionLost(ConnectionLost):
    """The connection was lost during the transaction; none of its work has taken effect."""


class Owner(Protocol):
    """Client interface used by a session."""

    timeout: float
    prefetch: int
    outstanding: int
    share_client_id: bool

    async def ready(self) -> RequestChannel:
        """Return the connection once it is usable. Raises ConnectionLost, RequestTimeout."""

    def leave(self, session: Session) -> None:
        """Remove a closed session."""

    def temporary_origin(self) -> str:
        """Return the client id, or else the local address."""


class Session(AsyncClient):
    """JMS session. Made by `JmqClient.session`; closed by `close` or by its `async with`.

    Any number of tasks may use it, but acknowledge, commit, rollback and recover affect the whole
    session.
    """

    def __init__(self, owner: Owner, ack_mode: AckMode, transacted: bool) -> None:
        self.id = 0
        self.ack_mode = AckMode.NONE if transacted else ack_mode
        self.transacted = transacted
        self.transaction = 0
        """Id of the transaction that sends and acknowledgements belong to; 0 = none."""
        self.confirmations = Confirmations()
        self.xa = XaResource(self)
        """Global transactions; not available in transacted sessions, which use local ones."""
        self.halted = False
        """True while messages return to the broker; consumers deliver none meanwhile."""
        self._owner = owner
        self._turn = asyncio.Lock()
        self._channel: RequestChannel | None = None
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []
        self._temporaries: list[Destination] = []
        self._replier: Producer | None = None
        self._unsettled: dict[bytes, None] = {}
        """Ack blocks of delivered messages that are not yet acknowledged or committed."""
        self._lazy: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._touched = False
        self._lost_work = False
        self._closed = False

    # --- factories

    async def producer(
        self,
        destination: str | Destination | None = None,
        *,
        persistent: bool = True,
        priority: int = 4,
        ttl: float = 0.0,
        delay: float = 0.0,
    ) -> Producer:
        """Create a producer for a destination or, without one, for any destination.

        priority    0-9
        ttl, delay  seconds; see Options. `send` may override each of these defaults

        Raises Refused (status 403, 404, …), ConnectionLost, RequestTimeout.
        """
        options = ANY.changed(persistent, priority, ttl, delay)
        where = None if destination is None else named(destination)
        producer = Producer(self, where, options, self._owner.outstanding, self._owner.timeout)
        channel = await self.ready()
        await producer.begin(channel)
        channel.check()  # reconnects recreate only registered producers
        self._producers.append(producer)
        return producer

    async def consumer(
        self,
        destination: str | Destination,
        *,
        selector: str = "",
        no_local: bool = False,
        name: str = "",
        durable: bool = False,
        shared: bool = False,
        prefetch: int = 0,
    ) -> Consumer:
        """Create a consumer of a destination.

        selector  SQL message selector (JMS 1.1 section 3.8)
        no_local  exclude messages sent by this connection
        name      name of a durable or shared topic subscription
        durable   the subscription keeps messages while it has no consumer
        shared    several consumers may share the subscription's messages
        prefetch  messages buffered in the client; 0 = the client's default

        Raises Refused (400 for a wrong selector, 403, 404, 409, …), ConnectionLost, RequestTimeout,
        ValueError.
        """
        where = named(destination)
        if bool(name) != (durable or shared):
            raise ValueError("a subscription with a name is durable, shared, or both")
        if name and not isinstance(where, Topic):
            raise ValueError("only a topic has subscriptions")
        subscription = ConsumerOptions(
            where, selector, no_local, name, durable, shared, prefetch or self._owner.prefetch
        )
        consumer = Consumer(self, subscription)
        channel = await self.ready()
        await consumer.begin(channel)
        channel.check()
        self._consumers.append(consumer)
        return consumer

    def browser(self, queue: str | Destination, selector: str = "") -> Browser:
        """Create a browser, which reads the messages of a queue without consuming them."""
        return Browser(self, named(queue), selector)

    async def temporary_queue(self) -> TemporaryQueue:
        """Create a queue that only this connection can receive from; it is deleted with it."""
        return await self._temporary(TemporaryQueue)

    async def temporary_topic(self) -> TemporaryTopic:
        """Create a topic that only this connection can receive from; it is deleted with it."""
        return await self._temporary(TemporaryTopic)

    async def delete(self, temporary: TemporaryQueue | TemporaryTopic) -> None:
        """Delete a temporary destination of this session. It must not have consumers.

        Raises Refused, ConnectionLost, RequestTimeout.
        """
        channel = await self.ready()
        await channel.request(
            PacketType.DESTROY_DESTINATION,
            {"JMQDestination": temporary.name, "JMQDestType": temporary.type},
        )
        if temporary in self._temporaries:
            self._temporaries.remove(temporary)

    async def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription of this client id. It must not have consumers.

        Raises Refused (404, 409), ConnectionLost, RequestTimeout.
        """
        channel = await self.ready()
        await channel.request(PacketType.DELETE_CONSUMER, {"JMQDurableName": name})

    async def reply(
        self,
        request: JmqMessage,
        body: object = None,
        *,
        properties: Mapping[str, object] | None = None,
        persistent: bool = False,
    ) -> str:
        """Send a reply with the request's correlation id, or its message id if it has none.

        Returns and raises as `Producer.send`; ValueError if the request has no reply destination.
        """
        to = request.reply_to
        if to is None:
            raise ValueError(f"{request} does not say where a reply is wanted")
        if self._replier is None:
            self._replier = await self.producer()
        return await self._replier.send(
            body,
            to=to,
            properties=properties,
            correlation_id=request.correlation_id or request.id,
            persistent=persistent,
        )

    # --- acknowledgements

    async def acknowledge(self, message: JmqMessage, only: bool) -> None:
        """Acknowledge all delivered messages of a CLIENT session, or one with `only`.

        Raises as JmqMessage.acknowledge.
        """
        if self.ack_mode != AckMode.CLIENT:
            return
        channel = message.channel
        channel.check()
        if self.transaction:
            return  # acknowledged within the transaction
        requested = [message.block] if only else [*self._unsettled]
        blocks = [block for block in requested if block in self._unsettled]
        if blocks:
            await channel.request(PacketType.ACKNOWLEDGE, body=b"".join(blocks))
            for block in blocks:
                self._unsettled.pop(block, None)

    async def handed(self, consumer: Consumer, packet: Packet, block: bytes) -> None:
        """Acknowledge a message delivered to the application, depending on the session's mode.

        Raises Refused, ConnectionLost, RequestTimeout.
        """
        channel = consumer.channel
        if self.transaction:
            await self.confirmations.wait_for_capacity(self._owner.outstanding, self._owner.timeout)
            if self.transacted:
                self._unsettled[block] = None
            header = encode_header(transaction_id=self.transaction)
            channel.ask(PacketType.ACKNOWLEDGE, self.confirmations, block, header)
            self.confirmations.begin()
        elif self.ack_mode == AckMode.CLIENT:
            self._unsettled[block] = None
        elif self.ack_mode == AckMode.DUPS_OK:
            self._lazy.append(block)
            if len(self._lazy) >= LAZY_BLOCKS:
                self._flush(channel)
            elif self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(LAZY_SECONDS, self._flush, channel)
        elif self.ack_mode == AckMode.AUTO:
            if not packet.flags & packets.P and consumer.is_volatile:
                channel.notify(PacketType.ACKNOWLEDGE, body=block)
            else:
                await channel.request(PacketType.ACKNOWLEDGE, body=block)

    def expired(self, channel: RequestChannel, block: bytes) -> None:
        """Acknowledge a message that expired before delivery as dead."""
        header = encode_header(transaction_id=self.transaction)
        channel.notify(
            PacketType.ACKNOWLEDGE,
            {"JMQAckType": AckType.DEAD, "JMQDeadReason": DeadReason.EXPIRED},
            block,
            header=header,
        )

    def _flush(self, channel: RequestChannel) -> None:
        """Send the delayed acknowledgements of a DUPS_OK session."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        blocks, self._lazy = self._lazy, []
        if blocks:
            with suppress(ConnectionLost):  # the broker redelivers; DUPS_OK allows duplicates
                channel.notify(PacketType.ACKNOWLEDGE, body=b"".join(blocks))

    async def recover(self) -> None:
        """Return unacked messages to the broker, which redelivers them before any others.

        Raises Refused, ConnectionLost, RequestTimeout; ValueError in a transacted session.
        """
        if self.transacted:
            raise ValueError("a transacted session rolls back")
        async with self._turning() as channel:
            await channel.request(PacketType.STOP, {"JMQSessionID": Long(self.id)})
            self._give_back(channel, 0)
            channel.notify(PacketType.START, {"JMQSessionID": Long(self.id)})

    @asynccontextmanager
    async def _turning(self) -> AsyncIterator[RequestChannel]:
        """Halt delivery while the session returns messages to the broker."""
        async with self._turn:
            channel = await self.ready()
            self._flush(channel)
            self.halted = True
            try:
                yield channel
            finally:
                self.halted = False
                for consumer in self._consumers:
                    consumer.go_on()

    def _give_back(self, channel: RequestChannel, transaction: int) -> None:
        """Send REDELIVER for the undelivered messages, then for the delivered (section 7.4)."""
        unseen = b"".join(consumer.give_back() for consumer in self._consumers)
        seen = b"".join(self._unsettled)
        self._unsettled.clear()
        if unseen:
            channel.notify(PacketType.REDELIVER, {"JMQSetRedelivered": False}, unseen)
        if seen:
            properties: dict[str, object] = {"JMQSetRedelivered": True}
            if transaction:
                properties["JMQTransactionID"] = Long(transaction)
            header = encode_header(transaction_id=transaction)
            channel.notify(PacketType.REDELIVER, properties, seen, header=header)

    # --- transactions

    async def commit(self) -> None:
        """Commit all sends and receives since the last commit or rollback, atomically.

        Raises TransactionLost, after which the next transaction has begun; Refused, also for a
        message sent without waiting, after which the caller must roll back; ConnectionLost and
        RequestTimeout, after which the outcome is unknown. ValueError if the session is not
        transacted.
        """
        self._check_transacted()
        async with self._turn:
            channel = await self.ready()
            self._raise_lost_work()
            await self.confirmations.wait_for_all(self._owner.timeout)
            properties: dict[str, object] = {"JMQTransactionID": Long(self.transaction)}
            if channel.level >= Level.MQ_4_5:
                properties["JMQStartNextTransaction"] = True
            reply = await channel.request(PacketType.COMMIT_TRANSACTION, properties)
            self._unsettled.clear()
            self._touched = False
            self.transaction = number(reply, "JMQNextTransactionID")
            if not self.transaction:
                await self._start(channel)

    async def rollback(self) -> None:
        """Roll back all sends and receives since the last commit or rollback. The broker redelivers
        the received messages, marked as redelivered.

        Raises Refused, ConnectionLost, RequestTimeout; ValueError if the session is not transacted.
        """
        self._check_transacted()
        async with self._turning() as channel:
            self._lost_work = False
            with suppress(ClientError):
                await self.confirmations.wait_for_all(self._owner.timeout)
            channel.check()
            transaction = self.transaction
            await channel.request(PacketType.STOP, {"JMQSessionID": Long(self.id)})
            self._give_back(channel, transaction)
            channel.notify(PacketType.START, {"JMQSessionID": Long(self.id)})
            channel.notify(PacketType.ROLLBACK_TRANSACTION, {"JMQTransactionID": Long(transaction)})
            await self._start(channel)

    def _check_transacted(self) -> None:
        if not self.transacted:
            raise ValueError("the session is not transacted")

    def _raise_lost_work(self) -> None:
        if self._lost_work:
            self._lost_work = False
            self._touched = False
            raise TransactionLost("the connection broke within the transaction")

    async def _start(self, channel: RequestChannel) -> None:
        """Start the next transaction of a transacted session."""
        self._touched = False
        self.transaction = 0
        reply = await channel.request(PacketType.START_TRANSACTION, {"JMQSessionID": Long(self.id)})
        self.transaction = number(reply, "JMQTransactionID")

    def touch(self) -> None:
        """Mark the transaction as used. Raises TransactionLost if a part of it is lost."""
        if self._lost_work:
            raise TransactionLost("the connection broke within the transaction: roll back")
        if self.transaction:
            self._touched = True

    def enter(self, transaction: int) -> None:
        """Add the following work to a global transaction; 0 = none."""
        self.transaction = transaction
        self._touched = False
        self._lost_work = False

    # --- lifecycle

    async def ready(self) -> RequestChannel:
        """Return the connection once it is usable. Raises ConnectionLost, RequestTimeout."""
        if self._closed:
            raise ConnectionLost("the session is closed")
        return await self._owner.ready()

    async def begin(self, channel: RequestChannel) -> None:
        """Create the session on the broker. Raises ClientError."""
        self._channel = channel
        properties = None if self.transacted else {"JMQAckMode": self.ack_mode}
        reply = await channel.request(PacketType.CREATE_SESSION, properties)
        self.id = number(reply, "JMQSessionID", -1)
        if self.transacted:
            await self._start(channel)

    def forget(self) -> None:
        """Reset the state that belonged to the lost connection."""
        self._lost_work = self._lost_work or self._touched
        self._touched = False
        self._unsettled.clear()
        self._lazy.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for consumer in self._consumers:
            consumer.forget()
        if not self.transacted:
            self.transaction = 0
        self.xa.forget()

    async def begin_temporaries(self, channel: RequestChannel) -> None:
        """Recreate the temporary destinations on a new connection. Raises ClientError."""
        for temporary in self._temporaries:
            await self._create(channel, temporary)

    async def begin_consumers(self, channel: RequestChannel) -> None:
        """Recreate the consumers on a new connection. Raises ClientError."""
        for consumer in self._consumers:
            await consumer.begin(channel)

    async def begin_producers(self, channel: RequestChannel) -> None:
        """Recreate the producers on a new connection. Raises ClientError."""
        for producer in self._producers:
            await producer.begin(channel)

    async def close(self) -> None:
        """Close the session; the broker requeues messages not acknowledged or committed.

        Raises RequestTimeout; Refused if the broker refused a message sent without waiting.
        """
        if self._closed:
            return
        self._closed = True
        self._owner.leave(self)
        channel = self._channel
        try:
            if channel is not None and channel.lost is None:
                with suppress(ConnectionLost):
                    await self._end(channel)
        finally:
            self.finish(ConnectionLost("the session is closed"))

    async def _end(self, channel: RequestChannel) -> None:
        self._flush(channel)
        try:
            await self.confirmations.wait_for_all(self._owner.timeout)
        finally:
            if self.transaction:
                channel.notify(
                    PacketType.ROLLBACK_TRANSACTION,
                    {"JMQTransactionID": Long(self.transaction), "JMQUpdateConsumed": True},
                )
            for consumer in self._consumers:
                await consumer.end(channel)
            for producer in self._producers:
                await producer.end(channel)
            await channel.request(PacketType.DESTROY_SESSION, {"JMQSessionID": Long(self.id)})

    def finish(self, reason: ClientError) -> None:
        """Mark the session closed; its consumers fail with `reason`."""
        self._closed = True
        self.forget()
        for consumer in self._consumers:
            consumer.finish(reason)

    def leave(self, part: object) -> None:
        """Remove a closed consumer or producer."""
        self._consumers = [consumer for consumer in self._consumers if consumer is not part]
        self._producers = [producer for producer in self._producers if producer is not part]

    @property
    def shares_client_id(self) -> bool:
        return self._owner.share_client_id

    async def _temporary(self, kind: Callable[[str], TemporaryT]) -> TemporaryT:
        channel = await self.ready()
        origin = self._owner.temporary_origin()
        name = temporary_name(kind is TemporaryQueue, origin, channel.local()[1])
        temporary = kind(name)
        await self._create(channel, temporary)
        channel.check()
        self._temporaries.append(temporary)
        return temporary

    async def _create(self, channel: RequestChannel, temporary: Destination) -> None:
        await channel.request(
            PacketType.CREATE_DESTINATION,
            {"JMQDestination": temporary.name, "JMQDestType": temporary.type},
            accepted=(Status.OK, Status.CONFLICT),
        )
