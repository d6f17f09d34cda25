"""ADD_CONSUMER, DELETE_CONSUMER and RESUME_FLOW (protocol specification, section 7)."""

from __future__ import annotations

from functools import partial

from sluicemq.broker import Selector
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.crossing import is_temporary
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import Connection, number, text, truth
from sluicemq.protocols.jmq.consumers import Interest, JmsConsumer
from sluicemq.protocols.jmq.destinations import (
    address_of,
    find_or_create,
)
from sluicemq.protocols.jmq.flow import UNLIMITED
from sluicemq.protocols.jmq.ids import SYSID_SIZE
from sluicemq.protocols.jmq.interests import (
    ALONE,
    DURABLE,
    GROUP,
    SHARED,
    SHARED_DURABLE,
    QueueInterest,
    Terms,
    TopicInterest,
    subscription_name,
)
from sluicemq.protocols.jmq.packets import Status
from sluicemq.protocols.jmq.sessions import Sessions
from sluicemq.protocols.jmq.statuses import Refused
from sluicemq.protocols.jmq.wire import Packet


class Consuming:
    """See the module."""

    __slots__ = ("_broker", "_connection", "_sessions")

    def __init__(self, connection: Connection, sessions: Sessions) -> None:
        self._connection = connection
        self._broker = connection.broker
        self._sessions = sessions

    # --- ADD_CONSUMER ------------------------------------------------------------------------

    def add(self, packet: Packet) -> None:
        """Messages may follow the reply at once."""
        connection = self._connection
        session = self._sessions.find(packet)
        address = address_of(packet)
        selector = self._selector(packet)
        self._may_consume(address)
        if len(connection.consumers) >= connection.options.most:
            raise Refused(Status.CONFLICT, f"{len(connection.consumers)} consumers are enough")
        consumer_id = connection.coordinator.uid()
        if address.kind is Kind.QUEUE:
            interest: Interest = self._queue(packet, address, selector)
        else:
            terms = self._terms(packet, address, selector, consumer_id)
            interest = TopicInterest(self._broker, connection.coordinator.durables, address, terms)
        options = connection.options
        shared = address.kind is Kind.TOPIC and interest.sharing
        prefetch = options.shared_prefetch if shared else options.prefetch
        properties: dict[str, object] = {"JMQConsumerID": Long(consumer_id)}
        if "JMQSize" in packet.properties:
            size = number(packet, "JMQSize")
            credit = prefetch if size < 0 else min(size, prefetch)
            properties["JMQSize"] = credit
        else:  # a client that knows nothing of the flow of one consumer
            credit = prefetch = UNLIMITED
        consumer = JmsConsumer(connection, session, consumer_id, credit, prefetch, interest)
        consumer.attach()
        connection.consumers[consumer_id] = consumer
        session.add(consumer)
        if text(packet, "JMQDurableName"):
            changed = self._broker.core.settled
            self._broker.when_durable(changed, partial(self._added, packet, properties, consumer))
        else:
            self._added(packet, properties, consumer)

    def _added(self, packet: Packet, properties: dict[str, object], consumer: JmsConsumer) -> None:
        """The subscription is on disk if it has to be: deliver."""
        self._connection.reply(packet, properties=properties)
        consumer.known = True
        consumer.level()

    def _selector(self, packet: Packet) -> Selector | None:
        """Raises SelectorError."""
        selector = text(packet, "JMQSelector")
        return self._broker.compile_selector(selector) if selector.strip() else None

    def _may_consume(self, address: Address) -> None:
        """Raises Refused, AccessDenied."""
        if not is_temporary(address.name):
            self._connection.demand(Operation.CONSUME, address.name.replace(">", "*"))
            return
        destination = find_or_create(self._broker, address)
        if destination.owner is not self._connection:
            raise Refused(Status.NOT_ALLOWED, f"{address} is another connection's")

    def _queue(self, packet: Packet, address: Address, selector: Selector | None) -> QueueInterest:
        if truth(packet, "JMQNoLocal"):
            raise Refused(Status.ERROR, "JMQNoLocal is for topics")
        if text(packet, "JMQDurableName"):
            raise Refused(Status.ERROR, "durable subscriptions are for topics")
        return QueueInterest(self._broker, address, selector)

    def _terms(
        self, packet: Packet, address: Address, selector: Selector | None, consumer_id: int
    ) -> Terms:
        """How the topic is wanted. Refused: PRECONDITION_FAILED, BAD_REQUEST."""
        client_id = self._connection.client_id
        durable = text(packet, "JMQDurableName")
        shared = text(packet, "JMQSharedSubscriptionName")
        share = truth(packet, "JMQShare")
        jms_share = truth(packet, "JMQJMSShare")
        if durable and is_temporary(address.name):
            why = "a subscription of a temporary topic cannot be durable"
            raise Refused(Status.PRECONDITION_FAILED, why)
        if durable and not client_id and not jms_share:
            raise Refused(Status.PRECONDITION_FAILED, "a durable subscription needs a client id")
        sort, name, sharing = ALONE, str(consumer_id), False
        if jms_share:
            name, sharing = durable or shared, True
            sort = SHARED_DURABLE if durable else SHARED
            if not name:
                raise Refused(Status.BAD_REQUEST, "JMQSharedSubscriptionName is missing")
        elif durable:
            sort, name, sharing = DURABLE, durable, share
        elif share and client_id:
            sort, name, sharing = GROUP, selector.text if selector else "", True
        exclude: object = None
        if truth(packet, "JMQNoLocal"):
            exclude = self._connection.sender if sort == ALONE else client_id
            if not exclude:
                why = "without a client id, nobody's messages are local to this subscription"
                raise Refused(Status.PRECONDITION_FAILED, why)
        owner = client_id if sort != ALONE else ""
        return Terms(subscription_name(sort, owner, name), sort, sharing, selector, exclude)

    # --- DELETE_CONSUMER ---------------------------------------------------------------------

    def delete(self, packet: Packet) -> None:
        """Close a consumer, or unsubscribe."""
        if "JMQConsumerID" not in packet.properties:
            self._unsubscribe(packet)
            return
        chosen = number(packet, "JMQConsumerID")
        connection = self._connection
        consumer = connection.consumers.get(chosen)
        if consumer is None or consumer.closed:
            raise Refused(Status.NOT_FOUND, f"there is no consumer {chosen} here")
        last = None
        if packet.body:
            if len(packet.body) != SYSID_SIZE:
                raise Refused(Status.BAD_REQUEST, "the body is no SysMessageID")
            last = packet.body
        consumer.retire(last, none=truth(packet, "JMQRedeliverAll"))
        if not consumer.held:
            del connection.consumers[chosen]
            del consumer.session.consumers[chosen]
        properties = {"JMQConsumerID": Long(chosen)}
        connection.reply(packet, properties=properties)

    def _unsubscribe(self, packet: Packet) -> None:
        name = text(packet, "JMQDurableName")
        if not name:
            raise Refused(Status.BAD_REQUEST, "which consumer, or which durable subscription?")
        connection = self._connection
        client_id = connection.client_id or text(packet, "JMQClientID")
        durables = connection.coordinator.durables
        for sort in (DURABLE, SHARED_DURABLE):
            if sort == DURABLE and not client_id:
                continue
            full = subscription_name(sort, client_id, name)
            for subscription in durables.find(full):
                connection.demand(Operation.CONSUME, subscription.destination.name)
            if durables.remove(full):
                changed = self._broker.core.settled
                self._broker.when_durable(changed, partial(connection.reply, packet))
                return
        raise Refused(Status.NOT_FOUND, f"there is no durable subscription {name}")

    # --- RESUME_FLOW -------------------------------------------------------------------------

    def resume(self, packet: Packet) -> None:
        """RESUME_FLOW: of one consumer, or of the connection."""
        size: int | None = None
        for name in ("JMQSize", "JMQRBufferSize"):
            if packet.block and name in packet.properties:
                size = number(packet, name)
                break
        if packet.block and "JMQConsumerID" in packet.properties:
            consumer = self._connection.consumers.get(number(packet, "JMQConsumerID"))
            if consumer is not None and not consumer.closed:
                consumer.resume(-1 if size is None else size)
            return
        outlet = self._connection.outlet
        if size is not None and self._connection.options.connection_flow:
            outlet.limit_to(size)
        else:
            outlet.resume()
