"""JMQ packets <-> the broker's message.

| JMQ                       | message                                                              |
|---------------------------|----------------------------------------------------------------------|
| DESTINATION, flag Q       | destination                                                          |
| packet type               | kind: TEXT, BYTES, MAP, STREAM, OBJECT, NONE                         |
| body                      | body, as received: compressed, Java-serialized                       |
| property block            | properties; widths of integers stay in `native`                      |
| flag P                    | durability                                                           |
| priority, timestamp,      | the same; times outside 0 to 2^53 ms become the nearest one, an end  |
| expiration, DELIVERY_TIME | before 1970 none                                                     |
| SysMessageID              | message id, as text "ID:..."                                         |
| CORRELATIONID, TYPE       | the same                                                             |
| REPLYTO, REPLYTO_CLASS    | reply-to; the class tells queues from topics, else the name of a     |
|                           | temporary destination, else flag Q                                   |

JMQ messages are delivered to JMQ clients byte for byte. `Message.native` is the part of the packet
before its body in version 301, with two changes made at arrival: record 11 (delivery count) is the
first of the variable header, and record 8 (transaction) is removed. So a delivery overwrites 18
bytes at a fixed offset:

    62 flags:u16  64 consumer id:i64  72 record 11, length 4: 00 0B 00 04  76 count:i32  80 ...

Messages of other protocols: text and JSON are a TextMessage, a JSON string with its text; other
bodies that are not Java serialization streams are a BytesMessage. Names of properties are converted
to identifiers (model/identifiers.py); null is omitted, bytes are in base64, integers that exceed a
Long in hex. The id is made of the broker's identity and the sequence number.

A dead letter has the broker's properties and those of Open MQ's dead message queue, JMS_SUN_DMQ_...
(protocol specification, "Dead Message Queue"). One that a client publishes again is a new message:
the broker's properties stay in its packet only.

Two properties of a message decide what happens if it cannot be delivered, regardless of the
settings of its destination (section 9.6):

    JMS_SUN_PRESERVE_UNDELIVERED   true: it is kept in the dead message queue; false: it is dropped
    JMS_SUN_TRUNCATE_MSG_BODY      true: it is kept without its body
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Final

from sluicemq.model.dead_letters import (
    DEAD_LETTER_PROPERTIES,
    DMQ_PREFIX,
    DMQ_TIMESTAMP,
    REASON,
    dead_letter_of,
    dmq_properties,
)
from sluicemq.model.destination import Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.identifiers import to_identifier
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Message, Origin, Property
from sluicemq.protocols.java import (
    I32,
    STREAM_HEADER,
    Long,
    dumps,
    dumps_map,
    dumps_stream,
    encode_utf,
)
from sluicemq.protocols.jmq.fields import (
    DEAD_MESSAGES,
    DELIVERY_COUNT,
    MAX_HEADER_STRING,
    MAX_STRING,
    class_of,
    decode_header,
    decode_properties,
    encode_header,
    encode_properties,
    extend_block,
    format_name,
    make_sysid,
    origin_text,
    sysid_text,
)
from sluicemq.protocols.jmq.packets import MAGIC, VERSION, C, F, I, L, P, PacketType, Q, W, Z
from sluicemq.protocols.jmq.wire import FIXED, FIXED_SIZE, Packet, encode_head
from sluicemq.protocols.transcoding import COMPRESSION, plain_body, text_of_json

_BODY_KINDS: Final[dict[int, BodyKind]] = {
    PacketType.TEXT_MESSAGE.value: BodyKind.TEXT,
    PacketType.BYTES_MESSAGE.value: BodyKind.BYTES,
    PacketType.MAP_MESSAGE.value: BodyKind.MAP,
    PacketType.STREAM_MESSAGE.value: BodyKind.STREAM,
    PacketType.OBJECT_MESSAGE.value: BodyKind.OBJECT,
    PacketType.MESSAGE.value: BodyKind.NONE,
}
_PACKET_TYPES: Final = {
    BodyKind.JSON: PacketType.TEXT_MESSAGE.value,
    **{kind: number for number, kind in _BODY_KINDS.items()},
}
_SERIALIZED: Final = (BodyKind.MAP, BodyKind.STREAM, BodyKind.OBJECT)

_LONG_LIMIT: Final = 1 << 63

_JMQ: Final = Origin.JMQ
_KEPT_FLAGS: Final = 0xFFFF & ~(L | F | C | I)
"""Flags of the sender that a delivery keeps. R is one of them: a client that lost its broker before
SEND_REPLY sends the message again with R, because a consumer may have received the first one."""
_FLAGS_AT: Final = 62
_AFTER_COUNT: Final = 80
_COUNT_SIZE: Final = 4

_pack: Final = FIXED.pack
_sizes: Final = Struct(">ii")
_delivery: Final = Struct(">HqHHi")
"""Flags, consumer id, record 11."""

Chunks = tuple[bytes, bytes, bytes, bytes]


# --- from packets ------------------------------------------------------------------------------

_origin_text: Final = lru_cache(maxsize=1024)(origin_text)


def message_of(
    packet: Packet,
    sender: object = None,
    persistent: Durability = Durability.SYNC,
    transient: Durability = Durability.NONE,
) -> Message:
    """Return the message of a packet, for which `packet.is_message` holds.

    sender      as of `Message`
    persistent  durability of messages with flag P
    transient   durability of the others

    Raises ProtocolError when a header or the property block is broken, or there is no destination.
    """
    variable = decode_header(packet.header)
    flags = packet.flags
    address = variable.queue if flags & Q else variable.topic
    if not address.name:
        raise ProtocolError("the message has no destination")
    body = packet.body
    block = packet.block
    head = packet.head
    timestamp = packet.timestamp
    expiration = packet.expiration
    properties = packet.properties or None if block else None
    if properties is not None and REASON in properties:
        # a dead letter that a client publishes again, which can become another one
        properties = {
            name: value for name, value in properties.items() if name not in DEAD_LETTER_PROPERTIES
        } or None
    stored_header = variable.stored
    if packet.version == VERSION:
        sysid = head[20:52]
        offset = FIXED_SIZE + len(stored_header)
        size = len(block)
        native = (
            _pack(
                MAGIC,
                VERSION,
                packet.type,
                offset + size + len(body),
                expiration,
                sysid,
                offset,
                size,
                packet.priority,
                flags,
                packet.consumer_id,
            )
            + stored_header
        )
        if size:
            native += block
    else:
        sysid = packet.sysid
        native = encode_head(
            packet.type,
            flags,
            packet.consumer_id,
            stored_header,
            packet.current_block(),
            len(body),
            packet.priority,
            expiration,
            sysid,
        )
    return Message(
        address,
        body,
        _BODY_KINDS[packet.type],
        _JMQ,
        persistent if flags & P else transient,
        timestamp if 0 <= timestamp <= LAST_TIME else _stored_time(timestamp),
        expiration if 0 <= expiration <= LAST_TIME else _stored_time(expiration),
        min(packet.priority, 9),
        _stored_time(variable.delivery_time) if variable.delivery_time else 0,
        variable.message_id or f"ID:{packet.sequence}{_origin_text(sysid[8:28])}{timestamp}",
        variable.correlation_id or "",
        variable.reply_address(flags & Q != 0) if variable.reply_to else None,
        variable.type or "",
        properties,
        native,
        sender,
    )


def _stored_time(time: int) -> int:
    return min(max(time, 0), LAST_TIME)


# --- to packets --------------------------------------------------------------------------------


def encode_delivery(
    message: Message, consumer_id: int, flags: int, count: int, identity: bytes
) -> Chunks:
    """Encode a delivery as four byte strings to be written one after the other; the first has the
    SysMessageID at 20-52.

    consumer_id  consumer id in the reply to ADD_CONSUMER
    flags        combination of R, L, F and C
    count        number of this delivery, from 1
    identity     `Broker.identity`

    Raises ProtocolError for a message of another protocol that no packet can carry: its destination
    has a name of more than 32,767 bytes, or it is too large.
    """
    native = message.native
    body = message.body
    properties = message.properties
    if message.origin is not _JMQ or not native or (properties and REASON in properties):
        native, body = _encode_transcoded(message, identity)
    flags |= (native[_FLAGS_AT] << 8 | native[_FLAGS_AT + 1]) & _KEPT_FLAGS
    return (
        native[:_FLAGS_AT],
        _delivery.pack(flags, consumer_id, DELIVERY_COUNT, _COUNT_SIZE, count),
        native[_AFTER_COUNT:],
        body,
    )


def sysid_of(message: Message, identity: bytes) -> bytes:
    """Return the SysMessageID of the deliveries of a message."""
    native = message.native
    if message.origin is _JMQ and native:
        return native[20:52]
    return make_sysid(identity, message.sequence, message.timestamp)


def _encode_transcoded(message: Message, identity: bytes) -> tuple[bytes, bytes]:
    """Return head, as in `Message.native`, and body of a message of another protocol."""
    if message.origin is _JMQ and message.native:
        return _encode_dead_letter(message), message.body
    kind, body = transcoded_body(message)
    address = message.destination
    reply_to = message.reply_to
    header = encode_header(
        format_name(address.name),
        _header_text(message.correlation_id),
        _header_text(format_name(reply_to.name)) if reply_to else None,
        _header_text(message.type),
        class_of(address),
        class_of(reply_to) if reply_to else None,
        delivery_time=message.deliver_at,
        delivery_count=0,
    )
    properties = message.properties or {}
    outgoing = transcoded_properties(properties)
    if REASON in properties:
        outgoing = {**transcoded_properties(_dead_letter_properties(properties)), **outgoing}
    flags = Q if address.kind is Kind.QUEUE else 0
    if message.durability.survives:
        flags |= P
    head = encode_head(
        _PACKET_TYPES[kind],
        flags,
        0,
        header,
        encode_properties(outgoing),
        len(body),
        message.priority,
        message.expiration,
        make_sysid(identity, message.sequence, message.timestamp),
    )
    return head, body


def _header_text(text: str) -> str | None:
    """Return a text, or None if it is empty or might not fit into a variable header."""
    return text if 0 < len(text) <= MAX_HEADER_STRING // 4 else None


def transcoded_body(message: Message) -> tuple[BodyKind, bytes]:
    """Return kind and body of a message of another protocol for JMS clients.

    Java serialization streams keep their kind; a map, stream or object that is none is bytes.
    """
    if message.kind in _SERIALIZED:
        if message.body.startswith(STREAM_HEADER):
            return message.kind, message.body
        return BodyKind.BYTES, message.body
    kind, body = plain_body(message)
    return kind, (text_of_json(body) if kind is BodyKind.JSON else body)


def transcoded_properties(properties: Mapping[str, Property]) -> dict[str, Property]:
    """Return the properties of a message of another protocol for JMS clients."""
    transcoded: dict[str, Property] = {}
    for name, value in properties.items():
        if value is None or name in COMPRESSION:
            continue
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        elif isinstance(value, int) and not -_LONG_LIMIT <= value < _LONG_LIMIT:
            value = hex(value)
        key = to_identifier(name)
        if key and _is_encodable(key) and (not isinstance(value, str) or _is_encodable(value)):
            transcoded[key] = value
    return transcoded


def _is_encodable(text: str) -> bool:
    """Return whether a property fits into a property block.

    A character has up to six bytes there.
    """
    return len(text) <= MAX_STRING // 6 or len(encode_utf(text)) <= MAX_STRING


def _dead_letter_properties(properties: Mapping[str, Property]) -> dict[str, Property]:
    """Return Open MQ's properties of a dead letter, each with the type that Open MQ gives it."""
    values = dmq_properties(properties)
    timestamp = values[DMQ_TIMESTAMP]
    if isinstance(timestamp, int):
        values[DMQ_TIMESTAMP] = Long(timestamp)
    return values


