"""Broker side of one msglite connection.

The session processes commands one after the other and responds in their order: a command that waits
delays all commands behind it. A set of flags records the reasons to wait:

    WAITING     a ready or query waits for its message, up to its timeout
    CONVERTING  another thread converts the body of that message, which a JMS client has published
    PARKED      a message waits for capacity in a queue with overflow `block`
    SYNCING     a command follows a published message that is not on disk yet (durability sync)
    FULL        the client must read before the session sends more

A ready command is one credit in a window that the queues of all its addresses share. The consumers
stay attached afterwards, without credit, because the next ready usually names the same addresses.

Delivery is at most once: a message is acknowledged once the operating system has accepted its
bytes, and is requeued if the connection ends before that.

After the end of input the client may be gone, so a command that would wait is answered with a
timeout at once, and the remaining commands are processed.

The protocol has no logins: the listener decides as which user a connection acts. `>` and `?` need
the permission to produce, `<` that to consume; any client that knows a reply address may use it.
"""

from __future__ import annotations

import secrets
from collections import deque
from functools import partial
from typing import Final

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    Kind,
    decode_name,
    encode_name,
    is_reply_address,
    is_temporary,
)
from sluicemq.model.errors import AccessDenied, BrokerError, LimitExceeded
from sluicemq.model.message import Durability, Message, Origin
from sluicemq.protocols.channel import Channel, Publisher, SentDeliveries, cache_target, find_target
from sluicemq.protocols.msglite.mapping import (
    REPLY_PREFIX,
    read_address,
    to_message,
    wire_reply,
    wire_timeout,
)
from sluicemq.protocols.msglite.wire import (
    MESSAGE,
    QUERY,
    READY,
    TIMEOUT_LINE,
    Decoder,
    Frame,
    Limits,
    encode_error,
    encode_message,
    message_head,
)
from sluicemq.protocols.offload import LARGE, BodyConversion, Offload
from sluicemq.protocols.transcoding import content, conversion_work
from sluicemq.protocols.transport import Alarm, Login, SessionInfo, Transport
from sluicemq.security.access import OPEN, Access

WAITING: Final = 1
PARKED: Final = 2
SYNCING: Final = 4
FULL: Final = 8
CONVERTING: Final = 16

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_SYNC: Final = Durability.SYNC
_JMQ: Final = Origin.JMQ
_MSGLITE: Final = Origin.MSGLITE

_MAX_UNSENT: Final = 256 * 1024
"""Bytes written but not sent above which the session processes no further command."""
_SLOW_COMMAND: Final = 2048
"""Bytes that a query, or a ready command with other addresses than the one before, counts in
addition: it takes ten times as long as other commands, and a read can have thousands of them."""
_MAX_HELD_BACK: Final = 256 * 1024
"""Bytes received behind a waiting command above which reading pauses."""
_MAX_ALARM: Final = 86_400.0
"""Seconds. Event loops limit timers, the protocol does not limit timeouts: the session sets a timer
that fires early again."""
_SMALL_BODY: Final = 4096

_RANDOM_BYTES: Final = 12
"""Size of the unpredictable part of a reply address."""


class ReplyAddresses:
    """Creates reply addresses. Each is a temporary queue that lives as long as its request.

    They are unpredictable names in a format like the original server's (`is_reply_address`):

        4C1E0F2A.1F0D3B...   unix seconds at which the broker started, a dot, and a counter from 1
                             followed by 24 random digits; all in upper-case hex digits

    One counter serves queries and the HTTP gateway of one broker.
    """

    __slots__ = ("_issued", "_prefix")

    def __init__(self, started: int) -> None:
        """`started` is wall ms."""
        self._prefix = f"{started // 1000:08X}."
        self._issued = 0

    def create(self, broker: Broker, owner: object, creator: str | None) -> Destination:
        """Create a temporary queue, which the caller must delete.

        Only `owner` may consume from it; if that is this object, any msglite client that knows the
        address may. It counts against the quota of `creator` (Identity.creator). Raises
        LimitExceeded.
        """
        self._issued += 1
        name = f"{self._prefix}{self._issued:X}{secrets.token_hex(_RANDOM_BYTES).upper()}"
        return broker.destinations.declare(Address(Kind.QUEUE, name), owner=owner, creator=creator)


