"""Publishing by one connection, and its confirmation.

The broker sends a PublishAck once the message is on disk; those of one read are sent together. A
message for a full queue with the BlockPublisher strategy waits for room, and so does its
PublishAck, but no longer than clients wait for a response. The session keeps reading meanwhile,
because the client's own acknowledgements may make room.

Clients may reply to any existing destination that a replyTo header names, even if its name is not a
valid VibeMQ queue name, as that of a JMS client's destination may be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluicemq.broker import Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import Overflow, is_temporary
from sluicemq.model.errors import BrokerError, LimitExceeded, MessageTooLarge, ProtocolError
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.transport import Timer
from sluicemq.protocols.vibemq.creation import QueueCreation
from sluicemq.protocols.vibemq.mapping import (
    check_headers,
    is_queue_name,
    read_address,
    to_message,
)
from sluicemq.protocols.vibemq.payload import check
from sluicemq.protocols.vibemq.queues import find_answered
from sluicemq.protocols.vibemq.responses import ResponseWriter, error_code
from sluicemq.protocols.vibemq.subscriber import ConnectionContext
from sluicemq.protocols.vibemq.templates import AckTemplate
from sluicemq.protocols.vibemq.wire import Frame

BLOCK_TIMEOUT: Final = 8_000
"""Default ms that a publish waits for room in its queue. .NET clients wait 10 s for a response
(`CommandTimeout`)."""
MOST_UNCONFIRMED: Final = 16 << 20
"""Bytes received whose PublishAcks are pending from which on reading pauses."""
_MOST_PARKED: Final = 1000
"""Messages of a connection that may wait for room; a further one is refused at once."""
_MOST_QUEUES: Final = 1024
"""Targets cached per connection. The cache is cleared when it is full."""


class _Parked(NamedTuple):
    """Publish that waits for room: its deadline (steady ms) and its PublishAck."""

    deadline: int
    destination: Destination
    identity: str
    answer: bytes


class Publisher:
    """Publishes the messages of one connection.

    last_sync     sequence number of the last message published with durability sync
    unconfirmed   bytes received whose PublishAcks wait for the disk
    parked_bytes  size of the bodies of messages that wait for room in their queues
    """

    __slots__ = (
        "_alarm",
        "_block_timeout",
        "_broker",
        "_confirmed",
        "_context",
        "_creation",
        "_durability",
        "_may",
        "_parked",
        "_pending",
        "_responses",
        "_targets",
        "_traffic",
        "_transport",
        "last_sync",
        "parked_bytes",
        "unconfirmed",
    )

    def __init__(
        self,
        context: ConnectionContext,
        responses: ResponseWriter,
        durability: Durability,
        may: Callable[[Frame, Operation, Destination | None], bool],
        confirmed: Callable[[], None],
        creation: QueueCreation,
        block_timeout: int,
    ) -> None:
        """`may` returns whether a frame names a queue, or the given destination, and the client may
        perform the operation; it refuses the frame otherwise. `confirmed` is called after
        `unconfirmed` has decreased. `block_timeout`: ms that a message waits for room, 0 = none."""
        self._context = context
        self._transport = context.transport
        self._traffic = context.traffic
        self._broker = context.broker
        self._responses = responses
        self._durability = durability
        self._may = may
        self._confirmed = confirmed
        self._creation = creation
        self._block_timeout = block_timeout
        self._targets: dict[str, tuple[Destination, AckTemplate]] = {}
        """Destinations to which this client may publish, with their PublishAck templates."""
        self._pending: list[bytes] = []
        """PublishAcks of the frames in progress."""
        self._parked: dict[Message, _Parked] = {}
        self._alarm: Timer | None = None
        self.parked_bytes = 0
        self.last_sync = 0
        self.unconfirmed = 0

    def forget(self) -> None:
        """Clear the cached permissions, because another user has logged in."""
        self._targets.clear()

    def publish(self, frame: Frame, checked: bool = False) -> None:
        """Publish the message of a PUBLISH frame. `confirm` must follow after the frames of a read.

        If `checked`, its payload is known to be JSON.
        """
        _, identity, name, payload, headers, _, _, _ = frame
        try:
            if payload and not checked:
                check(payload)
            if headers:
                check_headers(headers)
        except ProtocolError as error:
            self._responses.refuse(identity, "INVALID_MESSAGE", str(error))
            return
        target = self._targets.get(name)
        if target is None or target[0].removed:
            target = self._find_target(frame)
            if target is None:
                return
        destination, template = target
        broker = self._broker
        message = to_message(destination.address, frame, self._durability, broker.clock.wall)
        answer = template.fill(identity.encode())
        try:
            if destination.settings.overflow is Overflow.BLOCK:
                if not self._publish_or_park(destination, message, identity, answer):
                    return
            else:
                broker.publish(destination, message)
        except BrokerError as error:
            full = isinstance(error, LimitExceeded) and not isinstance(error, MessageTooLarge)
            code = "QUEUE_FULL" if full else error_code(error)
            self._responses.refuse(identity, code, str(error))
            return
        self._pending.append(answer)
        if self._durability is Durability.SYNC:
            self.last_sync = message.sequence

    def _find_target(self, frame: Frame) -> tuple[Destination, AckTemplate] | None:
        """Return the destination of a publish; None if it was refused."""
        name = frame.queue
        answered = find_answered(self._broker, name)
        if answered is not None and is_queue_name(name) and not answered.temporary:
            answered = None
        if answered is None and is_temporary(read_address(name).name):
            self._responses.refuse(frame.id, "QUEUE_NOT_FOUND", f"{name} is no longer waited for")
            return None
        if not self._may(frame, Operation.PRODUCE, answered):
            return None
        try:
            destination = answered or self._creation.find_or_create(name, self._context.creator)
        except BrokerError as error:
            self._responses.refuse(frame.id, error_code(error), str(error))
            return None
        if len(self._targets) >= _MOST_QUEUES:
            self._targets.clear()
        target = self._targets[name] = (destination, AckTemplate(name.encode()))
        return target

    # --- confirming --------------------------------------------------------------------------

    def confirm(self, size: int) -> None:
        """Confirm the frames of a read of `size` bytes once they are durable."""
        pending = self._pending
        if pending:
            self._pending = []
            self._traffic.published += len(pending)
            self.unconfirmed += size
            self._broker.when_durable(self.last_sync, partial(self._confirm, pending, size))

    def _confirm(self, responses: list[bytes], size: int) -> None:
        self.unconfirmed -= size
        self._responses.write(responses)
        self._confirmed()

    # --- waiting for room --------------------------------------------------------------------

    def _publish_or_park(
        self, destination: Destination, message: Message, identity: str, answer: bytes
    ) -> bool:
        """Publish. Return False if the message waits for room. Raises as `Broker.publish`."""
        callback = None
        if self._block_timeout and len(self._parked) < _MOST_PARKED:
            callback = partial(self._unblocked, message)
        if self._broker.publish(destination, message, callback):
            return True
        deadline = self._broker.clock.steady + self._block_timeout
        self._parked[message] = _Parked(deadline, destination, identity, answer)
        self.parked_bytes += len(message.body)
        if self._alarm is None:
            self._alarm = self._transport.call_later(self._block_timeout / 1000, self._give_up)
        return False

    def _unblocked(self, message: Message) -> None:
        """Confirm a waiting message that was accepted, or refuse it if its queue was deleted."""
        parked = self._parked.pop(message, None)
        if parked is None:
            return
        self.parked_bytes -= len(message.body)
        if not message.sequence:
            why = "the queue has been removed, and another may not be created"
            self._responses.refuse(parked.identity, "QUEUE_NOT_FOUND", why)
            return
        self._traffic.published += 1
        if self._durability is Durability.SYNC:
            self.last_sync = max(self.last_sync, message.sequence)
        self._broker.when_durable(self.last_sync, lambda: self._responses.write([parked.answer]))

    def _give_up(self) -> None:
        """Refuse the messages whose time to wait for room is over."""
        self._alarm = None
        now = self._broker.clock.steady
        for message, parked in list(self._parked.items()):
            if parked.deadline > now:
                delay = (parked.deadline - now) / 1000
                self._alarm = self._transport.call_later(delay, self._give_up)
                return
            del self._parked[message]
            self.parked_bytes -= len(message.body)
            self._broker.withdraw(parked.destination, message)
            why = f"{parked.destination.name} has been full for {self._block_timeout / 1000:g} s"
            self._responses.refuse(parked.identity, "QUEUE_FULL", why)

    def end(self) -> None:
        """Drop the messages that wait for room: they are not confirmed."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        parked, self._parked = self._parked, {}
        self.parked_bytes = 0
        for message, waiting in parked.items():
            self._broker.withdraw(waiting.destination, message)

    def release(self) -> None:
        """Drop the references to the session, after its end."""
        self._may = _refuse
        self._confirmed = _nothing


def _refuse(frame: Frame, operation: Operation, destination: Destination | None) -> bool:
    """Refuse every operation: the permission check of a closed session."""
    return False


def _nothing() -> None:
    """Do nothing: the callback of a closed session."""