def _encode_dead_letter(message: Message) -> bytes:
    """Return the head of a dead letter of a JMQ message: that of its sender, with the properties of
    a dead letter and with flag Q.

    In the dead message queue the expiration stays, without effect. In other queues clients would
    reject an expired message, so there it is removed.
    """
    sender_properties = decode_properties(_property_block(message.native))
    properties = message.properties or {}
    # NaN is unchanged, although it differs from itself
    new_properties = {
        name: value
        for name, value in properties.items()
        if value != sender_properties.get(name) and value == value
    }
    native = with_properties(
        message, {**_dead_letter_properties(properties), **transcoded_properties(new_properties)}
    )
    flags = bytes((native[_FLAGS_AT], native[_FLAGS_AT + 1] | Q))
    if message.destination != DEAD_MESSAGES:
        native = native[:12] + bytes(8) + native[20:]  # no expiration
    return b"".join((native[:_FLAGS_AT], flags, native[_FLAGS_AT + 2 :]))


def with_properties(message: Message, added: Mapping[str, Property]) -> bytes:
    """Return the head of a JMQ message with additional properties, which replace those of the same
    names. Raises ProtocolError for an invalid value."""
    native = message.native
    offset = _sizes.unpack_from(native, 52)[0]
    block = extend_block(_property_block(native), added)
    return b"".join(
        (
            native[:8],
            I32.pack(offset + len(block) + len(message.body)),
            native[12:52],
            _sizes.pack(offset, len(block)),
            native[60:offset],
            block,
        )
    )


