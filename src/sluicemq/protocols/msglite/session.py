"""The broker's side of one msglite connection.

Commands are carried out one after the other, and answers come in their order: whatever holds up
one command holds up all that are behind it. What may hold them up is kept as a set of flags:

    WAITING   a ready or query waits for its message, up to its timeout
    PARKED    a message waits for room in a queue that blocks its producers
    SYNCING   something follows a message sent here that is not on disk yet (durability sync)
    FULL      the peer has to read before it is given more
    CLOSED    there will be no more

A ready command is one credit in a window that the queues of all its addresses share. The consumers
stay attached afterwards, without credit, because the next ready usually names the same addresses.

Delivery is at most once: a message is settled when its bytes have left for the operating system,
and goes back to its place if the connection ends before that.

After the end of input nobody may be there to wait, so a command that would wait is answered with a
time-out at once, and the rest is carried out.

There are no logins: whom a connection acts as is the listener's to say. `>` and `?` take the
permission to produce, `<` that to consume; reply addresses are open to whoever is told of them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from sluicemq.broker import Broker, Consumer, Delivery, Destination, Window
from sluicemq.model.access import Operation
from sluicemq.model.destination import (
    Address,
    CreatedBy,
    Kind,
    decode_name,
    encode_name,
    is_temporary,
)
from sluicemq.model.errors import AccessDenied, BrokerError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.access import OPEN, Access, demand
from sluicemq.protocols.msglite.mapping import (
    ANSWER,
    read_address,
    shown_body,
    shown_reply,
    shown_timeout,
    to_message,
)
from sluicemq.protocols.msglite.replies import ReplyAddresses
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
from sluicemq.protocols.transport import Login, SessionInfo, State, Timer, Transport

__all__ = ["MsgliteSession", "ReplyAddresses"]

WAITING: Final = 1
PARKED: Final = 2
SYNCING: Final = 4
FULL: Final = 8
CLOSED: Final = 16

_MOST_UNSENT: Final = 256 * 1024
"""Bytes written but not yet sent at which no further command is carried out."""
_MOST_HELD_BACK: Final = 256 * 1024
"""Bytes received behind a command that waits, at which nothing more is read."""
_MOST_DESTINATIONS: Final = 1024
"""Addresses a connection remembers. It forgets all when it meets more."""
_LONGEST_ALARM: Final = 86_400.0
"""Seconds; event loops have a limit, and timeouts here have none. An early alarm is set anew."""
_SMALL_BODY: Final = 4096


class MsgliteSession:
    """See the module, and `sluicemq.protocols.transport.Session` for the contract."""

    __slots__ = (
        "_access",
        "_addresses",
        "_alarm",
        "_alarm_at",
        "_broker",
        "_deadline",
        "_decoder",
        "_destinations",
        "_durability",
        "_ended",
        "_gone",
        "_held_bytes",
        "_holds",
        "_identity",
        "_last",
        "_paused",
        "_pending",
        "_query",
        "_replies",
        "_retired",
        "_running",
        "_spent",
        "_traffic",
        "_transport",
        "_unsent",
        "_unsettled",
        "_window",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        replies: ReplyAddresses,
        *,
        access: Access = OPEN,
        durability: Durability = Durability.NONE,
        limits: Limits | None = None,
    ) -> None:
        """`replies` is shared by all sessions of the broker. `durability` is that of the messages
        sent here, which the protocol leaves open; the original keeps them in memory."""
        assert access.guest is not None  # who cannot log in is somebody from the start
        self._transport = transport
        self._broker = broker
        self._access = access
        self._identity = access.guest
        self._traffic = broker.traffic_of("msglite")
        self._replies = replies
        self._durability = durability
        self._decoder = Decoder(limits or Limits())
        self._pending: deque[Frame] = deque()
        self._holds = 0
        self._running = False
        self._held_bytes = 0
        self._paused = False
        self._ended = False
        self._gone = False
        self._destinations: dict[bytes, Destination] = {}
        """Those that this connection may send to."""
        self._last: Message | None = None
        """The last message sent here that has to reach the disk."""
        self._addresses: tuple[bytes, ...] = ()
        """Those in whose queues `_window` has its consumers."""
        self._window = Window(0, False)
        self._query: Destination | None = None
        """The reply address of the query that waits."""
        self._deadline = 0
        self._alarm: Timer | None = None
        self._alarm_at = 0
        self._unsent = 0
        self._unsettled: list[tuple[Consumer, Delivery]] = []
        self._retired: list[Consumer] = []
        """Consumers of earlier addresses that hold what has not been sent yet."""
        self._spent: list[Destination] = []
        """Reply addresses whose message has not been sent yet."""

    # --- from the connection -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Commands from the client. A bad one is answered after those before it."""
        if self._holds & CLOSED:
            return
        decoder = self._decoder
        self._pending.extend(decoder.feed(data))
        if not self._holds:
            self._run()
        if not self._holds:
            if not self._unsent:
                # no answer is about to confirm what has been read, and a client with Nagle's
                # algorithm on keeps the next command, or the rest of this one, until then
                self._transport.quick_ack()
        elif self._pending or not decoder.idle:
            self._held_bytes += len(data)
            if self._held_bytes > _MOST_HELD_BACK and not self._paused:
                self._paused = True
                self._transport.pause_reading()

    @property
    def buffered(self) -> int:
        """See Session."""
        held = self._decoder.buffered
        return held + self._held_bytes if self._pending else held

    @property
    def incomplete(self) -> bool:
        """See Session."""
        return self._decoder.incomplete

    @property
    def login(self) -> Login:
        """There are no logins."""
        return Login.DONE if self._decoder.commanded else Login.NONE

    def discard_input(self) -> None:
        """See Session."""
        self._decoder.discard()

    def end_of_input(self) -> None:
        """Leave all lines, answer what can be answered at once, then close."""
        self._ended = True
        if self._holds & WAITING:
            self._give_up()
        self._run()

    def flushed(self) -> None:
        """What was delivered has been sent: it is settled. What waited for that goes on."""
        self._unsent = 0
        self._holds &= ~FULL
        if self._unsettled:
            self._settle()
        if self._retired:
            for consumer in self._retired:
                self._broker.detach(consumer)
            self._retired.clear()
        if self._spent:
            self._remove_spent()
        if not self._holds and (self._held_bytes or self._ended):
            # this turn's flush is over, and what is pending may send to others
            self._broker.wake()
            self._run()

    def pause_delivery(self) -> None:
        """Nothing to do: while more than a little is unsent no command is carried out."""

    def resume_delivery(self) -> None:
        """Nothing to do; `flushed` follows."""

    def closed(self) -> None:
        """Give back what was not sent. Messages that were received are still accepted."""
        self._gone = True
        self._set_no_alarm()
        self._unsettled.clear()
        for consumer in (*self._retired, *self._window.consumers):
            self._broker.detach(consumer)
        self._retired.clear()
        if self._query is not None:
            self._spent.append(self._query)
            self._query = None
        self._remove_spent()
        self._holds &= ~(WAITING | FULL)
        self._run()

    def shutdown(self) -> None:
        """The protocol has no goodbye."""
        if not self._holds & CLOSED:
            self._close("the broker stops")

    def disconnect(self, reason: str) -> None:
        """As every error."""
        if not self._holds & CLOSED:
            self._refuse(reason)

    def session_info(self) -> SessionInfo:
        """See Session. Clients have no names here."""
        state: State = "closing" if self._holds & CLOSED or self._ended else "open"
        return SessionInfo("msglite", self._identity.name, state=state)

    def consumers(self) -> list[Consumer]:
        """See Session."""
        found = list(self._window.consumers)
        if self._query is not None:
            found += [each for each in self._query.queue.consumers if each.sink is self]
        return found

    # --- commands ----------------------------------------------------------------------------

    def _run(self) -> None:
        """Carry out what is pending, up to a command that has to wait."""
        if self._running:
            return
        self._running = True
        pending = self._pending
        try:
            while pending and not self._holds:
                kind, timeout, addresses, body = pending.popleft()
                if kind == MESSAGE:
                    self._send(timeout, body, *addresses)
                elif self._gone:
                    continue
                elif self._last is None or self._on_disk((kind, timeout, addresses, body)):
                    if kind == READY:
                        self._ready(timeout, addresses)
                    elif kind == QUERY:
                        self._ask(timeout, addresses[0], body)
                    else:
                        self._close("")
        except (BrokerError, AccessDenied) as error:
            self._refuse(str(error))
        finally:
            self._running = False
        if not self._holds and not self._gone:
            self._run_dry()

    def _run_dry(self) -> None:
        """Everything that has come is carried out: go on reading, or end."""
        self._held_bytes = 0
        decoder = self._decoder
        if decoder.error is not None:
            self._refuse(str(decoder.error))
        elif self._ended:
            if decoder.incomplete:
                self._refuse("the input ends within a command")
            elif self._on_disk(None):
                self._close("")
        elif self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _send(self, timeout: int, body: bytes, to: bytes, reply: bytes = b"") -> None:
        """`>`: to whoever waits the longest, else to the end of the queue."""
        broker = self._broker
        destination = self._destinations.get(to)
        correlation = ""
        if destination is None or destination.removed:
            address, correlation = read_address(to)
            destination = self._find_or_create(address, to)
            if destination is None:
                return  # a late reply
        if not timeout:
            self._send_now(destination, body, reply, correlation)
            return
        # a temporary queue does not survive its connection, so the journal need not know
        durability = Durability.NONE if destination.temporary else self._durability
        message = to_message(
            destination.address, body, timeout, reply, durability, broker.clock.wall
        )
        if correlation:
            message.correlation_id = correlation
        if durability is Durability.SYNC:
            self._last = message
        self._traffic.published += 1
        if not broker.publish(destination, message, self._unblocked):
            self._holds |= PARKED

    def _send_now(
        self, destination: Destination, body: bytes, reply: bytes, correlation: str
    ) -> None:
        """Timeout 0: for somebody who waits already, or nobody."""
        broker = self._broker
        queue = destination.queue
        # those who wait may be about to be given what was sent earlier in this turn
        broker.dispatch(queue)
        if not destination.topic and not queue.hungry:
            return
        message = to_message(
            destination.address, body, 0, reply, Durability.NONE, broker.clock.wall
        )
        if correlation:
            message.correlation_id = correlation
        self._traffic.published += 1
        if not broker.publish(destination, message, self._unblocked):
            self._holds |= PARKED
        broker.dispatch(queue)

    def _ready(self, timeout: int, addresses: tuple[bytes, ...]) -> None:
        """`<`: one message from the first of the addresses that has one."""
        if addresses != self._addresses:
            self._line_up(addresses, create=timeout > 0)
        self._holds |= WAITING
        self._broker.grant(self._window, 1)
        if self._holds & WAITING:
            self._wait(timeout)

    def _ask(self, timeout: int, to: bytes, body: bytes) -> None:
        """`?`: a message with a reply address of its own, then ready on that."""
        broker = self._broker
        self._query = reply = self._replies.create(broker, self, self._identity.creator)
        broker.attach(reply.queue, self, Window(1, False), owner=self)
        self._holds |= WAITING
        self._send(timeout, body, to, encode_name(reply.name))
        if self._holds & WAITING:
            self._wait(timeout)

    def _wait(self, timeout: int) -> None:
        """The command has not been served on the spot and waits for `timeout` seconds."""
        if not timeout or self._ended:
            self._give_up()
            return
        self._deadline = self._broker.clock.steady + timeout * 1000
        if self._alarm is None or self._alarm_at > self._deadline:
            self._set_alarm()

    def _give_up(self) -> None:
        """The time of the ready or query is over."""
        self._leave_lines()
        self._holds &= ~WAITING
        self._unsent += len(TIMEOUT_LINE)
        if self._unsent > _MOST_UNSENT:
            self._holds |= FULL
        self._transport.write((TIMEOUT_LINE,))

    def _leave_lines(self) -> None:
        self._broker.revoke(self._window)
        if self._query is not None:
            self._broker.remove(self._query, force=True)
            self._query = None

    def _line_up(self, addresses: tuple[bytes, ...], *, create: bool) -> None:
        """Attach to the queues of these addresses instead, with no credit yet. Without `create`
        addresses that have no queue are left out: nothing can be waiting there.

        Raises AccessDenied; as `_attach`.
        """
        broker = self._broker
        for address in addresses:
            self._demand(Operation.CONSUME, address)
        for consumer in list(self._window.consumers):
            if consumer.unacked:
                self._retired.append(consumer)
            else:
                broker.detach(consumer)
        self._addresses = ()
        self._window = Window(0, False)
        complete = True
        for address in dict.fromkeys(addresses):
            name = decode_name(address)
            if create or broker.find(Address(Kind.QUEUE, name)) is not None:
                self._attach(name)
            else:
                complete = False
        if complete:
            self._addresses = addresses

    def _attach(self, name: str) -> None:
        """Wait on the queue, also on one that the gateway has put a request's body in: whoever has
        been told its address may have it.

        Raises DestinationNotFound, DestinationPrivate, LimitExceeded, SubscriptionInUse.
        """
        queue = self._broker.queue(name, self._identity.creator, CreatedBy.MSGLITE).queue
        self._broker.attach(queue, self, self._window, owner=self._replies)

    def _find_or_create(self, address: Address, to: bytes) -> Destination | None:
        """None for an answer to somebody who no longer waits: surplus replies are dropped.

        `to` is how the client has named the address.
        Raises AccessDenied, DestinationNotFound, LimitExceeded.
        """
        broker = self._broker
        raw = encode_name(address.name)
        destination = broker.find(address)
        if destination is None and (self._replies.issued(raw) or is_temporary(address.name)):
            return None
        if destination is None or not destination.temporary:  # who is told of those may use them
            self._demand(Operation.PRODUCE, raw)
            destination = broker.resolve(
                address, creator=self._identity.creator, by=CreatedBy.MSGLITE
            )
        if destination.temporary or to.startswith(ANSWER):
            return destination  # it gets one message, and is not to be kept for it
        if len(self._destinations) >= _MOST_DESTINATIONS:
            self._destinations.clear()
        self._destinations[to] = destination
        return destination

    def _demand(self, operation: Operation, address: bytes) -> None:
        """AccessDenied. Who has been told of a reply address may use it."""
        if not self._replies.issued(address):
            name = decode_name(address)
            demand(self._access, self._transport.peer, self._identity, operation, name)

    # --- from the broker ---------------------------------------------------------------------

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """The message that the ready or query waits for: its credit is 1.

        Only writes. What is pending goes on in the loop that is under way, else in `flushed`: this
        is called from within the dispatch of a queue.
        """
        for delivery in deliveries:
            message = delivery.message
            assert message is not None  # in flight
            to = encode_name(consumer.subscription.destination.name)
            reply = b"" if message.reply_to is None else shown_reply(message)
            body = shown_body(message)
            length = len(body)
            if length <= _SMALL_BODY:
                self._transport.write((encode_message(shown_timeout(message), to, body, reply),))
            else:
                head = message_head(length, shown_timeout(message), to, reply)
                self._transport.write((head, body, b"\r\n"))
            self._unsettled.append((consumer, delivery))
            self._unsent += len(to) + len(reply) + length
        self._traffic.delivered += len(deliveries)
        if self._query is not None:
            self._spent.append(self._query)
            self._query = None
        self._holds &= ~WAITING
        if self._unsent > _MOST_UNSENT:
            self._holds |= FULL

    def detached(self, consumer: Consumer) -> None:
        """Somebody has removed a queue. Who waits there waits on, in the one that takes its place.

        A query whose reply address is gone ends at its timeout.
        """
        if consumer.window is not self._window:
            return
        self._addresses = ()  # the next ready looks for the queues anew
        if not consumer.window.credit:
            return
        try:
            self._attach(consumer.subscription.destination.name)
        except BrokerError as error:
            self._refuse(str(error))

    def _settle(self) -> None:
        journaled = 0
        for consumer, delivery in self._unsettled:
            journaled |= delivery.journaled
            self._broker.settle(consumer, delivery.sequence)
        self._unsettled.clear()
        if journaled:
            # this turn's flush is over; the journal should not have to wait for the next client
            self._broker.wake()

    def _remove_spent(self) -> None:
        for destination in self._spent:
            if not destination.removed:
                self._broker.remove(destination, force=True)
        self._spent.clear()

    def _unblocked(self) -> None:
        """The message that waited for room has been accepted."""
        self._holds &= ~PARKED
        self._run()

    def _on_disk(self, frame: Frame | None) -> bool:
        """Whether what was sent here is durable; if not, the frame has to wait for that.

        Otherwise a client would not find what it has just sent. Closing waits too, which
        is the only confirmation that a client can have.
        """
        last = self._last
        if last is None or last.sequence <= self._broker.journal.durable:
            self._last = None
            return True
        if frame is not None:
            self._pending.appendleft(frame)
        self._holds |= SYNCING
        self._broker.when_durable(last.sequence, self._durable)
        return False

    def _durable(self) -> None:
        self._holds &= ~SYNCING
        self._run()

    # --- time --------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """One alarm serves all commands: one that is set for an earlier time is left as it is."""
        if self._alarm is not None:
            self._alarm.cancel()
        delay = min((self._deadline - self._broker.clock.steady) / 1000, _LONGEST_ALARM)
        self._alarm_at = self._deadline
        self._alarm = self._transport.call_later(delay, self._ring)

    def _set_no_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        self._alarm = None
        if not self._holds & WAITING:
            return
        if self._broker.clock.steady < self._deadline:
            self._set_alarm()
        else:
            self._give_up()
            self._run()

    # --- the end -----------------------------------------------------------------------------

    def _refuse(self, text: str) -> None:
        """Every error closes, and nothing behind it is carried out."""
        if not self._gone and not self._holds & CLOSED:
            self._transport.write((encode_error(text),))
        self._close(text)

    def _close(self, reason: str) -> None:
        if self._holds & CLOSED:
            return
        self._holds = CLOSED
        self._pending.clear()
        self._set_no_alarm()
        self._leave_lines()
        if not self._gone:
            self._transport.close(reason)
