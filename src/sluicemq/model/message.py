"""Protocol-neutral message."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from sluicemq.model.destination import Address

Property = bool | int | float | str | bytes | None

DEFAULT_PRIORITY: Final = 4
LAST_TIME: Final = 1 << 53
"""Latest time of a message, in wall ms, 287 thousand years from now: later ones are stored as this
one, so that milliseconds and microseconds fit into 64 bits."""

COMPRESS: Final = "JMS_SUN_COMPRESS"
"""Property of a message whose body its JMQ client compressed, with those of the body's sizes."""
COMPRESSED_SIZE: Final = "JMS_SUN_COMPRESSED_SIZE"
UNCOMPRESSED_SIZE: Final = "JMS_SUN_UNCOMPRESSED_SIZE"

PROPERTY_OVERHEAD: Final = 100
"""Bytes in memory of a property besides its name and value."""


class BodyKind(IntEnum):
    """Type of a body; determines its conversion for other protocols (docs/crossing.md).

    NONE    no body
    TEXT    UTF-8 that is not known to be JSON
    JSON    a JSON value
    BYTES   any bytes; also the type for protocols that do not distinguish text from bytes
    MAP     a Java serialization stream of one HashMap or Hashtable: a JMS MapMessage
    STREAM  a Java serialization stream of any number of values: a JMS StreamMessage
    OBJECT  a Java serialization stream of one object, which is never decoded: a JMS ObjectMessage

    A body received by JMQ is stored as it was sent, and may be compressed regardless of its type
    (protocols/transcoding.py: `expanded`).
    """

    NONE = 0
    TEXT = 1
    JSON = 2
    BYTES = 3
    MAP = 4
    STREAM = 5
    OBJECT = 6


class Origin(IntEnum):
    """Protocol by which a message was published."""

    INTERNAL = 0
    PHPMQ = 1
    VIBEMQ = 2
    JMQ = 3
    MSGLITE = 4


class Durability(IntEnum):
    """Durability of a message in the journal.

    NONE       in memory only
    LAZY       journaled; visible and confirmed immediately
    SYNC       visible and confirmed only after the fdatasync that contains it
    TRANSIENT  as LAZY, but dropped at a restart: replaces NONE with journal.record_transient;
               clients cannot request it
    """

    NONE = 0
    LAZY = 1
    SYNC = 2
    TRANSIENT = 3

    @property
    def survives(self) -> bool:
        """True if the message survives a restart, as persistent messages in JMS."""
        return self is Durability.LAZY or self is Durability.SYNC


class Message:
    """Message, shared by all subscriptions of a topic.

    After its publication only the broker's own fields `sequence`, `arrival`, `references`, `sender`
    and `epoch` change.

    sequence        journal sequence number; 0 until published; defines the order of all messages
    destination     destination that it was sent to
    body            payload as sent
    kind            type of the payload
    priority        0-9 (JMS 1.1 section 3.4.10)
    arrival         ms since the epoch, by the broker's clock, of its acceptance; 0 until then
    timestamp       ms since the epoch, by the client's clock if its protocol has such a timestamp
                    (JMSTimestamp), otherwise the time of its arrival at the broker
    expiration      ms since the epoch; 0 = never
    deliver_at      ms since the epoch before which it is not delivered; 0 = immediately
    message_id      id set by the publisher, or ""
    correlation_id  correlation id, or ""
    reply_to        destination for replies, or None
    type            JMSType or similar, or ""
    properties      publisher's properties and headers, or None when there are none
    durability      see Durability
    origin          protocol by which it was published
    native          original framing if it must be preserved byte for byte, or b""
    routes          numbers of the durable subscriptions of a topic that received it, and of the
                    topic if its group did
    references      number of deliveries that keep the body in memory
    sender          token of the publishing connection, for no-local; never stored
    epoch           difference of wall and steady time in ms at its acceptance: expiration and
                    deliver_at minus epoch are steady times. Set if it has one of them
    """

    __slots__ = (
        "arrival",
        "body",
        "correlation_id",
        "deliver_at",
        "destination",
        "durability",
        "epoch",
        "expiration",
        "kind",
        "message_id",
        "native",
        "origin",
        "priority",
        "properties",
        "references",
        "reply_to",
        "routes",
        "sender",
        "sequence",
        "timestamp",
        "type",
    )

    def __init__(
        self,
        destination: Address,
        body: bytes,
        kind: BodyKind = BodyKind.BYTES,
        origin: Origin = Origin.INTERNAL,
        durability: Durability = Durability.SYNC,
        timestamp: int = 0,
        expiration: int = 0,
        priority: int = DEFAULT_PRIORITY,
        deliver_at: int = 0,
        message_id: str = "",
        correlation_id: str = "",
        reply_to: Address | None = None,
        type: str = "",
        properties: dict[str, Property] | None = None,
        native: bytes = b"",
        sender: object = None,
    ) -> None:
        self.sequence = 0
        self.destination = destination
        self.body = body
        self.kind = kind
        self.origin = origin
        self.durability = durability
        self.timestamp = timestamp
        self.expiration = expiration
        self.priority = priority
        self.deliver_at = deliver_at
        self.message_id = message_id
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.type = type
        self.properties = properties
        self.native = native
        self.sender = sender
        self.routes: tuple[int, ...] = ()
        self.references = 0
        self.epoch = 0
        self.arrival = 0

    def copy(
        self,
        destination: Address,
        expiration: int,
        properties: dict[str, Property] | None = None,
    ) -> Message:
        """Return a copy for another destination, to be delivered immediately.

        `properties` replace the message's properties if given.
        """
        return Message(
            destination,
            self.body,
            self.kind,
            self.origin,
            self.durability,
            self.timestamp,
            expiration,
            self.priority,
            0,
            self.message_id,
            self.correlation_id,
            self.reply_to,
            self.type,
            self.properties if properties is None else properties,
            self.native,
        )

    def header_bytes(self) -> int:
        """Return about the number of bytes in memory of the original framing, or otherwise of the
        properties."""
        if self.native or not self.properties:
            return len(self.native)
        size = 0
        for name, value in self.properties.items():
            size += PROPERTY_OVERHEAD + len(name)
            if isinstance(value, (str, bytes)):
                size += len(value)
        return size

    def __repr__(self) -> str:
        return f"<Message {self.sequence} to {self.destination}, {len(self.body)} bytes>"
