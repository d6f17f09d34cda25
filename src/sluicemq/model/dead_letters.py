"""Dead letters: the original message with properties that describe why and where it failed.

There are four properties; a dead letter of a topic has two more, so that it can be redriven to its
origin: the kind of the destination, and the subscription that it was in.

JMS clients and selectors also see them as Open MQ's properties, JMS_SUN_DMQ_.... These are derived
when they are read; only values that cannot be derived are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message, Property

REASON: Final = "deadLetterReason"
"""Reason: expired, max-attempts, overflow, or a reason given by the client."""
ORIGIN: Final = "originalQueue"
ATTEMPTS: Final = "deliveryAttempts"
TIME: Final = "failedAt"
"""Time of the failure, ISO 8601 in UTC."""
KIND: Final = "originalKind"
"""Kind of the origin: `topic`; absent for a queue."""
SUBSCRIPTION: Final = "originalSubscription"
"""Name of the topic's subscription; absent if the message was not in one."""

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
"""Values of JMS_SUN_DMQ_UNDELIVERED_REASON; ERROR for reasons given by clients."""
_DMQ_COMMENTS: Final = {
    "expired": "the message expired before it was acknowledged",
    "overflow": "the destination was full, and the message was dropped for others",
    "max-attempts": "the message was delivered as often as it may be and not acknowledged",
    "client": "a consumer could not process the message",
}


def dead_letter_of(message: Message, origin: str, reason: str, attempts: int, wall: int) -> Message:
    """Return a copy for the dead-letter queue. It never expires; the broker sets its
    destination.
    """
    properties = without_dead_letter_properties(message)
    for name in DMQ_PROPERTIES:
        properties.pop(name, None)  # left by an earlier dead-letter queue
    properties[REASON] = reason
    properties[ORIGIN] = origin
    properties[ATTEMPTS] = attempts
    properties[TIME] = datetime.fromtimestamp(wall / 1000, UTC).isoformat(timespec="milliseconds")
    return message.copy(Address(Kind.QUEUE, origin), 0, properties)


def note_topic(dead_letter: Message, subscription: str) -> None:
    """Add the topic's properties to a new dead letter; `subscription` is "" if it was in none."""
    assert dead_letter.properties is not None
    dead_letter.properties[KIND] = "topic"
    if subscription:
        dead_letter.properties[SUBSCRIPTION] = subscription


class DeadLetterOrigin(NamedTuple):
    """Origin of a dead letter. `subscription` is "" if it was in no subscription of a topic."""

    address: Address
    subscription: str


def origin_of(dead_letter: Message) -> DeadLetterOrigin | None:
    """Return the destination to redrive a dead letter to; None if unknown or not a dead letter."""
    properties = dead_letter.properties or {}
    name = properties.get(ORIGIN)
    if REASON not in properties or not isinstance(name, str) or not name:
        return None
    kind = Kind.TOPIC if properties.get(KIND) == "topic" else Kind.QUEUE
    subscription = properties.get(SUBSCRIPTION)
    return DeadLetterOrigin(
        Address(kind, name), subscription if isinstance(subscription, str) else ""
    )


def without_dead_letter_properties(dead_letter: Message) -> dict[str, Property]:
    """Return the properties that the message had before it became a dead letter."""
    return {
        name: value
        for name, value in (dead_letter.properties or {}).items()
        if name not in DEAD_LETTER_PROPERTIES
    }


def is_dead_letter(message: Message) -> bool:
    """Return whether the message is a dead letter, which is never dead-lettered again."""
    return bool(message.properties) and REASON in (message.properties or {})


# --- Open MQ's properties ------------------------------------------------------------------------

DeadProperties = Mapping[str, Property]
"""Properties of a dead letter, REASON included."""


DMQ_PROPERTIES: Final = (
    DMQ_TIMESTAMP,
    f"{DMQ_PREFIX}UNDELIVERED_REASON",
    f"{DMQ_PREFIX}UNDELIVERED_COMMENT",
    f"{DMQ_PREFIX}DELIVERY_COUNT",
    f"{DMQ_PREFIX}BODY_TRUNCATED",
    f"{DMQ_PREFIX}PRODUCING_BROKER",
    f"{DMQ_PREFIX}DEAD_BROKER",
)
"""Open MQ's properties of a dead letter, which are derived if it does not have them itself."""


def dmq_properties(properties: DeadProperties) -> dict[str, Property]:
    """Return the values of DMQ_PROPERTIES of a dead letter: stored, else derived."""
    reason = str(properties[REASON])
    attempts = properties.get(ATTEMPTS)
    try:
        failure_time = round(datetime.fromisoformat(str(properties.get(TIME))).timestamp() * 1000)
    except (ValueError, OverflowError):
        failure_time = 0
    derived_values: tuple[Property, ...] = (
        failure_time,
        _DMQ_REASONS.get(reason, "ERROR"),
        _DMQ_COMMENTS.get(reason, f"a consumer rejected the message: {reason}"),
        attempts if isinstance(attempts, int) else 0,
        False,
        BROKER_NAME,
        BROKER_NAME,
    )
    values = dict(zip(DMQ_PROPERTIES, derived_values, strict=True))
    for name in DMQ_PROPERTIES:
        stored_value = properties.get(name)
        if stored_value is not None:
            values[name] = stored_value
    return values


def dmq_property(properties: DeadProperties | None, name: str) -> Property:
    """Return one of DMQ_PROPERTIES: stored, else derived if it is a dead letter, else None."""
    if properties is None:
        return None
    value = properties.get(name)
    if value is None and REASON in properties:
        value = dmq_properties(properties)[name]
    return value
