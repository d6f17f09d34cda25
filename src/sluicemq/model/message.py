"""The protocol-neutral message."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from sluicemq.model.destination import Address

Property = bool | int | float | str | bytes | None

DEFAULT_PRIORITY: Final = 4


class BodyKind(IntEnum):
    """What the body bytes are; decides how another protocol shows them (docs/crossing.md).

    NONE    there is no body
    TEXT    UTF-8 that is not known to be JSON
    JSON    a JSON value
    BYTES   anything; the kind of protocols that do not tell text from bytes, too
    MAP     a Java serialisation stream of one HashMap or Hashtable: a JMS MapMessage
    STREAM  a Java serialisation stream of any number of values: a JMS StreamMessage
    OBJECT  a Java serialisation stream of one object, which is never read: a JMS ObjectMessage

    A body that came by JMQ stays as it was sent, which may be compressed whatever its kind
    (protocols/java.py: `expanded`).
    """

    NONE = 0
    TEXT = 1
    JSON = 2
    BYTES = 3
    MAP = 4
    STREAM = 5
    OBJECT = 6


class Origin(IntEnum):
    """The protocol a message came in by."""

    INTERNAL = 0
    PHPMQ = 1
    VIBEMQ = 2
    JMQ = 3
    MSGLITE = 4


class Durability(IntEnum):
    """How far the journal carries a message.

    NONE  memory only; LAZY  journaled, visible and answered at once; SYNC  visible and
    answered only after the fdatasync that holds it.

    TRANSIENT  as LAZY, but dropped at a restart: what NONE becomes with journal.record_transient.
    No client can ask for it.
    """

    NONE = 0
    LAZY = 1
    SYNC = 2
    TRANSIENT = 3

    @property
    def survives(self) -> bool:
        """A restart keeps the message: what JMS calls persistent."""
        return self is Durability.LAZY or self is Durability.SYNC


class Message:
    """One message. Nothing but the broker's own `sequence`, `arrival`, `references`, `sender` and
    `epoch` changes after it has been published, because topics share one message among all
    subscriptions.

    sequence        journal sequence number; 0 until published; orders everything
    destination     where it was sent
    body            payload as sent
    kind            what the payload is
    priority        0-9 (JMS 1.1 section 3.4.10)
    arrival         ms since the epoch, by the broker's clock, when the broker took it; 0 until then
    timestamp       ms since the epoch, by the client's clock where its protocol has such a stamp
                    (JMSTimestamp), else when the broker received it
    expiration      ms since the epoch; 0 = never
    deliver_at      ms since the epoch before which no consumer sees it; 0 = at once
    message_id      the sender's own id, or ""
    correlation_id  or ""
    reply_to        destination for answers, or None
    type            JMSType or similar, or ""
    properties      the sender's properties and headers, or None when there are none
    durability      see Durability
    origin          protocol it came by
    native          the origin protocol's own framing where it must survive byte for byte, or b""
    routes          numbers of the durable subscriptions of a topic that took it
    references      deliveries that keep the body in memory (the broker's bookkeeping)
    sender          token of the producing connection, for no-local; never stored
    epoch           what the wall clock was ahead of the steady one, in ms, when the broker took it:
                    less that, expiration and deliver_at are steady times. Set if it has one of them
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
        """A message of its own for another destination, to be delivered at once.

        `properties` replace the message's when given.
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

    def __repr__(self) -> str:
        return f"<Message {self.sequence} to {self.destination}, {len(self.body)} bytes>"
