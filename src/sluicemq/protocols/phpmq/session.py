"""Broker side of one PHPMQ connection.

A consume request is a standing subscription with a prefetch window: the connection holds at most
`count` unacked messages, and each acknowledgement makes room for the next, for as long as the
connection lives. A new request replaces the old one and requeues its messages.

The protocol has no error frame and confirms nothing. The session closes the connection on malformed
input and on a send that the queue's limits reject, which is the only way to report to a producer
that a message was not accepted. Unacked messages are then requeued, so nothing else is lost. Frames
that refer to a missing message are ignored.

    sends that cannot be accepted yet        frames behind them on the connection
    -------------------------------------    ----------------------------------------------------
    their queue is full and blocks           wait; the session reads no more
    the journal's disk is nearly full        sends wait, in order, up to MOST_WAITING bytes; then
                                             the session reads no more. Other frames are processed:
                                             acknowledgements free disk space

At the end of input a connection with waiting sends stays open, and it is never closed in an orderly
way before they are stored: if it has to close, it is reset and the waiting sends are dropped.

The protocol has no logins: the listener decides as which user a connection acts. Sending needs the
permission to produce, all else that to consume.

With dispatch version "auto" the first send of a connection decides whether its dispatches carry a
TTL packet. Until then each message is dispatched in the form in which it was sent.

A client answers a request message with a send to the queue `reply:<message id>` (see mapping.py)
before it acknowledges the request, on the connection that holds it. An answer whose requester waits
no longer is dropped.

A send to a queue whose name begins with `sluicemq.probe.` is not stored. The session dispatches it
on the same connection, without content, once all earlier sends are durable: a client learns that
way that its messages are accepted. This needs no permission.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Subscription, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, CreatedBy, Kind, decode_name, is_temporary
from sluicemq.model.errors import AccessDenied, BrokerError, LowDiskSpace
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.phpmq.mapping import (
    ANSWER,
    PROBE,
    MessageIds,
    came_with_ttl,
    expiration_after,
    seconds_left,
    to_content,
    to_message,
)
from sluicemq.protocols.phpmq.wire import (
    ACKNOWLEDGE,
    CONSUME,
    DEAD_LETTER,
    REQUEUE,
    SEND,
    Decoder,
    DispatchEncoder,
    DispatchVersion,
    Frame,
    Limits,
)
from sluicemq.protocols.transcoding import answer_correlation
from sluicemq.protocols.transport import Login, SessionInfo, State, Transport
from sluicemq.security.access import OPEN, Access, demand

MOST_WAITING: Final = 1024 * 1024
"""Bytes of sends waiting for disk space from which on the session reads no more."""
WAITING_OVERHEAD: Final = 512
"""Bytes that a waiting send counts in addition to its content."""
_MOST_DESTINATIONS: Final = 1024
"""Destinations cached per connection. The cache is cleared when it is full."""


class PhpmqSession:
    """PHPMQ session of one connection. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_access",
        "_broker",
        "_closing",
        "_congested",
        "_consumer",
        "_count",
        "_decoder",
        "_destinations",
        "_durability",
        "_encoders",
        "_form",
        "_gone",
        "_held_bytes",
        "_identity",
        "_ids",
        "_last_sync",
        "_parked",
        "_put_off",
        "_queue",
        "_traffic",
        "_transport",
        "_unsent",
        "_waiting",
        "_waiting_bytes",
        "_waiting_frames",
        "_waiting_probe",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        *,
        access: Access = OPEN,
        dispatch_version: DispatchVersion = "auto",
        durability: Durability = Durability.SYNC,
        limits: Limits | None = None,
    ) -> None:
        """`dispatch_version` 1 dispatches three packets, 2 four; `auto` as described in the module.

        `durability` applies to published messages: the protocol leaves it open.
        """
        assert access.guest is not None  # the protocol has no logins
        self._transport = transport
        self._broker = broker
        self._access = access
        self._identity = access.guest
        self._traffic = broker.traffic_of("phpmq")
        self._form = 0 if dispatch_version == "auto" else dispatch_version
        """Version of all dispatches; 0 = version of each message."""
        self._durability = durability
        self._decoder = Decoder(limits or Limits())
        self._ids = MessageIds(broker.identity)
        self._destinations: dict[bytes, Destination] = {}
        """Destinations that this connection may publish to, by queue name."""
        self._consumer: Consumer | None = None
        self._queue = b""
        self._count = 0
        self._encoders = _NO_ENCODERS
        """Encoders of dispatches without and with a TTL packet."""
        self._waiting_frames: list[Frame] | None = None
        """Frames behind a send that waits for room in its queue; None if no send waits."""
        self._held_bytes = 0
        """Size of the contents of those frames, in bytes."""
        self._parked: Message | None = None
        """Send that waits for room in its queue."""
        self._waiting: deque[tuple[Destination, Message]] = deque()
        """Sends that wait for disk space, and sends behind them."""
        self._waiting_bytes = 0
        self._waiting_probe = b""
        """Queue of the probe to answer once they are durable; b"" if there is none."""
        self._last_sync = 0
        """Sequence number of the last message published with durability sync."""
        self._congested = False
        self._unsent = False
        """Dispatches are written that are not sent yet."""
        self._put_off = False
        """The subscription was made while output was unsent, and starts after the flush."""
        self._closing = False
        self._gone = False

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client. Malformed input closes after the frames before it."""
        if self._closing:
            return
        frames = self._decoder.feed(data)
        if self._waiting_frames is not None:
            self._waiting_frames += frames
            self._held_bytes += _size(frames)
        else:
            self._handle(frames)

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input."""
        return self._decoder.buffered + self._held_bytes

    @property
    def incomplete(self) -> bool:
        """True if a frame has been received in part."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """Always DONE: the protocol has no logins, and the decoder rejects other input at once."""
        return Login.DONE

    def discard_input(self) -> None:
        """Drop the unfinished frame."""
        self._decoder.discard()

    def end_of_input(self) -> None:
        """Requeue unacked messages, and close once everything published is on disk.

        The protocol confirms nothing, but a client that waits for the close knows that its messages
        are stored.
        """
        self._gone = True
        self._unsubscribe()
        if self._waiting_frames is None and not self._waiting:
            self._close_when_durable()

    def flushed(self) -> None:
        """Start a subscription that was made while output was unsent."""
        self._unsent = False
        if self._put_off:
            self._put_off = False
            if self._consumer is not None and not self._congested:
                self._broker.resume(self._consumer)
                # the flush of this event loop iteration has already run
                self._broker.wake()

    def pause_delivery(self) -> None:
        """Stop deliveries, so that no message is sent in part."""
        self._congested = True
        if self._consumer is not None:
            self._broker.suspend(self._consumer)

    def resume_delivery(self) -> None:
        """Resume deliveries."""
        self._congested = False
        if self._consumer is not None:
            self._broker.resume(self._consumer)

    def closed(self) -> None:
        """Requeue unacked messages and drop sends that wait for disk space.

        Sends that wait for room in their queue are still published.
        """
        self._gone = True
        self._closing = True
        self._unsubscribe()
        self._forget_waiting()

    def shutdown(self) -> None:
        """Close the connection: the protocol has no message for it."""
        self._close("the broker stops")

    def disconnect(self, reason: str) -> None:
        """Close the connection: the protocol has no message for it."""
        self._close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session info. PHPMQ clients have no client id."""
        state: State = "closing" if self._closing or self._gone else "open"
        return SessionInfo("phpmq", self._identity.name, state=state)

    def consumers(self) -> list[Consumer]:
        """Return the consumer of the subscription, if there is one."""
        return [] if self._consumer is None else [self._consumer]

    # --- frames ------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame]) -> bool:
        """Process frames in order. Return False if one has to wait with those behind it."""
        broker = self._broker
        destinations = self._destinations
        waiting = self._waiting
        now = broker.clock.wall
        sent = 0
        try:
            for index, (kind, queue, content, message_id, number) in enumerate(frames):
                if kind == SEND:
                    if not self._form:
                        self._form = 1 if number < 0 else 2
                    destination = destinations.get(queue)
                    correlation = ""
                    if destination is None or destination.removed:
                        destination, correlation = self._find_target(queue)
                        if destination is None:
                            continue
                    message = to_message(
                        destination.address, content, number, self._durability, now
                    )
                    if correlation:
                        message.correlation_id = correlation
                    sent += 1
                    if waiting:
                        self._wait_for_space(destination, message)
                        continue
                    try:
                        accepted = broker.publish(destination, message, self._unblocked)
                    except LowDiskSpace:
                        self._wait_for_space(destination, message)
                        continue
                    if not accepted:
                        self._hold_frames(message, frames[index + 1 :])
                        return False
                    if self._durability is Durability.SYNC:
                        self._last_sync = message.sequence
                elif kind == ACKNOWLEDGE:
                    sequence = self._ids.decode(message_id)
                    consumer = self._consumer
                    if (
                        consumer is None
                        or queue != self._queue
                        or not broker.settle(consumer, sequence)
                    ):
                        subscription = self._find(queue)
                        if subscription is not None and sequence:
                            broker.settle_any(subscription, sequence)
                elif kind == CONSUME:
                    self._subscribe(queue, number)
                else:
                    self._return(kind, queue, message_id, number)
        except (BrokerError, AccessDenied) as error:
            self._close(str(error))
            return True
        finally:
            self._traffic.published += sent
        if waiting:
            return False
        if self._decoder.error is not None:
            self._close(str(self._decoder.error))
        return True

    def _subscribe(self, queue: bytes, count: int) -> None:
        """Replace the subscription of this connection; count 0 leaves it without one.

        Raises AccessDenied, DestinationNotFound, DestinationPrivate, LimitExceeded.
        """
        if self._gone:
            return
        self._unsubscribe()
        if not count or queue.startswith(PROBE):
            return
        name = decode_name(queue)
        self._demand(Operation.CONSUME, name)
        destination = self._broker.destinations.queue(name, self._identity.creator, CreatedBy.PHPMQ)
        self._queue = queue
        self._count = count
        self._encoders = _encoders(queue, self._decoder.newline)
        # A client that sends many requests in one read, each of which requeues the deliveries of
        # the previous one, would fill the memory with dispatches: wait until those are sent.
        self._put_off = self._unsent
        if not self._congested and not self._unsent:
            self._consumer = self._broker.attach(destination.queue, self, Window(count, True))
            return
        window = Window(0, True)
        self._consumer = self._broker.attach(destination.queue, self, window)
        self._broker.suspend(self._consumer)
        self._broker.grant(window, count)

    def _unsubscribe(self) -> None:
        consumer = self._consumer
        if consumer is not None:
            self._consumer = None
            self._broker.detach(consumer)

    def _return(self, kind: int, queue: bytes, message_id: bytes, ttl: int) -> None:
        """Requeue or dead-letter a message, whichever consumer holds it."""
        broker = self._broker
        subscription = self._find(queue)
        sequence = self._ids.decode(message_id)
        if subscription is None or not sequence:
            return
        if kind == REQUEUE:
            broker.requeue(subscription, sequence, expiration_after(ttl, broker.clock.wall))
        elif kind == DEAD_LETTER:
            # forced: the original broker drops the message, here it can be browsed and redriven
            broker.dead_letter(subscription, sequence, "client", force=True)

    def _find(self, queue: bytes) -> Subscription | None:
        """Return the queue's subscription, or None if there is none. Raises AccessDenied."""
        if queue.startswith(PROBE):
            return None
        name = decode_name(queue)
        self._demand(Operation.CONSUME, name)
        destination = self._broker.destinations.find(Address(Kind.QUEUE, name))
        if destination is None or destination.temporary:  # its messages belong to other clients
            return None
        return destination.queue

    def _find_target(self, queue: bytes) -> tuple[Destination | None, str]:
        """Return the destination and the correlation id of a send.

        The destination is None for an answer whose requester waits no longer, and for a probe,
        which is answered once all earlier sends are durable.

        Raises AccessDenied, DestinationNotFound, LimitExceeded.
        """
        broker = self._broker
        if queue.startswith(PROBE):
            if self._waiting:
                self._waiting_probe = queue
            else:
                self._answer_probe(queue)
            return None, ""
        address: Address | None = Address(Kind.QUEUE, decode_name(queue))
        correlation = ""
        sequence = self._ids.decode(queue[len(ANSWER) :]) if queue.startswith(ANSWER) else 0
        if sequence:
            request = self._held(sequence)
            address = None if request is None else request.reply_to
            if request is not None:
                correlation = answer_correlation(request)
        if address is None:
            return None, ""
        destination = broker.destinations.find(address)
        if destination is None and is_temporary(address.name):
            return None, ""
        if destination is None or not destination.temporary:  # temporary ones need no permission
            self._demand(Operation.PRODUCE, address.name)
            destination = broker.destinations.resolve(
                address, creator=self._identity.creator, by=CreatedBy.PHPMQ
            )
        if not sequence:
            if len(self._destinations) >= _MOST_DESTINATIONS:
                self._destinations.clear()
            self._destinations[queue] = destination
        return destination, correlation

    def _answer_probe(self, queue: bytes) -> None:
        """Dispatch the message of a probe once all sends before it are durable."""
        self._broker.when_durable(self._last_sync, lambda: self._return_probe(queue))

    def _return_probe(self, queue: bytes) -> None:
        """Dispatch the message of a probe.

        It has no content, is never stored, and has an id of no message: acknowledging it does
        nothing.
        """
        if not self._closing:
            chunks: list[bytes] = []
            # the send of the probe has set the form
            encoder = _encoders(queue, self._decoder.newline)[self._form - 1]
            encoder.add(chunks, b"", b"%b%016x" % (self._ids.prefix, 0), 0)
            self._transport.write(chunks)

    def _held(self, sequence: int) -> Message | None:
        """Return a message that is unacked on this connection, or None."""
        delivery = None if self._consumer is None else self._consumer.unacked.get(sequence)
        return None if delivery is None else delivery.message

    def _demand(self, operation: Operation, name: str) -> None:
        demand(self._access, self._transport.peer, self._identity, operation, name)

    # --- back-pressure -----------------------------------------------------------------------

    def _hold_frames(self, parked: Message, frames: list[Frame]) -> None:
        """Stop reading: the queue is full and blocks, so the frames behind the send wait too."""
        self._parked = parked
        self._waiting_frames = frames
        self._held_bytes = _size(frames)
        if not self._gone:
            self._transport.pause_reading()

    def _unblocked(self) -> None:
        """Continue after the send that waited for room has been accepted."""
        frames, self._waiting_frames = self._waiting_frames, None
        self._held_bytes = 0
        parked, self._parked = self._parked, None
        if frames is None or parked is None:
            return
        if self._durability is Durability.SYNC:
            self._last_sync = parked.sequence
        self._go_on(frames)

    def _go_on(self, frames: list[Frame]) -> None:
        """Publish the waiting sends, process the frames behind them, and resume reading."""
        if self._waiting and not self._send_waiting():
            if self._parked is not None:
                self._waiting_frames = frames
            elif not self._closing:
                self._handle(frames)
            return
        if not self._handle(frames) or self._closing:
            return
        if self._gone:
            self._close_when_durable()
        else:
            self._transport.resume_reading()

    def _wait_for_space(self, destination: Destination, message: Message) -> None:
        """Add a send to those that wait, because the journal's disk is nearly full."""
        if self._closing:
            return
        if not self._waiting:
            self._broker.when_space(self, self._space_returned)
        self._waiting.append((destination, message))
        self._waiting_bytes += len(message.body) + WAITING_OVERHEAD
        if self._waiting_bytes > MOST_WAITING and not self._gone:
            self._transport.pause_reading()

    def _space_returned(self) -> None:
        """Continue once the journal has space again."""
        self._go_on([])

    def _send_waiting(self) -> bool:
        """Publish the sends that waited for disk space. Return False if one must wait again."""
        waiting = self._waiting
        while waiting:
            destination, message = waiting[0]
            try:
                accepted = self._broker.publish(destination, message, self._unblocked)
            except LowDiskSpace:
                self._broker.when_space(self, self._space_returned)
                return False
            except BrokerError as error:
                self._close(str(error))
                return False
            waiting.popleft()
            self._waiting_bytes -= len(message.body) + WAITING_OVERHEAD
            if not accepted:
                self._hold_frames(message, [])
                return False
            if self._durability is Durability.SYNC:
                self._last_sync = message.sequence
        if self._waiting_probe:
            probe, self._waiting_probe = self._waiting_probe, b""
            self._answer_probe(probe)
        return True

    def _forget_waiting(self) -> None:
        if self._waiting:
            self._broker.forget_waiter(self)
            self._waiting.clear()
            self._waiting_bytes = 0

    def _close_when_durable(self) -> None:
        self._broker.when_durable(self._last_sync, lambda: self._close(""))

    def _close(self, reason: str) -> None:
        if not self._closing:
            self._closing = True
            self._unsubscribe()
            if self._waiting:
                # an orderly close would confirm that all messages are stored
                self._forget_waiting()
                self._transport.abort(reason or "sends that wait for disk space are not stored")
            else:
                self._transport.close(reason)

    # --- from the broker ---------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Dispatch whole messages only, so that a client's header read finds all 8 bytes."""
        self._unsent = True
        chunks: list[bytes] = []
        without_ttl, with_ttl = (encoder.add for encoder in self._encoders)
        by_message = not self._form
        add = without_ttl if self._form == 1 else with_ttl
        prefix = self._ids.prefix
        now = self._broker.clock.steady
        for delivery in deliveries:
            message = delivery.message
            assert message is not None  # unacked
            if by_message:
                add = with_ttl if came_with_ttl(message) else without_ttl
            expires = delivery.expires
            add(
                chunks,
                to_content(message),
                b"%b%016x" % (prefix, delivery.sequence),
                seconds_left(expires, now) if expires else 0,
            )
        self._traffic.delivered += len(deliveries)
        self._transport.write(chunks)

    def detached(self, consumer: Consumer) -> None:
        """Subscribe to the new queue of the same name when the queue is deleted.

        Unacked messages are gone with the old queue. If the queue may not be created again, the
        connection closes, as it would for a consume request.
        """
        if consumer is not self._consumer:
            return
        self._consumer = None
        try:
            self._subscribe(self._queue, self._count)
        except BrokerError as error:
            self._close(str(error))


def _size(frames: list[Frame]) -> int:
    """Return the size of the contents of frames, in bytes."""
    return sum(len(frame[2]) for frame in frames)


def _encoders(queue: bytes, newline: bytes) -> tuple[DispatchEncoder, DispatchEncoder]:
    """Return the encoders of both dispatch versions for a queue."""
    return (
        DispatchEncoder(queue, dispatch_version=1, newline=newline),
        DispatchEncoder(queue, dispatch_version=2, newline=newline),
    )


_NO_ENCODERS = _encoders(b"", b"")
"""Encoders of a connection without a subscription; never used to write."""
