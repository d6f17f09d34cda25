"""The message fields that are rarely set, as one msgpack array.

    [message id, correlation id, reply-to or nil, type, properties or nil, native, routes,
     deliver-at, timestamp or nil]

reply-to is [kind, name]. The timestamp is the client's, in ms; nil if the protocol has none: that
of the message is its arrival time then, which is the time of the record. A message with none of
them has no meta at all. Text that is not UTF-8 (surrogate escapes, see model/destination.py) is an
extension of type 1 with the bytes in "surrogatepass" spelling, an integer beyond 64 bits one of
type 2 with its decimal digits; where either occurs, properties are an array of [name, value]
instead of a map.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.msgpack import Ext

from sluicemq.journal.format import Record
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin

RAW_TEXT: Final = 1
BIG_INTEGER: Final = 2

_BODY_KINDS: Final = {int(kind): kind for kind in BodyKind}
_ORIGINS: Final = {int(origin): origin for origin in Origin}
_DURABILITIES: Final = {int(durability): durability for durability in Durability}


def has_meta(message: Message) -> bool:
    """Return whether a field is set that the record's header cannot store."""
    return bool(
        message.message_id
        or message.properties
        or message.native
        or message.reply_to
        or message.correlation_id
        or message.type
        or message.routes
        or message.deliver_at
        or message.timestamp != message.arrival
    )


def has_client_timestamp(message: Message) -> bool:
    """Return whether the timestamp is the client's own, and not the arrival time."""
    return message.timestamp != message.arrival or message.origin is Origin.JMQ


def encode_meta(message: Message) -> bytes:
    """Return the encoded fields, b"" if no such field is set."""
    if not has_meta(message):
        return b""
    fields = (
        message.message_id,
        message.correlation_id,
        message.reply_to,
        message.type,
        message.properties,
        message.native,
        message.routes,
        message.deliver_at,
        message.timestamp if has_client_timestamp(message) else None,
    )
    try:
        return _encoder.encode(fields)
    except (UnicodeEncodeError, OverflowError):
        return _encoder.encode(_escape(fields))


def decode_message(record: Record, destination: Address) -> Message:
    """Return the message of a MESSAGE or RELOCATED record. Raises JournalDamaged."""
    kind = _BODY_KINDS.get(record.kind)
    origin = _ORIGINS.get(record.origin)
    durability = _DURABILITIES.get(record.durability)
    if kind is None or origin is None or durability is None or record.priority > 9:
        raise JournalDamaged(f"record {record.sequence} has a header without meaning")
    message = Message(
        destination,
        record.body,
        kind,
        origin,
        durability,
        record.time // 1000,
        record.expiration,
        record.priority,
    )
    message.sequence = record.identity
    message.arrival = message.timestamp
    if record.meta:
        decode_meta(message, record.meta, record.sequence)
    return message


def decode_meta(message: Message, meta: bytes | memoryview, sequence: int) -> None:
    """Set the fields that `encode_meta` encoded.

    Raises JournalDamaged, with the record's sequence number in its text.
    """
    try:
        (
            message.message_id,
            message.correlation_id,
            reply_to,
            message.type,
            properties,
            message.native,
            routes,
            message.deliver_at,
            timestamp,
        ) = _decoder.decode(meta)
        message.properties = dict(properties) if properties is not None else None
        message.routes = tuple(routes)
        if timestamp is not None:
            message.timestamp = timestamp
        if reply_to is not None:
            message.reply_to = Address(Kind(reply_to[0]), reply_to[1])
    except (
        msgspec.MsgspecError,
        ValueError,
        TypeError,
        LookupError,
        RecursionError,
    ) as error:
        raise JournalDamaged(
            f"the meta data of record {sequence} cannot be read: {error}"
        ) from error


def escape_text(text: str) -> str | Ext:
    """Return the text, or an extension value if it cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return Ext(RAW_TEXT, text.encode("utf-8", "surrogatepass"))
    return text


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return escape_text(value)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return Ext(BIG_INTEGER, b"%d" % value)
    elif isinstance(value, tuple):
        return [_escape(item) for item in value]
    elif isinstance(value, dict):
        return [[_escape(name), _escape(item)] for name, item in value.items()]
    return value


def unescape(code: int, data: bytes | memoryview) -> str | int:
    """Return the value of an extension. Raises ValueError."""
    if code == RAW_TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    if code == BIG_INTEGER:
        return int(bytes(data))
    raise ValueError(f"extension {code} is unknown")


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ext_hook=unescape)
