"""Broker side of one PHPMQ connection.

A consume request is a standing subscription with a prefetch window: the connection holds at most
`count` unacked messages, and each acknowledgement makes room for the next, for as long as the
connection lives. A new request replaces the old one and requeues its messages.

The protocol has no error frame and confirms nothing. The session closes the connection on malformed
input and on a send that the queue's limits reject, which is the only way to report to a producer
that a message was not accepted. Unacked messages are requeued at once, and the connection closes
when the sends before are durable, so nothing else is lost. Frames that refer to a missing message
are ignored.

    sends that cannot be accepted yet        frames after them on the connection
    -------------------------------------    ----------------------------------------------------
    their queue is full and blocks           wait; the session stops reading
    the journal's disk is nearly full        sends wait, in order, up to MAX_WAITING bytes; then
                                             the session stops reading. Other frames are processed:
                                             acknowledgements free disk space

At the end of input a connection with waiting sends, of either kind, stays open, and it is never
closed in an orderly way before they are stored: if it has to close, it is reset and the waiting
sends are dropped. A producer that has not ended its input is reset as well if the broker stops or
an administrator disconnects it, because sends may be on their way.

The protocol has no logins: the listener decides as which user a connection acts. Sending needs the
permission to produce, all else that to consume.

With dispatch version "auto" the first send of a connection decides whether its dispatches carry a
TTL packet. Until then each message is dispatched in the form in which it was sent.

PHPMQ messages and broker messages:

| PHPMQ               | message                                                                   |
|---------------------|---------------------------------------------------------------------------|
| queue name          | name of a queue; bytes that are not UTF-8 survive (`decode_name`)         |
| content, coming in  | body, kind BYTES: the protocol does not mark text, and checking for it    |
|                     | would cost a pass over every body                                         |
| content, going out  | body as it is; of JMS a map as a JSON object, a stream as a JSON array,   |
|                     | an object in base64 (protocols/transcoding.py)                            |
| time to live        | expiration; none when 0                                                   |
| message header      | native, if the message came without a TTL packet (dispatch version 1)     |
| message id          | not stored: 16 hex digits that identify the broker's data, then 16 of the |
|                     | sequence number; survives a restart and a requeue                         |
| reply-to            | not delivered; see below                                                  |

Priority, properties, correlation id and reply-to of a message from another protocol stay in the
message but are not delivered: PHPMQ has no fields for them. A client answers a request message with
a send to the queue `reply:<message id>` before it acknowledges the request, on the connection that
holds it. The answer goes to the request's reply-to, with its correlation id; an answer whose
requester no longer waits is dropped.

A send to a queue whose name begins with `sluicemq.probe.` is not stored. The session dispatches it
on the same connection, without content, once all earlier sends are durable: a client learns that
way that its messages are accepted. This needs no permission.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Subscription, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, CreatedBy, Kind, decode_name
from sluicemq.model.errors import AccessDenied, BrokerError, LowDiskSpace
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.channel import (
    CONGESTED,
    Channel,
    DeliveryPauses,
    Publisher,
    cache_target,
    find_target,
)
from sluicemq.protocols.offload import LARGE, BodyConversion, Offload, unblock
from sluicemq.protocols.phpmq.wire import (
    ACKNOWLEDGE,
    CONSUME,
    PROBE,
    REPLY_PREFIX,
    REQUEUE,
    SEND,
    WITHOUT_TTL,
    Decoder,
    DispatchEncoder,
    DispatchVersion,
    Frame,
    Limits,
    MessageIds,
    expiration_after,
    seconds_left,
)
from sluicemq.protocols.transcoding import answer_correlation, content, conversion_work
from sluicemq.protocols.transport import Login, SessionInfo, Transport
from sluicemq.security.access import OPEN, Access

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_BYTES: Final = BodyKind.BYTES
_PHPMQ: Final = Origin.PHPMQ
_SYNC: Final = Durability.SYNC

MAX_WAITING: Final = 1024 * 1024
"""Bytes of sends waiting for disk space above which the session stops reading."""
WAITING_OVERHEAD: Final = 512
"""Bytes that a waiting send counts in addition to its content."""
_CONVERTING: Final = 2
"""Reason for a pause: another thread converts the content of a JMS client's message."""


