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
from typing import Final

from sluicemq.broker import Destination
from sluicemq.model.access import Operation
from sluicemq.model.destination import is_temporary
from sluicemq.model.errors import (
    BrokerError,
    DestinationNotFound,
    LimitExceeded,
    MessageTooLarge,
    ProtocolError,
)
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import Publisher, cache_target
from sluicemq.protocols.vibemq.connection import VibemqConnection, error_code
from sluicemq.protocols.vibemq.creation import QueueCreation
from sluicemq.protocols.vibemq.mapping import (
    check_headers,
    is_queue_name,
    read_address,
    to_message,
)
from sluicemq.protocols.vibemq.payload import check
from sluicemq.protocols.vibemq.queues import find_answered
from sluicemq.protocols.vibemq.templates import AckTemplate
from sluicemq.protocols.vibemq.wire import Frame

_MOST_PARKED: Final = 1000
"""Messages of a connection that may wait for room; a further one is refused at once."""

Request = tuple[AckTemplate, str]
"""Template of the PublishAck, and the id of the Publish."""
May = Callable[[Frame, Operation, Destination | None], bool]


class PublishCommands:
    """Publishes the messages of one connection. Implements `channel.PublishingSession`.

    publisher  accepts the messages; `confirm` has to be called after the frames of a read
    """

    __slots__ = (
        "_block_timeout",
        "_broker",
        "_connection",
        "_creation",
        "_durability",
        "_may",
        "_targets",
        "publisher",
    )

    def __init__(
        self,
        connection: VibemqConnection,
        durability: Durability,
        may: May,
        creation: QueueCreation,
        block_timeout: int,
    ) -> None:
        """`may` returns whether a frame names a queue, or the given destination, and the client may
        perform the operation; it refuses the frame otherwise. `block_timeout`: ms that a message
        waits for room, 0 = none."""
        self._connection = connection
        self._broker = connection.broker
        self._durability = durability
        self._may: May | None = may
        self._creation = creation
        self._block_timeout = block_timeout
        self._targets: dict[str, tuple[Destination, AckTemplate]] = {}
        """Destinations to which this client may publish, with their PublishAck templates."""
        self.publisher: Publisher[Request] = Publisher(connection.channel, self, block_timeout)

    def forget(self) -> None:
        """Clear the cached permissions, because another user has logged in."""
        self._targets.clear()

    def publish(self, frame: Frame, checked: bool = False) -> None:
        """Publish the message of a PUBLISH frame. If `checked`, its payload is known to be JSON."""
        _, identity, name, payload, headers, _, _, _ = frame
        try:
            if payload and not checked:
                check(payload)
            if headers:
                check_headers(headers)
        except ProtocolError as error:
            self._connection.refuse(identity, "INVALID_MESSAGE", str(error))
            return
        target = self._targets.get(name)
        if target is None or target[0].removed:
            target = self._find_target(frame)
            if target is None:
                return
        destination, template = target
        message = to_message(destination.address, frame, self._durability, self._broker.clock.wall)
        request = (template, identity)
        try:
            if self.publisher.publish(destination, message, request):
                self.publisher.accepted.append(request)
        except BrokerError as error:
            self._refuse(identity, error)

    def _refuse(self, identity: str, error: BrokerError) -> None:
        full = isinstance(error, LimitExceeded) and not isinstance(error, MessageTooLarge)
        code = "QUEUE_FULL" if full else error_code(error)
        self._connection.refuse(identity, code, str(error))

    def _find_target(self, frame: Frame) -> tuple[Destination, AckTemplate] | None:
        """Return the destination of a publish; None if it was refused."""
        name = frame.queue
        answered = find_answered(self._broker, name)
        if answered is not None and is_queue_name(name) and not answered.temporary:
            answered = None
        if answered is None and is_temporary(read_address(name).name):
            why = f"{name} is no longer waited for"
            self._connection.refuse(frame.id, "QUEUE_NOT_FOUND", why)
            return None
        if self._may is None or not self._may(frame, Operation.PRODUCE, answered):
            return None
        try:
            creator = self._connection.channel.identity.creator
            destination = answered or self._creation.find_or_create(name, creator)
        except BrokerError as error:
            self._connection.refuse(frame.id, error_code(error), str(error))
            return None
        target = (destination, AckTemplate(name.encode()))
        cache_target(self._targets, name, target)
        return target

    def confirm(self, size: int) -> None:
        """Confirm the messages of a read of `size` bytes once they are durable."""
        self._connection.channel.traffic.published += len(self.publisher.accepted)
        self.publisher.confirm(size)

    # --- for the publisher -------------------------------------------------------------------

    def encode_confirms(self, batch: list[Request]) -> list[bytes]:
        """Return the PublishAcks."""
        return [template.fill(identity.encode()) for template, identity in batch]

    def may_park(self, destination: Destination) -> bool:
        """Return whether one more message may wait for room."""
        return self._block_timeout > 0 and self.publisher.parked < _MOST_PARKED

    def finish_parked(self, request: Request, error: BrokerError | None) -> None:
        """Answer a Publish that has waited for room."""
        if error is None:
            self._connection.channel.traffic.published += 1
            self.publisher.confirm_parked(request)
        elif isinstance(error, DestinationNotFound):
            why = "the queue has been removed, and another may not be created"
            self._connection.refuse(request[1], "QUEUE_NOT_FOUND", why)
        else:
            self._refuse(request[1], error)

    def release(self) -> None:
        """Drop the references to the session, after its end."""
        self._may = None
        self.publisher.release()