def readdress(copy: Message, sysid: bytes = b"") -> None:
    """Adapt the packet of a copy of a JMQ message to its destination, expiration and body, and
    give it the id `sysid` if it is not empty. Raises ProtocolError if the name is too long."""
    native = copy.native
    *_, type, _, _, sender_sysid, offset, _, priority, flags, consumer_id = FIXED.unpack_from(
        native
    )
    variable = decode_header(native[FIXED_SIZE:offset])
    address = copy.destination
    header = encode_header(
        format_name(address.name),
        variable.correlation_id,
        variable.reply_to,
        variable.type,
        class_of(address),
        class_of(copy.reply_to) if copy.reply_to else None,
        producer_id=variable.producer_id,
        delivery_time=variable.delivery_time,
        delivery_count=0,
        message_id=None if sysid else variable.message_id,
    )
    flags = flags & ~(Q | W) | (Q if address.kind is Kind.QUEUE else 0)
    copy.native = encode_head(
        type,
        flags,
        consumer_id,
        header,
        _property_block(native),
        len(copy.body),
        priority,
        copy.expiration,
        sysid or sender_sysid,
    )
    if sysid:
        copy.message_id = sysid_text(sysid)


def _property_block(native: bytes) -> bytes:
    """Return the property block of a head."""
    offset, size = _sizes.unpack_from(native, 52)
    return native[offset : offset + size]


