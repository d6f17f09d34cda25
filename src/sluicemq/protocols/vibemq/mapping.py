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

Payloads are validated (`check_payload`): the .NET client parses every payload while it reads the
frame, and closes its connection on one that System.Text.Json rejects. A broker that accepted such a
message would break the connection of each subscriber, again and again. So the check is as strict as
System.Text.Json is by default: strict UTF-8 without a byte order mark, one value, no comments, no
trailing commas, no NaN, no depth beyond 64. It is no stricter: numbers may have any length and
size, keys may be repeated, and escaped lone surrogates (`\\ud800`), which .NET rejects only when
the string is used, are accepted. Payloads are never parsed and encoded again, because that would
change them.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import msgspec

from sluicemq.model.dead_letters import KIND, ORIGIN, REASON, SUBSCRIPTION, TIME
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
from sluicemq.protocols.vibemq.wire import (
    ATTEMPTS_HEADER,
    MAX_BODY,
    MAX_STRING,
    Frame,
    body_size,
    decode_headers,
    encode_deliver,
    encode_headers,
)

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_JSON: Final = BodyKind.JSON
_NONE: Final = BodyKind.NONE
_BYTES: Final = BodyKind.BYTES
_TEXT: Final = BodyKind.TEXT
_VIBEMQ: Final = Origin.VIBEMQ

PRIORITY: Final = "priority"
CORRELATION_ID: Final = "correlationId"
REPLY_TO: Final = "replyTo"
TYPE: Final = "JMSType"
CONTENT_ENCODING: Final = "content-encoding"
BASE64: Final = "base64"

DEAD_LETTER_HEADERS: Final = (REASON, ORIGIN, ATTEMPTS_HEADER, TIME, KIND, SUBSCRIPTION)
"""Properties that describe a dead letter; REASON marks a message as one for the broker."""

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

_BROKER_HEADERS: Final = COMPRESSION | {PRIORITY, CORRELATION_ID, REPLY_TO, TYPE, CONTENT_ENCODING}
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
_DIGITS_AND_MARKS: Final = re.compile(r"[\d_.-]+")

MAX_DEPTH: Final = 64
"""Maximum nesting of arrays and objects."""

_parse: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks the syntax without creating objects. It does not validate UTF-8."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {0x5B: 1, 0x5D: -1}
_QUICK_LEVELS: Final = 8

CHUNK: Final = 256 * 1024
"""Bytes of a payload that are checked or decoded at a time, a multiple of 4. The check blocks other
threads for some ms."""
_CLOSERS: Final = {0x5B: b"]", 0x7B: b"}"}
_MAX_WITHOUT_COMMA: Final = 5 * MAX_DEPTH
"""Quotes, or brackets, that JSON may have between two commas: each level has one key at most."""


# --- client to broker --------------------------------------------------------------------------


