"""What a dead letter is: the message as it was, and four properties that tell its story."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination

REASON: Final = "deadLetterReason"
"""expired, max-attempts, overflow, or the word of the client that gave it up."""
ORIGIN: Final = "originalQueue"
ATTEMPTS: Final = "deliveryAttempts"
TIME: Final = "failedAt"
"""ISO 8601, UTC."""


class Burial(Protocol):
    """What one protocol has to say about its messages that cannot be delivered."""

    def keep(self, message: Message, destination: Destination) -> bool | None:
        """Whether it becomes a dead letter; None = as the destination's settings say."""

    def letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        """As `dead_letter_of`, which it has to begin with."""


def dead_letter_of(message: Message, origin: str, reason: str, attempts: int, wall: int) -> Message:
    """A copy for the dead-letter queue. It never expires; its destination is set by the broker."""
    properties = dict(message.properties or {})
    properties[REASON] = reason
    properties[ORIGIN] = origin
    properties[ATTEMPTS] = attempts
    properties[TIME] = datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds")
    return message.copy(Address(Kind.QUEUE, origin), 0, properties)


def is_dead_letter(message: Message) -> bool:
    """It has been dead-lettered already, and is not to be so again."""
    return bool(message.properties) and REASON in (message.properties or {})
