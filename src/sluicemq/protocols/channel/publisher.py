"""Publishing by one connection: targets, waiting for capacity, and batched confirmations.

    publish ──accepted──> `accepted` ──confirm, at the end of a read──> durable ──> confirmation
       └──the destination is full and blocks──> parked ──accepted──────> durable ──> confirmation
                                                  ├──its time is over, or the destination is deleted
                                                  │     ──> refused
                                                  └──the connection ends ──> withdrawn

The confirmations of the messages of one read are sent together, in the order of the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from sluicemq.broker import Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import Address, CreatedBy, Overflow, is_temporary
from sluicemq.model.errors import BrokerError, DestinationNotFound, LimitExceeded
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.channel.connection import Channel
from sluicemq.protocols.transport import Timer

MOST_TARGETS: Final = 1024
"""Targets cached per connection. The cache is cleared when it is full."""

Key = TypeVar("Key")
Target = TypeVar("Target")
Request = TypeVar("Request")


class PublishingSession(Protocol[Request]):
    """What a protocol adds to its publisher. `Request` identifies a message to be confirmed."""

    def encode_confirms(self, batch: list[Request]) -> list[bytes]:
        """Return the confirmations of durable messages."""

    def may_park(self, destination: Destination) -> bool:
        """Return whether one more message may wait for capacity; else a full queue is an error."""

    def finish_parked(self, request: Request, error: BrokerError | None) -> None:
        """Handle that a parked message has been accepted, durable or not, or is refused."""


class Parked(NamedTuple):
    """Message that waits for capacity until `deadline` (steady ms; 0 = for ever)."""

    destination: Destination
    request: Any
    deadline: int


def cache_target(targets: dict[Key, Target], key: Key, target: Target) -> None:
    """Add a target to the cache of a connection."""
    if len(targets) >= MOST_TARGETS:
        targets.clear()
    targets[key] = target


def find_target(
    channel: Channel[Any], address: Address, created_by: CreatedBy
) -> Destination | None:
    """Return the destination of a send, created if it is missing.

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
    return destinations.resolve(address, creator=channel.identity.creator, by=created_by)


class Publisher(Generic[Request]):
    """Publishes the messages of one connection.

    accepted      requests of this read to confirm; the session adds those that want an answer
    last_sync     sequence number of the last message published with durability sync
    parked_bytes  size of the bodies of the messages that wait for capacity
    """

    __slots__ = (
        "_alarm",
        "_broker",
        "_channel",
        "_engine",
        "_parked",
        "_patience",
        "_session",
        "accepted",
        "last_sync",
        "parked_bytes",
    )

    def __init__(
        self, channel: Channel[Any], session: PublishingSession[Request], patience: int = 0
    ) -> None:
        """`patience`: ms that a message waits for capacity; 0 = no limit."""
        self._channel = channel
        self._broker = channel.broker
        self._engine = channel.broker.publisher
        self._session: PublishingSession[Request] | None = session
        self._patience = patience
        self._parked: dict[Message, Parked] = {}
        self._alarm: Timer | None = None
        self.accepted: list[Request] = []
        self.last_sync = 0
        self.parked_bytes = 0

    @property
    def parked(self) -> int:
        """Number of messages that wait for capacity."""
        return len(self._parked)

    def publish(self, destination: Destination, message: Message, request: Request) -> bool:
        """Publish a message; return False if it waits for capacity. Raises as `Broker.publish`."""
        if destination.settings.overflow is Overflow.BLOCK and self._may_park(destination):
            if not self._engine.publish(destination, message, partial(self._unparked, message)):
                self._park(destination, message, request)
                return False
        else:
            self._engine.publish(destination, message)
        if message.durability is Durability.SYNC:
            self.last_sync = message.sequence
        return True

    # --- confirmations -----------------------------------------------------------------------

    def confirm(self, size: int) -> None:
        """Confirm the accepted messages of a read of `size` bytes once they are durable."""
        batch = self.accepted
        if batch:
            self.accepted = []
            self._channel.unconfirmed += size
            self._broker.when_durable(self.last_sync, partial(self._confirm, batch, size))

    def confirm_parked(self, request: Request) -> None:
        """Confirm a message that was parked, once it is durable."""
        self._broker.when_durable(self.last_sync, partial(self._confirm, [request], 0))

    def _confirm(self, batch: list[Request], size: int) -> None:
        channel = self._channel
        channel.unconfirmed -= size
        if self._session is not None and not channel.closed:
            channel.write(self._session.encode_confirms(batch))
            channel.update_reading()

    # --- waiting for capacity ----------------------------------------------------------------

    def _may_park(self, destination: Destination) -> bool:
        return self._session is not None and self._session.may_park(destination)

    def _park(self, destination: Destination, message: Message, request: Request) -> None:
        deadline = self._broker.clock.steady + self._patience if self._patience else 0
        self._parked[message] = Parked(destination, request, deadline)
        self.parked_bytes += len(message.body)
        if deadline and self._alarm is None:
            delay = self._patience / 1000
            self._alarm = self._channel.transport.call_later(delay, self._give_up)

    def _unparked(self, message: Message) -> None:
        """Handle that a parked message was accepted, or that its destination was deleted."""
        parked = self._parked.pop(message, None)
        if parked is None:
            return
        self.parked_bytes -= len(message.body)
        if message.durability is Durability.SYNC:
            self.last_sync = max(self.last_sync, message.sequence)
        session = self._session
        if session is None:
            return
        error: BrokerError | None = None
        if not message.sequence:
            why = "the destination has been removed, and another may not be created"
            error = DestinationNotFound(why)
        session.finish_parked(parked.request, error)
        self.release()

    def _give_up(self) -> None:
        """Refuse the messages whose time to wait for capacity is over."""
        self._alarm = None
        now = self._broker.clock.steady
        for message, parked in list(self._parked.items()):
            if parked.deadline > now:
                delay = (parked.deadline - now) / 1000
                self._alarm = self._channel.transport.call_later(delay, self._give_up)
                return
            self._withdraw(message)
            why = f"{parked.destination.name} has been full for {self._patience / 1000:g} s"
            if self._session is not None:
                self._session.finish_parked(parked.request, LimitExceeded(why))

    def _withdraw(self, message: Message) -> None:
        parked = self._parked.pop(message)
        self.parked_bytes -= len(message.body)
        self._broker.withdraw(parked.destination, message)

    def end(self, stays: Callable[[Request], bool] | None = None) -> None:
        """Withdraw the messages that wait for capacity, except those that `stay`."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for message, parked in list(self._parked.items()):
            if stays is None or not stays(parked.request):
                self._withdraw(message)

    def release(self) -> None:
        """Drop the reference to a closed session, once no message waits for capacity."""
        if self._channel.closed and not self._parked:
            self._session = None
