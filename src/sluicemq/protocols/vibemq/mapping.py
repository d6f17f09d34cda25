"""Mapping of VibeMQ messages to broker messages and back.

| VibeMQ                     | message                                                            |
|----------------------------|--------------------------------------------------------------------|
| id of the PUBLISH          | message id; other protocols' messages without one show 32 hex      |
|                            | digits: 16 that identify the broker's data, 16 of the sequence     |
| payload, coming in         | body, untouched, kind JSON; none: kind NONE. A JSON string of      |
|                            | base64 with the header content-encoding: base64 is kind BYTES      |
| payload, going out         | see `wire_payload`                                                 |
| header priority            | Low 1, Normal 4, High 6, Critical 9; back: 0-3 Low, 4 Normal,      |
|                            | 5-7 High, 8-9 Critical. Going out only if it is not Normal         |
| header correlationId       | correlation id                                                     |
| header replyTo             | reply-to: a queue, or with `topic:` before the name a topic        |
| header JMSType             | type                                                               |
| header deliveryAttempts    | number of this delivery; of a dead letter, of those before         |
| header deadLetterReason    | of a dead letter, in VibeMQ's terms. A client's own header is only |
|                            | passed on to VibeMQ: to the broker it would mark a dead letter     |
| other headers              | properties, in their order; text, numbers and booleans as in JSON. |
|                            | Names of JMS properties are decoded from their Java identifiers    |
|                            | (model/identifiers.py)                                             |

Headers of messages that were published over VibeMQ are delivered over VibeMQ byte for byte
(`Message.native`, their wire form), with deliveryAttempts appended. Properties that VibeMQ cannot
represent are omitted: empty and null ones, names of the headers above, those about a compression
that is undone (protocols/transcoding.py), and texts longer than 65,535 bytes.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Final

import msgspec

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.identifiers import from_identifier
from sluicemq.model.message import (
    DEFAULT_PRIORITY,
    BodyKind,
    Durability,
    Message,
    Origin,
    Property,
)
from sluicemq.protocols.transcoding import COMPRESSION, plain_body
from sluicemq.protocols.vibemq import error_texts
from sluicemq.protocols.vibemq.decoder import decode_headers
from sluicemq.protocols.vibemq.payload import check
from sluicemq.protocols.vibemq.wire import (
    ATTEMPTS_HEADER,
    MAX_BODY,
    MAX_STRING,
    Frame,
    body_size,
    encode_deliver,
    encode_headers,
)

PRIORITY: Final = "priority"
CORRELATION_ID: Final = "correlationId"
REPLY_TO: Final = "replyTo"
TYPE: Final = "JMSType"
CONTENT_ENCODING: Final = "content-encoding"
BASE64: Final = "base64"

REASON: Final = "deadLetterReason"
"""Property that marks a dead letter for the broker (model/dead_letters.py)."""
DEAD_LETTER_HEADERS: Final = (REASON, "originalQueue", ATTEMPTS_HEADER, "failedAt")
"""Properties that describe a dead letter."""

_REASONS: Final = {
    "max-attempts": "MaxRetriesExceeded",
    "expired": "MessageExpired",
    "overflow": "QueueFull",
}

PRIORITIES: Final = ("Low", "Normal", "High", "Critical")
_SENT_PRIORITIES: Final = (1, DEFAULT_PRIORITY, 6, 9)
_READ_PRIORITIES: Final = {
    spelling: priority
    for number, (name, priority) in enumerate(zip(PRIORITIES, _SENT_PRIORITIES, strict=True))
    for spelling in (name.lower(), str(number))
}
_PRIORITY_NAMES: Final = ("Low",) * 4 + ("Normal",) + ("High",) * 3 + ("Critical",) * 2

_OURS: Final = COMPRESSION | {PRIORITY, CORRELATION_ID, REPLY_TO, TYPE, CONTENT_ENCODING}
"""Headers that are made from fields of the message or omitted, never made from properties."""
TOPIC: Final = "topic:"
"""Prefix of a topic's name where a queue of that name could be meant."""

MAX_QUEUE_NAME: Final = 256
"""Maximum length in UTF-16 units."""
MAX_HEADERS: Final = 50
MAX_HEADER_VALUE: Final = 4096
"""Maximum length in UTF-16 units."""

_ORIGINS_WITHOUT_JSON: Final = frozenset({Origin.PHPMQ, Origin.MSGLITE, Origin.JMQ})
"""Origins whose text may be JSON, because their protocols do not distinguish."""
_OBJECT_OR_ARRAY: Final = re.compile(rb"[ \t\r\n]*[{\[]")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


