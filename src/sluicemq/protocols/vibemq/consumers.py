"""Subscriptions of a VibeMQ connection: windows, deliveries, acknowledgements and their timeouts.

The protocol has no credit, so the broker limits how many messages, and how many bytes of their
bodies, may be unacked at a time. (A batch is not divided, so the limit in bytes may be exceeded by
one batch, 1 MiB at most.)

Frames of large messages are encoded in another thread, and later deliveries wait for them. A
message that the client cannot read is declined: another consumer gets it, see `Broker.decline`.

A subscription of a fan-out queue is a topic subscription. With acknowledgements it is a member of
the topic's group: messages that the last member has not acknowledged stay with the topic, as they
would with a queue; the copies of other members are dropped with their subscription. Without
acknowledgements (`auto_ack`) a delivery is acknowledged once its bytes are sent, and the
unsent ones are dropped with the subscription.

Unacked deliveries are found by the ids that the client uses. Several deliveries may have the same
id; the oldest comes first. Deliveries may end or be requeued without notice; their ids stay until
they are looked up, or until there are many.

The .NET client handles one message after the other, over all its subscriptions, and acknowledges
each when its handler has returned. It does not report a failed handler. The client has therefore
not begun most of its unacked messages, and those must neither time out nor count an attempt.
Unacked deliveries, in the order in which they were sent, are

    passed    sent before a message that has been acknowledged: the client has begun it, its
              timeout runs from its delivery
    current   the first of the others: its timeout runs since it became the first, that is since
              the last acknowledgement or the last expired timeout
    queued    the rest: the client has not begun them, and their timeouts do not run

When a timeout expires, the delivery counts as an attempt. If its subscription has other consumers,
the message is requeued for them, else it is redelivered at once. If it was the current one, the
connection is *silent* until its next acknowledgement: queued messages are requeued without an
attempt if there are other consumers, and each subscription has a window of one message.

The client still has the copies of messages that were requeued or redelivered, and its handler works
on them: while such a copy is the current one, the client has begun none of its unacked messages.
So from the first expired timeout until the client has handled all such copies, each copy that was
sent is tracked, and the window is reduced by those that were requeued. The acknowledgement of such
a copy counts like any other: its handler has succeeded. The timeout of a current copy that was
requeued expires, too; then the next copy becomes current.

When the connection closes, passed and current deliveries have had an attempt, which may have been
their last. Queued deliveries also count an attempt, but are requeued however many they had: a
client that crashes on one message must not dead-letter all messages behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from sluicemq.broker import Consumer, Delivery, Destination, Window
from sluicemq.model.errors import BrokerError, FrameTooLarge
from sluicemq.model.message import BodyKind, Origin
from sluicemq.protocols.channel import (
    CONGESTED,
    DeliveryPauses,
    SentDeliveries,
    Unacked,
)
from sluicemq.protocols.transport import Alarm
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.connection import VibemqConnection
from sluicemq.protocols.vibemq.large import LARGE, LargeKey, encode_large
from sluicemq.protocols.vibemq.mapping import to_deliver, wire_id
from sluicemq.protocols.vibemq.queues import find
from sluicemq.protocols.vibemq.wire import HEADER_SIZE, MAX_BODY, compressed

MAX_COPIES: Final = 4096
"""Maximum number of tracked copies per connection. A client that never acknowledges adds a few with
each timeout."""
_SHARED_BYTES: Final = 16 * 1024
"""Size of a frame, in bytes, from which it is compressed once for all subscribers of a topic."""
_UNSENT: Final = 1024
"""Window of a subscriber without acknowledgements, in messages."""
_FULL: Final = 2
"""Reason for a pause: the unacked messages fill the window in bytes."""
_ENCODING: Final = 4
"""Reason for a pause: the frame of a large message is being encoded."""


class Subscriber:
    """Subscription to a queue name. It survives the queue's deletion and resumes once the queue
    exists again. `attach` comes first, and sets what depends on the queue.

    consumer  broker consumer; None while there is no queue
    pauses    reasons for which it delivers nothing
    timeout   acknowledgement timeout in ms; 0 = never
    """

    __slots__ = (
        "_blocked",
        "_broker",
        "_connection",
        "_latest_acked",
        "_needs_acks",
        "_queue",
        "_requested_key",
        "_subscriptions",
        "_timer",
        "_topic",
        "_unacked_bytes",
        "consumer",
        "name",
        "pauses",
        "timeout",
    )

    def __init__(self, subscriptions: Subscriptions, name: str) -> None:
        self.name = name
        self.consumer: Consumer | None = None
        self._queue = name.encode()
        self._subscriptions = subscriptions
        self._connection = subscriptions.connection
        self._broker = self._connection.broker
        self._blocked: list[Delivery] = []
        """Deliveries from one whose large frame is being encoded onwards."""
        self._requested_key: LargeKey | None = None
        """The large frame that is requested."""
        self._timer = Alarm(self._connection.channel.transport)
        """Scheduled sending of that frame."""
        self._latest_acked = (0, 0, 0)
        """Position of the latest acknowledged delivery, as of `_position`."""

    # --- beginning and end -------------------------------------------------------------------

    def attach(self, destination: Destination, answer: Callable[[], None] | None = None) -> None:
        """Attach to a destination. Calls `answer` before the first delivery. Raises BrokerError."""
        broker = self._broker
        connection = self._connection
        settings = destination.settings
        subscription = destination.queue
        self._topic = destination.topic
        if self._topic:
            member = settings.retain_without_subscriptions and not settings.auto_ack
            subscription = broker.subscribe(destination, connection.name, member=member)
        self._needs_acks = not settings.auto_ack
        """Deliveries stay unacked until the client acknowledges them."""
        self.timeout = 0
        if self._needs_acks:
            self.timeout = settings.ack_timeout or connection.options.ack_timeout
        window = Window(0, True)
        consumer = broker.attach(subscription, self, window, ack_timeout=0)
        self.consumer = consumer
        self._subscriptions.mine[consumer] = self
        self._unacked_bytes = 0
        self.pauses = DeliveryPauses(broker, CONGESTED if connection.channel.congested else 0)
        self.pauses.add(consumer)
        if answer is not None:
            answer()
        credit = connection.options.window if self._needs_acks else _UNSENT
        broker.grant(window, 1 if self.timeout and self._subscriptions.is_silent else credit)

    def _created(self, destination: Destination) -> None:
        try:
            self.attach(destination)
        except BrokerError:
            self.consumer = None  # the queue has reached its limit of consumers

    def end(self, begun: set[int]) -> None:
        """Requeue all unacked deliveries and detach.

        `begun` as of `Subscriptions.begun_sequences`.
        """
        broker = self._broker
        unsent = self._stop_sending()
        broker.destinations.cancel_wait(self.name, self._created)
        consumer = self._drop_consumer()
        if consumer is None:
            return
        if self._topic and not broker.keeps_messages(consumer.subscription):
            broker.unsubscribe(consumer.subscription)
            return
        broker.release(consumer, unsent, attempted=False)
        sequences = [sequence for sequence in consumer.unacked if sequence not in begun]
        broker.release(consumer, sequences, ignore_max_attempts=True)
        broker.detach(consumer)
        if self._topic:
            broker.unsubscribe(consumer.subscription)

    def detached(self, consumer: Consumer) -> None:
        """Handle the deletion of the queue; its unacked deliveries are gone with it."""
        if consumer is not self.consumer:
            return
        self._drop_consumer()
        self._stop_sending()
        destination = find(self._broker, self.name)
        if destination is None:
            self._broker.destinations.await_creation(self.name, self._created)
        else:
            self._created(destination)

    def _drop_consumer(self) -> Consumer | None:
        consumer, self.consumer = self.consumer, None
        self.pauses.consumers.clear()
        self._subscriptions.mine.pop(consumer, None)
        return consumer

    # --- deliveries --------------------------------------------------------------------------

    def update_unacked_bytes(self) -> None:
        """Recompute the unacked bytes, which the broker may have reduced, and suspend or resume.

        The subscription has a queue.
        """
        consumer = self.consumer
        assert consumer is not None
        self._unacked_bytes = sum(delivery.size for delivery in consumer.unacked.values())
        if self._unacked_bytes >= self._connection.options.window_bytes:
            self.pauses.pause(_FULL)
        else:
            self.pauses.resume(_FULL)

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send deliveries. Only writes, because it runs within the dispatch of a queue."""
        if self._blocked:
            self._blocked += deliveries
        else:
            self._send(consumer, deliveries)
        for delivery in deliveries:
            self._unacked_bytes += delivery.size
        if self._unacked_bytes >= self._connection.options.window_bytes:
            self.pauses.pause(_FULL)
        if self.timeout:
            self._subscriptions.schedule_timeout(self._broker.clock.steady + self.timeout)

    def _send(
        self, consumer: Consumer, deliveries: list[Delivery], first_frame: bytes | None = None
    ) -> None:
        """Write the frames of deliveries, up to one that another thread must encode.

        `first_frame` is the large frame of the first.
        """
        connection = self._connection
        subscriptions = self._subscriptions
        compression = connection.compression
        detect_json = connection.options.detect_json
        queue = self._queue
        first = subscriptions.by_token.first
        needs_acks = self._needs_acks
        prefix = self._broker.identity
        unsent = subscriptions.sent.unsent
        chunks: list[bytes] = []
        too_long: list[int] = []
        copies = subscriptions.copies
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            assert message is not None  # unacked
            identity = wire_id(message, prefix)
            raw = identity.encode()
            header_size = message.header_bytes() if message.properties else 0
            if delivery.size + header_size > LARGE:
                large, first_frame = first_frame, None
                if large is None:
                    large = self._find_large(delivery, raw)
                if large is None:
                    self._blocked = deliveries[index:]
                    self.pauses.pause(_ENCODING)
                    break
                frame = large
            else:
                attempts = delivery.attempts
                frame = to_deliver(message, raw, queue, attempts, MAX_BODY, detect_json)
                if compression:
                    frame = self._compressed(frame, delivery)
            if not 0 < len(frame) <= MAX_BODY + HEADER_SIZE:
                too_long.append(delivery.sequence)
                continue
            chunks.append(frame)
            if not needs_acks:
                unsent.append((consumer, delivery))
            elif first.setdefault(identity, delivery) is not delivery:
                subscriptions.by_token.add_duplicate(identity, delivery)
            if copies is not None:
                copies.append(Copy(identity, delivery, self, delivery.delivered))
        connection.channel.transport.write(chunks)
        connection.channel.traffic.delivered += len(chunks)
        subscriptions.trim()
        if too_long:
            decline = partial(self._decline, consumer, compression, too_long)
            connection.channel.transport.call_later(0, decline)

    def _compressed(self, frame: bytes, delivery: Delivery) -> bytes:
        """Return the frame compressed, once for all subscribers of a topic; b"" if it is too
        long."""
        connection = self._connection
        key = self._key(delivery) if self._topic and len(frame) >= _SHARED_BYTES else None
        compressed_frame = None if key is None else connection.large.find(key)
        if compressed_frame is None:
            try:
                compressed_frame = compressed(
                    frame, connection.compression, connection.options.threshold
                )
            except FrameTooLarge:
                compressed_frame = b""
            if key is not None:
                connection.large.cache(key, compressed_frame)
        return compressed_frame

    def _key(self, delivery: Delivery) -> LargeKey:
        connection = self._connection
        return LargeKey(
            delivery.sequence,
            self._queue,
            delivery.attempts,
            connection.compression,
            connection.options.detect_json,
        )

    def _find_large(self, delivery: Delivery, identity: bytes) -> bytes | None:
        """Return the frame of a large message, or None if another thread must encode it first.

        The frame is b"" if the client could not read it.
        """
        connection = self._connection
        message = delivery.message
        assert message is not None
        key = self._key(delivery)
        frame = connection.large.find(key)
        if frame is not None:
            return frame
        encode = partial(encode_large, message, identity, key, connection.options.threshold)
        if (
            not connection.compression
            and message.kind is BodyKind.JSON
            and (message.origin is Origin.VIBEMQ or delivery.size > MAX_BODY)
        ):
            return b"" if delivery.size > MAX_BODY else encode()
        self._requested_key = key
        size = len(message.body) + message.header_bytes()
        connection.large.request(key, encode, size, self._on_large_encoded)
        return None

    def _on_large_encoded(self, key: LargeKey, frame: bytes | Exception) -> None:
        if key == self._requested_key:
            self._requested_key = None
            # in an event loop callback of this connection, so that an error ends only it
            self._timer.set(0, partial(self._send_blocked, key, frame))

    def _send_blocked(self, key: LargeKey, frame: bytes | Exception) -> None:
        """Send the large frame and the deliveries behind it."""
        if isinstance(frame, Exception):
            raise frame
        consumer = self.consumer
        assert consumer is not None  # its end cancels the timer
        unacked = consumer.unacked
        deliveries, self._blocked = self._blocked, []
        remaining = [
            delivery for delivery in deliveries if unacked.get(delivery.sequence) is delivery
        ]
        self._broker.mark_sent(remaining)
        self._send(
            consumer, remaining, frame if remaining and self._key(remaining[0]) == key else None
        )
        if self.timeout:
            self._subscriptions.schedule_timeout(self._broker.clock.steady + self.timeout)
        if not self._blocked:
            self.pauses.resume(_ENCODING)

    def _stop_sending(self) -> list[int]:
        """Drop the deliveries that are not sent yet and return their sequences."""
        self._requested_key = None
        self._timer.cancel()
        deliveries, self._blocked = self._blocked, []
        return [delivery.sequence for delivery in deliveries]

    def _decline(self, consumer: Consumer, compression: Compression, sequences: list[int]) -> None:
        """Decline messages that this client cannot read."""
        if consumer is self.consumer:
            name = compression.name.lower() if compression else "no compression"
            kind = f"VibeMQ with {name}"
            self._broker.decline(consumer, sequences, kind, "TooLargeForVibeMQ")
            self.update_unacked_bytes()

    def acknowledge(self, consumer: Consumer, delivery: Delivery) -> bool:
        """Acknowledge a delivery of `consumer`, this subscription's; False if it has ended."""
        if not self._broker.acknowledge(consumer, delivery.sequence):
            return False
        subscriptions = self._subscriptions
        if subscriptions.copies is None:
            subscriptions.last_activity = self._broker.clock.steady
            position = _position(delivery)
            if position > self._latest_acked:
                self._latest_acked = position
            if delivery.delivered > subscriptions.latest_acked_send:
                subscriptions.latest_acked_send = delivery.delivered
        self._unacked_bytes -= delivery.size
        if self.pauses.reasons & _FULL and (
            self._unacked_bytes < self._connection.options.window_bytes or not consumer.unacked
        ):
            self.update_unacked_bytes()
        return True

    # --- time --------------------------------------------------------------------------------

    def is_passed(self, delivery: Delivery) -> bool:
        """Return whether a later delivery of the same send time was acknowledged."""
        return (
            delivery.delivered == self._latest_acked[0]
            and _position(delivery) <= self._latest_acked
        )

    def time_out(self, sequences: list[int]) -> None:
        """Redeliver messages whose acknowledgement timeout has expired, counting an attempt.

        They go to another consumer or, if there is none, to the same one.
        """
        consumer = self.consumer
        if consumer is None:
            return
        broker = self._broker
        delay = consumer.subscription.destination.settings.retry_delay
        cannot_send = self._connection.channel.congested or self._blocked
        if delay or cannot_send or self._has_other_consumers(consumer):
            broker.time_out(consumer, sequences)
        else:
            deliveries = broker.start_next_attempt(consumer, sequences, attempted=True)
            unacked = {delivery.sequence for delivery in deliveries}
            self._subscriptions.stop_tracking(
                sequence for sequence in sequences if sequence not in unacked
            )
            if deliveries:
                self.deliver(consumer, deliveries)

    def reduce_window(self) -> None:
        """Reduce a silent client's window to one message.

        Deliveries that the client has not begun go to other consumers, if there are any.
        """
        consumer = self.consumer
        if consumer is None or not self.timeout:
            return
        broker = self._broker
        window = consumer.window
        broker.revoke(window)
        if self._has_other_consumers(consumer):
            broker.release(consumer, attempted=False)
            broker.revoke(window)
        if not consumer.unacked:
            broker.grant(window, 1)

    def restore_window(self, requeued: int) -> None:
        """Restore the whole window of a client that is no longer silent.

        It is reduced by `requeued`, the copies that were requeued but that the client still has.
        """
        consumer = self.consumer
        if consumer is None or not self.timeout:
            return
        credit = self._connection.options.window - requeued
        credit -= len(consumer.unacked) + consumer.window.credit
        if credit > 0:
            self._broker.grant(consumer.window, credit)

    def _has_other_consumers(self, consumer: Consumer) -> bool:
        """Return whether another consumer could receive what this one requeues."""
        return any(
            peer is not consumer
            and peer.active
            and not peer.suspended
            and not (isinstance(peer.sink, Subscriber) and peer.sink._subscriptions.is_silent)
            for peer in consumer.subscription.consumers
        )


