"""Parts that the sessions of all protocols share: the channel of a connection, its login, publisher
and consumers.

    Channel         user, input that waits, replies, and the end of the connection
    LoginCheck      login, whose check takes time
    Publisher       targets, waiting for capacity, and batched confirmations
    Unacked         unacked messages by the client's token
    DeliveryPauses  reasons for which nothing is delivered
    SentDeliveries  automatic acknowledgements

A session owns one `Channel` and the publisher and consumers that use it. It adds the frames of its
protocol and their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sluicemq.broker import Broker, Consumer, Delivery, Destination
from sluicemq.model.access import Identity, Operation
from sluicemq.model.destination import Address, CreatedBy, Overflow, is_temporary
from sluicemq.model.errors import (
    AccessError,
    BrokerError,
    DestinationNotFound,
    LimitExceeded,
    TooManyConnections,
)
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.transport import Alarm, Login, Transport
from sluicemq.security.access import Access, Credentials, demand

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_BLOCK: Final = Overflow.BLOCK
_SYNC: Final = Durability.SYNC

MAX_UNCONFIRMED: Final = 16 << 20
"""Bytes received, and not durable, above which reading pauses."""
_COUNT_INTERVAL: Final = 1 << 20
"""Bytes received after which `Publisher.count_received` counts them."""
MAX_UNREAD: Final = 1 << 20
"""Bytes of replies that a slow client has not read above which reading from it pauses."""

REFUSED_SECONDS: Final = 0.25
"""Seconds between a refused login and the end of the connection."""
MAX_TARGETS: Final = 1024
"""Targets cached per connection. The cache is cleared when it is full."""
CONGESTED: Final = 1
"""Reason for a pause: the client reads too slowly. Protocols add reasons from 2 on."""
_MAX_ENDED_ENTRIES: Final = 64
"""Entries of ended deliveries that `Unacked.trim` tolerates."""

Frame = TypeVar("Frame")
Key = TypeVar("Key")
Target = TypeVar("Target")
Request = TypeVar("Request")
Token = TypeVar("Token")
Entry = TypeVar("Entry")


class Channel(Generic[Frame]):
    """State of one connection that all protocols have.

    state    input                            output                      next
    -------  -------------------------------  --------------------------  -------------------------
    open     processed; frames after one      sent; replies that the      ended: end of input, or a
             that takes time are held         client does not read count  command that ends it
    ended    ignored; held frames are still   sent                        closed: all is answered
             processed
    closed   ignored                          dropped

    Reading from the client pauses while frames are held, or while more than MAX_UNCONFIRMED bytes
    wait to be durable, or more than MAX_UNREAD bytes of replies are unread.

    traffic      counters of all clients of the protocol
    identity     user of the connection
    congested    the client reads too slowly: no deliveries
    ended        further input is ignored
    closed       nothing more is sent
    held_frames  frames that wait behind one that takes time; None if none does
    held_bytes   their size as input, or more, in bytes
    paused       reading is paused
    unconfirmed  bytes received that are not durable
    unread       bytes of replies since the client stopped reading
    """

    __slots__ = (
        "_schedule_next",
        "access",
        "broker",
        "closed",
        "congested",
        "ended",
        "held_bytes",
        "held_frames",
        "identity",
        "paused",
        "traffic",
        "transport",
        "unconfirmed",
        "unread",
    )

    def __init__(
        self,
        transport: Transport,
        broker: Broker,
        access: Access,
        protocol: str,
        identity: Identity | None,
        schedule_next: Callable[[bool], bool] | None = None,
    ) -> None:
        """`identity` is the user before the login; the guest in protocols without logins.
        `schedule_next` returns whether input other than held frames is left that has to be
        processed before more is read, and schedules the processing of what is left; its argument is
        whether that has to wait. None: the session continues held frames itself."""
        assert identity is not None  # clients of protocols without logins have a guest
        self.transport = transport
        self.broker = broker
        self.access = access
        self.traffic = broker.traffic_of(protocol)
        self.identity = identity
        self.congested = False
        self.ended = False
        self.closed = False
        self.held_frames: list[Frame] | None = None
        self.held_bytes = 0
        self.paused = False
        self.unconfirmed = 0
        self.unread = 0
        self._schedule_next = schedule_next

    def demand(self, operation: Operation, name: str) -> None:
        """Raise AccessDenied and write to the audit log unless the user may do this."""
        demand(self.access, self.transport.peer, self.identity, operation, name)

    def deny(self, action: str) -> None:
        """Write to the audit log that the user may not do `action`."""
        self.access.log_denied(self.transport.peer, self.identity, action)

    # --- input -------------------------------------------------------------------------------

    def hold(self, frames: list[Frame], size: int) -> None:
        """Hold frames of `size` bytes, after the frames that are held already."""
        if self.held_frames is None:
            self.held_frames = frames
        else:
            self.held_frames += frames
        self.held_bytes += size

    def release(self) -> tuple[list[Frame], int]:
        """Hold no more frames; return the held ones and their size, or more, in bytes.

        A session that holds the last of these frames again passes that size again: measuring them
        each time would take quadratic time.
        """
        frames, self.held_frames = self.held_frames, None
        size, self.held_bytes = self.held_bytes, 0
        return frames or [], size

    def update_reading(self) -> None:
        """Pause or resume reading, as described in the class."""
        if self.closed:
            return
        wait = self.unconfirmed > MAX_UNCONFIRMED or self.unread > MAX_UNREAD
        is_input_left = self.held_frames is not None
        if self._schedule_next is not None and self._schedule_next(wait):
            is_input_left = True
        # after the end of input, the connection has to notice that it is closed
        self.pause_reading((wait or is_input_left) and not self.ended)

    def pause_reading(self, paused: bool) -> None:
        """Pause or resume reading."""
        if paused != self.paused:
            self.paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def end(self) -> None:
        """Ignore further input."""
        self.ended = True

    def close(self) -> bool:
        """Ignore further input and send nothing more; return False if it was closed already."""
        was_open = not self.closed
        self.ended = self.closed = True
        self._schedule_next = None
        return was_open

    # --- output ------------------------------------------------------------------------------

    def mark_congested(self) -> None:
        """Note that the client reads too slowly."""
        self.congested = True

    def clear_congestion(self) -> None:
        """Note that the client has read all output, update reading, and schedule the dispatch of
        the deliveries that the session resumes."""
        self.congested = False
        self.unread = 0
        self.update_reading()
        # the flush of this event loop iteration has already run
        self.broker.schedule_flush()

    def write(self, chunks: list[bytes]) -> None:
        """Send replies, that is everything except deliveries."""
        if self.closed:
            return
        self.transport.write(chunks)
        if self.congested:
            self.unread += sum(map(len, chunks))
            self.update_reading()


# --- login ----------------------------------------------------------------------------------------


class LoginCheck(Generic[Frame]):
    """Checks the logins of one connection.

    logged_in  the client has logged in; it stays so if a further login fails
    """

    __slots__ = ("_answer", "_channel", "_close_alarm", "_process", "_request", "logged_in")

    def __init__(
        self,
        channel: Channel[Frame],
        answer: Callable[[Frame, Identity | AccessError], None],
        process: Callable[[list[Frame], int], None],
    ) -> None:
        """Set the session's part.

        answer   answers a request. With an identity, the channel acts as that user already
        process  processes the frames that were received after a request whose check took time,
                 with their size as `Channel.release` returns it
        """
        self._channel = channel
        self._answer: Callable[[Frame, Identity | AccessError], None] | None = answer
        self._process: Callable[[list[Frame], int], None] | None = process
        self._request: Frame | None = None
        """Login in progress."""
        self._close_alarm = Alarm(channel.transport)
        self.logged_in = False

    @property
    def is_checking(self) -> bool:
        """True while the check of a login takes time."""
        return self._request is not None

    @property
    def state(self) -> Login:
        """State of the login, for the limits of a connection's input."""
        if self.logged_in or self._channel.closed:
            return Login.DONE
        return Login.CHECKING if self.is_checking else Login.DUE

    def check(self, request: Frame, credentials: Credentials) -> None:
        """Check the credentials of a request. If that takes time, the channel holds frames."""
        channel = self._channel
        self._request = request
        guest = channel.access.guest
        if guest is not None and not any(credentials):
            self._on_checked(guest)
        else:
            channel.access.login(
                channel.transport.peer,
                credentials,
                partial(channel.transport.call, self._on_checked),
            )
        if self._request is request:
            channel.hold([], 0)

    def _on_checked(self, result: Identity | AccessError) -> None:
        request, self._request = self._request, None
        channel = self._channel
        was_holding = channel.held_frames is not None
        frames, size = channel.release()
        answer, process = self._answer, self._process
        if request is None or answer is None or process is None or channel.closed:
            return
        if isinstance(result, Identity):
            try:
                channel.transport.claim_user(result.name)
            except TooManyConnections as error:
                result = error
            else:
                channel.identity = result
                self.logged_in = True
        answer(request, result)
        if was_holding and not channel.closed:
            process(frames, size)

    def close_later(self, reason: str) -> None:
        """Close the connection REFUSED_SECONDS from now, because its login is refused."""
        self._close_alarm.set(REFUSED_SECONDS, partial(self._channel.transport.close, reason))

    def release(self) -> None:
        """End the check in progress and drop the references to the session, after its end."""
        self._channel.access.cancel_login()
        self._close_alarm.cancel()
        self._answer = self._process = None


