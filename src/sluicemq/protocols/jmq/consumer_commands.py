"""ADD_CONSUMER, DELETE_CONSUMER and RESUME_FLOW (protocol specification, section 7)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from sluicemq.broker import Consumer, Selector
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind, is_temporary
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import (
    JmqConnection,
    byte_limit,
    max_packet,
    number,
    text,
    truth,
)
from sluicemq.protocols.jmq.consumers import JmqSubscription, JmsConsumer
from sluicemq.protocols.jmq.destinations import (
    address_of,
    find_or_create,
    owns,
)
from sluicemq.protocols.jmq.fields import SYSID_SIZE
from sluicemq.protocols.jmq.flow import UNLIMITED, ByteCredit
from sluicemq.protocols.jmq.packets import RejectedRequest, Status
from sluicemq.protocols.jmq.session_registry import SessionRegistry
from sluicemq.protocols.jmq.subscriptions import (
    ALONE,
    DURABLE,
    GROUP,
    SHARED,
    SHARED_DURABLE,
    QueueSubscription,
    Terms,
    TopicSubscription,
    subscription_name,
)
from sluicemq.protocols.jmq.wire import Packet


class ConsumerCommands:
    """See the module."""

    __slots__ = ("_broker", "_connection", "_sessions")

    def __init__(self, connection: JmqConnection, sessions: SessionRegistry) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._sessions = sessions

    # --- ADD_CONSUMER ------------------------------------------------------------------------

    def add(self, packet: Packet) -> None:
        """Messages may follow the reply at once."""
        connection = self._connection
        session = self._sessions.find(packet)
        address = address_of(packet)
        self._may_consume(address)
        selector = self._connection.selector(packet)
        if len(connection.consumers) >= connection.options.most:
            raise RejectedRequest(
                Status.CONFLICT, f"{len(connection.consumers)} consumers are enough"
            )
        consumer_id = connection.coordinator.uid()
        if address.kind is Kind.QUEUE:
            subscription: JmqSubscription = self._queue(packet, address, selector)
        else:
            terms = self._terms(packet, address, selector, consumer_id)
            subscription = TopicSubscription(connection, address, terms)
        options = connection.options
        shared = address.kind is Kind.TOPIC and subscription.sharing
        prefetch = options.shared_prefetch if shared else options.prefetch
        properties: dict[str, object] = {"JMQConsumerID": Long(consumer_id)}
        if "JMQSize" in packet.properties:
            size = number(packet, "JMQSize")
            credit = prefetch if size < 0 else min(size, prefetch)
            properties["JMQSize"] = credit
        else:  # a client that knows nothing of the flow of one consumer
            credit = prefetch = UNLIMITED
        byte_credit = ByteCredit()
        byte_credit.resume(byte_limit(packet))
        if byte_credit.limited:
            properties["JMQBytes"] = Long(byte_credit.limit)
        consumer = JmsConsumer(
            connection, session, consumer_id, credit, prefetch, subscription, byte_credit
        )
        consumer.attach()
        connection.consumers[consumer_id] = consumer
        session.add(consumer)
        if text(packet, "JMQDurableName"):
            changed = self._broker.last_ack_record
            self._broker.when_durable(changed, partial(self._added, packet, properties, consumer))
        else:
            self._added(packet, properties, consumer)

    def _added(self, packet: Packet, properties: dict[str, object], consumer: JmsConsumer) -> None:
        """The subscription is on disk if it has to be: deliver."""
        self._connection.reply(packet, properties=properties)
        consumer.known = True
        consumer.level()

    def _may_consume(self, address: Address) -> None:
        """Raises Refused, AccessDenied. The owner of a temporary destination needs no right."""
        connection = self._connection
        if is_temporary(address.name):
            if find_or_create(self._broker, address, None).owner is not connection:
                raise RejectedRequest(Status.NOT_ALLOWED, f"{address} is another connection's")
        elif not owns(connection, self._broker.destinations.find(address)):
            connection.demand(Operation.CONSUME, address.name.replace(">", "*"))

    def _queue(
        self, packet: Packet, address: Address, selector: Selector | None
    ) -> QueueSubscription:
        if truth(packet, "JMQNoLocal"):
            raise RejectedRequest(Status.ERROR, "JMQNoLocal is for topics")
        if text(packet, "JMQDurableName"):
            raise RejectedRequest(Status.ERROR, "durable subscriptions are for topics")
        return QueueSubscription(self._connection, address, selector)

    def _terms(
        self, packet: Packet, address: Address, selector: Selector | None, consumer_id: int
    ) -> Terms:
        """Return the terms of the subscription. Refused: PRECONDITION_FAILED, BAD_REQUEST."""
        client_id = self._connection.client_id
        durable = text(packet, "JMQDurableName")
        shared = text(packet, "JMQSharedSubscriptionName")
        share = truth(packet, "JMQShare")
        jms_share = truth(packet, "JMQJMSShare")
        if durable and is_temporary(address.name):
            why = "a subscription of a temporary topic cannot be durable"
            raise RejectedRequest(Status.PRECONDITION_FAILED, why)
        if durable and not client_id and not jms_share:
            raise RejectedRequest(
                Status.PRECONDITION_FAILED, "a durable subscription needs a client id"
            )
        sort, name, sharing = ALONE, str(consumer_id), False
        if jms_share:
            name, sharing = durable or shared, True
            sort = SHARED_DURABLE if durable else SHARED
            if not name:
                raise RejectedRequest(Status.BAD_REQUEST, "JMQSharedSubscriptionName is missing")
        elif durable:
            sort, name, sharing = DURABLE, durable, share
        elif share and client_id:
            sort, name, sharing = GROUP, selector.text if selector else "", True
        exclude: object = None
        if truth(packet, "JMQNoLocal"):
            exclude = self._connection.sender if sort == ALONE else client_id
            if not exclude:
                why = "without a client id, nobody's messages are local to this subscription"
                raise RejectedRequest(Status.PRECONDITION_FAILED, why)
        if sort == ALONE:
            return Terms(subscription_name(sort, "", name), sort, sharing, selector, exclude)
        full = subscription_name(sort, client_id, name)
        connection = self._connection
        owner = connection.coordinator.durables.owner_for(client_id, full, connection.identity)
        return Terms(full, sort, sharing, selector, exclude, owner)

    # --- DELETE_CONSUMER ---------------------------------------------------------------------

    def delete(self, packet: Packet) -> None:
        """Close a consumer (JMQConsumerID), remove a durable subscription (JMQDurableName), or
        both. If either is refused, nothing happens."""
        if "JMQConsumerID" not in packet.properties:
            self._unsubscribe(packet, self._durable(packet, ()), {})
            return
        chosen = number(packet, "JMQConsumerID")
        connection = self._connection
        consumer = connection.consumers.get(chosen)
        if consumer is None or consumer.closed:
            raise RejectedRequest(Status.NOT_FOUND, f"there is no consumer {chosen} here")
        last = None
        if packet.body:
            if len(packet.body) != SYSID_SIZE:
                raise RejectedRequest(Status.BAD_REQUEST, "the body is no SysMessageID")
            last = packet.body
        nothing = truth(packet, "JMQRedeliverAll")
        durable = ""
        if text(packet, "JMQDurableName"):
            durable = self._durable(packet, consumer.engines)
        consumer.retire(last, none=nothing)
        if not consumer.held:
            del connection.consumers[chosen]
            del consumer.session.consumers[chosen]
        properties: dict[str, object] = {"JMQConsumerID": Long(chosen)}
        if not consumer.subscription.exists:
            why = "the consumer is closed, but its destination no longer exists"
            raise RejectedRequest(Status.PRECONDITION_FAILED, why, properties)
        if durable:
            self._unsubscribe(packet, durable, properties)
        else:
            connection.reply(packet, properties=properties)

    def _durable(self, packet: Packet, leaving: Collection[Consumer]) -> str:
        """Return the name of the durable subscription that the request removes.

        Raises Refused: BAD_REQUEST, NOT_FOUND; AccessDenied; SubscriptionInUse if it has other
        consumers than those `leaving`.
        """
        name = text(packet, "JMQDurableName")
        if not name:
            raise RejectedRequest(
                Status.BAD_REQUEST, "which consumer, or which durable subscription?"
            )
        connection = self._connection
        client_id = connection.client_id or text(packet, "JMQClientID")
        durables = connection.coordinator.durables
        for sort in (DURABLE, SHARED_DURABLE):
            if sort == DURABLE and not client_id:
                continue
            full = subscription_name(sort, client_id, name)
            if not durables.may_use(full, connection.identity):
                connection.deny(f"unsubscribe {full}", f"{name} belongs to another user")
            for subscription in durables.find(full):
                connection.demand(Operation.CONSUME, subscription.destination.name)
            if durables.is_known(full):
                durables.expect_unused(full, leaving)
                return full
        raise RejectedRequest(Status.NOT_FOUND, f"there is no durable subscription {name}")

    def _unsubscribe(self, packet: Packet, durable: str, properties: dict[str, object]) -> None:
        """Remove a durable subscription; the reply follows when that is on disk."""
        connection = self._connection
        connection.coordinator.durables.remove(durable)
        changed = self._broker.last_ack_record
        self._broker.when_durable(changed, partial(connection.reply, packet, properties=properties))

    # --- RESUME_FLOW -------------------------------------------------------------------------

    def resume(self, packet: Packet) -> None:
        """RESUME_FLOW: of one consumer, or of the connection. Raises Refused."""
        size: int | None = None
        for name in ("JMQSize", "JMQRBufferSize"):
            if packet.block and name in packet.properties:
                size = number(packet, name)
                break
        limit = byte_limit(packet) if packet.block else None
        outbound = self._connection.outbound
        if packet.block:
            outbound.limit_packets(max_packet(packet))
        if packet.block and "JMQConsumerID" in packet.properties:
            consumer = self._connection.consumers.get(number(packet, "JMQConsumerID"))
            if consumer is not None and not consumer.closed:
                consumer.resume(-1 if size is None else size, limit)
        elif self._connection.options.connection_flow:
            outbound.resume(size, limit)
        else:
            outbound.resume(None, None)