# --- client to broker --------------------------------------------------------------------------


def is_queue_name(name: str) -> bool:
    """Return whether a name has 1 to 256 letters and digits of any script, `-`, `_` and `.`.

    This is the original broker's rule; it counts UTF-16 units, so it accepts letters of the first
    65,536 characters only.
    """
    if _PLAIN_NAME.match(name):
        return True
    return 0 < len(name) <= MAX_QUEUE_NAME and all(map(_is_name_character, name))


def _is_name_character(character: str) -> bool:
    if character in "-_.":
        return True
    category = unicodedata.category(character)
    return ord(character) < 0x10000 and (category[0] == "L" or category == "Nd")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ProtocolError if a PUBLISH has more than 50 headers, or a value of more than 4,096
    UTF-16 units."""
    if len(headers) > MAX_HEADERS:
        raise ProtocolError(error_texts.too_many_headers(len(headers), MAX_HEADERS))
    for key, value in headers.items():
        if len(value) > MAX_HEADER_VALUE // 2 and utf16_units(value) > MAX_HEADER_VALUE:
            raise ProtocolError(error_texts.header_value_too_long(key, MAX_HEADER_VALUE))


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as .NET counts it."""
    return len(text) + sum(character > "\uffff" for character in text)


def read_priority(text: str) -> int:
    """Return the priority of a name in any letter case or a number 0-3, otherwise Normal."""
    return _READ_PRIORITIES.get(text.strip().lower(), DEFAULT_PRIORITY)


def to_message(address: Address, frame: Frame, durability: Durability, now: int) -> Message:
    """Return the message of a PUBLISH. `now` is wall ms.

    The payload (`payload.check`) and the headers (`check_headers`) are not checked.
    """
    body = frame.payload
    message = Message(
        address,
        body,
        BodyKind.JSON if body else BodyKind.NONE,
        Origin.VIBEMQ,
        durability,
        now,
        message_id=frame.id,
    )
    headers = frame.headers
    if headers:
        _take_headers(message, headers)
        message.native = (
            encode_headers({k: v for k, v in headers.items() if k != ATTEMPTS_HEADER})
            if ATTEMPTS_HEADER in headers
            else frame.raw_headers or encode_headers(headers)
        )
    return message


def _take_headers(message: Message, headers: Mapping[str, str]) -> None:
    properties: dict[str, Property] = {}
    for key, value in headers.items():
        if key == PRIORITY:
            message.priority = read_priority(value)
        elif key == CORRELATION_ID:
            message.correlation_id = value
        elif key == REPLY_TO:
            message.reply_to = read_address(value)
        elif key == TYPE:
            message.type = value
        elif key == CONTENT_ENCODING and value == BASE64:
            body = _decoded(message.body)
            if body is not None:
                message.body = body
                message.kind = BodyKind.BYTES
        elif key != REASON:
            properties[key] = value
    message.properties = properties or None


def read_address(text: str) -> Address:
    """Return the address that a replyTo header names."""
    if text.startswith(TOPIC) and len(text) > len(TOPIC):
        return Address(Kind.TOPIC, text[len(TOPIC) :])
    return Address(Kind.QUEUE, text)


def _decoded(payload: bytes) -> bytes | None:
    """Return the bytes of a JSON string of base64; None unless `_encoded` restores the payload."""
    if len(payload) < 2 or payload[0] != 0x22 or payload[-1] != 0x22:
        return None
    try:
        body = b64decode(payload[1:-1], validate=True)
    except NotBase64:
        return None
    return body if _encoded(body) == payload else None


def _encoded(body: bytes) -> bytes:
    return b'"%b"' % b64encode(body)


def with_headers(message: Message, added: Mapping[str, str]) -> bytes:
    """Return the headers of a VibeMQ message in wire form, with `added` ones replacing others.

    Raises ProtocolError as `encode_headers`.
    """
    return encode_headers({**decode_headers(message.native), **added})


# --- broker to client --------------------------------------------------------------------------


def wire_id(message: Message, identity: bytes) -> str:
    """Return the id of a DELIVER. `identity` is `Broker.identity`, 8 bytes."""
    given = message.message_id
    if given and (message.origin is Origin.VIBEMQ or _is_encodable(given)):
        return given
    return f"{identity.hex()}{message.sequence:016x}"