# --- publishing -----------------------------------------------------------------------------------


class ConfirmingSession(Protocol[Request]):
    """Part of publishing that a protocol with confirmations adds. Its clients keep sending while
    messages wait for capacity, so it limits how many do.

    `Request` identifies a message to be confirmed.
    """

    def encode_confirms(self, batch: list[Request]) -> list[bytes]:
        """Return the confirmations of durable messages."""

    def may_park(self, destination: Destination) -> bool:
        """Return whether one more message may wait for capacity; else a full queue is an error."""


class Parked(NamedTuple):
    """Message that waits for capacity until `deadline` (steady ms; 0 = unlimited)."""

    destination: Destination
    request: Any
    deadline: int


def cache_target(targets: dict[Key, Target], key: Key, target: Target) -> None:
    """Add a target to the cache of a connection."""
    if len(targets) >= MAX_TARGETS:
        targets.clear()
    targets[key] = target


def find_target(
    channel: Channel[Any], address: Address, created_by: CreatedBy, *, create: bool = True
) -> Destination | None:
    """Return the destination of a send, created if it is missing, or None unless `create`.

    None for a temporary destination that does not exist any more. Existing ones need no permission.
    Raises AccessDenied, DestinationNotFound, LimitExceeded.
    """
    destinations = channel.broker.destinations
    destination = destinations.find(address)
    if destination is None:
        if is_temporary(address.name):
            return None
    elif destination.temporary:
        return destination
    channel.demand(Operation.PRODUCE, address.name)
    if destination is None and not create:
        return None
    return destinations.resolve(address, creator=channel.identity.creator, by=created_by)


