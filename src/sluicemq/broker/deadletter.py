"""What a dead letter is: the message as it was, and properties that tell its story.

There are four of them; one that a topic had tells two things more, so that it can go back to where
it was: that it was a topic, and which of its subscriptions gave it up.

JMS clients and selectors see them as Open MQ's properties, JMS_SUN_DMQ_..., too. These are derived
from the others when they are read; only what cannot be derived is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

DEAD_LETTER_PROPERTIES: Final = frozenset({REASON, ORIGIN, ATTEMPTS, TIME, KIND, SUBSCRIPTION})

DMQ_PREFIX: Final = "JMS_SUN_DMQ_"
DMQ_TIMESTAMP: Final = f"{DMQ_PREFIX}UNDELIVERED_TIMESTAMP"
BROKER_NAME: Final = "SluiceMQ"
"""Value of JMS_SUN_DMQ_PRODUCING_BROKER and JMS_SUN_DMQ_DEAD_BROKER."""

_DMQ_REASONS: Final = {
    "expired": "EXPIRED",
    "overflow": "OLDEST",
    "max-attempts": "UNDELIVERABLE",
    "client": "UNDELIVERABLE",
}
"""JMS_SUN_DMQ_UNDELIVERED_REASON; ERROR for reasons of clients' own."""
_DMQ_COMMENTS: Final = {
    "expired": "the message expired before it was acknowledged",
    "overflow": "the destination was full, and the message made room for others",
    "max-attempts": "the message was delivered as often as it may be and not acknowledged",
    "client": "a consumer could not process the message",
}


class DeadLetterPolicy(Protocol):
    """What one protocol has to say about its messages that cannot be delivered."""

    def keep(self, message: Message, destination: Destination) -> bool | None:
        """Whether it becomes a dead letter; None = as the destination's settings say."""

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        """As `dead_letter_of`, which it has to begin with."""


def dead_letter_of(message: Message, origin: str, reason: str, attempts: int, wall: int) -> Message:
    """A copy for the dead-letter queue. It never expires; its destination is set by the broker."""
    properties = dict(message.properties or {})
    for name in DMQ_PROPERTIES:
        properties.pop(name, None)  # of an earlier time in a dead-letter queue
    properties[REASON] = reason
    properties[ORIGIN] = origin
    properties[ATTEMPTS] = attempts
    properties[TIME] = datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds")
    return message.copy(Address(Kind.QUEUE, origin), 0, properties)


def note_topic(dead_letter: Message, subscription: str) -> None:
    """Tell of a new dead letter that it comes from a topic, and from which of its subscriptions, if
    from one."""
    assert dead_letter.properties is not None
    dead_letter.properties[KIND] = "topic"
    if subscription:
        dead_letter.properties[SUBSCRIPTION] = subscription


class Origin(NamedTuple):
    """Where a dead letter was. `subscription` is "" if it was in none of a topic's."""

    address: Address
    subscription: str


def origin_of(dead_letter: Message) -> Origin | None:
    """Where to send a dead letter back to; None if it does not say, or is none."""
    properties = dead_letter.properties or {}
    name = properties.get(ORIGIN)
    if REASON not in properties or not isinstance(name, str) or not name:
        return None
    kind = Kind.TOPIC if properties.get(KIND) == "topic" else Kind.QUEUE
    subscription = properties.get(SUBSCRIPTION)
    return Origin(Address(kind, name), subscription if isinstance(subscription, str) else "")


def without_dead_letter_properties(dead_letter: Message) -> dict[str, Property]:
    """The properties that the message had before it became a dead letter."""
    return {
        name: value
        for name, value in (dead_letter.properties or {}).items()
        if name not in DEAD_LETTER_PROPERTIES
    }


def is_dead_letter(message: Message) -> bool:
    """It has been dead-lettered already, and is not to be so again."""
    return bool(message.properties) and REASON in (message.properties or {})


# --- Open MQ's properties ------------------------------------------------------------------------

DeadProperties = Mapping[str, "Property"]
"""The properties of a dead letter: REASON is among them."""


def _dmq_timestamp(properties: DeadProperties) -> Property:
    """Return the wall ms of TIME; 0 if it is not a time."""
    try:
        return round(datetime.fromisoformat(str(properties.get(TIME))).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _dmq_reason(properties: DeadProperties) -> Property:
    return _DMQ_REASONS.get(str(properties[REASON]), "ERROR")


def _dmq_comment(properties: DeadProperties) -> Property:
    reason = str(properties[REASON])
    return _DMQ_COMMENTS.get(reason, f"a consumer rejected the message: {reason}")


def _dmq_delivery_count(properties: DeadProperties) -> Property:
    attempts = properties.get(ATTEMPTS)
    return attempts if isinstance(attempts, int) else 0


def _dmq_broker(properties: DeadProperties) -> Property:
    return BROKER_NAME


def _dmq_body_truncated(properties: DeadProperties) -> Property:
    return False


DMQ_PROPERTIES: Final[dict[str, Callable[[DeadProperties], Property]]] = {
    DMQ_TIMESTAMP: _dmq_timestamp,
    f"{DMQ_PREFIX}UNDELIVERED_REASON": _dmq_reason,
    f"{DMQ_PREFIX}UNDELIVERED_COMMENT": _dmq_comment,
    f"{DMQ_PREFIX}DELIVERY_COUNT": _dmq_delivery_count,
    f"{DMQ_PREFIX}BODY_TRUNCATED": _dmq_body_truncated,
    f"{DMQ_PREFIX}PRODUCING_BROKER": _dmq_broker,
    f"{DMQ_PREFIX}DEAD_BROKER": _dmq_broker,
}
"""Open MQ's properties of a dead letter that does not have them itself."""


def dmq_property(properties: DeadProperties | None, name: str) -> Property:
    """Return one of DMQ_PROPERTIES as the message has it, else derived if it is a dead letter, else
    None."""
    if properties is None:
        return None
    value = properties.get(name)
    if value is None and REASON in properties:
        value = DMQ_PROPERTIES[name](properties)
    return value
