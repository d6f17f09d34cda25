"""Subscriptions of a VibeMQ connection: windows, deliveries, acknowledgements and their timeouts.

The protocol has no credit, so the broker limits how many messages, and how many bytes of their
bodies, may be unacked at a time. (A batch is not divided, so the limit in bytes may be exceeded by
one batch, 1 MiB at most.)

Frames of large messages, and of JMS messages whose conversion takes as long, alone or with those
before in a batch, are encoded in another thread, and later deliveries wait for them. A message that
the client cannot read is declined: another consumer gets it, see `Broker.decline`.

A subscription of a fan-out queue is a topic subscription. With acknowledgements it is a member of
the topic's group: messages that the last member has not acknowledged stay with the topic, as they
would with a queue; those of other members are dropped with their subscription. Without
acknowledgements (`auto_ack`) a delivery is acknowledged once its bytes are sent, and the
unsent ones are dropped with the subscription.

A message that was sent and must be acknowledged is a *copy* until the client acknowledges it. An
acknowledgement belongs to the oldest copy of its id: several messages may have been published with
one id, and a message may have been sent again. It acknowledges the message even if that has been
requeued, because its handler has succeeded.

The .NET client handles one message after the other, over all its subscriptions, and acknowledges
each when its handler has returned. It does not report a failed handler. The client has therefore
not begun most of its copies, and their messages must neither time out nor count an attempt. Copies,
in the order in which they were sent, are

    passed    sent before a copy that has been acknowledged: the client has begun it, its timeout
              runs from the delivery
    current   the first of the others: its timeout runs since it became the first, that is since
              the last acknowledgement or the last expired timeout
    queued    the rest: the client has not begun them, and their timeouts do not run

When a timeout expires, the delivery counts as an attempt. If its subscription has other consumers,
the message is requeued for them, else it is redelivered at once. If it was that of the current
copy, the connection is *silent* until its next acknowledgement: messages of queued copies are
requeued without an attempt if there are other consumers, and each subscription has a window of one
message.

The client still has the copies of messages that were requeued, and its handler works on them. Until
it has acknowledged them or a later copy, they reduce the window. The timeout of a current copy
whose message was requeued expires, too; then the copy is passed, although the client may still
acknowledge it.

When the connection closes, the messages of passed and current copies have had an attempt, which may
have been their last. Those of queued copies also count an attempt, but are requeued however many
they had: a client that crashes on one message must not dead-letter all messages after it.

A client that unsubscribes has not crashed: its queued copies count no attempt. Neither does the
current copy if the Unsubscribe directly follows an Ack: the client stops after that message.
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
from sluicemq.protocols.offload import LARGE, unblock
from sluicemq.protocols.transcoding import conversion_memory, conversion_work
from sluicemq.protocols.transport import Alarm
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.connection import VibemqConnection
from sluicemq.protocols.vibemq.large import LargeKey, encode_large
from sluicemq.protocols.vibemq.mapping import to_deliver, wire_id
from sluicemq.protocols.vibemq.queues import find
from sluicemq.protocols.vibemq.wire import HEADER_SIZE, MAX_BODY, compressed

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_JMQ: Final = Origin.JMQ

MAX_COPIES: Final = 4096
"""Copies of a connection, the latest, that are kept although their messages are not unacked."""
REATTACH_SECONDS: Final = 1
"""Time between attempts to attach to a recreated queue that has its maximum of consumers."""
_SHARED_BYTES: Final = 16 * 1024
"""Size of a frame, in bytes, from which it is compressed once for all subscribers of a topic."""
_MAX_FRAME: Final = HEADER_SIZE + MAX_BODY
"""Maximum size of a frame that clients can read, in bytes."""
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
        """Delivery whose large frame is being encoded, and the deliveries after it."""
        self._requested_key: LargeKey | None = None
        """The large frame that is requested."""
        self._timer = Alarm(self._connection.channel.transport)
        """Scheduled sending of that frame; without a consumer, the next attempt to attach."""

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
            self.consumer = None  # the queue has reached its limit of consumers; one may leave
            self._timer.set(REATTACH_SECONDS, self._reattach)

    def _reattach(self) -> None:
        """Attach to the queue of this name, now or once it is created."""
        destination = find(self._broker, self.name)
        if destination is None:
            self._broker.destinations.await_creation(self.name, self._created)
        else:
            self._created(destination)

    def end(self, begun: set[int], *, attempted: bool) -> None:
        """Requeue all unacked deliveries and detach.

        `begun` as of `Subscriptions._begun_sequences`. `attempted`: the others count an attempt,
        too, but not their last.
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
        # a begun message may have been redelivered, but not sent again
        sent = [item for item in consumer.unacked if item in begun and item not in unsent]
        broker.release(consumer, sent)
        unattempted = unsent if attempted else set(consumer.unacked)
        broker.detach(consumer, unattempted, ignore_max_attempts=True)
        if self._topic:
            broker.unsubscribe(consumer.subscription)

    def detached(self, consumer: Consumer) -> None:
        """Handle the deletion of the queue; its unacked deliveries were deleted with it."""
        if consumer is not self.consumer:
            return
        self._drop_consumer()
        self._stop_sending()
        self._reattach()

    def _drop_consumer(self) -> Consumer | None:
        consumer, self.consumer = self.consumer, None
        self.pauses.consumers.clear()
        return consumer

    # --- deliveries --------------------------------------------------------------------------

    def update_unacked_bytes(self) -> None:
        """Recompute the unacked bytes, which the broker may have reduced, and suspend or resume."""
        consumer = self.consumer
        if consumer is None:
            return
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
        size = self._unacked_bytes
        for delivery in deliveries:
            size += delivery.size
        self._unacked_bytes = size
        if self._unacked_bytes >= self._connection.options.window_bytes:
            self.pauses.pause(_FULL)

    def _send(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Write the frames of deliveries, up to one that another thread must encode."""
        connection = self._connection
        subscriptions = self._subscriptions
        compression = connection.compression
        detect_json = connection.options.detect_json
        queue = self._queue
        copies = subscriptions.copies
        first = copies.first
        number = subscriptions.sent_copies
        now = self._broker.clock.steady
        needs_acks = self._needs_acks
        prefix = self._broker.identity
        unsent = subscriptions.sent.unsent
        chunks: list[bytes] = []
        too_long: list[int] = []
        work = 0  # of converting bodies here
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            assert message is not None  # unacked
            identity = wire_id(message, prefix)
            raw = identity.encode()
            size = delivery.size
            if message.origin is _JMQ and (conversion := conversion_work(message)):
                size = work = work + conversion
            if message.properties:
                size += message.header_bytes()
            if size > LARGE:
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
            if not 0 < len(frame) <= _MAX_FRAME:
                too_long.append(delivery.sequence)
                continue
            chunks.append(frame)
            if not needs_acks:
                unsent.append((consumer, delivery))
                continue
            number += 1
            copy = Copy(number, delivery.sequence, self, now)
            if first.setdefault(identity, copy) is not copy:
                copies.add_duplicate(identity, copy)
        connection.channel.transport.write(chunks)
        connection.channel.traffic.delivered += len(chunks)
        subscriptions.sent_copies = number
        subscriptions.trim()
        if self.timeout:
            subscriptions.schedule_timeout(now + self.timeout)
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
        size = conversion_memory(message) + 2 * message.header_bytes()
        connection.large.request(key, encode, size, self._on_large_encoded)
        return None

    def _on_large_encoded(self, key: LargeKey, frame: bytes | Exception) -> None:
        if key == self._requested_key:
            self._requested_key = None
            # in an event loop callback of this connection, so that an error ends only it
            self._timer.set(0, partial(self._send_blocked, frame))

    def _send_blocked(self, frame: bytes | Exception) -> None:
        """Send the large frame, which is cached now, and the deliveries after it; or requeue them
        if the client has to read first."""
        if isinstance(frame, Exception):
            raise frame
        consumer = self.consumer
        assert consumer is not None  # its end cancels the timer
        channel = self._connection.channel
        blocked, self._blocked = self._blocked, []
        self._send(consumer, unblock(channel, consumer, blocked))
        if channel.congested:
            if self._subscriptions.is_silent:
                self.reduce_window()
            self.update_unacked_bytes()
        if not self._blocked:
            self.pauses.resume(_ENCODING)

    def _stop_sending(self) -> set[int]:
        """Drop the deliveries that are not sent yet and return their sequences."""
        self._requested_key = None
        self._timer.cancel()
        deliveries, self._blocked = self._blocked, []
        return {delivery.sequence for delivery in deliveries}

    def _decline(self, consumer: Consumer, compression: Compression, sequences: list[int]) -> None:
        """Decline messages that this client cannot read."""
        if consumer is self.consumer:
            name = compression.name.lower() if compression else "no compression"
            kind = f"VibeMQ with {name}"
            self._broker.decline(consumer, sequences, kind, "TooLargeForVibeMQ")
            self.update_unacked_bytes()

    def acknowledge(self, sequence: int) -> None:
        """Acknowledge a message that was sent, even if it has been requeued."""
        consumer = self.consumer
        if consumer is None:
            return
        delivery = consumer.unacked.get(sequence)
        if delivery is None:
            self._broker.acknowledge_any(consumer.subscription, sequence)
            return
        self._broker.acknowledge(consumer, sequence)
        self._unacked_bytes -= delivery.size
        if self.pauses.reasons & _FULL and (
            self._unacked_bytes < self._connection.options.window_bytes or not consumer.unacked
        ):
            self.update_unacked_bytes()

    # --- time --------------------------------------------------------------------------------

    def time_out(self, sequences: list[int]) -> None:
        """Redeliver messages whose acknowledgement timeout has expired, counting an attempt.

        They go to another consumer or, if there is none, to the same one; those of a paused
        destination only once its delivery resumes.
        """
        consumer = self.consumer
        if consumer is None:
            return
        broker = self._broker
        destination = consumer.subscription.destination
        delay = destination.settings.retry_delay
        cannot_send = destination.paused or self._connection.channel.congested or self._blocked
        if delay or cannot_send or self._has_other_consumers(consumer):
            broker.release(consumer, sequences, timed_out=True)
        else:
            deliveries = broker.start_next_attempt(consumer, sequences, attempted=True)
            unacked = {delivery.sequence for delivery in deliveries}
            self._subscriptions.forget_ended(
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
            broker.release(consumer, list(consumer.unacked), attempted=False)
            broker.revoke(window)
        if not consumer.unacked:
            broker.grant(window, 1)

    def restore_window(self, requeued: int) -> None:
        """Restore the window of a client that is no longer silent.

        It is reduced by `requeued`, the number of copies of requeued messages.
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


@dataclass(slots=True, eq=False)
class Copy:
    """Message as it was sent to the client, which has not acknowledged it.

    number      position among the copies of the connection
    sequence    sequence of the message
    subscriber  subscription for which it was sent
    sent_at     send time, in steady ms
    """

    number: int
    sequence: int
    subscriber: Subscriber
    sent_at: int

    @property
    def delivery(self) -> Delivery | None:
        """Delivery of the message, if its subscription holds it; None if it was requeued or has
        ended."""
        consumer = self.subscriber.consumer
        return None if consumer is None else consumer.unacked.get(self.sequence)


class Subscriptions:
    """Subscriptions of one connection, with their copies and acknowledgement timeouts.

    by_name            subscriptions by queue name
    copies             copies by the id that the client acknowledges; the subscriptions add them,
                       and call `trim` after a batch
    sent_copies        number of copies sent so far
    sent               deliveries of queues without acknowledgements
    is_silent          the current copy's timeout has expired without an acknowledgement since
    """

    __slots__ = (
        "_alarm",
        "_clock",
        "_due",
        "_last_activity",
        "_latest_acked",
        "_latest_expired",
        "_restoration",
        "_window_is_reduced",
        "by_name",
        "connection",
        "copies",
        "is_silent",
        "sent",
        "sent_copies",
    )

    def __init__(self, connection: VibemqConnection) -> None:
        self.connection = connection
        self._clock = connection.broker.clock
        self.by_name: dict[str, Subscriber] = {}
        self.copies: Unacked[str, Copy] = Unacked()
        self.sent_copies = 0
        self.sent = SentDeliveries(connection.broker, refill=True)
        self.is_silent = False
        self._window_is_reduced = False
        """Windows are reduced, because the connection is silent or has copies of requeued
        messages."""
        self._latest_acked = 0
        """Number of the latest copy that was acknowledged."""
        self._latest_expired = 0
        """Number of the latest copy that is passed because its timeout has expired."""
        self._last_activity = 0
        """Steady ms of the last acknowledgement or the last expired timeout of a current copy."""
        self._restoration = Alarm(connection.channel.transport)
        """Scheduled restoration of the windows after an acknowledgement."""
        self._alarm = Alarm(connection.channel.transport)
        self._due = 0

    def remove(self, name: str, follows_ack: bool = False) -> None:
        """End the subscription to a queue name, if there is one, and forget its copies.

        `follows_ack`: the client has begun nothing since its last acknowledgement.
        """
        subscriber = self.by_name.pop(name, None)
        if subscriber is not None:
            begun = self._begun_sequences(with_current=not follows_ack)
            subscriber.end(begun, attempted=False)
            self.copies.keep(lambda copy: copy.subscriber is not subscriber)

    def end(self) -> None:
        """End all subscriptions."""
        begun = self._begun_sequences()
        for subscriber in self.by_name.values():
            subscriber.end(begun, attempted=True)
        self.by_name.clear()
        self.copies.clear()
        self.sent.unsent.clear()  # it refers to the subscriptions
        self._restoration.cancel()
        self._alarm.cancel()

    def flushed(self) -> None:
        """Acknowledge the sent deliveries of queues without acknowledgements."""
        deliveries = self.sent.acknowledge()
        for subscriber in {consumer.sink for consumer, _ in deliveries}:
            if isinstance(subscriber, Subscriber):
                subscriber.update_unacked_bytes()

    # --- acknowledgements --------------------------------------------------------------------

    def acknowledge(self, identity: str) -> None:
        """Acknowledge the message of the oldest copy of that id."""
        self._last_activity = self._clock.steady
        copies = self.copies
        copy = copies.take(identity)
        while copy is not None and identity in copies.first and not self._is_outstanding(copy):
            copy = copies.take(identity)
        if copy is not None:
            if copy.number > self._latest_acked:
                self._latest_acked = copy.number
            copy.subscriber.acknowledge(copy.sequence)
        if self._window_is_reduced and self._restoration.timer is None:
            # once for all acknowledgements of a read, because it examines all copies
            self._restoration.set(0, self._restore_windows)

    def _restore_windows(self) -> None:
        self.is_silent = False
        requeued_counts = Counter(
            copy.subscriber
            for _, copy in self.copies.entries()
            if copy.number > self._latest_acked and copy.delivery is None
        )
        self._window_is_reduced = bool(requeued_counts)
        for subscriber in self.by_name.values():
            subscriber.restore_window(requeued_counts[subscriber])

    # --- copies ------------------------------------------------------------------------------

    def trim(self) -> None:
        """Forget the copies that are not outstanding, if there are many."""
        self.copies.trim(self._is_outstanding)

    def _is_outstanding(self, copy: Copy) -> bool:
        """Return whether the message is unacked, or the client may still acknowledge it."""
        latest_handled = max(self._latest_acked, self.sent_copies - MAX_COPIES)
        return copy.number > latest_handled or copy.delivery is not None

    def forget_ended(self, sequences: Iterable[int]) -> None:
        """Forget the copies of messages that have ended after their last attempt."""
        ended_sequences = set(sequences)
        self.copies.keep(lambda copy: copy.sequence not in ended_sequences)

    def _sort_copies(self) -> tuple[list[Copy], Copy | None]:
        """Return the passed copies whose timeouts run, and the current copy.

        The timeout of a passed copy does not run if its message was requeued or sent again.
        """
        copies = [copy for _, copy in self.copies.entries()]
        copies.sort(key=lambda copy: copy.number)
        latest_passed = max(self._latest_acked, self._latest_expired)
        current = next((copy for copy in copies if copy.number > latest_passed), None)
        latest_copies = {copy.sequence: copy for copy in copies}.values()
        passed = [
            copy
            for copy in latest_copies
            if copy.number <= latest_passed and copy.delivery is not None
        ]
        return passed, current

    def _begun_sequences(self, *, with_current: bool = True) -> set[int]:
        """Return the sequences of the messages that the client may have begun."""
        passed, current = self._sort_copies()
        if current is not None and with_current:
            passed.append(current)
        return {copy.sequence for copy in passed}

    # --- timeouts ----------------------------------------------------------------------------

    def schedule_timeout(self, due: int) -> None:
        """Set the timer for a delivery that must be acknowledged by `due`, in steady ms."""
        if self._alarm.timer is not None and self._due <= due:
            return
        self._due = due
        delay = max(1, due - self._clock.steady)
        self._alarm.set(delay / 1000, self._on_alarm)

    def _deadlines(self) -> tuple[dict[Copy, int], Copy | None]:
        """Return the steady ms at which copies time out, and the current copy."""
        passed, current = self._sort_copies()
        deadlines: dict[Copy, int] = {}
        for copy in passed:
            delivery = copy.delivery
            if delivery is not None and copy.subscriber.timeout:
                deadlines[copy] = delivery.delivered + copy.subscriber.timeout
        if current is not None and current.subscriber.timeout:
            since = max(current.sent_at, self._last_activity)
            deadlines[current] = since + current.subscriber.timeout
        return deadlines, current

    def _on_alarm(self) -> None:
        """Handle expired timeouts and set the timer for the next one."""
        now = self._clock.steady
        deadlines, current = self._deadlines()
        expired = [copy for copy, deadline in deadlines.items() if deadline <= now]
        sequences: dict[Subscriber, list[int]] = {}
        for copy in expired:
            if copy.delivery is not None:
                sequences.setdefault(copy.subscriber, []).append(copy.sequence)
        becomes_silent = False
        if current is not None and current in expired:
            becomes_silent = self.is_silent = self._window_is_reduced = True
            self._last_activity = now
            if current.delivery is None:
                self._latest_expired = current.number
        for subscriber, expired_sequences in sequences.items():
            subscriber.time_out(expired_sequences)
        for subscriber in list(self.by_name.values()):
            if becomes_silent:
                subscriber.reduce_window()
            subscriber.update_unacked_bytes()
        deadlines, _ = self._deadlines()
        if deadlines:
            self.schedule_timeout(min(deadlines.values()))
