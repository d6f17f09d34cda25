"""What one connection publishes, and when it is told so.

A PublishAck leaves when its message is on disk; those of one read leave together. A message for a
full queue that blocks its publishers waits for room, and its PublishAck with it, but no longer than
a client waits for an answer. The connection is read on meanwhile: it may be its own
acknowledgements that make room.

An answer may be published to whatever a replyTo header has named: also to a destination with a name
that no VibeMQ queue has, as those of JMS clients may, as long as it exists.
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
"""ms for which a PublishAck waits for room in its queue, unless the listener says otherwise; .NET
clients wait 10 s for an answer (`CommandTimeout`)."""
MOST_UNCONFIRMED: Final = 16 << 20
"""Bytes received whose PublishAcks wait for the disk, at which nothing more is read."""
_MOST_PARKED: Final = 1000
"""Messages of a connection that wait for room; the next one is refused at once."""
_MOST_QUEUES: Final = 1024
"""Names a connection remembers. It forgets all when it meets more."""


class _Parked(NamedTuple):
    """A publish that waits for room: when it gives up (steady ms), and its answer."""

    deadline: int
    destination: Destination
    identity: str
    answer: bytes


class Publisher:
    """See the module.

    last_sync     sequence number of the last message whose way to the disk is waited for
    unconfirmed   bytes received whose PublishAcks wait for the disk
    parked_bytes  of the bodies of messages that wait for room in their queues
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
        """`may`: whether a frame names a queue, or that destination, and the client may do that
        there; it has been refused if not. `confirmed`: `unconfirmed` has become less.
        `block_timeout`: ms for which a message waits for room, 0 = not at all."""
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
        """Where this client may publish, and its answers."""
        self._pending: list[bytes] = []
        """PublishAcks of the frames that are being carried out."""
        self._parked: dict[Message, _Parked] = {}
        self._alarm: Timer | None = None
        self.parked_bytes = 0
        self.last_sync = 0
        self.unconfirmed = 0

    def forget(self) -> None:
        """Somebody else has logged in, who may do other things."""
        self._targets.clear()

    def publish(self, frame: Frame, checked: bool = False) -> None:
        """One PUBLISH. `confirm` follows when those that came with it are carried out. If
        `checked`, its payload is JSON."""
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
        """Where a publish goes; None if it has been refused."""
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
        """All frames that came in `size` bytes are carried out."""
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
        """False when the message waits for room. Raises as `Broker.publish`."""
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
        """There was room for it, or its queue has gone."""
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
        """Refuse what has waited for room for too long."""
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
        """What waits for room has been promised to nobody: it goes with its connection."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        parked, self._parked = self._parked, {}
        self.parked_bytes = 0
        for message, waiting in parked.items():
            self._broker.withdraw(waiting.destination, message)

    def release(self) -> None:
        """Let go of the session, after its end."""
        self._may = _refuse
        self._confirmed = _nothing


def _refuse(frame: Frame, operation: Operation, destination: Destination | None) -> bool:
    """Stands for the permissions of a session that has gone."""
    return False


def _nothing() -> None:
    """Stands for the callback of a session that has gone."""
