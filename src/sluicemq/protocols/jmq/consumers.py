"""Consumers of a JMQ connection: flow control, pending and unacked messages.

A written message is *unacked* until it is acknowledged by its SysMessageID and the number of the
consumer to which it was sent. A message that the engine has delivered but that may not be written
yet, because the connection is stopped, its flow is paused or the client has requested a redelivery,
is *pending*.

Flow control (protocol specification, HELLO and RESUME_FLOW). The client states how many messages a
consumer (ADD_CONSUMER) and the whole connection (HELLO) accept until RESUME_FLOW. The last message
carries the C bit for the consumer, the F bit for the connection. A connection receives no messages
before START, and in safe mode one between two acknowledgements.

    value     JMQSize of the connection  JMQBytes                    JMQMaxMsgBytes
    positive  limit in messages          limit in bytes of packets   limit in bytes of one packet
    0         unlimited, as in Open MQ   nothing until RESUME_FLOW   unlimited
    negative  unlimited                  unlimited                   unlimited
    absent    HELLO: unlimited; RESUME_FLOW: as it was

The message that reaches JMQBytes is the last one, so messages are written one by one while bytes
count. A message above JMQMaxMsgBytes, or one that no JMQ packet can carry, is delivered to another
consumer of its subscription, or becomes a dead letter.

Redelivery. REDELIVER makes unacked messages pending again in their position; they stay with this
consumer, unless their destination is paused. When a consumer is closed, the client names the
message that its application has received last: messages up to that one stay unacked and can still
be acknowledged; later ones are requeued without counting an attempt. When the connection breaks,
the last message is unknown, so every written message counts an attempt; but only the first one,
which the application must have received, can reach the dead message queue by that attempt.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, Final

from sluicemq.broker import (
    Consumer,
    Delivery,
    Destination,
    Subscription,
    Window,
    queue_order,
)
from sluicemq.model.errors import BrokerError, ProtocolError, SubscriptionInUse
from sluicemq.protocols.channel import Channel, DeliveryPauses, SentDeliveries, Unacked
from sluicemq.protocols.jmq.destinations import Pattern, find_or_create, is_wildcard
from sluicemq.protocols.jmq.mapping import encode_delivery
from sluicemq.protocols.jmq.packets import AckMode, C, F, R
from sluicemq.protocols.jmq.subscriptions import (
    EXCLUSIVE,
    OF_QUEUE,
    SHARED,
    Durables,
    Terms,
    matches_topic,
    matching_topics,
    may_use_subscription,
    not_owner_error,
    reroute,
    wildcard_topic,
)
from sluicemq.protocols.ownership import claim_subscription

UNLIMITED: Final = 1 << 40
"""Number of messages beyond every count."""
UNLIMITED_BYTES: Final = 1 << 62
MAX_BATCH: Final = 100
"""Maximum number of pending messages that are written together."""
MAX_READ_BYTES: Final = 1 << 20
"""Bytes of messages read from the journal for a redelivery after which the others wait until these
are sent, so that they are not in memory together."""


@dataclass(slots=True, eq=False)
class Credit:
    """Messages, and bytes of packets, that may be sent until RESUME_FLOW.

    limit, byte_limit         between two RESUME_FLOWs, or UNLIMITED and UNLIMITED_BYTES
    messages_left, bytes_left the remaining ones; the flow is paused at 0 or less
    """

    limit: int = UNLIMITED
    byte_limit: int = UNLIMITED_BYTES
    messages_left: int = UNLIMITED
    bytes_left: int = UNLIMITED_BYTES

    @property
    def counts_bytes(self) -> bool:
        """True if bytes are counted."""
        return self.byte_limit != UNLIMITED_BYTES

    def resume(self, limit: int | None, byte_limit: int | None) -> None:
        """Allow `limit` messages and `byte_limit` bytes from now on; None = the previous limit."""
        self.messages_left = self.limit = self.limit if limit is None else limit
        self.bytes_left = self.byte_limit = self.byte_limit if byte_limit is None else byte_limit


@dataclass(slots=True, eq=False)
class Outbound:
    """Flow of deliveries to the client of one connection.

    max_unacked      maximum number of unacked messages of a consumer
    sent             deliveries of sessions that do not acknowledge
    consumers        consumers by JMQConsumerID, also closed ones with unacked messages. They are
                     resumed in this order, the one least recently sent a message first, so that
                     every consumer has its turn
    capacity         number of messages that may be written now
    credit           messages and bytes that may be written until RESUME_FLOW
    safe             True in safe mode
    outstanding      in safe mode the consumer that has not acknowledged its message, or None
    started          False before START and after STOP
    read_bytes       size of messages read from the journal for a redelivery, since the last pause
    max_packet_size  size of the largest packet that the client accepts, in bytes
    """

    channel: Channel[Any]
    max_unacked: int
    sent: SentDeliveries
    consumers: OrderedDict[int, JmsConsumer] = field(default_factory=OrderedDict)
    capacity: int = 0
    credit: Credit = field(default_factory=Credit)
    max_packet_size: int = UNLIMITED_BYTES
    safe: bool = False
    outstanding: JmsConsumer | None = None
    started: bool = False
    read_bytes: int = 0

    def update_capacity(self) -> None:
        """Compute the capacity again; pause or resume the consumers if it has become or was 0."""
        capacity = 0
        paused = self.channel.congested or self.credit.bytes_left <= 0
        if self.started and not paused and self.outstanding is None:
            capacity = self.credit.messages_left
            if self.safe:
                capacity = min(capacity, 1)
        before, self.capacity = self.capacity, capacity
        if (before == 0) != (capacity == 0):
            for consumer in list(self.consumers.values()):
                consumer.update_flow()
                if (self.capacity == 0) != (capacity == 0):
                    break  # its messages have used up the capacity, which has paused all of them

    def resume(self, limit: int | None, byte_limit: int | None) -> None:
        """Continue after RESUME_FLOW with `limit` messages, <= 0 = unlimited, and `byte_limit`
        bytes; None = the previous limit."""
        if limit is not None and limit <= 0:
            limit = UNLIMITED
        self.credit.resume(limit, byte_limit)
        self.update_capacity()

    def spend(self, consumer: JmsConsumer, count: int, size: int = 0) -> None:
        """Count messages written to a consumer, at most `capacity`, and their `size` in bytes if
        bytes are counted."""
        if not count:
            return
        self.consumers.move_to_end(consumer.number)
        credit = self.credit
        credit.messages_left -= count
        credit.bytes_left -= size
        if self.safe and consumer.requires_ack:
            self.outstanding = consumer
        if credit.limit != UNLIMITED or self.safe or size:
            self.update_capacity()

    def count_read(self, size: int) -> None:
        """Count a written message that was read from the journal: once there are many bytes, others
        wait until these are sent."""
        self.read_bytes += size
        if self.read_bytes > MAX_READ_BYTES:
            self.read_bytes = 0
            self.channel.mark_congested()
            self.update_capacity()

    def start(self, started: bool = True) -> None:
        """Begin to deliver, or stop until the next call."""
        self.started = started
        self.update_capacity()

    def acknowledged(self) -> None:
        """Continue in safe mode after the acknowledgement or return of the outstanding message."""
        self.outstanding = None
        self.update_capacity()


_PAUSED: Final = 1
"""Reason for a pause: this consumer or its connection may not receive more now."""


def _can_be_batched(delivery: Delivery) -> bool:
    """Return whether a pending message can be written without a read from the journal, and its
    destination is not paused."""
    return delivery.message is not None and not delivery.subscription.destination.paused


class JmsConsumer:
    """Consumer of a JMS session.

    number            JMQConsumerID
    prefetch          maximum number of messages until RESUME_FLOW; UNLIMITED = no flow control
    pauses            consumers of the engine: one; those of all topics that a wildcard matches
    unacked           delivery index within this consumer, and delivery, by SysMessageID
    pending           pending messages, in queue order
    last_acked_index  highest delivery index that has been acknowledged
    is_announced      True once the client knows its number, which must precede the first delivery
    closed            True after DELETE_CONSUMER, while it still has unacked messages
    terms             terms of its subscriptions. If its destination is deleted, it continues with
                      the next one of that name
    """

    __slots__ = (
        "_broker",
        "_durables",
        "_full",
        "_outbound",
        "_pattern",
        "_written",
        "closed",
        "credit",
        "is_announced",
        "last_acked_index",
        "number",
        "pauses",
        "pending",
        "prefetch",
        "requires_ack",
        "session",
        "terms",
        "unacked",
        "window",
    )

    def __init__(
        self,
        outbound: Outbound,
        session: JmsSession,
        number: int,
        prefetch: int,
        durables: Durables,
        terms: Terms,
    ) -> None:
        self._broker = outbound.channel.broker
        self._outbound = outbound
        self.session = session
        self.number = number
        self.credit = Credit()
        self.prefetch = prefetch
        self.terms = terms
        self._durables = durables
        self._pattern = Pattern(terms.address.name) if is_wildcard(terms.address) else None
        self.requires_ack = session.mode != AckMode.NO_ACK
        """False if the broker acknowledges messages itself, once they are sent."""
        self.window = Window(0, False)
        self.pauses = DeliveryPauses(self._broker, _PAUSED)
        self.unacked: Unacked[bytes, tuple[int, Delivery]] = Unacked()
        self.pending: deque[Delivery] = deque()
        self.last_acked_index = 0
        self._written = 0
        self._full = False
        """True if it has the maximum number of unacked messages."""
        self.is_announced = False
        self.closed = False

    # --- attaching ---------------------------------------------------------------------------

    @property
    def has_destination(self) -> bool:
        """True if there is a destination of that name; always True for a wildcard."""
        return bool(self._pattern or self._broker.destinations.find(self.terms.address))

    def attach(self) -> None:
        """Attach the consumer. Nothing is delivered before `update_flow`. Raises BrokerError."""
        terms = self.terms
        pattern = self._pattern
        existing: list[Subscription] = []
        if terms.durable:
            existing = self._durables.expect_replaceable(terms, self._outbound.channel.identity)
        elif terms.type == SHARED:
            self._durables.add_shared_consumer(terms.name, terms.address.name)
        try:
            if pattern is None:
                self._attach_to_address()
            else:
                self._durables.wildcard_consumers[self._attach_to_new_topic] = None
                if terms.durable:
                    self._attach_to(wildcard_topic(self._broker))
                for topic in matching_topics(self._broker, pattern):
                    self._attach_to(topic)
        except BrokerError:
            self.end()
            if terms.durable:
                self._durables.delete_others(terms.name, existing)
            raise
        if terms.durable:
            self._durables.delete_replaced(terms)

    def _attach_to_address(self) -> None:
        creator = self._outbound.channel.identity.creator
        self._attach_to(find_or_create(self._broker, self.terms.address, creator))

    def _attach_to(self, destination: Destination) -> None:
        """Receive messages from one more destination. Raises BrokerError."""
        is_queue = self.terms.type == OF_QUEUE
        subscription = destination.queue if is_queue else self._subscribe(destination)
        self.pauses.add(
            self._broker.attach(
                subscription,
                self,
                self.window,
                selector=self.terms.selector if is_queue else None,
                ack_timeout=0,  # JMS defines none
                owner=self._outbound.channel,
            )
        )

    def _subscribe(self, topic: Destination) -> Subscription:
        """Return the subscription of a topic. Raises BrokerError if the consumer may not use it."""
        terms = self.terms
        identity = self._outbound.channel.identity
        existing = topic.subscriptions.get(terms.engine_name)
        if existing is not None and not may_use_subscription(identity, existing):
            raise not_owner_error(terms.name)
        subscription = self._broker.subscribe(
            topic,
            terms.engine_name,
            durable=terms.durable,
            # each consumer states whether a durable one is shared, and this can change
            shared=terms.type != EXCLUSIVE,
            selector=terms.selector,
            exclude=terms.exclude,
            owner=terms.owner,
            creator=identity.creator,
        )
        if terms.type != EXCLUSIVE:
            claim_subscription(self._broker, identity, subscription)
        for consumer in subscription.consumers:
            sink = consumer.sink
            if not (terms.sharing and isinstance(sink, JmsConsumer) and sink.terms.sharing):
                raise SubscriptionInUse(f"{terms.name} of {topic.address} has a consumer already")
        if terms.durable:
            self._durables.add(subscription)
        return subscription

    def _attach_to_new_topic(self, topic: Destination) -> None:
        """Attach the consumer to a new topic if its wildcard matches it."""
        if self._pattern is not None and matches_topic(self._pattern, topic):
            with suppress(BrokerError):  # the topic may have its maximum number of subscriptions
                self._attach_to(topic)

    def update_flow(self) -> None:
        """Write pending messages up to the limits, and grant the engine the remaining credit."""
        if self.closed or not self.is_announced:
            return
        self._full = len(self.unacked.first) + self.unacked.duplicates >= self._outbound.max_unacked
        if self.pending or not self._may_write():
            self.pauses.pause(_PAUSED)
            if not self._write_pending():
                return
        window = self.window
        additional_credit = self.credit.messages_left - window.credit
        if additional_credit < 0:
            window.credit = self.credit.messages_left
        self.pauses.resume(_PAUSED)
        if additional_credit > 0:
            self._broker.grant(window, additional_credit)

    def resume(self, size: int, byte_limit: int | None) -> None:
        """Let the client receive `size` more messages, < 0 = the prefetch limit, and `byte_limit`
        more bytes, None = the previous limit."""
        limit = self.prefetch if size < 0 else min(size, self.prefetch)
        self.credit.resume(limit, byte_limit)
        self.update_flow()

    # --- deliveries --------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Write deliveries; those beyond the limits become pending."""
        paused = self.pauses.reasons
        if paused or self._counts_bytes or self._outbound.capacity < len(deliveries):
            self._add_pending(deliveries)
            if not paused and not self._write_pending():
                self.pauses.pause(_PAUSED)
        else:
            self._write(deliveries)

    @property
    def _counts_bytes(self) -> bool:
        """True if packet sizes are needed for a limit of the consumer or the connection."""
        outbound = self._outbound
        return (
            self.credit.counts_bytes
            or outbound.credit.counts_bytes
            or outbound.max_packet_size != UNLIMITED_BYTES
        )

    def _add_pending(self, deliveries: Iterable[Delivery]) -> None:
        """Add deliveries to the pending ones in queue order, which nearly always appends them."""
        pending = self.pending
        for delivery in deliveries:
            last = pending[-1] if pending else delivery
            if delivery.order < last.order or delivery.priority > last.priority:
                insort(pending, delivery, key=queue_order)
            else:
                pending.append(delivery)

    def _write_pending(self) -> bool:
        """Write pending messages up to the limits; return whether more may be written then.

        Those of a paused destination return to their subscription.
        """
        pending = self.pending
        outbound = self._outbound
        while self._may_write():
            if not pending:
                return True
            if pending[0].subscription.destination.paused:
                for engine_consumer, delivery in self._unacked_of([pending.popleft()]):
                    self._broker.release(engine_consumer, [delivery.sequence], attempted=False)
                continue
            capacity = min(outbound.capacity, self.credit.messages_left, len(pending), MAX_BATCH)
            if self._counts_bytes:
                capacity = 1
            loaded_count = len(list(takewhile(_can_be_batched, islice(pending, capacity))))
            candidates = [pending.popleft() for _ in range(loaded_count or 1)]
            deliveries = [delivery for _, delivery in self._unacked_of(candidates)]
            if deliveries:
                self._write(deliveries)
                if not loaded_count:
                    outbound.count_read(deliveries[0].size)
        return False

    def _may_write(self) -> bool:
        """Return whether another message may be written."""
        return not (
            self._full
            or self.session.stopped
            or self.credit.messages_left <= 0
            or self.credit.bytes_left <= 0
            or self._outbound.capacity == 0
        )

    def _write(self, deliveries: list[Delivery]) -> None:
        """Write deliveries, which are within the limits; at most one while bytes are counted."""
        outbound = self._outbound
        number = self.number
        identity = self._broker.identity
        unacked_entries = self.unacked.first
        credit = self.credit
        messages_left = credit.messages_left
        written_count = self._written
        chunks: list[bytes] = []
        undeliverable: list[Delivery] = []
        counts_bytes = self._counts_bytes
        size = 0
        last = deliveries[-1] if outbound.credit.messages_left == len(deliveries) else None
        for delivery in deliveries:
            # the body of a message that is sent again may have been paged out
            message = delivery.message or self._broker.read(delivery)
            attempts = delivery.attempts
            flags = R if attempts > 1 else 0
            if messages_left == 1:
                flags |= C
            if delivery is last:
                flags |= F
            try:
                parts = encode_delivery(message, number, flags, attempts, identity)
            except ProtocolError:
                undeliverable.append(delivery)
                continue
            if counts_bytes:
                size = sum(map(len, parts))
                if size > outbound.max_packet_size:
                    undeliverable.append(delivery)
                    size = 0
                    continue
                limit_flags = C if credit.bytes_left <= size else 0
                if outbound.credit.bytes_left <= size:
                    limit_flags |= F
                if limit_flags:
                    parts = encode_delivery(
                        message, number, flags | limit_flags, attempts, identity
                    )
            chunks += parts
            written_count += 1
            messages_left -= 1
            if self.requires_ack:
                sysid = parts[0][20:52]
                entry = (written_count, delivery)
                existing = unacked_entries.setdefault(sysid, entry)
                if existing[1] is not delivery:
                    self.unacked.add_duplicate(sysid, entry)
                elif existing is not entry:
                    unacked_entries[sysid] = entry
            elif delivery.consumer is not None:
                outbound.sent.unsent.append((delivery.consumer, delivery))
        credit.messages_left = messages_left
        count, self._written = written_count - self._written, written_count
        transport = outbound.channel.transport
        outbound.channel.traffic.delivered += count
        transport.write(chunks)
        self._broker.page_out(deliveries)
        if undeliverable:
            transport.call_later(0, partial(self._reroute, undeliverable))
        self.unacked.trim(self._is_unacked)
        self._full = len(unacked_entries) + self.unacked.duplicates >= outbound.max_unacked
        credit.bytes_left -= size
        if self._full or credit.bytes_left <= 0:
            self.pauses.pause(_PAUSED)
        outbound.spend(self, count, size)

    def _reroute(self, deliveries: list[Delivery]) -> None:
        """Reroute messages that no packet can carry, or that are too large for the client."""
        for engine_consumer, delivery in self._unacked_of(deliveries):
            reroute(self._broker, engine_consumer, delivery, too_large=True)
        self.update_flow()

    def _unacked_of(self, deliveries: Iterable[Delivery]) -> Iterator[tuple[Consumer, Delivery]]:
        """Yield the deliveries that are still unacked here, each after its consumer."""
        for delivery in deliveries:
            engine_consumer = self.holder_of(delivery)
            if engine_consumer is not None:
                yield engine_consumer, delivery

    def _is_unacked(self, entry: tuple[int, Delivery]) -> bool:
        """Return whether a message is still unacked here."""
        return self.holder_of(entry[1]) is not None

    def holder_of(self, delivery: Delivery) -> Consumer | None:
        """Return the engine's consumer with which a message is unacked here; None if the message
        has been purged, requeued or acknowledged otherwise, or its destination was deleted."""
        engine_consumer = delivery.consumer
        if (
            delivery.ended
            or delivery.subscription.closed
            or engine_consumer is None
            or engine_consumer.sink is not self
        ):
            return None
        return engine_consumer

    # --- acknowledgements --------------------------------------------------------------------

    def acknowledge(self, sysid: bytes) -> bool:
        """Acknowledge a message; ignore one that is not unacked. Return whether to journal it."""
        delivery = self.take(sysid)
        if delivery is None:
            return False
        engine_consumer = delivery.consumer
        if engine_consumer is not None and engine_consumer.sink is self:
            self._broker.acknowledge(engine_consumer, delivery.sequence)
        return delivery.recorded

    def take(self, sysid: bytes) -> Delivery | None:
        """Remove an unacked message, and return its delivery for the caller to end.

        The delivery may have ended, or belong to another consumer.
        """
        entry = self.unacked.take(sysid)
        if entry is None:
            return None
        index, delivery = entry
        if index > self.last_acked_index:
            self.last_acked_index = index
        if self._outbound.safe:
            self._outbound.acknowledged()
        if self._full:
            self.update_flow()
        return delivery

    # --- redelivery --------------------------------------------------------------------------

    def redeliver(self, deliveries: Iterable[Delivery], attempted: bool) -> None:
        """Redeliver messages that were removed from `unacked` to this consumer. If it is closed or
        their destination is paused, they return to their subscription.

        `attempted`: the application has received them.
        """
        requested: dict[Consumer, list[int]] = {}
        for engine_consumer, delivery in self._unacked_of(deliveries):
            requested.setdefault(engine_consumer, []).append(delivery.sequence)
        for engine_consumer, sequences in requested.items():
            if self.closed or engine_consumer.subscription.destination.paused:
                self._broker.release(engine_consumer, sequences, attempted=attempted)
            else:
                self._add_pending(
                    self._broker.start_next_attempt(engine_consumer, sequences, attempted=attempted)
                )
        self._continue_safe_mode()
        self.update_flow()

    # --- closing -----------------------------------------------------------------------------

    def close(self, last_received: bytes | None, *, none_received: bool) -> None:
        """Handle DELETE_CONSUMER.

        `last_received` is the message that the application has received last; with `none_received`
        it has received none. Without either it may have received all messages.
        """
        boundary = self.last_acked_index
        if last_received is not None and last_received in self.unacked.first:
            boundary = self.unacked.first[last_received][0]
        elif last_received is None:
            boundary = 0 if none_received else self._written
        self.unacked.keep(lambda entry: entry[0] <= boundary and self._is_unacked(entry))
        kept = {delivery.sequence for _, (_, delivery) in self.unacked.entries()}
        self.pending.clear()
        engine_consumers = self._stop_delivery()
        for engine_consumer in engine_consumers:
            self._broker.retire(engine_consumer, kept)
        self._delete_unused_subscriptions(engine_consumers)
        self._continue_safe_mode()

    def end(self) -> None:
        """Requeue all unacked messages at the end of the session or of the connection."""
        pending = {delivery.sequence for delivery in self.pending}
        entries = [entry for _, entry in self.unacked.entries()]
        first = min(entries, key=itemgetter(0), default=None)
        if self.closed:
            engine_consumers = list(dict(self._unacked_of(delivery for _, delivery in entries)))
        else:
            engine_consumers = self._stop_delivery()
        for engine_consumer in engine_consumers:
            if first is not None:
                self._broker.release(engine_consumer, [first[1].sequence])
            self._broker.detach(engine_consumer, pending, ignore_max_attempts=True)
        self.unacked.clear()
        self.pending.clear()
        self._delete_unused_subscriptions(engine_consumers)
        self._continue_safe_mode()

    def _continue_safe_mode(self) -> None:
        """Continue in safe mode if the outstanding message was this consumer's and is no longer."""
        if self._outbound.outstanding is self and not self.unacked.first:
            self._outbound.acknowledged()

    def _stop_delivery(self) -> list[Consumer]:
        """End the deliveries and return the consumers of the engine."""
        self.closed = True
        if self.terms.type == SHARED:
            self._durables.remove_shared_consumer(self.terms.name)
        if self._pattern is not None:
            del self._durables.wildcard_consumers[self._attach_to_new_topic]
        engine_consumers = list(self.pauses.consumers)
        self.pauses.consumers.clear()
        return engine_consumers

    def _delete_unused_subscriptions(self, engine_consumers: list[Consumer]) -> None:
        """Delete nondurable subscriptions of topics whose last consumer was detached."""
        if not (self.terms.durable or self.terms.type == OF_QUEUE):
            for engine_consumer in engine_consumers:
                subscription = engine_consumer.subscription
                if not subscription.consumers and not subscription.closed:
                    self._broker.unsubscribe(subscription)

    def detached(self, consumer: Consumer) -> None:
        """Drop the unacked messages of a deleted destination or subscription. Attach to the next
        destination of that name, unless the broker refuses that."""
        if consumer in self.pauses.consumers:
            self.pauses.consumers.remove(consumer)
            self.unacked.keep(self._is_unacked)
            if self._pattern is None and consumer.subscription.destination.removed:
                with suppress(BrokerError):
                    self._attach_to_address()
            self._continue_safe_mode()
            self.update_flow()  # it may have had the maximum number of unacked messages


@dataclass(slots=True, eq=False)
class JmsSession:
    """JMS session.

    number     JMQSessionID
    mode       NONE also for sessions with transactions
    stopped    True if the session delivers nothing, also on a started connection
    consumers  consumers, including closed ones with unacked messages
    """

    number: int
    mode: AckMode
    stopped: bool = False
    consumers: dict[int, JmsConsumer] = field(default_factory=dict)

    def start(self, started: bool = True) -> None:
        """Begin to deliver, or stop until the next call."""
        self.stopped = not started
        for consumer in list(self.consumers.values()):
            consumer.update_flow()