# --- dead letters --------------------------------------------------------------------------------

PRESERVE: Final = "JMS_SUN_PRESERVE_UNDELIVERED"
TRUNCATE: Final = "JMS_SUN_TRUNCATE_MSG_BODY"
TRUNCATED: Final = f"{DMQ_PREFIX}BODY_TRUNCATED"

_EMPTY_BODIES: Final = {
    BodyKind.MAP: dumps_map({}),
    BodyKind.STREAM: dumps_stream([]),
    BodyKind.OBJECT: dumps(None),
}
"""Empty bodies of the kinds of which clients reject a missing one."""


class JmqDeadLetterPolicy:
    """Dead letters of JMS messages (`sluicemq.broker.DeadLetterPolicy`)."""

    __slots__ = ()

    def keep(self, message: Message) -> bool | None:
        """Return the decision of the message's properties, None if there is none."""
        value = (message.properties or {}).get(PRESERVE)
        return value if isinstance(value, bool) else None

    def dead_letter(
        self, message: Message, origin: str, reason: str, attempts: int, wall: int
    ) -> Message:
        """Return the broker's dead letter, without its body if a property requests that."""
        dead_letter = dead_letter_of(message, origin, reason, attempts, wall)
        if dead_letter.properties is None or dead_letter.properties.get(TRUNCATE) is not True:
            return dead_letter
        dead_letter.body = _EMPTY_BODIES.get(dead_letter.kind, b"")
        dead_letter.properties[TRUNCATED] = True
        native = dead_letter.native
        if native:
            flags = int.from_bytes(native[_FLAGS_AT : _FLAGS_AT + 2], "big") & ~Z
            dead_letter.native = b"".join(
                (native[:_FLAGS_AT], flags.to_bytes(2, "big"), native[_FLAGS_AT + 2 :])
            )
        return dead_letter

    def adapt_copy(self, copy: Message) -> None:
        """Adapt the packet to the destination, the expiration and a truncated body."""
        if copy.native:
            with suppress(ProtocolError):  # the name of the destination is too long for a packet
                readdress(copy)
