"""Names of destinations, the settings a destination is created with, and who set them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec

TEMPORARY: Final = "temporary_destination://"
"""Prefix of the names that JMS clients give to their temporary destinations."""


class Kind(IntEnum):
    """Kind of a destination: a message goes to one consumer of a queue, or to every subscription
    of a topic."""

    QUEUE = 1
    TOPIC = 2


class Address(NamedTuple):
    """A destination's identity. Queues and topics have separate name spaces (JMS 1.1 section 4.4).

    `name` may carry any bytes: those that are not UTF-8 are kept as surrogate escapes, so that
    `decode_name` and `encode_name` are each other's inverse.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.name if self.kind is Kind.QUEUE else f"topic:{self.name}"


def decode_name(raw: bytes) -> str:
    """Decode a destination name from the bytes of a wire protocol; never fails."""
    return raw.decode("utf-8", "surrogateescape")


def encode_name(name: str) -> bytes:
    """Return the bytes of a name, as the inverse of `decode_name`."""
    return name.encode("utf-8", "surrogateescape")


def is_temporary(name: str) -> bool:
    """Return whether only a JMS client may create a destination of this name, as a temporary one.

    A message to such a destination that no longer exists is a reply that comes too late.
    """
    return name.startswith(TEMPORARY)


class Overflow(StrEnum):
    """Handling of a message that would exceed a limit of its destination."""

    REJECT = "reject-new"
    DROP_OLDEST = "drop-oldest"
    DROP_LOWEST = "drop-lowest-priority"
    BLOCK = "block-publisher"
    DEAD_LETTER = "redirect-to-dead-letter"


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one destination; 0 means "no limit" or "never" wherever a number is a limit.

    max_messages       ready messages
    max_bytes          bytes of the bodies of ready messages
    max_message_bytes  largest body accepted
    overflow           policy when max_messages or max_bytes is reached
    message_ttl        ms; upper bound for the time to live of every message, counted from its
                       arrival by the broker's clock
    ack_timeout        ms until an unacked message is requeued
    max_attempts       deliveries in total before a message is dead-lettered
    retry_delay        ms before the second delivery; doubles with each further delivery
    retry_delay_max    ms; upper bound for that delay
    dead_letter        move expired, exhausted and dropped messages to a dead-letter queue
    dead_letter_queue  its name; "" means "<name>.dlq"
    max_consumers      consumers attached at a time; 1 = exclusive
    active_consumers   consumers that receive messages at a time; the others stand by (failover)
    max_subscriptions  subscriptions of a topic at a time
    retain_without_subscriptions  a topic without subscriptions retains its messages for the first
                       one; once a VibeMQ client has subscribed, it retains them for VibeMQ clients,
                       regardless of other subscriptions
    priority_ordering  deliver messages by descending priority; otherwise in order of arrival
    auto_ack           messages to VibeMQ subscribers are acknowledged as soon as they are sent
    idle_timeout       ms without messages, consumers and use until an automatically created
                       destination is deleted; None = the broker's default
    """

    max_messages: int = 0
    max_bytes: int = 0
    max_message_bytes: int = 0
    overflow: Overflow = Overflow.REJECT
    message_ttl: int = 0
    ack_timeout: int = 0
    max_attempts: int = 0
    retry_delay: int = 0
    retry_delay_max: int = 120_000
    dead_letter: bool = False
    dead_letter_queue: str = ""
    max_consumers: int = 0
    active_consumers: int = 0
    max_subscriptions: int = 0
    retain_without_subscriptions: bool = False
    priority_ordering: bool = True
    auto_ack: bool = False
    idle_timeout: int | None = None


USUAL: Final = DestinationSettings()
"""Default settings of a destination."""


class CreatedBy(StrEnum):
    """Creator of a destination. `BROKER`: the broker, for a purpose of its own."""

    BROKER = "broker"
    CONFIGURATION = "configuration"
    MANAGEMENT = "management"
    JMQ = "jmq"
    MSGLITE = "msglite"
    PHPMQ = "phpmq"
    VIBEMQ = "vibemq"


class Provenance(NamedTuple):
    """Creator of a destination, and which of its settings were set explicitly.

    created_by     creator; the configuration also takes over the destinations that it declares
    explicit       names of the settings that were set explicitly; the others are defaults of the
                   broker or of the creator's protocol
    as_written     values as a client wrote them, by the name of the setting, where the setting
                   cannot hold them: times in units of 100 ns, numbers out of range, odd names
    created_ticks  100 ns beyond the ms of the time of creation, 0-9999
    """

    created_by: CreatedBy = CreatedBy.BROKER
    explicit: frozenset[str] = frozenset()
    as_written: tuple[tuple[str, int | str], ...] = ()
    created_ticks: int = 0

    def changed(self, names: Iterable[str], unset: Iterable[str] = ()) -> Provenance:
        """Return the provenance after the settings `names` were set and `unset` were reset.

        Reset settings have the broker's defaults. The values of `as_written` are dropped for both.
        """
        set_now = frozenset(names)
        unset_now = frozenset(unset)
        kept = tuple(
            (name, value)
            for name, value in self.as_written
            if name not in set_now and name not in unset_now
        )
        return self._replace(explicit=(self.explicit - unset_now) | set_now, as_written=kept)


def differing(settings: DestinationSettings, base: DestinationSettings = USUAL) -> frozenset[str]:
    """Return the names of the settings that are not as in `base`."""
    return frozenset(
        name
        for name in DestinationSettings.__struct_fields__
        if getattr(settings, name) != getattr(base, name)
    )