def is_queue_name(name: str) -> bool:
    """Return whether a name has 1 to 256 letters and digits of any script, `-`, `_` and `.`.

    This is the original broker's rule; it counts UTF-16 units, so it accepts letters of the first
    65,536 characters only.
    """
    if _PLAIN_NAME.match(name):
        return True
    if not 0 < len(name) <= MAX_QUEUE_NAME or utf16_units(name) > len(name):
        return False
    letters = _DIGITS_AND_MARKS.sub("", name)
    return not letters or letters.isalpha()


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ProtocolError if a PUBLISH has more than 50 headers, or a value of more than 4,096
    UTF-16 units."""
    if len(headers) > MAX_HEADERS:
        raise ProtocolError(f"Too many headers ({len(headers)}). Maximum: {MAX_HEADERS}.")
    for key, value in headers.items():
        if len(value) > MAX_HEADER_VALUE // 2 and utf16_units(value) > MAX_HEADER_VALUE:
            raise ProtocolError(
                f"Header value for '{key}' exceeds maximum length ({MAX_HEADER_VALUE})."
            )


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units, as .NET counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def read_priority(text: str) -> int:
    """Return the priority of a name in any letter case or a number 0-3, otherwise Normal."""
    return _READ_PRIORITIES.get(text.strip().lower(), DEFAULT_PRIORITY)


def to_message(address: Address, frame: Frame, durability: Durability, now: int) -> Message:
    """Return the message of a PUBLISH. `now` is wall ms.

    The payload (`check_payload`) and the headers (`check_headers`) are not checked.
    """
    return make_message(address, frame, decoded_body(frame), durability, now)


def make_message(
    address: Address, frame: Frame, decoded: bytes | None, durability: Durability, now: int
) -> Message:
    """Return the message of a PUBLISH as `to_message` does; `decoded` is its `decoded_body`."""
    payload = frame.payload
    message = Message(
        address,
        payload if decoded is None else decoded,
        (_JSON if payload else _NONE) if decoded is None else _BYTES,
        _VIBEMQ,
        durability,
        now,
        message_id=frame.id,
    )
    headers = frame.headers
    if headers:
        _apply_headers(message, headers)
        message.native = (
            encode_headers(
                {name: text for name, text in headers.items() if name != ATTEMPTS_HEADER}
            )
            if ATTEMPTS_HEADER in headers
            else frame.raw_headers or encode_headers(headers)
        )
    return message


def _apply_headers(message: Message, headers: Mapping[str, str]) -> None:
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
        elif key != REASON and (key != CONTENT_ENCODING or value != BASE64):
            properties[key] = value
    message.properties = properties or None


def read_address(text: str) -> Address:
    """Return the address that a replyTo header names."""
    if text.startswith(TOPIC) and len(text) > len(TOPIC):
        return Address(Kind.TOPIC, text[len(TOPIC) :])
    return Address(Kind.QUEUE, text)


def decoded_body(frame: Frame) -> bytes | None:
    """Return the bytes of a PUBLISH whose header marks its payload as base64.

    None if it does not, or unless `_encode_base64` restores the payload. Takes time in proportion
    to the payload's size; other threads run between its chunks.
    """
    if frame.headers.get(CONTENT_ENCODING) != BASE64:
        return None
    payload = frame.payload
    end = len(payload) - 1
    if end < 1 or payload[0] != 0x22 or payload[end] != 0x22:
        return None
    parts: list[bytes] = []
    for start in range(1, end, CHUNK):
        stop = min(start + CHUNK, end)
        text = payload[start:stop]
        try:
            part = b64decode(text, validate=True)
        except NotBase64:
            return None
        if b64encode(part) != text or (stop < end and text.endswith(b"=")):
            return None
        parts.append(part)
    return b"".join(parts)


def _encode_base64(body: bytes) -> bytes:
    return b'"%b"' % b64encode(body)


def with_headers(message: Message, additions: Mapping[str, str]) -> bytes:
    """Return the headers of a VibeMQ message in wire form, with `additions` replacing others.

    Raises ProtocolError as `encode_headers`.
    """
    return encode_headers({**decode_headers(message.native), **additions})


# --- broker to client --------------------------------------------------------------------------


def wire_id(message: Message, identity: bytes) -> str:
    """Return the id of a DELIVER. `identity` is `Broker.identity`, 8 bytes."""
    message_id = message.message_id
    if message_id and (message.origin is _VIBEMQ or is_encodable(message_id)):
        return message_id
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
    dead = properties is not None and REASON in properties
    if message.origin is not _VIBEMQ:
        payload, encoded = wire_payload(message, detect_json)
        headers = encode_headers(wire_headers(message, encoded))
    else:
        payload = message.body if message.kind is not _BYTES else _encode_base64(message.body)
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
    if kind is _NONE:
        return b"", False
    if kind is _JSON or (
        detect_json
        and kind is _TEXT
        and message.origin in _ORIGINS_WITHOUT_JSON
        and _OBJECT_OR_ARRAY.match(body)
    ):
        try:
            check_payload(body)
        except ProtocolError:
            pass
        else:
            return body, False
    if kind is _TEXT or kind is _JSON:
        return msgspec.json.encode(body.decode()), False
    return _encode_base64(body), True


def wire_headers(message: Message, encoded: bool) -> dict[str, str]:
    """Return the headers for a VibeMQ client. Includes deliveryAttempts for dead letters.

    `encoded`: the payload needs `content-encoding: base64`.
    """
    headers: dict[str, str] = {}
    if encoded:
        headers[CONTENT_ENCODING] = BASE64
    if message.priority != DEFAULT_PRIORITY:
        headers[PRIORITY] = _PRIORITY_NAMES[message.priority]
    if is_encodable(message.correlation_id):
        headers[CORRELATION_ID] = message.correlation_id
    reply_to = message.reply_to
    if (
        reply_to is not None
        and reply_to.name
        and is_encodable(str(reply_to))
        and (reply_to.kind is Kind.TOPIC or not reply_to.name.startswith(TOPIC))
    ):
        headers[REPLY_TO] = str(reply_to)
    if is_encodable(message.type):
        headers[TYPE] = message.type
    properties = message.properties
    if properties:
        dead = REASON in properties
        from_jms = message.origin is Origin.JMQ
        for key, value in properties.items():
            name = from_identifier(key) if from_jms else key
            if name in _BROKER_HEADERS or (name == ATTEMPTS_HEADER and not dead):
                continue
            text = _property_text(value)
            if is_encodable(name) and is_encodable(text):
                headers[name] = text
        reason = headers.get(REASON)
        if reason is not None:
            headers[REASON] = _REASONS.get(reason, reason)
    return headers


def _dead_letter_headers(message: Message) -> bytes:
    """Return the headers of a VibeMQ dead letter: the publisher's, then those of
    `DEAD_LETTER_HEADERS`."""
    properties = message.properties or {}
    broker_headers: dict[str, str] = {}
    for name in DEAD_LETTER_HEADERS:
        text = _property_text(properties.get(name))
        if name == REASON:
            text = _REASONS.get(text, text)
        # the name of a JMS client's subscription may be too long
        if len(text.encode("utf-8", "surrogatepass")) <= MAX_STRING:
            broker_headers[name] = text
    headers = decode_headers(message.native)
    publisher_headers = {
        name: text for name, text in headers.items() if name not in DEAD_LETTER_HEADERS
    }
    return encode_headers(publisher_headers | broker_headers)


def _property_text(value: Property) -> str:
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


def is_encodable(text: str, limit: int = MAX_STRING) -> bool:
    """Return whether a text has 1 to `limit` bytes in UTF-8, so that it can be in a frame."""
    try:
        return 0 < len(text.encode()) <= limit
    except UnicodeEncodeError:
        return False


# --- validation of payloads ---------------------------------------------------------------------


def check_payload(payload: bytes) -> None:
    """Raise ProtocolError if System.Text.Json could not read the payload, also if it is empty.

    Takes time in proportion to the payload's size, however it is nested.
    """
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH:
        _check_depth(_brackets(payload))
    _check_syntax(payload)


def _check_syntax(payload: bytes) -> None:
    """Check a payload as `check_payload` does, without the depth."""
    try:
        if not payload.isascii():
            payload.decode()
        try:
            _parse(payload)
        except msgspec.DecodeError:
            # replace each half of a surrogate pair by a valid escape and check the text again
            _parse(_SURROGATE.sub(rb"\\u0041", payload))
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the payload is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the payload is not UTF-8: byte {error.start}") from None


def _brackets(text: bytes) -> bytes:
    """Return the brackets outside strings of a text that begins outside strings."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(text.split(b'"')[::2]).translate(None, _NO_BRACKETS)