class PhpmqSession:
    """PHPMQ session of one connection. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_broker",
        "_channel",
        "_consumer",
        "_conversion",
        "_count",
        "_decoder",
        "_destinations",
        "_dispatch_version",
        "_durability",
        "_encoder",
        "_ids",
        "_pauses",
        "_publisher",
        "_queue",
        "_transport",
        "_unsent",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        offload: Offload,
        *,
        access: Access = OPEN,
        dispatch_version: DispatchVersion = "auto",
        durability: Durability = Durability.SYNC,
        limits: Limits | None = None,
    ) -> None:
        """`dispatch_version` 1 dispatches three packets, 2 four; `auto` as described in the module.

        `durability` applies to published messages: the protocol leaves it open.
        """
        self._transport = transport
        self._broker = broker
        self._channel: Channel[Frame] = Channel(
            transport, broker, access, "phpmq", access.guest, self._has_too_many_waiting
        )
        self._publisher = Publisher(self._channel, self._finish_parked)
        self._dispatch_version = 0 if dispatch_version == "auto" else dispatch_version
        """Version of all dispatches; 0 = version of each message."""
        self._durability = durability
        self._decoder = Decoder(limits or Limits())
        self._ids = MessageIds(broker.identity)
        self._destinations: dict[bytes, Destination] = {}
        """Destinations that this connection may publish to, by queue name."""
        self._consumer: Consumer | None = None
        self._pauses = DeliveryPauses(broker)
        self._conversion = BodyConversion(transport, offload)
        self._queue = b""
        self._count = 0
        self._encoder: DispatchEncoder | None = None
        """Encoder of the subscription's dispatches."""
        self._waiting: deque[tuple[Destination, Message] | bytes] = deque()
        """Sends that wait for disk space, and sends after them; of a probe, its queue."""
        self._waiting_bytes = 0
        self._unsent = False
        """Dispatches are written that are not sent yet."""

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client. Malformed input closes after the frames before it."""
        channel = self._channel
        if channel.ended:
            return
        frames = self._decoder.feed(data)
        if channel.held_frames is not None:
            channel.hold(frames, _size(frames))
        else:
            self._handle(frames)
        self._publisher.count_received(len(data))

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input, including sends that wait for capacity or disk space."""
        waiting_bytes = self._waiting_bytes + self._publisher.parked_bytes
        return self._decoder.buffered + self._channel.held_bytes + waiting_bytes

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
        self._channel.end()
        self._unsubscribe()
        if self._channel.held_frames is None and not self._waiting:
            self._close_when_durable()

    def flushed(self) -> None:
        """Resume deliveries, also those of a subscription that was made while output was unsent."""
        self._unsent = False
        if self._pauses.reasons & CONGESTED:
            self._channel.clear_congestion()
            self._pauses.resume(CONGESTED)

    def pause_delivery(self) -> None:
        """Stop deliveries, so that no message is sent in part."""
        self._channel.mark_congested()
        self._pauses.pause(CONGESTED)

    def closed(self) -> None:
        """Requeue unacked messages and drop sends that wait for disk space.

        A send that waits for capacity and those after it are still published: all of them
        wait in the broker, which limits the memory for that. Other frames are dropped.
        """
        self._channel.close()
        self._unsubscribe()
        self._conversion.take_blocked()
        self._drop_waiting()
        frames, size = self._channel.release()
        sends = [frame for frame in frames if frame[0] == SEND]
        while sends:
            self._handle(sends, size)
            sends, size = self._channel.release()
        self._publisher.release()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection: the protocol has no message for it.

        At the end of input it closes by itself once all sends are durable. Before, an orderly close
        would confirm sends that are not read yet, so it is reset unless it only consumes.
        """
        channel = self._channel
        if not channel.ended:
            may_have_sent = self._consumer is None or self._publisher.last_sync != 0
            self._close(reason, lost=may_have_sent and self._durability is _SYNC)
        elif channel.held_frames is not None or self._waiting:
            self._close(reason)

    def session_info(self) -> SessionInfo:
        """Return the session info. PHPMQ clients have no client id."""
        return SessionInfo("phpmq", self._channel.identity.name)

    def consumers(self) -> list[Consumer]:
        """Return the consumer of the subscription, if there is one."""
        return [] if self._consumer is None else [self._consumer]

    # --- frames ------------------------------------------------------------------------------

    def _handle(self, frames: list[Frame], size: int = 0) -> None:
        """Publish the waiting sends and process frames, in order, up to a send for a full queue.

        `size` is that of the frames, or more; 0 = not measured.
        """
        channel = self._channel
        broker = self._broker
        publisher = self._publisher
        destinations = self._destinations
        waiting = self._waiting
        now = broker.clock.wall
        published = 0
        try:
            if waiting and not self._send_waiting():
                self._hold_frames(frames, size)
                return
            for index, (kind, queue, content, message_id, number) in enumerate(frames):
                if kind == SEND:
                    if not self._dispatch_version:
                        self._dispatch_version = 1 if number < 0 else 2
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
                    accepted = True
                    if waiting:
                        self._wait_for_space(destination, message)
                    else:
                        try:
                            accepted = publisher.publish(destination, message, None)
                        except LowDiskSpace:
                            self._wait_for_space(destination, message)
                    published += 1
                    if not accepted:
                        self._hold_frames(frames[index + 1 :], size)
                        return
                elif kind == ACKNOWLEDGE:
                    sequence = self._ids.decode(message_id)
                    consumer = self._consumer
                    if (
                        consumer is None
                        or queue != self._queue
                        or not broker.acknowledge(consumer, sequence)
                    ):
                        subscription = self._find(queue)
                        if subscription is not None and sequence:
                            broker.acknowledge_any(subscription, sequence)
                elif kind == CONSUME:
                    self._subscribe(queue, number)
                else:
                    self._requeue_or_dead_letter(kind, queue, message_id, number)
        except (BrokerError, AccessDenied) as error:
            self._refuse(str(error))
            return
        finally:
            channel.traffic.published += published
        if waiting or channel.closed:
            return
        if self._decoder.error is not None:
            self._refuse(str(self._decoder.error))
        elif channel.ended:
            self._close_when_durable()
        elif channel.paused:
            channel.update_reading()

    def _subscribe(self, queue: bytes, count: int) -> None:
        """Replace the subscription of this connection; count 0 leaves it without one.

        Raises AccessDenied, DestinationNotFound, DestinationPrivate, LimitExceeded.
        """
        if self._channel.ended:
            return
        if self._conversion.blocked:
            # wait as for dispatches: `flushed` is called although nothing is written
            self._unsent = True
            self._transport.write(())
        self._unsubscribe()
        if not count or queue.startswith(PROBE):
            return
        name = decode_name(queue)
        self._channel.demand(Operation.CONSUME, name)
        creator = self._channel.identity.creator
        destination = self._broker.destinations.queue(name, creator, CreatedBy.PHPMQ)
        self._queue = queue
        self._count = count
        self._encoder = DispatchEncoder(queue, self._decoder.newline)
        if self._unsent:
            # A client that sends many requests in one read, each of which requeues the deliveries
            # of the previous one, would fill the memory with dispatches: wait until those are sent.
            self._pauses.pause(CONGESTED)
        window = Window(0, True)
        self._consumer = self._broker.attach(destination.queue, self, window)
        self._pauses.add(self._consumer)
        self._broker.grant(window, count)

    def _unsubscribe(self) -> None:
        consumer = self._consumer
        if consumer is not None:
            self._broker.detach(consumer, set(self._forget_consumer()))

    def _forget_consumer(self) -> list[int]:
        """Forget the consumer; return the sequences of the deliveries that have not been sent.

        A client that repeats its consume request at short intervals must get a message whose
        conversion takes longer, so a conversion goes on until the end of the connection.
        """
        self._consumer = None
        self._pauses.consumers.clear()
        blocked = self._conversion.take_blocked(cancel=False)
        self._pauses.resume(_CONVERTING)
        return [delivery.sequence for delivery in blocked]

    def _requeue_or_dead_letter(self, kind: int, queue: bytes, message_id: bytes, ttl: int) -> None:
        """Process REQUEUE or DEAD_LETTER of a message, whichever consumer holds it."""
        broker = self._broker
        subscription = self._find(queue)
        sequence = self._ids.decode(message_id)
        if subscription is None or not sequence:
            return
        if kind == REQUEUE:
            broker.requeue(subscription, sequence, expiration_after(ttl, broker.clock.wall))
        else:
            # forced: the original broker drops the message, here it can be browsed and redriven
            broker.dead_letter(subscription, sequence, "client", force=True)

    def _find(self, queue: bytes) -> Subscription | None:
        """Return the queue's subscription, or None if there is none. Raises AccessDenied."""
        if queue.startswith(PROBE):
            return None
        name = decode_name(queue)
        self._channel.demand(Operation.CONSUME, name)
        destination = self._broker.destinations.find(Address(Kind.QUEUE, name))
        if destination is None or destination.temporary:  # its messages belong to other clients
            return None
        return destination.queue

    def _find_target(self, queue: bytes) -> tuple[Destination | None, str]:
        """Return the destination and the correlation id of a send.

        The destination is None for an answer whose requester no longer waits, and for a probe,
        which is answered once all earlier sends are durable.

        Raises AccessDenied, DestinationNotFound, LimitExceeded.
        """
        if queue.startswith(PROBE):
            if self._waiting:
                self._waiting.append(queue)
                self._count_waiting(len(queue))
            else:
                self._answer_probe(queue)
            return None, ""
        sequence = (
            self._ids.decode(queue[len(REPLY_PREFIX) :]) if queue.startswith(REPLY_PREFIX) else 0
        )
        if sequence:
            delivery = None if self._consumer is None else self._consumer.unacked.get(sequence)
            request = None if delivery is None else self._broker.read(delivery)
            if request is None or request.reply_to is None:
                return None, ""
            destination = find_target(self._channel, request.reply_to, CreatedBy.PHPMQ)
            return destination, answer_correlation(request)
        address = Address(Kind.QUEUE, decode_name(queue))
        destination = find_target(self._channel, address, CreatedBy.PHPMQ)
        if destination is not None:
            cache_target(self._destinations, queue, destination)
        return destination, ""

    def _answer_probe(self, queue: bytes) -> None:
        """Dispatch the message of a probe once all sends before it are durable."""
        self._publisher.when_durable(self._return_probe, queue)

    def _return_probe(self, queue: bytes) -> None:
        """Dispatch the message of a probe.

        It has no content, is never stored, and has an id of no message: acknowledging it does
        nothing.
        """
        if not self._channel.closed:
            chunks: list[bytes] = []
            # the send of the probe has set the version
            ttl = -1 if self._dispatch_version == 1 else 0
            encoder = DispatchEncoder(queue, self._decoder.newline)
            encoder.add(chunks, b"", self._ids.encode(0), ttl)
            self._channel.write(chunks)

    # --- back-pressure -----------------------------------------------------------------------

    def _hold_frames(self, frames: list[Frame], size: int) -> None:
        """Stop reading: the queue is full and blocks, so the frames after the send wait too."""
        self._channel.hold(frames, size or _size(frames))
        self._channel.update_reading()

    def _finish_parked(self, request: None, error: BrokerError | None) -> None:
        """Continue after the send that waited for capacity is accepted; close if it is refused."""
        frames, size = self._channel.release()
        if error is None:
            self._handle(frames, size)
        else:
            self._refuse(str(error))

    def _wait_for_space(self, destination: Destination, message: Message) -> None:
        """Add a send to those that wait, because the journal's disk is nearly full."""
        if self._channel.closed:
            return
        if not self._waiting:
            self._continue_when_space()
        self._waiting.append((destination, message))
        self._count_waiting(len(message.body))

    def _count_waiting(self, size: int) -> None:
        self._waiting_bytes += size + WAITING_OVERHEAD
        if self._waiting_bytes > MAX_WAITING:
            self._channel.update_reading()

    def _has_too_many_waiting(self, wait: bool) -> bool:
        """Return True if so many sends wait for disk space that reading has to pause."""
        return self._waiting_bytes > MAX_WAITING

    def _continue_when_space(self) -> None:
        """Continue once the journal has space again."""
        self._broker.publisher.when_space(self, partial(self._transport.call, self._handle, []))

    def _send_waiting(self) -> bool:
        """Publish the sends that wait for disk space, while there is some. Return False if one has
        to wait for capacity. Raises BrokerError."""
        waiting = self._waiting
        while waiting:
            send = waiting[0]
            accepted = True
            if isinstance(send, bytes):
                self._answer_probe(send)
                size = len(send)
            else:
                destination, message = send
                try:
                    accepted = self._publisher.publish(destination, message, None)
                except LowDiskSpace:
                    self._continue_when_space()
                    return True
                size = len(message.body)
            waiting.popleft()
            self._waiting_bytes -= size + WAITING_OVERHEAD
            if not accepted:
                return False
        return True

    def _drop_waiting(self) -> None:
        if self._waiting:
            self._broker.publisher.forget_waiter(self)
            self._waiting.clear()
            self._waiting_bytes = 0

    def _refuse(self, reason: str) -> None:
        """Close because of a frame that is refused. The frames after it are dropped."""
        self._channel.end()
        self._unsubscribe()
        self._close_when_durable(reason)

    def _close_when_durable(self, reason: str = "") -> None:
        """Close once the sends are durable: clients take an orderly close for the confirmation."""
        self._publisher.when_durable(self._close, reason)

    def _close(self, reason: str, *, lost: bool = False) -> None:
        """Close the connection. `lost`: there may be sends that are not read."""
        if self._channel.close():
            self._unsubscribe()
            if lost or self._waiting or self._publisher.parked:
                # an orderly close would confirm that all messages are stored
                self._drop_waiting()
                self._channel.release()
                self._publisher.end()
                self._transport.abort(reason or "sends that wait are not stored")
            else:
                self._transport.close(reason)

    # --- from the broker ---------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Dispatch messages, up to one whose conversion takes long; those after it wait."""
        if self._conversion.blocked:
            self._conversion.blocked += deliveries
        else:
            self._dispatch(deliveries)

    def _dispatch(self, deliveries: list[Delivery], converted: bytes | None = None) -> None:
        """Dispatch whole messages only, so that a client's header read finds all 8 bytes.

        `converted` is the content of the first one, if another thread has converted it.
        """
        encoder = self._encoder
        assert encoder is not None
        chunks: list[bytes] = []
        add = encoder.add
        version = self._dispatch_version
        prefix = self._ids.prefix
        now = self._broker.clock.steady
        work = 0
        for delivery in deliveries:
            message = delivery.message
            assert message is not None  # unacked
            expires = delivery.expires
            ttl = seconds_left(expires, now) if expires else 0
            # version 0: as the publisher sent it, `native` without a TTL packet
            if version != 2 and (version == 1 or message.origin is not _PHPMQ or message.native):
                ttl = -1
            if message.origin is _PHPMQ:
                body = message.body
            elif converted is not None:
                body, converted = converted, None
            elif (work := work + conversion_work(message)) > LARGE:
                index = deliveries.index(delivery)
                self._conversion.start(message, deliveries[index:], self._send_converted)
                self._pauses.pause(_CONVERTING)
                deliveries = deliveries[:index]
                break
            else:
                body = content(message)
            add(chunks, body, b"%b%016x" % (prefix, delivery.sequence), ttl)
        self._channel.traffic.delivered += len(deliveries)
        if chunks:
            self._unsent = True
            self._transport.write(chunks)
        self._broker.page_out(deliveries)

    def _send_converted(self, body: bytes) -> None:
        """Dispatch a message with its converted content, and those after it."""
        blocked = self._conversion.take_blocked()
        consumer = self._consumer
        assert consumer is not None  # without it, no delivery is blocked
        is_unacked = consumer.unacked.get(blocked[0].sequence) is blocked[0]
        unacked = unblock(self._channel, consumer, blocked, keep=is_unacked)
        self._dispatch(unacked, body if is_unacked else None)
        if not self._conversion.blocked:
            self._pauses.resume(_CONVERTING)

    def detached(self, consumer: Consumer) -> None:
        """Subscribe to the new queue of the same name when the queue is deleted.

        Unacked messages were deleted with the old queue. If the queue may not be created again, the
        connection closes, as it would for a consume request. `consumer` is the subscription's: the
        broker forgets a consumer that it detaches.
        """
        self._forget_consumer()
        try:
            self._subscribe(self._queue, self._count)
        except BrokerError as error:
            self._refuse(str(error))


def _size(frames: list[Frame]) -> int:
    """Return the size of the queue names and contents of frames, in bytes."""
    return sum(len(frame[1]) + len(frame[2]) for frame in frames)


# --- messages ------------------------------------------------------------------------------------


def to_message(
    address: Address, content: bytes, ttl: int, durability: Durability, now: int
) -> Message:
    """Return the message of a send frame.

    ttl  seconds; 0 = no expiry, -1 = the frame had no TTL packet
    now  wall ms
    """
    expiration = expiration_after(ttl, now) if ttl > 0 else 0
    message = Message(address, content, _BYTES, _PHPMQ, durability, now, expiration)
    if ttl < 0:
        message.native = WITHOUT_TTL
    return message
