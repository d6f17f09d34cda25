"""Names of destinations, the settings a destination is created with, and who set them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from sluicemq.model.setting import about

_JMS_TEMPORARY: Final = "temporary_destination://"
"""Prefix of the names that JMS clients give to their temporary destinations."""

_REPLY_ADDRESS: Final = re.compile(r"[0-9A-F]{8}\.[0-9A-F]{25,40}\Z")
"""Reply address of msglite: the broker's start in unix seconds, a counter and 24 random digits."""


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
    """Return whether a destination of this name is temporary: one of a JMS client, or a reply
    address.

    A message to such a destination that no longer exists is a reply that comes too late.
    """
    return is_jms_temporary(name) or is_reply_address(name)


def is_jms_temporary(name: str) -> bool:
    """Return whether a JMS client has given this name to a temporary destination."""
    return name.startswith(_JMS_TEMPORARY)


def is_reply_address(name: str) -> bool:
    """Return whether only msglite sessions create a destination of this name, for a reply."""
    return _REPLY_ADDRESS.match(name) is not None


class Overflow(StrEnum):
    """Handling of a message that would exceed a limit of its destination."""

    REJECT = "reject-new"
    DROP_OLDEST = "drop-oldest"
    DROP_LOWEST = "drop-lowest-priority"
    BLOCK = "block-publisher"
    DEAD_LETTER = "redirect-to-dead-letter"


class DestinationSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of one destination; 0 means "no limit" or "never" wherever a number is a limit."""

    max_messages: Annotated[int, about("Maximum number of ready messages.")] = 0
    max_bytes: Annotated[int, about("Maximum size of the bodies of ready messages.", "bytes")] = 0
    max_message_bytes: Annotated[int, about("Maximum size of a body.", "bytes")] = 0
    overflow: Annotated[
        Overflow,
        about(
            "Policy when `max_messages` or `max_bytes` is reached. `redirect-to-dead-letter` "
            "requires `dead_letter`; without it, new messages are rejected."
        ),
    ] = Overflow.REJECT
    message_ttl: Annotated[
        int,
        about(
            "Upper bound for the time to live of every message, counted from its arrival by "
            "the broker's clock.",
            "ms",
        ),
    ] = 0
    ack_timeout: Annotated[
        int,
        about(
            "Time until an unacked message of a PHPMQ or VibeMQ consumer is requeued. A change "
            "applies to consumers that subscribe afterwards.",
            "ms",
        ),
    ] = 0
    max_attempts: Annotated[
        int,
        about(
            "Maximum number of deliveries of a message. After the last one it is dead-lettered, "
            "or dropped without `dead_letter`."
        ),
    ] = 0
    retry_delay: Annotated[
        int,
        about(
            "Delay before a message is delivered again after its `ack_timeout`; it doubles with "
            "each further attempt. Messages that a client requeues are not delayed.",
            "ms",
        ),
    ] = 0
    retry_delay_max: Annotated[int, about("Maximum of `retry_delay`.", "ms")] = 120_000
    dead_letter: Annotated[
        bool, about("Move expired, exhausted and dropped messages to a dead-letter queue.")
    ] = False
    dead_letter_queue: Annotated[
        str, about("Name of the dead-letter queue. Without it: the destination's name and `.dlq`.")
    ] = ""
    max_consumers: Annotated[int, about("Maximum number of attached consumers; 1 = exclusive.")] = 0
    active_consumers: Annotated[
        int,
        about("Maximum number of consumers that receive messages; the others stand by (failover)."),
    ] = 0
    max_subscriptions: Annotated[int, about("Maximum number of subscriptions of a topic.")] = 0
    retain_without_subscriptions: Annotated[
        bool,
        about(
            "A topic without subscriptions retains its messages for the first one; once a "
            "VibeMQ client has subscribed, it retains them for VibeMQ clients, regardless of "
            "other subscriptions."
        ),
    ] = False
    priority_ordering: Annotated[
        bool, about("Deliver messages by descending priority; otherwise in order of arrival.")
    ] = True
    auto_ack: Annotated[
        bool, about("Messages to VibeMQ subscribers are acknowledged as soon as they are sent.")
    ] = False
    idle_timeout: Annotated[
        int | None,
        about(
            "Time without messages, consumers and use until an automatically created destination "
            "is deleted. Without it: `broker.destination_idle_timeout`.",
            "ms",
        ),
    ] = None


DEFAULT_SETTINGS: Final = DestinationSettings()
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
        set_names = frozenset(names)
        unset_names = frozenset(unset)
        values = tuple(
            (name, value)
            for name, value in self.as_written
            if name not in set_names and name not in unset_names
        )
        return self._replace(explicit=(self.explicit - unset_names) | set_names, as_written=values)


def differing(
    settings: DestinationSettings, base: DestinationSettings = DEFAULT_SETTINGS
) -> frozenset[str]:
    """Return the names of the settings that are not as in `base`."""
    return frozenset(
        name
        for name in DestinationSettings.__struct_fields__
        if getattr(settings, name) != getattr(base, name)
    )