def _position(delivery: Delivery) -> tuple[int, int, int]:
    """Return the position of a delivery among those sent: the send time in steady ms, and its
    position in the queue, as deliveries sent at one time are in that order."""
    return delivery.delivered, -delivery.priority, delivery.order


@dataclass(slots=True, eq=False)
class Copy:
    """Frame that the client has to acknowledge.

    identity    id in the client's acknowledgement
    subscriber  subscription for which it was sent
    sent_at     send time, in steady ms
    is_passed   the client has begun it (see the module)
    """

    identity: str
    delivery: Delivery
    subscriber: Subscriber
    sent_at: int
    is_passed: bool = False

    @property
    def unacked(self) -> bool:
        """True if the subscription for which it was sent still holds the delivery."""
        consumer = self.subscriber.consumer
        delivery = self.delivery
        return consumer is not None and consumer.unacked.get(delivery.sequence) is delivery


class Subscriptions:
    """Subscriptions of one connection, with their unacked deliveries and acknowledgement timeouts.

    by_name            subscriptions by queue name
    mine               the same by their broker consumers; the subscriptions maintain it
    by_token           deliveries by the id that the client acknowledges; the subscriptions add
                       them, and call `trim` after a batch
    sent               deliveries of queues without acknowledgements
    copies             tracked copies, in the order in which they were sent; None = no tracking is
                       needed
    last_activity      steady ms of the last acknowledgement or the last expired timeout
    latest_acked_send  latest send time of the acknowledged deliveries, in steady ms
    is_silent          the current delivery's timeout has expired without an acknowledgement since
    """

    __slots__ = (
        "_alarm",
        "_due",
        "by_name",
        "by_token",
        "connection",
        "copies",
        "is_silent",
        "last_activity",
        "latest_acked_send",
        "mine",
        "sent",
    )

    def __init__(self, connection: VibemqConnection) -> None:
        self.connection = connection
        self.by_name: dict[str, Subscriber] = {}
        self.mine: dict[Consumer | None, Subscriber] = {}
        self.by_token: Unacked[str, Delivery] = Unacked()
        self.sent = SentDeliveries(connection.broker, refill=True)
        self.copies: list[Copy] | None = None
        self.last_activity = 0
        self.latest_acked_send = 0
        self.is_silent = False
        self._alarm = Alarm(connection.channel.transport)
        self._due = 0

    def end(self) -> None:
        """End all subscriptions."""
        begun = self.begun_sequences() if self.by_name else set()
        for subscriber in self.by_name.values():
            subscriber.end(begun)
        self.by_name.clear()
        self.copies = None
        self._alarm.cancel()

    def flushed(self) -> None:
        """Acknowledge the sent deliveries of queues without acknowledgements."""
        deliveries = self.sent.acknowledge()
        for consumer in {consumer for consumer, _ in deliveries}:
            subscriber = self.mine.get(consumer)
            if subscriber is not None:
                subscriber.update_unacked_bytes()

    def trim(self) -> None:
        """Remove ended deliveries if there are many."""
        self.by_token.trim(self._is_unacked)

    def _is_unacked(self, delivery: Delivery) -> bool:
        consumer = delivery.consumer
        return (
            consumer is not None
            and consumer in self.mine
            and consumer.unacked.get(delivery.sequence) is delivery
        )

    # --- acknowledgements --------------------------------------------------------------------

    def acknowledge(self, identity: str) -> None:
        """Acknowledge the oldest tracked copy of that id or, if there is none, the oldest delivery
        that a consumer of `mine` holds."""
        copies = self.copies
        index = -1
        if copies is not None:
            index = next(
                (position for position, copy in enumerate(copies) if copy.identity == identity), -1
            )
        if index < 0:
            while (delivery := self.by_token.take(identity)) is not None:
                consumer = delivery.consumer
                subscriber = self.mine.get(consumer)
                if (
                    subscriber is not None
                    and consumer is not None
                    and subscriber.acknowledge(consumer, delivery)
                ):
                    if copies is None:
                        return
                    break
        self.last_activity = self.connection.broker.clock.steady
        if copies is None:
            return
        subscribers = self._acknowledge_copy(copies, index) if index >= 0 else set()
        if self.is_silent:
            self.is_silent = False
            subscribers.update(self.mine.values())
        requeued_counts = Counter(copy.subscriber for copy in copies if not copy.unacked)
        sequences = {copy.delivery.sequence for copy in copies}
        if not requeued_counts and len(sequences) == len(copies):
            self.copies = None
            self.by_token.keep(self._is_unacked)  # it still has those acknowledged by their copies
        for subscriber in subscribers:
            subscriber.restore_window(requeued_counts[subscriber])

    def _acknowledge_copy(self, copies: list[Copy], index: int) -> set[Subscriber]:
        """Acknowledge the message of a copy and remove the copies that the client has handled.

        Returns their subscribers.
        """
        subscribers: set[Subscriber] = set()
        answered_copy = copies[index]
        delivery = answered_copy.delivery
        subscriber = answered_copy.subscriber
        consumer = subscriber.consumer
        if consumer is not None and not subscriber.acknowledge(consumer, delivery):
            # the message was requeued before
            self.connection.broker.acknowledge_any(consumer.subscription, delivery.sequence)
        later_copies = copies[index + 1 :]
        later_sequences = {copy.delivery.sequence for copy in later_copies}
        remaining: list[Copy] = []
        for copy in copies[: index + 1]:
            if (
                copy is not answered_copy
                and copy.unacked
                and copy.delivery.sequence not in later_sequences
            ):
                copy.is_passed = True
                remaining.append(copy)
            else:
                subscribers.add(copy.subscriber)
        copies[:] = remaining + later_copies
        return subscribers

    def stop_tracking(self, sequences: Iterable[int]) -> None:
        """Stop tracking messages that have ended after their last attempt."""
        if self.copies is not None:
            ended_sequences = set(sequences)
            self.copies = [
                copy for copy in self.copies if copy.delivery.sequence not in ended_sequences
            ]

    def begun_sequences(self) -> set[int]:
        """Return the sequences of unacked messages that the client may have begun."""
        copies = self._pending_copies()
        current = _current(copies)
        begun_copies = (copy for copy in copies if copy.is_passed or copy is current)
        return {copy.delivery.sequence for copy in begun_copies if copy.unacked}

    # --- timeouts ----------------------------------------------------------------------------

    def _pending_copies(self) -> list[Copy]:
        """Return the copies that are not acknowledged, in the order in which they were sent."""
        if self.copies is not None:
            return self.copies
        by_subscription = {
            consumer.subscription: subscriber
            for consumer, subscriber in self.mine.items()
            if consumer is not None
        }
        copies: list[Copy] = []
        for identity, delivery in self.by_token.entries():
            # includes messages that have ended in another way: the client does not know
            subscriber = by_subscription.get(delivery.subscription)
            if subscriber is not None:
                delivered_at = delivery.delivered
                passed = delivered_at < self.latest_acked_send or subscriber.is_passed(delivery)
                copies.append(Copy(identity, delivery, subscriber, delivered_at, passed))
        return copies

    def schedule_timeout(self, due: int) -> None:
        """Set the timer for a delivery that must be acknowledged by `due`, in steady ms."""
        if self._alarm.timer is not None and self._due <= due:
            return
        self._due = due
        delay = max(1, due - self.connection.broker.clock.steady)
        self._alarm.set(delay / 1000, self._on_alarm)

    def _deadline(self, copy: Copy, current: Copy | None) -> int:
        """Return the steady ms at which a copy times out; 0 = never."""
        timeout = copy.subscriber.timeout
        if timeout and copy.is_passed:
            return copy.sent_at + timeout if copy.unacked else 0
        return max(copy.sent_at, self.last_activity) + timeout if timeout and copy is current else 0

    def _on_alarm(self) -> None:
        """Handle expired timeouts and set the timer for the next one."""
        now = self.connection.broker.clock.steady
        expired: dict[Subscriber, list[int]] = {}
        copies = self._pending_copies()
        current = _current(copies)
        remaining: list[Copy] = []
        silent = False
        for copy in copies:
            if 0 < self._deadline(copy, current) <= now:
                unacked = copy.unacked
                if unacked:
                    expired.setdefault(copy.subscriber, []).append(copy.delivery.sequence)
                if copy is not current:
                    continue
                silent = True
                copy.is_passed = not unacked  # kept, because the client may still acknowledge it
            remaining.append(copy)
        if expired or silent:
            self.copies = remaining[-MAX_COPIES:]
            self.last_activity = now if silent else self.last_activity
            for subscriber, sequences in expired.items():
                subscriber.time_out(sequences)
        if silent:
            self.is_silent = True
            for subscriber in list(self.mine.values()):
                subscriber.reduce_window()
        for subscriber in list(self.mine.values()):
            subscriber.update_unacked_bytes()
        copies = self._pending_copies()
        current = _current(copies)
        deadlines = [self._deadline(copy, current) for copy in copies]
        if any(deadlines):
            self.schedule_timeout(min(filter(None, deadlines)))


def _current(copies: list[Copy]) -> Copy | None:
    """Return the first copy that the client has not passed."""
    return next((copy for copy in copies if not copy.is_passed), None)