def _check_depth(brackets: bytes) -> None:
    """Raise ProtocolError if brackets are nested deeper than MAX_DEPTH.

    Brackets that do not match may raise it at a lower depth, too.
    """
    remaining = brackets.translate(_SQUARE)
    levels = 0
    while remaining and levels < _QUICK_LEVELS:
        remaining = remaining.replace(b"[]", b"")
        levels += 1
    if levels + max(accumulate(map(_STEPS.__getitem__, remaining)), default=0) > MAX_DEPTH:
        raise ProtocolError(f"the payload is nested deeper than {MAX_DEPTH}")


def check_payload_in_chunks(payload: bytes, size: int = CHUNK) -> None:
    """Check a large payload as `check_payload` does, in another thread.

    Other threads run between the chunks, and the memory needed is small for any payload. The
    payload is cut in front of commas between values. Each chunk is completed: it is prefixed with
    the brackets open there and a value in the innermost one, and the brackets open at its end are
    closed.

    size  bytes of a chunk, if there is such a comma
    """
    start = position = 0
    in_string = False
    """True if `position` is within a string."""
    open_brackets = b""
    while position + size < len(payload):
        data = _without_escapes(payload, position, size)
        comma = _last_comma(data, in_string)
        if comma < 0 or position + comma == start:
            parts = data.split(b'"')
            brackets = b"".join(parts[in_string::2]).translate(None, _NO_BRACKETS)
            if max(len(parts), len(brackets)) > _MAX_WITHOUT_COMMA:
                raise ProtocolError("the payload is not JSON: values without commas")
            in_string ^= len(parts) % 2 == 0
            position += len(data)
            continue
        cut = position + comma
        open_brackets = _check_chunk(payload, start, cut, open_brackets)
        start = position = cut
        in_string = False
    _check_chunk(payload, start, len(payload), open_brackets)