class Publisher(Generic[Request]):
    """Publishes the messages of one connection.

    publish ──accepted──> `accepted` ──confirm, at the end of a read──> durable ──> confirmation
       └──the destination is full and blocks──> parked ──accepted──────> durable ──> confirmation
                                                  ├──its time is over, or the destination is deleted
                                                  │     ──> refused
                                                  └──the connection ends ──> withdrawn

    The confirmations of the messages of one read are sent together, in the order of the messages.

    accepted      requests of this read to confirm; the session adds those to be answered
    last_sync     sequence number of the last message whose confirmation waits for the disk: those
                  with durability sync, and all journaled ones while the journal is behind
    parked_bytes  size of the bodies of the messages that wait for capacity
    """

    __slots__ = (
        "_alarm",
        "_broker",
        "_channel",
        "_confirming",
        "_engine",
        "_max_wait",
        "_on_finished",
        "_parked",
        "_uncounted",
        "accepted",
        "last_sync",
        "parked_bytes",
    )

    def __init__(
        self,
        channel: Channel[Any],
        finish_parked: Callable[[Request, BrokerError | None], None],
        confirming: ConfirmingSession[Request] | None = None,
        max_wait: int = 0,
    ) -> None:
        """Set the session's part.

        finish_parked  called when a parked message has been accepted, durable or not, or is refused
        confirming     None: nothing is confirmed, and every message may wait for capacity
        max_wait       ms that a message may wait for capacity; 0 = no limit
        """
        self._channel = channel
        self._broker = channel.broker
        self._engine = channel.broker.publisher
        self._on_finished: Callable[[Request, BrokerError | None], None] | None = finish_parked
        self._confirming = confirming
        self._max_wait = max_wait
        self._parked: dict[Message, Parked] = {}
        self._alarm = Alarm(channel.transport)
        self._uncounted = 0
        """Bytes received since the last count, see `count_received`."""
        self.accepted: list[Request] = []
        self.last_sync = 0
        self.parked_bytes = 0

    @property
    def parked(self) -> int:
        """Number of messages that wait for capacity."""
        return len(self._parked)

    def publish(self, destination: Destination, message: Message, request: Request) -> bool:
        """Publish a message; return False if it waits for capacity. Raises as `Broker.publish`."""
        if destination.settings.overflow is _BLOCK and (
            self._confirming is None or self._confirming.may_park(destination)
        ):
            if not self._engine.publish(
                destination,
                message,
                partial(self._channel.transport.call, self._finish_parked, message),
            ):
                self._park(destination, message, request)
                return False
        else:
            self._engine.publish(destination, message)
        if message.durability is _SYNC or (message.durability and self._broker.journal.is_behind):
            self.last_sync = message.sequence
        return True

    # --- confirmations -----------------------------------------------------------------------

    def confirm(self) -> None:
        """Confirm the accepted messages of a read once they are durable."""
        batch = self.accepted
        if batch:
            self.accepted = []
            self.when_durable(self._confirm, batch)

    def confirm_parked(self, request: Request) -> None:
        """Confirm a message that was parked, once it is durable."""
        self.when_durable(self._confirm, [request])

    def count_received(self, size: int) -> None:
        """Count `size` bytes of input, so that reading pauses while too many are not durable."""
        self._uncounted += size
        if self._uncounted >= _COUNT_INTERVAL:
            counted, self._uncounted = self._uncounted, 0
            if self.last_sync > self._broker.journal.durable:
                self._channel.unconfirmed += counted
                self.when_durable(self._count_durable, counted)
                self._channel.update_reading()

    def when_durable(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call `callback` once all that is published so far is durable. An error in it ends only
        this connection."""
        call = partial(self._channel.transport.call, callback, *arguments)
        self._broker.when_durable(self.last_sync, call)

    def _count_durable(self, size: int) -> None:
        self._channel.unconfirmed -= size
        self._channel.update_reading()

    def _confirm(self, batch: list[Request]) -> None:
        if self._confirming is not None:
            self._channel.write(self._confirming.encode_confirms(batch))

    # --- waiting for capacity ----------------------------------------------------------------

    def _park(self, destination: Destination, message: Message, request: Request) -> None:
        deadline = self._broker.clock.steady + self._max_wait if self._max_wait else 0
        self._parked[message] = Parked(destination, request, deadline)
        self.parked_bytes += len(message.body)
        if deadline and self._alarm.timer is None:
            self._alarm.set(self._max_wait / 1000, self._refuse_overdue)

    def _finish_parked(self, message: Message) -> None:
        """Handle the acceptance of a parked message, or the deletion of its destination."""
        parked = self._parked.pop(message, None)
        if parked is None:
            return
        self.parked_bytes -= len(message.body)
        if message.durability is _SYNC:
            self.last_sync = max(self.last_sync, message.sequence)
        on_finished = self._on_finished
        if on_finished is None:
            return
        error: BrokerError | None = None
        if not message.sequence:
            name = parked.destination.name
            error = DestinationNotFound(f"{name} has been removed, and another may not be created")
        on_finished(parked.request, error)
        self.release()

    def _refuse_overdue(self) -> None:
        """Refuse the messages whose time to wait for capacity is over."""
        now = self._broker.clock.steady
        for message, parked in list(self._parked.items()):
            if parked.deadline > now:
                self._alarm.set((parked.deadline - now) / 1000, self._refuse_overdue)
                return
            self._withdraw(message)
            reason = f"{parked.destination.name} has been full for {self._max_wait / 1000:g} s"
            if self._on_finished is not None:
                self._on_finished(parked.request, LimitExceeded(reason))

    def _withdraw(self, message: Message) -> None:
        parked = self._parked.pop(message)
        self.parked_bytes -= len(message.body)
        self._engine.withdraw(parked.destination, message)

    def end(self, is_kept: Callable[[Request], bool] | None = None) -> None:
        """Withdraw the messages that wait for capacity, except those that `is_kept` accepts."""
        self._alarm.cancel()
        for message, parked in list(self._parked.items()):
            if is_kept is None or not is_kept(parked.request):
                self._withdraw(message)

    def release(self) -> None:
        """Drop the references to a closed session, once no message waits for capacity."""
        if self._channel.closed and not self._parked:
            self._on_finished = self._confirming = None


# --- consuming ------------------------------------------------------------------------------------


class Unacked(Generic[Token, Entry]):
    """Unacked deliveries by the token with which the client acknowledges them.

    delivered ──written──> unacked ──acknowledgement of its token──> acknowledged
                  └──the client sends no acknowledgements──> sent ──> acknowledged

    A delivery may end or be requeued without notice; its entry stays until it is looked up or
    trimmed. Several entries may have the same token, as a message that was published twice.

    first       oldest entry of each token. The caller adds an entry with `setdefault` and, if its
                token has another one already, with `add_duplicate`
    duplicates  number of the other entries
    """

    __slots__ = ("_later", "_trim_at", "duplicates", "first")

    def __init__(self) -> None:
        self.first: dict[Token, Entry] = {}
        self.duplicates = 0
        self._later: dict[Token, list[Entry]] = {}
        """Further entries of a token, oldest first."""
        self._trim_at = _MAX_ENDED_ENTRIES

    def add_duplicate(self, token: Token, entry: Entry) -> None:
        """Add a further entry of a token that is in `first`."""
        self._later.setdefault(token, []).append(entry)
        self.duplicates += 1

    def take(self, token: Token) -> Entry | None:
        """Remove and return the oldest entry of a token; None without any."""
        entry = self.first.pop(token, None)
        if self._later:
            entries = self._later.get(token)
            if entries is not None:
                self.first[token] = entries.pop(0)
                self.duplicates -= 1
                if not entries:
                    del self._later[token]
        return entry

    def entries(self) -> Iterator[tuple[Token, Entry]]:
        """Yield all entries in the order in which they were added; later ones of a token last."""
        yield from self.first.items()
        for token, entries in self._later.items():
            for entry in entries:
                yield token, entry

    def trim(self, is_unacked: Callable[[Entry], bool]) -> None:
        """Keep only the entries that are unacked, if there are many more than last time."""
        if len(self.first) + self.duplicates > self._trim_at:
            self.keep(is_unacked)

    def keep(self, is_unacked: Callable[[Entry], bool]) -> None:
        """Keep only the entries that are unacked."""
        entries = [item for item in self.entries() if is_unacked(item[1])]
        self.clear()
        for token, entry in entries:
            if self.first.setdefault(token, entry) is not entry:
                self.add_duplicate(token, entry)
        self._trim_at = 2 * len(entries) + _MAX_ENDED_ENTRIES

    def clear(self) -> None:
        """Remove all entries. `first` stays the same object."""
        self.first.clear()
        self._later.clear()
        self.duplicates = 0


class DeliveryPauses:
    """Reasons for which the broker delivers nothing to a client's consumer.

    reasons    bit mask, 0 = it delivers
    consumers  the broker's consumers that the reasons concern
    """

    __slots__ = ("_broker", "consumers", "reasons")

    def __init__(self, broker: Broker, reasons: int = 0) -> None:
        self._broker = broker
        self.reasons = reasons
        self.consumers: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        """Apply the reasons to another consumer of the broker."""
        self.consumers.append(consumer)
        if self.reasons:
            self._broker.suspend(consumer)

    def pause(self, reason: int) -> None:
        """Add a reason."""
        if not self.reasons:
            for consumer in self.consumers:
                self._broker.suspend(consumer)
        self.reasons |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason; deliveries go on without any."""
        if self.reasons:
            self.reasons &= ~reason
            if not self.reasons:
                for consumer in self.consumers:
                    self._broker.resume(consumer)


class SentDeliveries:
    """Deliveries that are acknowledged once the operating system has accepted their bytes.

    unsent  those that are not sent yet; the caller adds what it writes
    """

    __slots__ = ("_broker", "_refill", "unsent")

    def __init__(self, broker: Broker, *, refill: bool) -> None:
        """`refill`: an acknowledgement restores credit, so that more may be dispatched."""
        self._broker = broker
        self._refill = refill
        self.unsent: list[tuple[Consumer, Delivery]] = []

    def acknowledge(self) -> list[tuple[Consumer, Delivery]]:
        """Acknowledge the deliveries, which have been sent, and return them."""
        unsent = self.unsent
        if unsent:
            self.unsent = []
            needs_flush = self._refill
            broker = self._broker
            for consumer, delivery in unsent:
                if delivery.journaled:
                    needs_flush = True
                broker.acknowledge(consumer, delivery.sequence)
            if needs_flush:
                # the flush of this event loop iteration has already run; the journal must not wait
                self._broker.schedule_flush()
        return unsent
