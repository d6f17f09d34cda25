"""Sessions and their global transactions. Public through the package.

A transaction manager (JTA's XAResource) controls global transactions:

    await session.xa.start(xid)
    …                                    send and receive with the session
    await session.xa.end(xid)
    await session.xa.prepare(xid)
    await session.xa.commit(xid)         from any connection, also after a broker restart
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from sluicemq.clients.jmq.consumer import Browser, Consumer, JmqMessage
from sluicemq.clients.jmq.messages import (
    SendOptions,
    properties_of,
    temporary_name,
    to_address,
)
from sluicemq.clients.jmq.producer import Producer
from sluicemq.clients.jmq.request_channel import (
    RequestChannel,
    SessionState,
    StatusError,
    TransactionLost,
    create,
    number,
)
from sluicemq.clients.jmq.target import Target
from sluicemq.clients.transport import AsyncClient, ReconnectingClient
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.fields import XID_SIZE, Xid, decode_xid, encode_header, encode_xid
from sluicemq.protocols.jmq.packets import AckMode, Level, PacketType, Status, XaFlag
from sluicemq.protocols.jmq.wire import Packet

NO_OPTIONS: Final = SendOptions()
_PERMANENT: Final = (Status.BAD_REQUEST, Status.FORBIDDEN, Status.NOT_FOUND)
"""Refusals of a consumer that another attempt does not change."""


class XaResource:
    """XA resource of a session: `Session.xa`.

    All methods raise StatusError (404 for an unknown Xid, 500 if the transaction's state does not
    allow the operation, …), ConnectionLost, RequestTimeout; ProtocolError for an Xid with a part of
    more than 64 bytes.
    """

    def __init__(self, session: SessionState) -> None:
        self._session = session
        self._started: dict[Xid, int] = {}

    async def start(self, xid: Xid, flags: int = XaFlag.NOFLAGS) -> None:
        """Associate the session's following work with `xid`. Flags: JOIN, RESUME.

        Raises ValueError for a transacted session, or if another transaction has not been ended.
        """
        session = self._session
        if session.transacted:
            raise ValueError("the session has transactions of its own")
        if session.transaction:
            raise ValueError("a transaction has been started and not ended")
        channel = await session.ready()
        reply = await channel.request(
            PacketType.START_TRANSACTION, {"JMQXAFlags": flags}, encode_xid(xid)
        )
        channel.check()  # the transaction's id is valid only on this connection
        self._started[xid] = number(reply, "JMQTransactionID")
        session.join_transaction(self._started[xid])

    async def end(self, xid: Xid, flags: int = XaFlag.SUCCESS) -> None:
        """End the session's association with `xid`. Flags: SUSPEND, FAIL.

        Also raises StatusError if the broker refused a message sent without waiting.
        """
        session = self._session
        await session.ready()
        try:
            await session.confirmations.wait_for_all()
        finally:
            if session.transaction == self._started.get(xid, 0):
                session.join_transaction(0)
        await self._request(PacketType.END_TRANSACTION, xid, {"JMQXAFlags": flags})

    async def prepare(self, xid: Xid) -> None:
        """Prepare the transaction: the broker stores it so that it survives a restart."""
        await self._request(PacketType.PREPARE_TRANSACTION, xid)

    async def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        """Commit a prepared transaction or, with `one_phase`, an ended one."""
        flags = XaFlag.ONEPHASE if one_phase else XaFlag.NOFLAGS
        await self._request(PacketType.COMMIT_TRANSACTION, xid, {"JMQXAFlags": flags})
        self._started.pop(xid, None)

    async def rollback(self, xid: Xid) -> None:
        """Roll back an ended or prepared transaction. Its received messages are redelivered."""
        properties = {"JMQXAFlags": XaFlag.NOFLAGS, "JMQRedeliver": True}
        await self._request(PacketType.ROLLBACK_TRANSACTION, xid, properties)
        self._started.pop(xid, None)

    def abandon(self, channel: RequestChannel) -> None:
        """Roll back the transaction that was started and not ended, because its session closes."""
        for xid, transaction in self._started.items():
            if transaction == self._session.transaction:
                body = encode_xid(xid)
                channel.notify(PacketType.END_TRANSACTION, {"JMQXAFlags": XaFlag.FAIL}, body)
                channel.notify(PacketType.ROLLBACK_TRANSACTION, {"JMQXAFlags": 0}, body)

    def forget(self) -> None:
        """Drop the transaction ids: they are valid only on the lost connection."""
        self._started.clear()

    async def recover(self) -> list[Xid]:
        """Return the Xids of the prepared transactions."""
        channel = await self._session.ready()
        reply = await channel.request(
            PacketType.RECOVER_TRANSACTION, {"JMQXAFlags": XaFlag.STARTRSCAN}
        )
        body = reply.body
        return [
            decode_xid(body[position : position + XID_SIZE])
            for position in range(0, len(body), XID_SIZE)
        ]

    async def _request(
        self, kind: PacketType, xid: Xid, properties: Mapping[str, object] | None = None
    ) -> None:
        """Send an XA request: END carries only the Xid, others also the transaction id."""
        transaction = self._started.get(xid)
        if transaction and kind != PacketType.END_TRANSACTION:
            properties = {**(properties or {}), "JMQTransactionID": Long(transaction)}
        channel = await self._session.ready()
        await channel.request(kind, properties, encode_xid(xid))


class Session(SessionState, AsyncClient):
    """JMS session. Made by `JmqClient.session`; closed by `close` or by its `async with`.

    Any number of tasks may use it, but acknowledge, commit, rollback and recover affect the whole
    session.
    """

    def __init__(
        self,
        client: ReconnectingClient[RequestChannel, Target],
        ack_mode: AckMode,
        transacted: bool,
    ) -> None:
        super().__init__(client, ack_mode, transacted)
        self.xa = XaResource(self)
        """Global transactions; not available in transacted sessions, which use local ones."""
        self._lock = asyncio.Lock()
        self._channel: RequestChannel | None = None
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []
        self._temporaries: list[Address] = []
        self._replier: Producer | None = None

    # --- factories

    async def producer(
        self,
        destination: str | Address | None = None,
        *,
        persistent: bool = True,
        priority: int = 4,
        ttl: float = 0.0,
        delay: float = 0.0,
    ) -> Producer:
        """Create a producer for a destination or, without one, for any destination.

        priority    0-9
        ttl, delay  seconds; see SendOptions. `send` may override each of these defaults

        Raises StatusError (status 403, 404, …), ConnectionLost, RequestTimeout.
        """
        options = NO_OPTIONS.with_overrides(persistent, priority, ttl, delay)
        address = None if destination is None else to_address(destination)
        producer = Producer(self, address, options, self._producers.remove)
        channel = await self.ready()
        await producer.create_on_broker(channel)
        channel.check()  # reconnects recreate only registered producers
        self._producers.append(producer)
        return producer

    async def consumer(
        self,
        destination: str | Address,
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

        Raises StatusError (400 for a wrong selector, 403, 404, 409, …), ConnectionLost,
        RequestTimeout, ValueError.
        """
        address = to_address(destination)
        if bool(name) != (durable or shared):
            raise ValueError("a subscription with a name is durable, shared, or both")
        if name and address.kind is not Kind.TOPIC:
            raise ValueError("only a topic has subscriptions")
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}, the minimum is 0")
        size = prefetch or self.client.prefetch
        properties: dict[str, object | None] = {
            **properties_of(address),
            "JMQNoLocal": no_local,
            "JMQReconnect": False,
            "JMQSize": size,
            "JMQAckMode": None if self.transacted else self.ack_mode,
            "JMQSelector": selector or None,
            "JMQDurableName": name if durable else None,
            "JMQJMSShare": True if shared else None,
            "JMQSharedSubscriptionName": name if shared else None,
            "JMQShare": None if shared else self.client.target.share_client_id,
        }
        properties = {key: value for key, value in properties.items() if value is not None}
        # a lost non-persistent message of a non-durable topic subscription is acceptable
        reliable = durable or address.kind is Kind.QUEUE
        consumer = Consumer(self, address, properties, size, reliable, self._consumers.remove)
        await create_or_abandon(self, consumer)
        self._consumers.append(consumer)
        return consumer

    def browser(self, queue: str | Address, selector: str = "") -> Browser:
        """Create a browser, which reads the messages of a queue without consuming them."""
        return Browser(self, to_address(queue), selector)

    async def temporary_queue(self) -> Address:
        """Create a queue that only this connection can receive from; it is deleted with it."""
        return await self._create_temporary(Kind.QUEUE)

    async def temporary_topic(self) -> Address:
        """Create a topic that only this connection can receive from; it is deleted with it."""
        return await self._create_temporary(Kind.TOPIC)

    async def delete(self, temporary: Address) -> None:
        """Delete a temporary destination of this session. It must not have consumers.

        Raises StatusError, ConnectionLost, RequestTimeout.
        """
        channel = await self.ready()
        await channel.request(PacketType.DESTROY_DESTINATION, properties_of(temporary))
        if temporary in self._temporaries:
            self._temporaries.remove(temporary)

    async def unsubscribe(self, name: str) -> None:
        """Delete a durable subscription of this client id. It must not have consumers.

        Raises StatusError (404, 409), ConnectionLost, RequestTimeout.
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
        destination = request.reply_to
        if destination is None:
            raise ValueError(f"{request} has no reply destination")
        if self._replier is None:
            self._replier = await self.producer()
        return await self._replier.send(
            body,
            to=destination,
            properties=properties,
            correlation_id=request.correlation_id or request.id,
            persistent=persistent,
        )

    # --- acknowledgements

    async def recover(self) -> None:
        """Return unacked messages to the broker, which redelivers them before any others.

        Raises StatusError, ConnectionLost, RequestTimeout; ValueError in a transacted session.
        """
        if self.transacted:
            raise ValueError("a transacted session rolls back")
        async with self._halted_delivery() as channel:
            await self._request_redelivery(channel, 0)

    @asynccontextmanager
    async def _halted_delivery(self) -> AsyncIterator[RequestChannel]:
        """Halt delivery while the session returns messages to the broker."""
        async with self._lock:
            channel = await self.ready()
            self._flush(channel)
            self.halted = True
            try:
                yield channel
            finally:
                self.halted = False
                for consumer in self._consumers:
                    consumer.wake_receiver()

    async def _request_redelivery(self, channel: RequestChannel, transaction: int) -> None:
        """Send REDELIVER for the undelivered messages, then for the delivered (section 7.4)."""
        session: dict[str, object] = {"JMQSessionID": Long(self.id)}
        try:
            await channel.request(PacketType.STOP, session)
            undelivered = b"".join(consumer.drop_buffered() for consumer in self._consumers)
            delivered = b"".join(self._unacked)
            self._unacked.clear()
            if undelivered:
                channel.notify(PacketType.REDELIVER, {"JMQSetRedelivered": False}, undelivered)
            if delivered:
                properties: dict[str, object] = {"JMQSetRedelivered": True}
                if transaction:
                    properties["JMQTransactionID"] = Long(transaction)
                header = encode_header(transaction_id=transaction)
                channel.notify(PacketType.REDELIVER, properties, delivered, header=header)
        finally:
            if channel.failure is None:
                channel.notify(PacketType.START, session)

    # --- transactions

    async def commit(self) -> None:
        """Commit all sends and receives since the last commit or rollback, atomically.

        Raises TransactionLost, after which the next transaction has begun; StatusError, also for a
        message sent without waiting, after which the caller must roll back; ConnectionLost and
        RequestTimeout, after which the outcome is unknown. ValueError if the session is not
        transacted.
        """
        self._check_transacted()
        async with self._lock:
            channel = await self.ready()
            if self._lost_work:
                self._lost_work = False
                self._transaction_used = False
                with suppress(ClientError):  # of the lost sends
                    self.confirmations.check()
                raise TransactionLost("the connection broke within the transaction")
            await self.confirmations.wait_for_all()
            committed = self.transaction
            properties: dict[str, object] = {"JMQTransactionID": Long(committed)}
            if channel.level >= Level.MQ_4_5:
                properties["JMQStartNextTransaction"] = True

            def accept(reply: Packet) -> None:
                # now: nothing is lost if the connection ends before this task continues
                if self.transaction == committed:
                    self._unacked.clear()
                    self._transaction_used = False
                    self.transaction = number(reply, "JMQNextTransactionID") or committed

            reply = await channel.request(
                PacketType.COMMIT_TRANSACTION, properties, on_response=accept
            )
            if not number(reply, "JMQNextTransactionID"):
                await self._start(channel)

    async def rollback(self) -> None:
        """Roll back all sends and receives since the last commit or rollback. The broker redelivers
        the received messages, marked as redelivered.

        Raises StatusError, ConnectionLost, RequestTimeout; ValueError if the session is not
        transacted.
        """
        self._check_transacted()
        async with self._halted_delivery() as channel:
            self._lost_work = False
            with suppress(ClientError):
                await self.confirmations.wait_for_all()
            channel.check()
            transaction = self.transaction
            await self._request_redelivery(channel, transaction)
            channel.notify(PacketType.ROLLBACK_TRANSACTION, {"JMQTransactionID": Long(transaction)})
            await self._start(channel)

    def _check_transacted(self) -> None:
        if not self.transacted:
            raise ValueError("the session is not transacted")

    async def _start(self, channel: RequestChannel) -> None:
        """Start the next transaction of a transacted session.

        Until then its sends belong to the last one, which the broker refuses.
        """

        def started(reply: Packet) -> None:
            self.transaction = number(reply, "JMQTransactionID")

        self._transaction_used = False
        await channel.request(
            PacketType.START_TRANSACTION, {"JMQSessionID": Long(self.id)}, on_response=started
        )

    # --- lifecycle

    async def create_on_broker(self, channel: RequestChannel) -> None:
        """Create the session on the broker. Raises ClientError."""

        def created(reply: Packet) -> None:
            self._channel, self.id = channel, number(reply, "JMQSessionID", -1)
            if self.closed:
                self.abandon()

        properties = None if self.transacted else {"JMQAckMode": self.ack_mode}
        await channel.request(PacketType.CREATE_SESSION, properties, on_response=created)
        if self.transacted and not self.closed:
            await self._start(channel)

    def abandon(self) -> None:
        """Delete the session on the broker, now or once it is created: its caller has left."""
        self.closed = True
        if self._channel is not None:
            with suppress(ConnectionLost):
                self._channel.notify(PacketType.DESTROY_SESSION, {"JMQSessionID": Long(self.id)})

    def forget(self) -> None:
        """Reset the state that belonged to the lost connection."""
        super().forget()
        for consumer in self._consumers:
            consumer.forget()
        self.xa.forget()

    async def recreate_temporaries(self, channel: RequestChannel) -> None:
        """Recreate the temporary destinations on a new connection. Raises ClientError."""
        for temporary in self._temporaries:
            await create(channel, temporary)

    async def recreate_endpoints(self, channel: RequestChannel) -> None:
        """Recreate the consumers and producers on a new connection. Raises ClientError.

        A consumer that the broker will never accept again ends. A producer may be refused, as one
        for a temporary destination that no longer exists: its next message raises the error.
        """
        for consumer in [*self._consumers]:
            try:
                await consumer.create_on_broker(channel)
            except StatusError as error:
                if error.status not in _PERMANENT:
                    raise
                if consumer in self._consumers:  # else it was closed meanwhile
                    self._consumers.remove(consumer)
                consumer.finish(ConnectionLost(f"the consumer is refused on reconnect: {error}"))
        for producer in [*self._producers]:
            with suppress(StatusError):
                await producer.create_on_broker(channel)

    async def close(self) -> None:
        """Close the session; the broker requeues messages not acknowledged or committed, and rolls
        back a global transaction that was started and not ended.

        Raises RequestTimeout; StatusError and ConnectionLost for a message sent without waiting,
        unless the session is transacted.
        """
        channel, was_closed = self._channel, self.closed
        self.closed = True
        try:
            if channel is not None and channel.failure is None and not was_closed:
                with suppress(ConnectionLost):
                    await self._end(channel)
            if not self.transacted:
                self.confirmations.check()
        finally:
            self.finish(ConnectionLost("the session is closed"))

    async def _end(self, channel: RequestChannel) -> None:
        self._flush(channel)
        try:
            await self.confirmations.pending.wait_for_capacity(1)
        finally:
            if not self.transacted:
                self.xa.abandon(channel)
            elif self.transaction:
                channel.notify(
                    PacketType.ROLLBACK_TRANSACTION,
                    {"JMQTransactionID": Long(self.transaction), "JMQUpdateConsumed": True},
                )
            endpoints: list[Consumer | Producer] = [*self._consumers, *self._producers]
            for endpoint in endpoints:
                await endpoint.delete_on_broker(channel)
            await channel.request(PacketType.DESTROY_SESSION, {"JMQSessionID": Long(self.id)})

    def finish(self, reason: ClientError) -> None:
        """Mark the session closed; its consumers fail with `reason`."""
        self.closed = True
        self.forget()
        for consumer in self._consumers:
            consumer.finish(reason)

    async def _create_temporary(self, kind: Kind) -> Address:
        channel = await self.ready()
        address, port = channel.local()
        origin = self.client.target.client_id or address or "unix"
        temporary = Address(kind, temporary_name(kind, origin, port))
        await create(channel, temporary)
        channel.check()
        self._temporaries.append(temporary)
        return temporary


async def create_or_abandon(
    owner: ReconnectingClient[RequestChannel, Target] | SessionState, endpoint: Session | Consumer
) -> None:
    """Create a session or a consumer on the broker, before `owner` registers it. If that fails or
    is cancelled, it is deleted there. Raises ClientError."""
    channel = await owner.ready()
    try:
        await endpoint.create_on_broker(channel)
        channel.check()  # reconnects recreate only what is registered
    except BaseException:
        endpoint.abandon()
        raise
