"""One subscription of a VibeMQ connection: what it may hold, how long, and what becomes of it.

A client has no say in how much it is sent, so the broker decides: no more than a number of
messages, nor than a number of bytes of their bodies, is unacknowledged at a time. (What is handed
over in one turn is not divided, so the bytes may be exceeded by what that carries, 1 MiB at most.)

The time for an acknowledgement is the connection's matter, see ack_timeouts.py. When the connection
ends, what it had begun (there: passed or current) has had an attempt that may have been its last.
What was queued counts one too, but is given to the next consumer however many it had: a client that
dies of one message must not take all those behind it along.

The frame of a large message is made in another thread, and what follows it waits. A message that
the client cannot read is declined: another consumer gets it, see `Broker.decline`.

A subscription of a fan-out queue is one of a topic. With acknowledgements it is a member of the
topic's group: what the last one has not acknowledged stays with the topic, as it would with a
queue; the copies of the others end with them. Without acknowledgements (`settle_on_send`) a
delivery is settled when its bytes have left, and all ends with the subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.errors import BrokerError
from sluicemq.model.message import BodyKind, Origin
from sluicemq.protocols.transport import Timer, Transport
from sluicemq.protocols.vibemq.ack_timeouts import Copy
from sluicemq.protocols.vibemq.compression import THRESHOLD, Compression
from sluicemq.protocols.vibemq.mapping import shown_id
from sluicemq.protocols.vibemq.offload import LARGE
from sluicemq.protocols.vibemq.outgoing import LargeDeliveries, LargeDelivery, LargeKey, Request
from sluicemq.protocols.vibemq.queues import find
from sluicemq.protocols.vibemq.templates import DeliverTemplate
from sluicemq.protocols.vibemq.unacked import UnackedDeliveries
from sluicemq.protocols.vibemq.wire import HEADER_SIZE, MAX_BODY, compressed

WINDOW: Final = 256
"""Messages."""
WINDOW_BYTES: Final = 1 << 20
ACK_TIMEOUT: Final = 30.0
"""Seconds."""
_CONTEXT_BYTES: Final = 16 * 1024
"""Bytes of a frame from which on it is compressed once for all subscribers of a topic."""
_UNSENT: Final = 1024
"""Messages written to a subscriber that does not acknowledge, and not yet sent."""


class DeliveryTerms(NamedTuple):
    """What a connection's subscriptions are given.

    window         messages
    window_bytes   bytes of their bodies
    ack_timeout    ms, for queues without a time of their own; 0 = never
    threshold      bytes of a frame's body from which on it is compressed, if that is agreed upon
    detect_json    text of other protocols that is a JSON object or array is delivered as that
    """

    window: int = WINDOW
    window_bytes: int = WINDOW_BYTES
    ack_timeout: int = round(ACK_TIMEOUT * 1000)
    threshold: int = THRESHOLD
    detect_json: bool = True


class ConnectionContext:
    """What all subscriptions of a connection share.

    name         of the connection, unlike any other's
    compression  agreed upon
    creator      Identity.creator of the user, once logged in
    unsent       deliveries that are settled when their bytes have left
    traffic      of all VibeMQ clients
    large        frames of large messages, of all connections
    """

    __slots__ = (
        "broker",
        "compression",
        "congested",
        "creator",
        "large",
        "name",
        "terms",
        "traffic",
        "transport",
        "unacked",
        "unsent",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        terms: DeliveryTerms,
        name: str,
        large: LargeDeliveries,
    ) -> None:
        self.transport = transport
        self.large = large
        self.broker = broker
        self.terms = terms
        self.name = name
        self.traffic = broker.traffic_of("vibemq")
        self.unacked = UnackedDeliveries(transport, broker)
        self.compression = Compression.NONE
        self.creator: str | None = ""
        self.congested = False
        self.unsent: list[tuple[Subscriber, Delivery]] = []


class Subscriber:
    """See the module. It stays when its queue is removed, and goes on when there is one again."""

    __slots__ = (
        "_behind",
        "_broker",
        "_bytes",
        "_consumer",
        "_context",
        "_full",
        "_made",
        "_passed",
        "_passed_order",
        "_passed_priority",
        "_request",
        "_template",
        "_topic",
        "_unsettled",
        "_waits",
        "name",
        "timeout",
    )

    def __init__(self, context: ConnectionContext, name: str) -> None:
        self.name = name
        self._context = context
        self._broker = context.broker
        self._template = DeliverTemplate(name.encode(), context.terms.detect_json)
        self._consumer: Consumer | None = None
        self._waits: Callable[[Destination], None] | None = None
        """Waits for a queue of that name."""
        self._topic = False
        self.timeout = 0
        """ms within which a delivery has to be acknowledged; 0 = never."""
        self._unsettled = True
        """Deliveries are held until they are acknowledged."""
        self._bytes = 0
        self._full = False
        self._behind: list[Delivery] = []
        """A delivery whose large frame is being made, and those after it."""
        self._request: Request | Timer | None = None
        """What it waits for."""
        self._made: tuple[LargeKey, bytes] | None = None
        """The frame that was waited for."""
        self._passed = 0
        """Steady ms at which that was sent which, of what was acknowledged, was sent last."""
        self._passed_priority = 0
        self._passed_order = 0
        """And its place in the queue: what is sent at a time is sent in that order."""

    @property
    def consumer(self) -> Consumer | None:
        """The engine's; None while there is no queue."""
        return self._consumer

    @property
    def active(self) -> bool:
        """There is a queue that it receives from."""
        return self._consumer is not None

    # --- beginning and end -------------------------------------------------------------------

    def attach(self, destination: Destination, answer: Callable[[], None] | None = None) -> None:
        """Begin; `answer` is called before the first delivery. Raises BrokerError."""
        broker = self._broker
        terms = self._context.terms
        subscription = destination.queue
        self._topic = destination.topic
        if self._topic:
            settings = destination.settings
            member = settings.hold and not settings.settle_on_send
            subscription = broker.subscribe(destination, self._context.name, member=member)
        self._unsettled = not destination.settings.settle_on_send
        self.timeout = 0
        if self._unsettled:
            self.timeout = destination.settings.ack_timeout or terms.ack_timeout
        window = Window(0, True)
        consumer = broker.attach(subscription, self, window, ack_timeout=0)
        self._consumer = consumer
        self._context.unacked.mine[consumer] = self
        self._bytes = 0
        self._full = False
        if self._context.congested:
            broker.suspend(consumer)
        if answer is not None:
            answer()
        broker.grant(window, terms.window if self._unsettled else _UNSENT)

    def await_queue(self) -> None:
        """There is none: begin when there is."""
        self._waits = self._created
        self._broker.await_creation(self.name, self._waits)

    def _created(self, destination: Destination) -> None:
        self._waits = None
        try:
            self.attach(destination)
        except BrokerError:
            self._consumer = None  # it has all the consumers it may have

    def end(self, begun: set[int]) -> None:
        """Give everything back; `begun` as AckTimeouts has it."""
        broker = self._broker
        unsent = self._stop_sending()
        if self._waits is not None:
            broker.stop_waiting(self.name, self._waits)
            self._waits = None
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        del self._context.unacked.mine[consumer]
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
        """The queue has been removed, and what was held is gone with it."""
        if consumer is not self._consumer:
            return
        self._consumer = None
        self._stop_sending()
        del self._context.unacked.mine[consumer]
        destination = find(self._broker, self.name)
        if destination is None:
            self.await_queue()
        else:
            self._created(destination)

    # --- back-pressure -----------------------------------------------------------------------

    def suspend(self) -> None:
        """The connection takes no more."""
        if self._consumer is not None:
            self._broker.suspend(self._consumer)

    def resume(self) -> None:
        """The connection takes bytes again."""
        if self._consumer is not None and not self._full and not self._behind:
            self._broker.resume(self._consumer)

    def measure(self) -> None:
        """Count anew how much is held: it may have become less without a word to us."""
        consumer = self._consumer
        if consumer is None:
            return
        self._bytes = sum(delivery.size for delivery in consumer.unacked.values())
        full = self._bytes >= self._context.terms.window_bytes
        if full == self._full:
            return
        self._full = full
        if full:
            self._broker.suspend(consumer)
        elif not self._context.congested and not self._behind:
            self._broker.resume(consumer)

    # --- deliveries --------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send them. Only writes: this is called from within the dispatch of a queue."""
        if self._behind:
            self._behind += deliveries
        else:
            self._send(consumer, deliveries)
        for delivery in deliveries:
            self._bytes += delivery.size
        if self._bytes >= self._context.terms.window_bytes:
            self._full = True
            self._broker.suspend(consumer)
        if self.timeout:
            self._context.unacked.timeouts.expect(self.timeout)

    def _send(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Write their frames, up to one that has to be made in another thread."""
        context = self._context
        how = context.compression
        unacked = context.unacked
        first = unacked.first
        unsettled = self._unsettled
        fill = self._template.fill
        prefix = self._broker.identity
        chunks: list[bytes] = []
        too_long: list[int] = []
        copies = unacked.timeouts.copies
        for place, delivery in enumerate(deliveries):
            message = delivery.message
            assert message is not None  # in flight
            identity = shown_id(message, prefix)
            if delivery.size > LARGE:
                large = self._find_large(delivery, identity.encode())
                if large is None:
                    self._behind = deliveries[place:]
                    self._broker.suspend(consumer)
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
                context.unsent.append((self, delivery))
            elif first.setdefault(identity, delivery) is not delivery:
                unacked.add_again(identity, delivery)
            if copies is not None:
                copies.append(Copy(identity, delivery, self))
        context.transport.write(chunks)
        context.traffic.delivered += len(chunks)
        unacked.trim()
        if too_long:
            decline = partial(self._decline, consumer, how, too_long)
            context.transport.call_later(0, decline)

    def _compressed(self, frame: bytes, delivery: Delivery) -> bytes:
        """As `wire.compressed`; once for all subscribers of a topic."""
        context = self._context
        how, threshold = context.compression, context.terms.threshold
        if not self._topic or len(frame) < _CONTEXT_BYTES:
            return compressed(frame, how, threshold)
        key = self._key(delivery)
        found = context.large.find(key)
        if found is None:
            found = compressed(frame, how, threshold)
            context.large.keep(key, found)
        return found

    def _key(self, delivery: Delivery) -> LargeKey:
        queue = self._template.name
        context = self._context
        return LargeKey(
            delivery.sequence,
            queue,
            delivery.attempts,
            context.compression,
            context.terms.detect_json,
        )

    def _find_large(self, delivery: Delivery, identity: bytes) -> bytes | None:
        """The frame of a large message, b"" if the client could not read it, None if it has to be
        waited for."""
        context = self._context
        message = delivery.message
        assert message is not None
        key = self._key(delivery)
        made, self._made = self._made, None
        if made is not None and made[0] == key:
            return made[1]
        found = context.large.find(key)
        if found is not None:
            return found
        if (
            not context.compression
            and message.kind is BodyKind.JSON
            and (message.origin is Origin.VIBEMQ or delivery.size > MAX_BODY)
        ):
            if delivery.size > MAX_BODY:
                return b""
            return self._template.fill(message, identity, delivery.attempts)
        wanted = LargeDelivery(key, message, identity, context.terms.threshold)
        self._request = context.transport.call_later(0, partial(self._ask, wanted))
        return None

    def _ask(self, wanted: LargeDelivery) -> None:
        self._request = None
        request = self._context.large.request(wanted, partial(self._has_made, wanted.key))
        if self._request is None:
            self._request = request

    def _has_made(self, key: LargeKey, frame: bytes | Exception) -> None:
        # as everything that happens to a connection, so that an error ends no other
        self._request = self._context.transport.call_later(0, partial(self._go_on, key, frame))

    def _go_on(self, key: LargeKey, frame: bytes | Exception) -> None:
        """Send the large frame, and what has waited behind it."""
        self._request = None
        if isinstance(frame, Exception):
            raise frame
        consumer = self._consumer
        if consumer is None:
            return
        unacked = consumer.unacked
        behind, self._behind = self._behind, []
        self._made = (key, frame)
        self._send(consumer, [each for each in behind if unacked.get(each.sequence) is each])
        self._made = None
        if not self._behind and not self._full and not self._context.congested:
            self._broker.resume(consumer)

    def _stop_sending(self) -> list[int]:
        """Forget what has not been sent. Returns its sequences."""
        if self._request is not None:
            self._request.cancel()
            self._request = None
        behind, self._behind = self._behind, []
        return [delivery.sequence for delivery in behind]

    def _decline(self, consumer: Consumer, how: Compression, sequences: list[int]) -> None:
        """Messages that this client cannot read."""
        if consumer is self._consumer:
            how_named = how.name.lower() if how else "no compression"
            kind = f"VibeMQ with {how_named}"
            self._broker.decline(consumer, sequences, kind, "TooLargeForVibeMQ")
            self.measure()

    def sent(self, delivery: Delivery) -> None:
        """A delivery to one that does not acknowledge has left."""
        consumer = self._consumer
        if consumer is not None and consumer.unacked.get(delivery.sequence) is delivery:
            self.acknowledge(consumer, delivery)

    def acknowledge(self, consumer: Consumer, delivery: Delivery) -> None:
        """The client has done with a delivery that `consumer`, this one's, holds or held."""
        if not consumer.subscription.settle(consumer, delivery.sequence):
            return
        timeouts = self._context.unacked.timeouts
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
        if self._full and (self._bytes < self._context.terms.window_bytes or not consumer.unacked):
            self.measure()

    # --- time --------------------------------------------------------------------------------

    def has_passed(self, delivery: Delivery) -> bool:
        """Return whether something that was sent at that time and behind it was acknowledged."""
        return delivery.delivered == self._passed and not self._is_behind(delivery)

    def _is_behind(self, delivery: Delivery) -> bool:
        """Return whether a delivery's place in the queue is behind what was acknowledged last."""
        priority = delivery.priority
        if priority == self._passed_priority:
            return delivery.order > self._passed_order
        return priority < self._passed_priority

    def time_out(self, sequences: list[int]) -> None:
        """Deliver again what has not been acknowledged in time, counting an attempt: to another
        consumer or, if there is none, to the same one."""
        consumer = self._consumer
        if consumer is None:
            return
        broker = self._broker
        delayed = consumer.subscription.destination.settings.retry_delay
        if delayed or self._context.congested or self._has_rivals(consumer):
            broker.time_out(consumer, sequences)
        else:
            again = broker.again(consumer, sequences, attempted=True)
            unacked = {delivery.sequence for delivery in again}
            self._context.unacked.timeouts.give_up(s for s in sequences if s not in unacked)
            if again:
                self.deliver(consumer, again)

    def narrow(self) -> None:
        """Give the client, which is silent, one message at a time, and what it has not begun to
        others, if there are any."""
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
        """Give the client, which is not silent, its whole window, less so many copies that were
        taken back and that it still has."""
        consumer = self._consumer
        if consumer is None or not self.timeout:
            return
        missing = self._context.terms.window - taken_back
        missing -= len(consumer.unacked) + consumer.window.credit
        if missing > 0:
            self._broker.grant(consumer.window, missing)

    def settle_taken_back(self, sequence: int) -> None:
        """Settle what the client has done with after it was taken back, wherever that is now."""
        if self._consumer is not None:
            self._broker.settle_any(self._consumer.subscription, sequence)

    def _has_rivals(self, consumer: Consumer) -> bool:
        """Return whether another consumer could take what this one gives back."""
        for peer in consumer.subscription.consumers:
            if peer is not consumer and peer.active and not peer.suspended:
                sink = peer.sink
                if not (isinstance(sink, Subscriber) and sink.silent):
                    return True
        return False

    @property
    def silent(self) -> bool:
        """The connection is, see AckTimeouts."""
        return self._context.unacked.timeouts.silent
