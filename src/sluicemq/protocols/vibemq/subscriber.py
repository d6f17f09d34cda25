"""Subscription of a VibeMQ connection: its window, its deliveries and their acknowledgement.

The protocol has no credit, so the broker limits how many messages, and how many bytes of their
bodies, may be unacked at a time. (A batch is not divided, so the limit in bytes may be exceeded by
one batch, 1 MiB at most.)

The acknowledgement timeout is managed per connection, see unacked.py. When the connection
closes, deliveries that the client has begun (there: passed or current) have had an attempt, which
may have been their last. Queued deliveries also count an attempt, but are requeued however many
they had: a client that crashes on one message must not dead-letter all messages behind it.

Frames of large messages are encoded in another thread, and later deliveries wait for them. A
message that the client cannot read is declined: another consumer gets it, see `Broker.decline`.

A subscription of a fan-out queue is a topic subscription. With acknowledgements it is a member of
the topic's group: messages that the last member has not acknowledged stay with the topic, as they
would with a queue; the copies of other members are dropped with their subscription. Without
acknowledgements (`auto_ack`) a delivery is acknowledged once its bytes are sent, and the
unsent ones are dropped with the subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sluicemq.broker import Consumer, Delivery, Destination, Window
from sluicemq.model.errors import BrokerError
from sluicemq.model.message import BodyKind, Origin
from sluicemq.protocols.channel import CONGESTED, DeliveryPauses
from sluicemq.protocols.transport import Timer
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.connection import VibemqConnection
from sluicemq.protocols.vibemq.mapping import wire_id
from sluicemq.protocols.vibemq.offload import LARGE
from sluicemq.protocols.vibemq.outgoing import LargeDelivery, LargeKey, PendingFrame
from sluicemq.protocols.vibemq.queues import find
from sluicemq.protocols.vibemq.templates import DeliverTemplate
from sluicemq.protocols.vibemq.unacked import Copy
from sluicemq.protocols.vibemq.wire import HEADER_SIZE, MAX_BODY, compressed

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
    exists again."""

    __slots__ = (
        "_behind",
        "_broker",
        "_bytes",
        "_connection",
        "_consumer",
        "_made",
        "_passed",
        "_passed_order",
        "_passed_priority",
        "_pauses",
        "_request",
        "_template",
        "_topic",
        "_unsettled",
        "_waits",
        "name",
        "timeout",
    )

    def __init__(self, connection: VibemqConnection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._broker = connection.broker
        self._template = DeliverTemplate(name.encode(), connection.terms.detect_json)
        self._consumer: Consumer | None = None
        self._waits: Callable[[Destination], None] | None = None
        """Callback for the creation of a queue of this name."""
        self._topic = False
        self.timeout = 0
        """Acknowledgement timeout in ms; 0 = never."""
        self._unsettled = True
        """Deliveries stay unacked until the client acknowledges them."""
        self._bytes = 0
        self._pauses = DeliveryPauses(connection.broker)
        self._behind: list[Delivery] = []
        """Deliveries from one whose large frame is being encoded onwards."""
        self._request: PendingFrame | Timer | None = None
        """Pending request for that frame."""
        self._made: tuple[LargeKey, bytes] | None = None
        """The large frame that was requested."""
        self._passed = 0
        """Latest send time of the acknowledged deliveries, in steady ms."""
        self._passed_priority = 0
        self._passed_order = 0
        """Queue position of the last of them: deliveries sent at one time are in that order."""

    @property
    def consumer(self) -> Consumer | None:
        """Broker consumer; None while there is no queue."""
        return self._consumer

    @property
    def active(self) -> bool:
        """True if the subscription has a queue."""
        return self._consumer is not None

    # --- beginning and end -------------------------------------------------------------------

    def attach(self, destination: Destination, answer: Callable[[], None] | None = None) -> None:
        """Attach to a destination. Calls `answer` before the first delivery. Raises BrokerError."""
        broker = self._broker
        terms = self._connection.terms
        subscription = destination.queue
        self._topic = destination.topic
        if self._topic:
            settings = destination.settings
            member = settings.retain_without_subscriptions and not settings.auto_ack
            subscription = broker.subscribe(destination, self._connection.name, member=member)
        self._unsettled = not destination.settings.auto_ack
        self.timeout = 0
        if self._unsettled:
            self.timeout = destination.settings.ack_timeout or terms.ack_timeout
        window = Window(0, True)
        consumer = broker.attach(subscription, self, window, ack_timeout=0)
        self._consumer = consumer
        self._connection.unacked.mine[consumer] = self
        self._bytes = 0
        congested = self._connection.channel.congested
        self._pauses = DeliveryPauses(broker, CONGESTED if congested else 0)
        self._pauses.add(consumer)
        if answer is not None:
            answer()
        broker.grant(window, terms.window if self._unsettled else _UNSENT)

    def await_queue(self) -> None:
        """Attach as soon as a queue of this name is created."""
        self._waits = self._created
        self._broker.destinations.await_creation(self.name, self._waits)

    def _created(self, destination: Destination) -> None:
        self._waits = None
        try:
            self.attach(destination)
        except BrokerError:
            self._consumer = None  # the queue has reached its limit of consumers

    def end(self, begun: set[int]) -> None:
        """Requeue all unacked deliveries and detach. `begun` as in AckTimeouts."""
        broker = self._broker
        unsent = self._stop_sending()
        self._pauses.engines.clear()
        if self._waits is not None:
            broker.destinations.stop_waiting(self.name, self._waits)
            self._waits = None
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        del self._connection.unacked.mine[consumer]
        if self._topic and not broker.keeps(consumer.subscription):
            broker.unsubscribe(consumer.subscription)
            return
        broker.release(consumer, unsent, attempted=False)
        queued = [sequence for sequence in consumer.unacked if sequence not in begun]
        broker.release(consumer, queued, spared=True)
        broker.detach(consumer)
        if self._topic:
            broker.unsubscribe(consumer.subscription)

    def detached(self, consumer: Consumer) -> None:
        """Handle the deletion of the queue; its unacked deliveries are gone with it."""
        if consumer is not self._consumer:
            return
        self._consumer = None
        self._pauses.engines.clear()
        self._stop_sending()
        del self._connection.unacked.mine[consumer]
        destination = find(self._broker, self.name)
        if destination is None:
            self.await_queue()
        else:
            self._created(destination)

    # --- back-pressure -----------------------------------------------------------------------

    def suspend(self) -> None:
        """Suspend deliveries because the client reads too slowly."""
        self._pauses.pause(CONGESTED)

    def resume(self) -> None:
        """Resume deliveries, because the client has caught up."""
        self._pauses.resume(CONGESTED)

    def measure(self) -> None:
        """Recompute the unacked bytes, which the broker may have reduced, and suspend or resume."""
        consumer = self._consumer
        if consumer is None:
            return
        self._bytes = sum(delivery.size for delivery in consumer.unacked.values())
        if self._bytes >= self._connection.terms.window_bytes:
            self._pauses.pause(_FULL)
        else:
            self._pauses.resume(_FULL)

    # --- deliveries --------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send deliveries. Only writes, because it runs within the dispatch of a queue."""
        if self._behind:
            self._behind += deliveries
        else:
            self._send(consumer, deliveries)
        for delivery in deliveries:
            self._bytes += delivery.size
        if self._bytes >= self._connection.terms.window_bytes:
            self._pauses.pause(_FULL)
        if self.timeout:
            self._connection.unacked.timeouts.expect(self.timeout)

    def _send(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Write the frames of deliveries, up to one that another thread must encode."""
        connection = self._connection
        how = connection.compression
        unacked = connection.unacked
        first = unacked.by_token.first
        unsettled = self._unsettled
        fill = self._template.fill
        prefix = self._broker.identity
        unsent = connection.sent.unsent
        chunks: list[bytes] = []
        too_long: list[int] = []
        copies = unacked.timeouts.copies
        for index, delivery in enumerate(deliveries):
            message = delivery.message
            assert message is not None  # unacked
            identity = wire_id(message, prefix)
            if delivery.size > LARGE:
                large = self._find_large(delivery, identity.encode())
                if large is None:
                    self._behind = deliveries[index:]
                    self._pauses.pause(_ENCODING)
                    break
                frame = large
            else:
                frame = fill(message, identity.encode(), delivery.attempts)
                if how:
                    frame = self._compressed(frame, delivery)
            if not 0 < len(frame) <= MAX_BODY + HEADER_SIZE:
                too_long.append(delivery.sequence)
                continue
            chunks.append(frame)
            if not unsettled:
                unsent.append((consumer, delivery))
            elif first.setdefault(identity, delivery) is not delivery:
                unacked.by_token.add_again(identity, delivery)
            if copies is not None:
                copies.append(Copy(identity, delivery, self))
        connection.channel.transport.write(chunks)
        connection.channel.traffic.delivered += len(chunks)
        unacked.trim()
        if too_long:
            decline = partial(self._decline, consumer, how, too_long)
            connection.channel.transport.call_later(0, decline)

    def _compressed(self, frame: bytes, delivery: Delivery) -> bytes:
        """Return the frame compressed, once for all subscribers of a topic."""
        connection = self._connection
        how, threshold = connection.compression, connection.terms.threshold
        if not self._topic or len(frame) < _SHARED_BYTES:
            return compressed(frame, how, threshold)
        key = self._key(delivery)
        found = connection.large.find(key)
        if found is None:
            found = compressed(frame, how, threshold)
            connection.large.keep(key, found)
        return found

    def _key(self, delivery: Delivery) -> LargeKey:
        queue = self._template.name
        connection = self._connection
        return LargeKey(
            delivery.sequence,
            queue,
            delivery.attempts,
            connection.compression,
            connection.terms.detect_json,
        )

    def _find_large(self, delivery: Delivery, identity: bytes) -> bytes | None:
        """Return the frame of a large message, or None if another thread must encode it first.

        The frame is b"" if the client could not read it.
        """
        connection = self._connection
        message = delivery.message
        assert message is not None
        key = self._key(delivery)
        made, self._made = self._made, None
        if made is not None and made[0] == key:
            return made[1]
        found = connection.large.find(key)
        if found is not None:
            return found
        if (
            not connection.compression
            and message.kind is BodyKind.JSON
            and (message.origin is Origin.VIBEMQ or delivery.size > MAX_BODY)
        ):
            if delivery.size > MAX_BODY:
                return b""
            return self._template.fill(message, identity, delivery.attempts)
        delivery_request = LargeDelivery(key, message, identity, connection.terms.threshold)
        self._request = connection.channel.transport.call_later(
            0, partial(self._ask, delivery_request)
        )
        return None

    def _ask(self, delivery: LargeDelivery) -> None:
        self._request = None
        request = self._connection.large.request(delivery, partial(self._has_made, delivery.key))
        if self._request is None:
            self._request = request

    def _has_made(self, key: LargeKey, frame: bytes | Exception) -> None:
        # in an event loop callback of this connection, so that an error ends only this connection
        self._request = self._connection.channel.transport.call_later(
            0, partial(self._go_on, key, frame)
        )

    def _go_on(self, key: LargeKey, frame: bytes | Exception) -> None:
        """Send the large frame and the deliveries behind it."""
        self._request = None
        if isinstance(frame, Exception):
            raise frame
        consumer = self._consumer
        if consumer is None:
            return
        unacked = consumer.unacked
        behind, self._behind = self._behind, []
        self._made = (key, frame)
        self._send(consumer, [item for item in behind if unacked.get(item.sequence) is item])
        self._made = None
        if not self._behind:
            self._pauses.resume(_ENCODING)

    def _stop_sending(self) -> list[int]:
        """Drop the deliveries that are not sent yet and return their sequences."""
        if self._request is not None:
            self._request.cancel()
            self._request = None
        behind, self._behind = self._behind, []
        return [delivery.sequence for delivery in behind]

    def _decline(self, consumer: Consumer, how: Compression, sequences: list[int]) -> None:
        """Decline messages that this client cannot read."""
        if consumer is self._consumer:
            how_named = how.name.lower() if how else "no compression"
            kind = f"VibeMQ with {how_named}"
            self._broker.decline(consumer, sequences, kind, "TooLargeForVibeMQ")
            self.measure()

    def acknowledge(self, consumer: Consumer, delivery: Delivery) -> bool:
        """Acknowledge a delivery of `consumer`, this subscription's; False if it has ended."""
        if not self._broker.settle(consumer, delivery.sequence):
            return False
        timeouts = self._connection.unacked.timeouts
        at = delivery.delivered
        if timeouts.copies is None:
            timeouts.heard = self._broker.clock.steady
            if at > self._passed or (at == self._passed and self._is_behind(delivery)):
                self._passed = at
                self._passed_priority = delivery.priority
                self._passed_order = delivery.order
                if at > timeouts.passed:
                    timeouts.passed = at
        self._bytes -= delivery.size
        if self._pauses.reasons & _FULL and (
            self._bytes < self._connection.terms.window_bytes or not consumer.unacked
        ):
            self.measure()
        return True

    # --- time --------------------------------------------------------------------------------

    def has_passed(self, delivery: Delivery) -> bool:
        """Return whether a later delivery of the same send time was acknowledged."""
        return delivery.delivered == self._passed and not self._is_behind(delivery)

    def _is_behind(self, delivery: Delivery) -> bool:
        """Return whether a delivery is behind the last acknowledged one in the queue."""
        priority = delivery.priority
        if priority == self._passed_priority:
            return delivery.order > self._passed_order
        return priority < self._passed_priority

    def time_out(self, sequences: list[int]) -> None:
        """Redeliver messages whose acknowledgement timeout has expired, counting an attempt.

        They go to another consumer or, if there is none, to the same one.
        """
        consumer = self._consumer
        if consumer is None:
            return
        broker = self._broker
        delayed = consumer.subscription.destination.settings.retry_delay
        if delayed or self._connection.channel.congested or self._has_rivals(consumer):
            broker.time_out(consumer, sequences)
        else:
            again = broker.again(consumer, sequences, attempted=True)
            unacked = {delivery.sequence for delivery in again}
            self._connection.unacked.timeouts.give_up(s for s in sequences if s not in unacked)
            if again:
                self.deliver(consumer, again)

    def narrow(self) -> None:
        """Reduce a silent client's window to one message.

        Deliveries that the client has not begun go to other consumers, if there are any.
        """
        consumer = self._consumer
        if consumer is None or not self.timeout:
            return
        broker = self._broker
        window = consumer.window
        broker.revoke(window)
        if self._has_rivals(consumer):
            broker.release(consumer, attempted=False)
            broker.revoke(window)
        if not consumer.unacked:
            broker.grant(window, 1)

    def widen(self, taken_back: int) -> None:
        """Restore the whole window of a client that is no longer silent.

        It is reduced by `taken_back`, the copies that were requeued but that the client still has.
        """
        consumer = self._consumer
        if consumer is None or not self.timeout:
            return
        missing = self._connection.terms.window - taken_back
        missing -= len(consumer.unacked) + consumer.window.credit
        if missing > 0:
            self._broker.grant(consumer.window, missing)

    def settle_taken_back(self, sequence: int) -> None:
        """Acknowledge a message that was requeued before the client acknowledged it."""
        if self._consumer is not None:
            self._broker.settle_any(self._consumer.subscription, sequence)

    def _has_rivals(self, consumer: Consumer) -> bool:
        """Return whether another consumer could receive what this one requeues."""
        for peer in consumer.subscription.consumers:
            if peer is not consumer and peer.active and not peer.suspended:
                sink = peer.sink
                if not (isinstance(sink, Subscriber) and sink.silent):
                    return True
        return False

    @property
    def silent(self) -> bool:
        """True if the connection is silent, see AckTimeouts."""
        return self._connection.unacked.timeouts.silent
