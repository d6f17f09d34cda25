"""Requests about JMS sessions, consumers and unacked messages (protocol specification, section 7).

ACKNOWLEDGE and REDELIVER identify a message by its consumer and its SysMessageID. The consumer may
be closed; messages that are not unacked there are ignored. A transaction keeps acknowledgements by
these keys so that REDELIVER, which precedes the ROLLBACK, can revoke them.

The session sends a requested reply when the acknowledgement is in the journal, so that it survives
the end of this process. The replies to the packets of one read are sent together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final

from sluicemq.broker import Consumer, Delivery, Selector
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind, is_temporary
from sluicemq.model.errors import AccessDenied, ProtocolError
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import (
    JmqConnection,
    RequestPending,
    byte_limit,
    client_packet_limit,
)
from sluicemq.protocols.jmq.consumers import UNLIMITED, JmsConsumer, JmsSession
from sluicemq.protocols.jmq.destination_commands import create_lost_temporary, find_permitted
from sluicemq.protocols.jmq.destinations import address_of, find_or_create, permission_name
from sluicemq.protocols.jmq.fields import INT_BLOCK, LONG_BLOCK, SYSID_SIZE, decode_blocks
from sluicemq.protocols.jmq.packets import (
    A,
    AckMode,
    AckType,
    BodyType,
    DeadReason,
    I,
    Level,
    PacketType,
    RejectedRequest,
    Status,
)
from sluicemq.protocols.jmq.subscriptions import (
    DURABLE,
    EXCLUSIVE,
    GIVEN_UP,
    GROUP,
    OF_QUEUE,
    SHARED,
    SHARED_DURABLE,
    Durables,
    Terms,
    expect_unused,
    reroute,
    subscription_name,
    topic_of,
)
from sluicemq.protocols.jmq.transactions import Branches
from sluicemq.protocols.jmq.wire import Packet, boolean, encode_reply, number, text
from sluicemq.protocols.transport import Alarm

RECOVERY_SECONDS: Final = 0.1
"""Delay between the first START of a reconnected client and the first delivery."""

MAX_CLOSED_CONSUMERS: Final = 10_000
"""Maximum number of closed consumers that a connection knows."""

BATCH: Final = 1000
"""Number of messages of one acknowledgement, or of one rollback with redelivery, that are processed
together."""

Block = tuple[int, bytes]
"""Consumer id and SysMessageID of a message."""

_ACKNOWLEDGE_REPLY: Final = PacketType.ACKNOWLEDGE_REPLY.value
_OK: Final = Status.OK.value
_CONSUMED: Final = AckType.CONSUMED.value
_INT_IDS: Final = BodyType.CONSUMERID_I_SYSMESSAGEID.value


class ConsumerCommands:
    """Handlers of requests about sessions, consumers and unacked messages."""

    __slots__ = (
        "_branches",
        "_broker",
        "_connection",
        "_consumers",
        "_divided",
        "_durables",
        "_pending_replies",
        "_sessions_by_consumer",
        "_start_timer",
    )

    def __init__(self, connection: JmqConnection, branches: Branches, durables: Durables) -> None:
        self._connection = connection
        self._branches = branches
        self._durables = durables
        self._broker = connection.broker
        self._consumers = connection.outbound.consumers
        self._start_timer = Alarm(connection.channel.transport)
        """Timer of a START that is delayed."""
        self._sessions_by_consumer: OrderedDict[int, int] = OrderedDict()
        """Sessions of the latest consumers by JMQConsumerID, for late acknowledgements."""
        self._divided: dict[Packet, Iterator[Block]] = {}
        """Remaining blocks of the acknowledgement or redelivery in progress."""
        self._pending_replies: list[bytes] = []
        """Replies to the acknowledgements of the current read."""

    # --- sessions ----------------------------------------------------------------------------

    def create_session(self, packet: Packet) -> None:
        """Handle CREATE_SESSION."""
        mode_number = number(packet, "JMQAckMode", AckMode.NONE)
        try:
            mode = AckMode(mode_number)
        except ValueError:
            raise RejectedRequest(Status.BAD_REQUEST, f"unknown JMQAckMode {mode_number}") from None
        connection = self._connection
        connection.check_limit(len(connection.sessions), "sessions", Status.NOT_ALLOWED)
        session = JmsSession(connection.uid(), mode)
        connection.sessions[session.number] = session
        connection.reply(packet, properties={"JMQSessionID": Long(session.number)})

    def _session_of(self, packet: Packet) -> JmsSession:
        """Return the session of a request. Raises RejectedRequest.

        A request without a session belongs to the connection: connection consumers have none.
        """
        connection = self._connection
        session_id = number(packet, "JMQSessionID", connection.number)
        session = connection.sessions.get(session_id)
        if session is None:
            if session_id != connection.number:
                raise RejectedRequest(
                    Status.NOT_FOUND, f"the connection has no session {session_id}"
                )
            session = connection.sessions[session_id] = JmsSession(session_id, AckMode.NONE)
        return session

    def destroy_session(self, packet: Packet) -> None:
        """Handle DESTROY_SESSION. Requeues unacked and uncommitted messages."""
        session_id = number(packet, "JMQSessionID")
        session = self._connection.sessions.pop(session_id, None)
        if session is None:
            raise RejectedRequest(Status.NOT_FOUND, f"the connection has no session {session_id}")
        self._branches.roll_back_session(self._connection, session_id)
        self.end_session(session)
        self._connection.reply(packet)

    def end_session(self, session: JmsSession) -> None:
        """Requeue the unacked messages of the consumers and remove the consumers."""
        session.stopped = True  # the end of one consumer resumes the others in safe mode
        for consumer in list(session.consumers.values()):
            consumer.end()
            self._consumers.pop(consumer.number, None)
        session.consumers.clear()

    # --- START and STOP ----------------------------------------------------------------------

    def start(self, packet: Packet) -> None:
        """Handle START of the connection or of one session. It has no reply."""
        if "JMQSessionID" in packet.properties:
            self._session_of(packet).start()
        elif self._connection.previous_number:
            # A Java client sends START before its own recovery has ended. Until then it cannot
            # acknowledge: messages delivered immediately would stay unacked forever.
            self._connection.previous_number = 0
            self._start_timer.set(RECOVERY_SECONDS, self._connection.outbound.start)
        elif self._start_timer.timer is None:
            self._connection.outbound.start()

    def stop(self, packet: Packet) -> None:
        """Handle STOP: after its reply the connection delivers nothing until START."""
        if "JMQSessionID" in packet.properties:
            self._session_of(packet).start(False)
        else:
            self.pause()
        self._connection.reply(packet)

    def pause(self) -> None:
        """Pause the deliveries of this connection until START."""
        self._start_timer.cancel()
        self._connection.outbound.start(False)

    # --- ADD_CONSUMER ------------------------------------------------------------------------

    def add_consumer(self, packet: Packet) -> None:
        """Handle ADD_CONSUMER. Messages may follow the reply at once."""
        connection = self._connection
        session = self._session_of(packet)
        address = address_of(packet)
        self._check_may_consume(address)
        selector = connection.selector(packet)
        connection.check_limit(len(self._consumers), "consumers", Status.CONFLICT)
        consumer_id = self._new_consumer_id(packet)
        terms = self._terms(packet, address, selector)
        prefetch = UNLIMITED  # for a client without flow control of single consumers
        if "JMQSize" in packet.properties:
            options = connection.options
            prefetch = options.shared_prefetch if terms.sharing else options.prefetch
        consumer = JmsConsumer(
            connection.outbound, session, consumer_id, prefetch, self._durables, terms
        )
        consumer.resume(number(packet, "JMQSize", -1), byte_limit(packet))
        credit = consumer.credit
        properties: dict[str, object] = {"JMQConsumerID": Long(consumer_id)}
        if credit.limit != UNLIMITED:
            properties["JMQSize"] = credit.limit
        if credit.counts_bytes:
            properties["JMQBytes"] = Long(credit.byte_limit)
        consumer.attach()
        self._consumers[consumer_id] = consumer
        session.consumers[consumer_id] = consumer
        self._sessions_by_consumer[consumer_id] = session.number
        if len(self._sessions_by_consumer) > MAX_CLOSED_CONSUMERS:
            self._sessions_by_consumer.popitem(last=False)
        record = self._broker.last_ack_record if terms.durable else 0
        connection.reply_later(
            partial(self._broker.when_durable, record),
            partial(self._confirm_consumer, packet, properties, consumer),
        )

    def _new_consumer_id(self, packet: Packet) -> int:
        """Return the JMQConsumerID of a new consumer. Clients of level 100 choose it themselves:
        their acknowledgements and packets have room for 32 bits. Raises RejectedRequest."""
        connection = self._connection
        if connection.level >= Level.MQ_3_0 or "JMQConsumerID" not in packet.properties:
            return connection.uid()
        consumer_id = number(packet, "JMQConsumerID")
        if consumer_id in self._consumers:
            raise RejectedRequest(Status.CONFLICT, f"the consumer {consumer_id} exists already")
        return consumer_id

    def _confirm_consumer(
        self, packet: Packet, properties: dict[str, object], consumer: JmsConsumer
    ) -> None:
        """Reply and begin to deliver, once a durable subscription is on disk."""
        self._connection.reply(packet, properties=properties)
        consumer.is_announced = True
        consumer.update_flow()

    def _check_may_consume(self, address: Address) -> None:
        """Raise RejectedRequest or AccessDenied unless the client may consume from a destination.

        The owner of a temporary destination needs no permission. A Java client that has lost its
        connection, and with it its temporary destinations, adds their consumers again without
        creating them first, and repeats its whole recovery until that succeeds.
        """
        connection = self._connection
        if is_temporary(address.name):
            if connection.previous_number:
                create_lost_temporary(connection, address)
            if find_or_create(self._broker, address, None).owner is not connection.channel:
                raise RejectedRequest(
                    Status.NOT_ALLOWED, f"{address} belongs to another connection"
                )
        else:
            find_permitted(connection, Operation.CONSUME, address)

    def _terms(self, packet: Packet, address: Address, selector: Selector | None) -> Terms:
        """Return the terms of the subscription.

        Raises RejectedRequest: PRECONDITION_FAILED, BAD_REQUEST; ERROR for those of topics.
        """
        client_id = self._connection.sender.client_id
        durable_name = text(packet, "JMQDurableName")
        if address.kind is Kind.QUEUE:
            if boolean(packet, "JMQNoLocal"):
                raise RejectedRequest(Status.ERROR, "JMQNoLocal requires a topic")
            if durable_name:
                raise RejectedRequest(Status.ERROR, "a durable subscription requires a topic")
            return Terms(address.name, OF_QUEUE, address, False, selector, None)
        share = boolean(packet, "JMQShare")
        jms_share = boolean(packet, "JMQJMSShare")
        if durable_name and is_temporary(address.name):
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, "a subscription of a temporary topic cannot be durable"
            )
        if durable_name and not client_id and not jms_share:
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, "a durable subscription requires a client id"
            )
        type, name, sharing = EXCLUSIVE, str(self._connection.uid()), False
        if jms_share:
            name, sharing = durable_name or text(packet, "JMQSharedSubscriptionName"), True
            type = SHARED_DURABLE if durable_name else SHARED
            if not name:
                raise RejectedRequest(Status.BAD_REQUEST, "JMQSharedSubscriptionName is missing")
        elif durable_name:
            type, name, sharing = DURABLE, durable_name, share
        elif share and client_id:
            type, name, sharing = GROUP, selector.text if selector else "", True
        exclude: object = None
        if boolean(packet, "JMQNoLocal"):
            exclude = self._connection.sender if type == EXCLUSIVE else client_id
            if not exclude:
                raise RejectedRequest(
                    Status.PRECONDITION_FAILED,
                    "JMQNoLocal requires a client id for a subscription that is not exclusive",
                )
        owner = ""
        name = subscription_name(type, "" if type == EXCLUSIVE else client_id, name)
        if type != EXCLUSIVE:
            owner = self._durables.owner_for(client_id, name, self._connection.identity)
        return Terms(name, type, address, sharing, selector, exclude, owner)

    # --- DELETE_CONSUMER ---------------------------------------------------------------------

    def delete_consumer(self, packet: Packet) -> None:
        """Close a consumer (JMQConsumerID), remove a durable subscription (JMQDurableName), or
        both. If either is refused, nothing happens."""
        if "JMQConsumerID" not in packet.properties:
            self._unsubscribe(packet, self._durable_to_remove(packet, None), {})
            return
        consumer_id = number(packet, "JMQConsumerID")
        connection = self._connection
        consumer = self._consumers.get(consumer_id)
        if consumer is None or consumer.closed:
            raise RejectedRequest(Status.NOT_FOUND, f"the connection has no consumer {consumer_id}")
        last = packet.body or None
        if last is not None and len(last) != SYSID_SIZE:
            raise RejectedRequest(Status.BAD_REQUEST, "the body is not a SysMessageID")
        durable_name = ""
        if text(packet, "JMQDurableName"):
            durable_name = self._durable_to_remove(packet, consumer)
        consumer.close(last, none_received=boolean(packet, "JMQRedeliverAll"))
        self._remove_if_unused(consumer)
        properties: dict[str, object] = {"JMQConsumerID": Long(consumer_id)}
        if not consumer.has_destination:
            raise RejectedRequest(
                Status.PRECONDITION_FAILED,
                "the consumer is closed, but its destination no longer exists",
                properties,
            )
        if durable_name:
            self._unsubscribe(packet, durable_name, properties)
        else:
            connection.reply(packet, properties=properties)

    def _durable_to_remove(self, packet: Packet, closing: JmsConsumer | None) -> str:
        """Return the name of the durable subscription that the request removes.

        Raises RejectedRequest: BAD_REQUEST, NOT_FOUND; AccessDenied; SubscriptionInUse if it has
        other consumers than `closing`.
        """
        name = text(packet, "JMQDurableName")
        if not name:
            raise RejectedRequest(
                Status.BAD_REQUEST, "JMQConsumerID and JMQDurableName are missing"
            )
        connection = self._connection
        client_id = connection.sender.client_id or text(packet, "JMQClientID")
        durables = self._durables
        for type in (DURABLE, SHARED_DURABLE):
            if type == DURABLE and not client_id:
                continue
            qualified_name = subscription_name(type, client_id, name)
            if not durables.may_use(qualified_name, connection.identity):
                connection.channel.deny(f"unsubscribe {qualified_name}")
                raise AccessDenied(f"{name} belongs to another user")
            subscriptions = durables.find(qualified_name)
            for subscription in subscriptions:
                name_or_pattern = permission_name(topic_of(subscription))
                connection.channel.demand(Operation.CONSUME, name_or_pattern)
            if subscriptions:
                expect_unused(qualified_name, subscriptions, closing)
                return qualified_name
        raise RejectedRequest(Status.NOT_FOUND, f"the durable subscription {name} does not exist")

    def _unsubscribe(
        self, packet: Packet, durable_name: str, properties: dict[str, object]
    ) -> None:
        """Remove a durable subscription; the reply follows when that is on disk."""
        self._durables.delete_others(durable_name, [])
        self._connection.reply_later(
            partial(self._broker.when_durable, self._broker.last_ack_record),
            partial(self._connection.reply, packet, properties=properties),
        )

    # --- RESUME_FLOW -------------------------------------------------------------------------

    def resume_flow(self, packet: Packet) -> None:
        """Handle RESUME_FLOW of one consumer, or of the connection. Raises RejectedRequest."""
        size_properties = [
            name for name in ("JMQSize", "JMQRBufferSize") if name in packet.properties
        ]
        size = number(packet, size_properties[0]) if size_properties else None
        limit = byte_limit(packet)
        outbound = self._connection.outbound
        outbound.max_packet_size = client_packet_limit(packet, outbound.max_packet_size)
        if "JMQConsumerID" in packet.properties:
            consumer = self._consumers.get(number(packet, "JMQConsumerID"))
            if consumer is not None and not consumer.closed:
                consumer.resume(-1 if size is None else size, limit)
        else:
            outbound.resume(size, limit)

    # --- ACKNOWLEDGE -------------------------------------------------------------------------

    def acknowledge(self, packet: Packet) -> None:
        """Handle ACKNOWLEDGE. Raises RejectedRequest.

        With the I bit it is BAD_REQUEST: the session cannot detect a repeated acknowledgement.
        """
        if packet.flags & I:
            raise RejectedRequest(
                Status.BAD_REQUEST, "ACKNOWLEDGE cannot be sent again with the I bit"
            )
        transaction = packet.transaction_id
        kind = _CONSUMED
        validates = False
        if packet.block:
            kind = number(packet, "JMQAckType", kind)
            validates = boolean(packet, "JMQValidate")
        is_recorded = packet in self._divided  # an earlier batch may have been recorded
        for blocks in self._batches_of(packet):
            if validates:
                self._check_acknowledged(transaction, blocks)
            elif kind != _CONSUMED:
                self._handle_undeliverable(packet, kind, blocks)
            elif transaction:
                self._acknowledge_in_transaction(transaction, blocks)
            elif self._acknowledge_blocks(blocks):
                is_recorded = True
        if is_recorded and packet.flags & A:
            self._pending_replies.append(encode_reply(_ACKNOWLEDGE_REPLY, packet.consumer_id, _OK))
        else:
            self._connection.reply(packet)

    def _acknowledge_blocks(self, blocks: list[Block]) -> bool:
        """Acknowledge messages; return whether the journal records it. Raises RejectedRequest."""
        consumers = self._consumers
        is_recorded = False
        for consumer_id, sysid in blocks:
            consumer = consumers.get(consumer_id)
            if consumer is None or not consumer.requires_ack:
                self._find_consumer(consumer_id)
                continue
            if consumer.acknowledge(sysid):
                is_recorded = True
            if consumer.closed:
                self._remove_if_unused(consumer)
        return is_recorded

    def confirm(self) -> None:
        """Send the pending replies, after all packets of one read are processed."""
        pending = self._pending_replies
        if pending:
            self._pending_replies = []
            data = b"".join(pending)
            self._broker.when_completed(lambda: self._connection.write(data))

    def _batches_of(self, packet: Packet) -> Iterable[list[Block]]:
        """Return the blocks of ACKNOWLEDGE or REDELIVER in batches; after a full one, the iteration
        may raise RequestPending. Raises RejectedRequest."""
        kind = _INT_IDS if self._connection.level < Level.MQ_3_0 else 0
        if packet.block:
            kind = number(packet, "JMQBodyType", kind)
        width = INT_BLOCK if kind == _INT_IDS else LONG_BLOCK
        try:
            blocks = decode_blocks(packet.body, width)
        except ProtocolError as error:
            raise RejectedRequest(Status.ERROR, str(error)) from None
        if len(packet.body) <= width * BATCH:
            return (list(blocks),)
        return self._divide(packet, self._divided.pop(packet, blocks))

    def _divide(self, packet: Packet, blocks: Iterator[Block]) -> Iterator[list[Block]]:
        """Yield batches of blocks. Raises RequestPending when the time for scans is used up."""
        while batch := list(islice(blocks, BATCH)):
            yield batch
            if self._broker.scans.is_time_up():
                self._divided[packet] = blocks
                raise RequestPending

    def _find_consumer(self, consumer_id: int) -> JmsConsumer | None:
        """Return the consumer; None if it is closed without unacked messages.

        Raises RejectedRequest.
        """
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            if self._sessions_by_consumer.get(consumer_id) in self._connection.sessions:
                return None
            raise RejectedRequest(Status.NOT_FOUND, f"the connection has no consumer {consumer_id}")
        if not consumer.requires_ack:
            raise RejectedRequest(
                Status.NOT_ALLOWED, "the session has JMQAckMode NO_ACK: it cannot acknowledge"
            )
        return consumer

    def _remove_if_unused(self, consumer: JmsConsumer) -> None:
        """Remove a closed consumer that has no unacked messages.

        Another one may have its number if the client has chosen it.
        """
        consumer_id = consumer.number
        is_unused = consumer.closed and not consumer.unacked.first
        if is_unused and self._consumers.get(consumer_id) is consumer:
            del self._consumers[consumer_id]
            consumer.session.consumers.pop(consumer_id, None)

    # --- transactions ------------------------------------------------------------------------

    def _acknowledge_in_transaction(self, transaction: int, blocks: list[Block]) -> None:
        branch = self._branches.active_branch(transaction, self._connection)
        acknowledge = self._broker.transactions.acknowledge
        self._broker.transactions.expect_capacity(branch.transaction, len(blocks))
        for consumer, sysid, engine_consumer, delivery in self._take_deliveries(blocks):
            if acknowledge(branch.transaction, engine_consumer, delivery.sequence):
                branch.acked[consumer.number, sysid] = (consumer, engine_consumer, delivery)

    def _take_deliveries(
        self, blocks: list[Block]
    ) -> Iterator[tuple[JmsConsumer, bytes, Consumer, Delivery]]:
        """Remove unacked messages from their consumers, and yield them. Raises RejectedRequest."""
        for consumer_id, sysid in blocks:
            consumer = self._find_consumer(consumer_id)
            if consumer is None:
                continue
            delivery = consumer.take(sysid)
            engine_consumer = consumer.holder_of(delivery) if delivery is not None else None
            if delivery is not None and engine_consumer is not None:
                yield consumer, sysid, engine_consumer, delivery
            self._remove_if_unused(consumer)

    def _check_acknowledged(self, transaction: int, blocks: list[Block]) -> None:
        """Raise RejectedRequest unless the transaction contains all these acknowledgements."""
        if not transaction:
            raise RejectedRequest(Status.BAD_REQUEST, "JMQValidate requires a transaction")
        branch = self._branches.active_branch(transaction, self._connection)
        if not all(block in branch.acked for block in blocks):
            raise RejectedRequest(
                Status.NOT_FOUND, "not all of these messages are acknowledged in the transaction"
            )

    # --- undeliverable messages --------------------------------------------------------------

    def _handle_undeliverable(self, packet: Packet, kind: int, blocks: list[Block]) -> None:
        """Reroute or dead-letter messages that the client cannot process.

        Raises RejectedRequest.
        """
        if kind not in (AckType.UNDELIVERABLE, AckType.DEAD):
            raise RejectedRequest(Status.BAD_REQUEST, f"unknown JMQAckType {kind}")
        is_expired = number(packet, "JMQDeadReason", DeadReason.UNDELIVERABLE) == DeadReason.EXPIRED
        for _, _, engine_consumer, delivery in self._take_deliveries(blocks):
            if kind == AckType.UNDELIVERABLE:
                reroute(self._broker, engine_consumer, delivery)
            else:
                reason = "expired" if is_expired else GIVEN_UP
                self._broker.dead_letter(
                    delivery.subscription, delivery.sequence, reason, consumer=engine_consumer
                )

    # --- REDELIVER ---------------------------------------------------------------------------

    def redeliver(self, packet: Packet) -> None:
        """Handle REDELIVER, which has no reply."""
        attempted = boolean(packet, "JMQSetRedelivered")
        transaction = packet.transaction_id or number(packet, "JMQTransactionID", 0)
        for blocks in self._batches_of(packet):
            deliveries: dict[JmsConsumer, list[Delivery]] = {}
            branch = self._branches.by_number(transaction)
            if branch is not None and self._connection.number in branch.connection_numbers:
                deliveries = self._branches.revoke_acks(branch, blocks)
            for consumer_id, sysid in blocks:
                jms_consumer = self._consumers.get(consumer_id)
                entry = jms_consumer.unacked.take(sysid) if jms_consumer is not None else None
                if jms_consumer is not None and entry is not None:
                    deliveries.setdefault(jms_consumer, []).append(entry[1])
            for consumer, returned in deliveries.items():
                consumer.redeliver(returned, attempted)
                self._remove_if_unused(consumer)