def _without_escapes(payload: bytes, position: int, size: int) -> bytes:
    """Return `size` bytes from a position on, with escaped quotes and backslashes replaced.

    The text does not end within an escape.
    """
    text = payload[position : position + size].replace(b"\\\\", b"__")
    if text.endswith(b"\\"):
        text = text[:-1] + b"__"  # with the escaped character
    return text.replace(b'\\"', b"__")


def _last_comma(text: bytes, in_string: bool) -> int:
    """Return the index of the last comma outside strings, -1 if there is none."""
    parts = text.split(b'"')
    end = len(text)
    for index in range(len(parts) - 1, -1, -1):
        end -= len(parts[index])
        if index % 2 == in_string and (comma := parts[index].rfind(b",")) >= 0:
            return end + comma
        end -= 1
    return -1


def _check_chunk(payload: bytes, start: int, end: int, open_brackets: bytes) -> bytes:
    """Check `payload[start:end]`, which begins outside strings, within `open_brackets`.

    Return the brackets that are open after it.
    """
    chunk = payload[start:end]
    lead = tail = b""
    if open_brackets:
        lead = b"".join(b"[" if bracket == 0x5B else b'{"":' for bracket in open_brackets[:-1])
        lead += b"[0" if open_brackets[-1] == 0x5B else b'{"":0'
    brackets = open_brackets + _brackets(chunk)
    remaining = brackets
    for _ in range(MAX_DEPTH + 1):
        length = len(remaining)
        remaining = remaining.replace(b"[]", b"").replace(b"{}", b"")
        if len(remaining) == length:
            break
    if end < len(payload):
        if chunk.rstrip(b" \t\r\n").endswith((b"[", b"{")):
            raise ProtocolError("the payload is not JSON: a comma without a value before it")
        # brackets that do not match are left to the check of the syntax
        tail = b"".join(_CLOSERS.get(bracket, b"") for bracket in reversed(remaining))
    try:
        _check_depth(brackets + tail)
        _check_syntax(lead + chunk + tail)
    except ProtocolError as error:
        if start:
            raise ProtocolError(f"{error}, counted from byte {start - len(lead)}") from None
        raise
    return remaining
