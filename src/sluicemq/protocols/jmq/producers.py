"""Producers of one JMQ connection, and the replies to their messages.

A SEND_REPLY is sent when its message is durable; the replies to one read are sent together. The
reply to a message of a transaction is sent at once, because the commit has to be durable, as is the
reply to a nonpersistent message; most clients request no replies to these, and get no error if one
is refused. In a transaction such a refusal makes the commit fail, so that no message is lost
unnoticed.

A producer sends as many messages as JMQSize allows, the last of them with the C bit, and then waits
for RESUME_FLOW, which is sent with the SEND_REPLYs when its message is durable. If a destination is
full and blocks its producers, both are sent when there is capacity. The session continues to read
meanwhile, because acknowledgements of the same connection may free the capacity. Messages without a
requested reply wait for capacity even if their connection has closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Final

from sluicemq.broker import Broker, Delivery, Destination, Subscription
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, Kind, is_temporary
from sluicemq.model.errors import BrokerError, JournalDamaged, RecordNotFound
from sluicemq.model.message import Durability, Message, Origin
from sluicemq.protocols.channel import Publisher, cache_target
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import JmqConnection, RequestPending
from sluicemq.protocols.jmq.destinations import (
    Pattern,
    accepts_replies,
    address_of,
    check_name,
    find_or_create,
    is_reserved,
    is_wildcard,
    permission_name,
)
from sluicemq.protocols.jmq.fields import VariableHeader, format_name, make_sysid
from sluicemq.protocols.jmq.mapping import message_of, readdress, sysid_of
from sluicemq.protocols.jmq.packets import (
    REQUEST_ERRORS,
    A,
    C,
    F,
    I,
    PacketType,
    Q,
    RejectedRequest,
    Status,
)
from sluicemq.protocols.jmq.subscriptions import matching_topics
from sluicemq.protocols.jmq.transactions import Branches
from sluicemq.protocols.jmq.wire import (
    Packet,
    encode_packet,
    encode_reply,
    number,
)

MAX_PARKED: Final = 10_000
"""Maximum number of messages that wait for capacity; the next one is rejected at once."""

_MAX_SEARCHES: Final = 100
"""Maximum number of searches for re-sent messages per connection."""
_MAX_SEARCH_STEPS: Final = 10_000
"""Maximum number of steps per search, most of which examine a message."""
_LOOKUP_BATCH: Final = 50
"""Number of messages looked up together."""
_WINDOW: Final = 10_000
"""Numbers of the journal whose messages are examined in order, after those with later numbers."""
_ANSWERED: Final = A | C | F
"""Flags that request SEND_REPLY or RESUME_FLOW."""
_SEND_REPLY: Final = PacketType.SEND_REPLY.value
_OK: Final = Status.OK.value
_MAX_SEQUENCE: Final = (1 << 62) - 1


class Producers:
    """Producers of one connection. Implements `channel.ConfirmingSession`.

    publisher  accepts the messages; `confirm` has to be called after the packets of a read
    """

    __slots__ = (
        "_branches",
        "_broker",
        "_connection",
        "_copies",
        "_persistent",
        "_producers",
        "_queues",
        "_search",
        "_searches",
        "_topics",
        "_traffic",
        "_transient",
        "publisher",
    )

    def __init__(self, connection: JmqConnection, branches: Branches) -> None:
        self._connection = connection
        self._branches = branches
        self._broker = connection.broker
        self._traffic = connection.channel.traffic
        durability = connection.options.durability
        self._persistent = Durability.SYNC if durability is None else durability
        self._transient = Durability.NONE if durability is None else durability
        self._producers: dict[int, Address] = {}
        """Addresses of the producers by JMQProducerID."""
        self._queues: dict[VariableHeader, Destination] = {}
        """Destinations to which this client may send, by variable header."""
        self._topics: dict[VariableHeader, Destination] = {}
        self._searches = 0
        self._search: dict[Packet, Iterator[Message | None]] = {}
        """Search in progress, by the message that waits for it."""
        self._copies: dict[Packet, tuple[int, BrokerError | None]] = {}
        """Messages to wildcards: the number of copies that wait for capacity, and the error of
        another copy. Each has one reply, after its last copy."""
        self.publisher: Publisher[Packet] = Publisher(connection.channel, self.finish_parked, self)

    # --- producers ---------------------------------------------------------------------------

    def add(self, packet: Packet) -> None:
        """Handle ADD_PRODUCER."""
        connection = self._connection
        address = address_of(packet)
        number(packet, "JMQSessionID", 0)
        self._check_may_send(address)
        if not is_wildcard(address):
            find_or_create(self._broker, address, connection.identity.creator)
        # by this status, and not by 409, the Java client knows that there are too many
        connection.check_limit(len(self._producers), "producers", Status.NOT_ALLOWED)
        producer = self._connection.uid()
        self._producers[producer] = address
        prefix = "Q" if address.kind is Kind.QUEUE else "T"
        connection.reply(
            packet,
            properties={
                "JMQProducerID": Long(producer),
                "JMQSize": connection.options.producer_flow or -1,
                "JMQBytes": Long(-1),
                "JMQDestinationID": f"{prefix}:{format_name(address.name)}",
            },
        )

    def delete(self, packet: Packet) -> None:
        """Handle DELETE_PRODUCER."""
        producer_id = number(packet, "JMQProducerID")
        if self._producers.pop(producer_id, None) is None:
            raise RejectedRequest(Status.NOT_FOUND, f"the connection has no producer {producer_id}")
        self._connection.reply(packet)

    def _check_may_send(self, address: Address, reserved_status: Status = Status.CONFLICT) -> None:
        """Raise RejectedRequest, for a reserved name with `reserved_status`, or AccessDenied unless
        this client may send to the address."""
        if is_reserved(address):
            raise RejectedRequest(
                reserved_status, f"{address} does not accept messages from clients"
            )
        if not is_temporary(address.name) and not accepts_replies(
            self._broker.destinations.find(address)
        ):
            self._connection.channel.demand(Operation.PRODUCE, permission_name(address))

    # --- sending -----------------------------------------------------------------------------

    def send(self, packet: Packet) -> bool:
        """Process a message; return whether it was for all topics that match a wildcard, or for a
        destination that it has created.

        Raises RejectedRequest, AccessDenied, BrokerError, ProtocolError, RequestPending.
        """
        flags = packet.flags
        message = message_of(packet, self._connection.sender, self._persistent, self._transient)
        header = packet.variable
        destination = (self._queues if flags & Q else self._topics).get(header)
        is_long = False
        if destination is None or destination.removed:
            count = len(self._broker.destinations)
            destination = self._find(header, message.destination)
            is_long = destination is None or len(self._broker.destinations) > count
        if destination is None:
            is_accepted = self._publish_copies(packet, header, message)
        else:
            is_accepted = self._publish(packet, header, destination, message)
        self._traffic.published += 1
        if is_accepted and flags & _ANSWERED:
            self.publisher.accepted.append(packet)
        return is_long

    def _publish(
        self,
        packet: Packet,
        header: VariableHeader,
        destination: Destination,
        message: Message,
        is_copy: bool = False,
    ) -> bool:
        """Accept a message; False if its replies are not to be sent now.

        Raises RejectedRequest, BrokerError; RequestPending unless it is a copy, whose id is new.
        """
        transaction = header.transaction_id or packet.transaction
        if transaction:
            branch = self._branches.active_branch(transaction, self._connection)
            self._broker.transactions.publish(branch.transaction, destination, message)
            return True
        if packet.flags & I and not is_copy:
            original = self._find_original(packet, destination, message)
            if original is not None:
                self._confirm_original(original)
                return True
        return self.publisher.publish(destination, message, packet)

    def _find(self, header: VariableHeader, address: Address) -> Destination | None:
        """Return the destination of a message, None if it is a wildcard.

        Raises RejectedRequest, AccessDenied, BrokerError.
        """
        check_name(address, header.destination or "")
        if is_wildcard(address):
            return None
        self._check_may_send(address, Status.FORBIDDEN)
        creator = self._connection.identity.creator
        destination = find_or_create(self._broker, address, creator)
        targets = self._queues if address.kind is Kind.QUEUE else self._topics
        cache_target(targets, header, destination)
        return destination

    def _publish_copies(self, packet: Packet, header: VariableHeader, message: Message) -> bool:
        """Publish a copy of a message to each topic that matches its wildcard; return what
        `_publish` returns.

        Raises the errors of `_publish`, after trying all topics.
        """
        wildcard = message.destination
        self._check_may_send(wildcard)
        problem: BrokerError | None = None
        parked_count = 0
        for topic in matching_topics(self._broker, Pattern(wildcard.name)):
            copy = self._copy_for_topic(message, topic.address)
            try:
                parked_count += not self._publish(packet, header, topic, copy, True)
            except BrokerError as error:
                problem = error
        if parked_count:
            self._copies[packet] = (parked_count, problem)
            return False
        if problem is not None:
            raise problem
        return True

    def _copy_for_topic(self, message: Message, topic: Address) -> Message:
        """Return a copy of a message to a wildcard for a topic, with a new message id."""
        number = self._connection.uid() & _MAX_SEQUENCE
        copy = message.copy(topic, message.expiration)
        copy.deliver_at = message.deliver_at
        copy.sender = message.sender
        readdress(copy, make_sysid(self._broker.identity, number, message.timestamp))
        return copy

    def _confirm_original(self, original: Message) -> None:
        """Let the reply to a message sent again wait until the original is on disk.

        Raises RejectedRequest: NOT_MODIFIED if it does not have to wait.
        """
        sequence = original.sequence
        if original.durability is not Durability.SYNC or sequence <= self._broker.journal.durable:
            raise RejectedRequest(Status.NOT_MODIFIED, "the message was published before")
        self.publisher.last_sync = max(self.publisher.last_sync, sequence)

    def _find_original(
        self, packet: Packet, destination: Destination, message: Message
    ) -> Message | None:
        """Return the original of a message sent again after a connection loss, if it was published.
        The search is limited, and uses the time for scans. Raises RequestPending."""
        search = self._search.pop(packet, None)
        if search is None:
            self._searches += 1
            steps = _MAX_SEARCH_STEPS if self._searches <= _MAX_SEARCHES else 0
            search = islice(self._compare_latest(destination, message), steps)
        for original in search:
            if original is not None:
                return original
            if self._broker.scans.is_time_up():
                self._search = {packet: search}
                raise RequestPending
        return None

    def _compare_latest(
        self, destination: Destination, message: Message
    ) -> Iterator[Message | None]:
        """Yield each message examined that has the id of this one, None for any other, roughly the
        latest first."""
        broker = self._broker
        identity = broker.identity
        sysid = sysid_of(message, identity)
        staged = islice(reversed(broker.publisher.staged), _MAX_SEARCH_STEPS)
        for latest_message in [item for item, target, _ in staged if target is destination]:
            yield latest_message if sysid_of(latest_message, identity) == sysid else None
        priority = destination.priority(message.priority)
        for subscription in destination.all_subscriptions:
            scheduled = list(subscription.scheduled.values()) if message.deliver_at else []
            latest = _latest_first(broker, subscription, priority)
            for delivery in chain(reversed(scheduled), latest):
                candidate = None
                if delivery is not None:
                    with suppress(RecordNotFound, JournalDamaged):
                        candidate = broker.read(delivery)
                is_original = (
                    candidate is not None
                    and candidate.origin is Origin.JMQ
                    and sysid_of(candidate, identity) == sysid
                )
                yield candidate if is_original else None

    # --- flow --------------------------------------------------------------------------------

    def resume(self, packet: Packet) -> None:
        """Resume the flow of a client that paused after this packet, which was refused."""
        self._connection.channel.write(self._encode_resume_flow(packet))

    def _encode_resume_flow(self, packet: Packet) -> list[bytes]:
        """Return RESUME_FLOW for a client that paused after this packet, else nothing."""
        encoded_packets: list[bytes] = []
        if packet.flags & C:
            try:
                producer = packet.variable.producer_id
            except REQUEST_ERRORS:
                producer = 0
            encoded_packets.append(
                encode_packet(
                    PacketType.RESUME_FLOW,
                    properties={
                        "JMQProducerID": Long(producer),
                        "JMQSize": self._connection.options.producer_flow or -1,
                        "JMQBytes": Long(-1),
                    },
                )
            )
        if packet.flags & F:
            encoded_packets.append(
                encode_packet(PacketType.RESUME_FLOW, properties={"JMQSize": -1})
            )
        return encoded_packets

    # --- for the publisher -------------------------------------------------------------------

    def encode_confirms(self, batch: list[Packet]) -> list[bytes]:
        """Return the SEND_REPLYs and RESUME_FLOWs of durable messages."""
        encoded_packets: list[bytes] = []
        for packet in batch:
            flags = packet.flags
            if flags & A:
                encoded_packets.append(encode_reply(_SEND_REPLY, packet.consumer_id, _OK))
            if flags & (C | F):
                encoded_packets += self._encode_resume_flow(packet)
        return encoded_packets

    def may_park(self, destination: Destination) -> bool:
        """Return whether one more message may wait for capacity."""
        return len(destination.parked) < MAX_PARKED

    def finish_parked(self, request: Packet, error: BrokerError | None) -> None:
        """Reply to a message that has waited for capacity."""
        if request in self._copies:
            remaining, problem = self._copies.pop(request)
            error = error or problem
            if remaining > 1:
                self._copies[request] = (remaining - 1, error)
                return
        if error is None:
            self.publisher.confirm_parked(request)
        else:
            self._connection.refuse(request, error)
            self.resume(request)

    def end(self) -> None:
        """Withdraw messages that wait for capacity and whose sender waits for a reply."""
        self.publisher.end(lambda packet: not packet.flags & A)


def _latest_first(
    broker: Broker, subscription: Subscription, priority: int
) -> Iterator[Delivery | None]:
    """Yield the unacked messages of a subscription, then windows of its ready messages of one
    priority, the latest window first; None for an empty window."""
    for delivery in reversed(list(subscription.unacked_deliveries)):
        if not delivery.ended:
            yield delivery
    for end in range(broker.journal.next_sequence(), 0, -_WINDOW):
        cursor = subscription.cursor(end, priority, max(0, end - _WINDOW))
        while cursor.priority == priority:
            yield from cursor.examine(_LOOKUP_BATCH) or (None,)