def to_deliver(
    message: Message,
    identity: bytes,
    queue: bytes,
    attempts: int,
    limit: int = MAX_BODY,
    detect_json: bool = True,
) -> bytes:
    """Return the DELIVER frame of a message. May be called in any thread.

    identity     the id's bytes (`wire_id`)
    attempts     number of this delivery, from 1
    limit        as of `wire.encode_deliver`: a message from another protocol may exceed it
    detect_json  see `wire_payload`
    """
    properties = message.properties
    dead = bool(properties) and REASON in (properties or {})
    if message.origin is not Origin.VIBEMQ:
        payload, encoded = wire_payload(message, detect_json)
        headers = encode_headers(_wire_headers(message, encoded))
    else:
        payload = message.body if message.kind is not BodyKind.BYTES else _encoded(message.body)
        headers = message.native
        if dead:
            dead_letter_headers = _dead_letter_headers(message)
            if body_size(identity, queue, payload, dead_letter_headers) <= limit:
                headers = dead_letter_headers
    return encode_deliver(identity, queue, payload, headers, 0 if dead else attempts, limit)


def wire_payload(message: Message, detect_json: bool = True) -> tuple[bytes, bool]:
    """Return the payload for a VibeMQ client, and whether it needs `content-encoding: base64`.

    Takes time in proportion to the body's size. JSON stays JSON, text becomes a JSON string, bytes
    become base64. PHPMQ, msglite and JMS do not distinguish JSON from text: their texts that are
    JSON objects or arrays are delivered as JSON if `detect_json`. A JSON body that is not valid
    JSON is delivered as text or in base64.
    """
    kind, body = plain_body(message)
    if kind is BodyKind.NONE:
        return b"", False
    if kind is BodyKind.JSON or (
        detect_json
        and kind is BodyKind.TEXT
        and message.origin in _ORIGINS_WITHOUT_JSON
        and _OBJECT_OR_ARRAY.match(body)
    ):
        try:
            check(body)
        except ProtocolError:
            pass
        else:
            return body, False
    if kind is BodyKind.TEXT or kind is BodyKind.JSON:
        return msgspec.json.encode(body.decode()), False
    return _encoded(body), True


def wire_headers(message: Message) -> dict[str, str]:
    """Return the headers for a VibeMQ client. Includes deliveryAttempts for dead letters."""
    return _wire_headers(message, wire_payload(message)[1])


def _wire_headers(message: Message, encoded: bool) -> dict[str, str]:
    headers: dict[str, str] = {}
    if encoded:
        headers[CONTENT_ENCODING] = BASE64
    if message.priority != DEFAULT_PRIORITY:
        headers[PRIORITY] = _PRIORITY_NAMES[message.priority]
    if _is_encodable(message.correlation_id):
        headers[CORRELATION_ID] = message.correlation_id
    reply_to = message.reply_to
    if (
        reply_to is not None
        and _is_encodable(reply_to.name)
        and (reply_to.kind is Kind.TOPIC or not reply_to.name.startswith(TOPIC))
    ):
        headers[REPLY_TO] = str(reply_to)
    if _is_encodable(message.type):
        headers[TYPE] = message.type
    properties = message.properties
    if properties:
        dead = REASON in properties
        from_jms = message.origin is Origin.JMQ
        for key, value in properties.items():
            name = from_identifier(key) if from_jms else key
            if name in _OURS or (name == ATTEMPTS_HEADER and not dead):
                continue
            text = _spelled(value)
            if _is_encodable(name) and _is_encodable(text):
                headers[name] = text
        reason = headers.get(REASON)
        if reason is not None:
            headers[REASON] = _REASONS.get(reason, reason)
    return headers


def _dead_letter_headers(message: Message) -> bytes:
    """Return the headers of a VibeMQ dead letter: the publisher's, then those of
    `DEAD_LETTER_HEADERS`."""
    properties = message.properties or {}
    headers = decode_headers(message.native)
    for name in DEAD_LETTER_HEADERS:
        headers.pop(name, None)
    for name in DEAD_LETTER_HEADERS:
        if name in properties:
            text = _spelled(properties[name])
            headers[name] = _REASONS.get(text, text) if name == REASON else text
    return encode_headers(headers)


def _spelled(value: Property) -> str:
    """Return a property as text, numbers and booleans as in JSON; "" for None."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and value - value != 0:  # not representable in JSON
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return str(value)


def _is_encodable(text: str) -> bool:
    """Return whether a text can be a string in a frame."""
    try:
        return 0 < len(text.encode()) <= MAX_STRING
    except UnicodeEncodeError:
        return False
