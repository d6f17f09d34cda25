"""What a dead letter is: the message as it was, and properties that tell its story.

There are four of them; one that a topic had tells two things more, so that it can go back to where
it was: that it was a topic, and which of its subscriptions gave it up.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.model.message import Property

REASON: Final = "deadLetterReason"
"""expired, max-attempts, overflow, or the word of the client that gave it up."""
ORIGIN: Final = "originalQueue"
ATTEMPTS: Final = "deliveryAttempts"
TIME: Final = "failedAt"
"""ISO 8601, UTC."""
KIND: Final = "originalKind"
"""`topic`; not there if it was a queue."""
SUBSCRIPTION: Final = "originalSubscription"
"""Of the topic; not there if it never got as far as that."""

STORY: Final = frozenset({REASON, ORIGIN, ATTEMPTS, TIME, KIND, SUBSCRIPTION})


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


def note_topic(letter: Message, subscription: str) -> None:
    """Tell of a new dead letter that it comes from a topic, and from which of its subscriptions, if
    from one."""
    assert letter.properties is not None
    letter.properties[KIND] = "topic"
    if subscription:
        letter.properties[SUBSCRIPTION] = subscription


class Origin(NamedTuple):
    """Where a dead letter was. `subscription` is "" if it was in none of a topic's."""

    address: Address
    subscription: str


def origin_of(letter: Message) -> Origin | None:
    """Where to send a dead letter back to; None if it does not say, or is none."""
    properties = letter.properties or {}
    name = properties.get(ORIGIN)
    if REASON not in properties or not isinstance(name, str) or not name:
        return None
    kind = Kind.TOPIC if properties.get(KIND) == "topic" else Kind.QUEUE
    subscription = properties.get(SUBSCRIPTION)
    return Origin(Address(kind, name), subscription if isinstance(subscription, str) else "")


def without_story(letter: Message) -> dict[str, Property]:
    """The properties that the message had before it became a dead letter."""
    return {name: value for name, value in (letter.properties or {}).items() if name not in STORY}


def is_dead_letter(message: Message) -> bool:
    """It has been dead-lettered already, and is not to be so again."""
    return bool(message.properties) and REASON in (message.properties or {})