class MsgliteSession:
    """msglite session of one connection. Implements `sluicemq.protocols.transport.Session`."""

    __slots__ = (
        "_addresses",
        "_alarm",
        "_alarm_at",
        "_broker",
        "_channel",
        "_conversion",
        "_deadline",
        "_decoder",
        "_destinations",
        "_durability",
        "_held_bytes",
        "_max_name",
        "_pending",
        "_publisher",
        "_query",
        "_replies",
        "_sent",
        "_transport",
        "_unsent",
        "_wait_reasons",
        "_window",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        replies: ReplyAddresses,
        offload: Offload,
        *,
        access: Access = OPEN,
        durability: Durability = Durability.NONE,
        limits: Limits | None = None,
    ) -> None:
        """`replies` is shared by all sessions of the broker. `durability` applies to published
        messages: the protocol leaves it open, and the original broker keeps messages in memory."""
        self._transport = transport
        self._broker = broker
        self._channel: Channel[Frame] = Channel(
            transport, broker, access, "msglite", access.guest, self._holds_back_too_much
        )
        self._publisher = Publisher(self._channel, self._finish_parked)
        self._replies = replies
        self._durability = durability
        limits = limits or Limits()
        self._decoder = Decoder(limits)
        self._max_name = limits.name
        self._pending: deque[Frame] = deque()
        self._wait_reasons = 0
        self._held_bytes = 0
        self._destinations: dict[bytes, Destination] = {}
        """Destinations that this connection may publish to, by address."""
        self._addresses: tuple[bytes, ...] = ()
        """Addresses of the queues in which `_window` has its consumers."""
        self._window = Window(0, False)
        self._query: Destination | None = None
        """Reply address of the waiting query."""
        self._deadline = 0
        self._alarm = Alarm(transport)
        self._alarm_at = 0
        self._unsent = 0
        self._sent = SentDeliveries(broker, refill=False)
        self._conversion = BodyConversion(transport, offload)

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process bytes from the client. An invalid command is answered after those before it."""
        if self._channel.closed:
            return
        decoder = self._decoder
        self._pending.extend(decoder.feed(data))
        if not self._wait_reasons:
            self._run()
        if not self._wait_reasons:
            if not self._unsent:
                # no response is about to acknowledge the received data, and a client with Nagle's
                # algorithm on sends nothing more until it is acknowledged
                self._transport.quick_ack()
        elif self._pending or decoder.buffered or decoder.error is not None:
            self._held_bytes += len(data)
            if self._held_bytes > _MAX_HELD_BACK:
                self._channel.pause_reading(True)
        self._publisher.count_received(len(data))

    def _holds_back_too_much(self, wait: bool) -> bool:
        """Return True if so much input waits behind a command that reading has to pause."""
        return self._held_bytes > _MAX_HELD_BACK

    @property
    def buffered(self) -> int:
        """Bytes of unprocessed input, including a message that waits for capacity."""
        buffered = self._decoder.buffered + self._publisher.parked_bytes
        return buffered + self._held_bytes if self._pending else buffered

    @property
    def incomplete(self) -> bool:
        """True if a command has been received in part."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """DONE after the first valid command: the protocol has no logins."""
        return Login.DONE if self._decoder.has_command else Login.NONE

    def discard_input(self) -> None:
        """Drop the unfinished command."""
        self._decoder.discard()

    def end_of_input(self) -> None:
        """Cancel the waiting command, process the remaining ones, then close."""
        self._channel.end()
        if self._wait_reasons & WAITING:
            self._time_out()
        self._run()

    def flushed(self) -> None:
        """Acknowledge the sent deliveries and process the commands that waited for them."""
        self._unsent = 0
        self._wait_reasons &= ~FULL
        self._end_consumers(self._sent.acknowledge())
        if not self._wait_reasons and (self._held_bytes or self._channel.ended):
            # this iteration's flush has already run, and pending commands may publish
            self._broker.schedule_flush()
            self._run()

    def pause_delivery(self) -> None:
        """Do nothing: commands wait while more than a little output is unsent."""

    def closed(self) -> None:
        """Requeue unsent deliveries. Received messages are still published.

        If they wait for capacity in their queues, all of them wait in the broker, which limits the
        memory for that.
        """
        self._channel.close()
        self._alarm.cancel()
        for delivery in self._conversion.take_blocked():
            if delivery.consumer is not None:  # it has not been sent
                self._broker.release(delivery.consumer, [delivery.sequence], attempted=False)
        self._end_consumers(self._sent.unsent)
        self._sent.unsent.clear()
        for consumer in list(self._window.consumers):
            self._broker.detach(consumer)
        self._cancel_waiting()
        self._wait_reasons = 0
        self._run()
        while self._pending:
            self._wait_reasons &= ~PARKED
            self._run()
        self._publisher.release()

    def disconnect(self, reason: str, *, stopping: bool = False) -> None:
        """Close the connection; send an administrator's reason as an error before."""
        if not stopping:
            self._refuse(reason)
        else:
            lost = any(frame[0] in (MESSAGE, QUERY) for frame in self._pending)
            lost = lost or self._wait_reasons & PARKED != 0
            if self._durability is _SYNC and not lost:
                # the end of the connection confirms what is sent before a quit or end of input
                is_waiting = self._channel.ended or self._wait_reasons & WAITING != 0
                lost = not is_waiting or self._publisher.last_sync > self._broker.journal.durable
            self._close(reason, lost=lost)

    def session_info(self) -> SessionInfo:
        """Return the session info. msglite clients have no client id."""
        return SessionInfo("msglite", self._channel.identity.name)

    def consumers(self) -> list[Consumer]:
        """Return the consumers of the waiting ready or query."""
        consumers = list(self._window.consumers)
        if self._query is not None:
            consumers += self._query.queue.consumers
        return consumers

    # --- commands ----------------------------------------------------------------------------

    def _run(self) -> None:
        """Process pending commands, up to one that has to wait."""
        pending = self._pending
        try:
            while pending and not self._wait_reasons:
                kind, timeout, addresses, body = pending.popleft()
                if kind == MESSAGE:
                    self._send(timeout, body, *addresses)
                elif self._channel.closed:
                    continue
                elif not self._publisher.last_sync or self._check_durable(
                    (kind, timeout, addresses, body)
                ):
                    if kind == READY:
                        self._ready(timeout, addresses)
                    elif kind == QUERY:
                        self._publish_query(timeout, addresses[0], body)
                    else:
                        self._close("")
        except (BrokerError, AccessDenied) as error:
            self._refuse(str(error))
        if not self._wait_reasons and not self._channel.closed:
            self._resume_or_close()

    def _resume_or_close(self) -> None:
        """Resume reading, or close after the end of input, once no command is pending."""
        self._held_bytes = 0
        decoder = self._decoder
        if decoder.error is not None:
            self._refuse(str(decoder.error))
        elif self._channel.ended:
            if decoder.incomplete:
                self._refuse("the input ends within a command")
            elif self._check_durable(None):
                self._close("")
        elif self._channel.paused:
            self._channel.update_reading()

    def _send(self, timeout: int, body: bytes, to: bytes, reply: bytes = b"") -> None:
        """Process `>`: publish to the longest-waiting consumer, else to the end of the queue.

        `to` is the address as the client has written it. Raises AccessDenied, DestinationNotFound,
        LimitExceeded.
        """
        destination = self._destinations.get(to)
        correlation = ""
        if destination is None or destination.removed:
            address, correlation = read_address(to)
            self._check_length(address.name)
            create = timeout > 0
            destination = find_target(self._channel, address, CreatedBy.MSGLITE, create=create)
            if destination is None:
                return  # a late reply, or no consumer can be waiting
            # a temporary destination receives only one message
            if not destination.temporary and not to.startswith(REPLY_PREFIX):
                cache_target(self._destinations, to, destination)
        durability = self._durability
        queue = destination.queue
        if not timeout:
            # to a waiting consumer, or not at all; earlier messages of this event loop iteration
            # may be about to go to these consumers
            self._broker.dispatch(queue)
            if not destination.topic and not queue.has_idle_consumer:
                return
            durability = Durability.NONE
        elif destination.temporary:
            # it does not survive its connection, so the journal does not record the message
            durability = Durability.NONE
        now = self._broker.clock.wall
        message = to_message(destination.address, body, timeout, reply, durability, now)
        if correlation:
            message.correlation_id = correlation
        if not self._publisher.publish(destination, message, None):
            self._wait_reasons |= PARKED
        self._channel.traffic.published += 1
        if not timeout:
            self._broker.dispatch(queue)

    def _ready(self, timeout: int, addresses: tuple[bytes, ...]) -> None:
        """Process `<`: deliver one message from the first address that has one."""
        if addresses != self._addresses:
            self._attach_all(addresses, create=timeout > 0)
        self._wait_reasons |= WAITING
        self._broker.grant(self._window, 1)
        if self._wait_reasons & WAITING:
            self._wait(timeout)

    def _publish_query(self, timeout: int, to: bytes, body: bytes) -> None:
        """Process `?`: publish with a new reply address, then wait for a message there."""
        broker = self._broker
        self._unsent += _SLOW_COMMAND
        self._query = reply = self._replies.create(broker, self, self._channel.identity.creator)
        broker.attach(reply.queue, self, Window(1, False), ack_timeout=0, owner=self)
        self._wait_reasons |= WAITING
        self._send(timeout, body, to, encode_name(reply.name))
        self._wait(timeout)

    def _wait(self, timeout: int) -> None:
        """Wait up to `timeout` seconds for the message of the current command."""
        if not timeout or self._channel.ended:
            self._time_out()
            return
        self._deadline = self._broker.clock.steady + timeout * 1000
        if self._alarm.timer is None or self._alarm_at > self._deadline:
            self._set_alarm()

    def _time_out(self) -> None:
        """End the waiting ready or query with a timeout."""
        self._cancel_waiting()
        self._wait_reasons &= ~WAITING
        self._unsent += len(TIMEOUT_LINE)
        if self._unsent > _MAX_UNSENT:
            self._wait_reasons |= FULL
        self._transport.write((TIMEOUT_LINE,))

    def _cancel_waiting(self) -> None:
        self._broker.revoke(self._window)
        if self._query is not None:
            self._broker.remove(self._query, force=True)
            self._query = None

    def _attach_all(self, addresses: tuple[bytes, ...], *, create: bool) -> None:
        """Attach to the queues of these addresses instead of the previous ones, without credit.

        Without `create` addresses that have no queue are skipped: they have no ready messages.
        Raises AccessDenied, LimitExceeded, and the errors of `_attach`.
        """
        broker = self._broker
        for address in addresses:
            name = decode_name(address)
            if create:
                self._check_length(name)
            if not is_reply_address(name):  # those need no permission
                self._channel.demand(Operation.CONSUME, name)
        for consumer in list(self._window.consumers):
            if not consumer.unacked:  # else once its message is sent
                broker.detach(consumer)
        self._addresses = ()
        self._unsent += _SLOW_COMMAND
        self._window = Window(0, False)
        complete = True
        for address in dict.fromkeys(addresses):
            name = decode_name(address)
            if create or broker.destinations.find(Address(Kind.QUEUE, name)) is not None:
                self._attach(name)
            else:
                complete = False
        if complete:
            self._addresses = addresses

    def _check_length(self, name: str) -> None:
        """Raise LimitExceeded if the name is too long for a destination that is not temporary."""
        if len(encode_name(name)) > self._max_name and not is_temporary(name):
            raise LimitExceeded(f"the name of a queue has at most {self._max_name} bytes")

    def _attach(self, name: str) -> None:
        """Attach to a queue, also to one in which the HTTP gateway has put a request's body: any
        client that knows its address may consume from it, and receives nothing after the request.

        Raises DestinationNotFound, DestinationPrivate, LimitExceeded, SubscriptionInUse.
        """
        address = Address(Kind.QUEUE, name)
        if is_reply_address(name) and self._broker.destinations.find(address) is None:
            return
        queue = self._broker.destinations.queue(
            name, self._channel.identity.creator, CreatedBy.MSGLITE
        ).queue
        # the client cannot acknowledge, and what it reads late must not be delivered twice
        self._broker.attach(queue, self, self._window, ack_timeout=0, owner=self._replies)

    # --- from the broker ---------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Send the message that the ready or query waits for: its credit is 1.

        Only writes, because it runs within the dispatch of a queue. Pending commands continue in
        the loop that is running, else in `flushed`.
        """
        for delivery in deliveries:
            message = delivery.message
            assert message is not None  # unacked
            if message.origin is _MSGLITE:
                body = message.body
            elif message.origin is _JMQ and conversion_work(message) > LARGE:
                self._wait_reasons ^= WAITING | CONVERTING
                send = partial(self._send_converted, consumer, delivery, message)
                self._conversion.start(message, deliveries, send)
                return
            else:
                body = content(message)
            self._send_message(consumer, delivery, message, body)

    def _send_converted(
        self, consumer: Consumer, delivery: Delivery, message: Message, body: bytes
    ) -> None:
        """Send a message with its converted body, even if its queue has been deleted."""
        if self._channel.closed:
            return
        self._conversion.take_blocked()
        self._wait_reasons &= ~CONVERTING
        self._send_message(consumer, delivery, message, body)
        self._run()

    def _send_message(
        self, consumer: Consumer, delivery: Delivery, message: Message, body: bytes
    ) -> None:
        to = encode_name(consumer.subscription.destination.name)
        reply = b"" if message.reply_to is None else wire_reply(message)
        length = len(body)
        if length <= _SMALL_BODY:
            self._transport.write((encode_message(wire_timeout(message), to, body, reply),))
        else:
            head = message_head(length, wire_timeout(message), to, reply)
            self._transport.write((head, body, b"\r\n"))
        self._sent.unsent.append((consumer, delivery))
        self._unsent += len(to) + len(reply) + length
        self._channel.traffic.delivered += 1
        self._query = None
        self._wait_reasons &= ~WAITING
        if self._unsent > _MAX_UNSENT:
            self._wait_reasons |= FULL

    def detached(self, consumer: Consumer) -> None:
        """Attach to the new queue of the same name when a queue is deleted.

        A query whose reply address is deleted ends at its timeout.
        """
        if consumer.window is not self._window:
            return
        self._addresses = ()  # the next ready attaches again
        if not consumer.window.credit:
            return
        try:
            self._attach(consumer.subscription.destination.name)
        except BrokerError as error:
            self._refuse(str(error))

    def _end_consumers(self, sent: list[tuple[Consumer, Delivery]]) -> None:
        """End the consumers of these deliveries that the next ready command does not use: those of
        earlier addresses, and of queries with their reply addresses."""
        for consumer, _ in sent:
            if consumer.window is self._window:
                continue
            destination = consumer.subscription.destination
            if destination.owner is not self:
                self._broker.detach(consumer)
            elif not destination.removed:
                self._broker.remove(destination, force=True)

    def _finish_parked(self, request: None, error: BrokerError | None) -> None:
        """Continue once the waiting message is accepted; close if it is refused."""
        self._wait_reasons &= ~PARKED
        if error is None:
            self._run()
        else:
            self._refuse(str(error))

    def _check_durable(self, frame: Frame | None) -> bool:
        """Return whether all published messages are durable; if not, `frame` waits for that.

        Otherwise a client could miss the message that it has just published. Closing waits as well:
        it is the only confirmation that a client can get.
        """
        published = self._publisher.last_sync
        if published <= self._broker.journal.durable:
            return True
        if frame is not None:
            self._pending.appendleft(frame)
        self._wait_reasons |= SYNCING
        self._broker.when_durable(published, partial(self._transport.call, self._on_durable))
        return False

    def _on_durable(self) -> None:
        self._wait_reasons &= ~SYNCING
        self._run()

    # --- time --------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """Set the timer for the deadline. One timer serves all commands; an earlier one is kept."""
        delay = min((self._deadline - self._broker.clock.steady) / 1000, _MAX_ALARM)
        self._alarm_at = self._deadline
        self._alarm.set(delay, self._on_alarm)

    def _on_alarm(self) -> None:
        if not self._wait_reasons & WAITING:
            return
        if self._broker.clock.steady < self._deadline:
            self._set_alarm()
        else:
            self._time_out()
            self._run()

    # --- the end -----------------------------------------------------------------------------

    def _refuse(self, text: str) -> None:
        """Send the error and close. Commands after it are dropped."""
        self._channel.write([encode_error(text)])
        self._close(text)

    def _close(self, reason: str, *, lost: bool = False) -> None:
        """Drop the pending commands and close. `lost`: messages are among them."""
        self._wait_reasons = 0
        self._pending.clear()
        if not self._channel.close():
            return
        self._publisher.end()
        self._alarm.cancel()
        self._cancel_waiting()
        if lost:
            # an orderly close would confirm that all messages are accepted
            self._transport.abort(reason)
        else:
            self._transport.close(reason)
