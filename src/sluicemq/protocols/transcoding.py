"""Conversion of messages between protocols: the parts that several protocols share.
docs/crossing.md has the whole table.

The body of a MAP, STREAM or OBJECT message is a Java serialization stream, and any body published
over JMQ may be compressed (`Message.native` says so, JMQ document section 9.5). This module
converts such bodies to formats that clients of other protocols can read:

    MAP      a JSON object       }  if it can be parsed; otherwise, like OBJECT, the Java stream,
    STREAM   a JSON array        }  in base64 wherever text is expected
    TEXT     UTF-8; bytes if it is not valid UTF-8
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Final

import msgspec

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import (
    COMPRESS,
    COMPRESSED_SIZE,
    UNCOMPRESSED_SIZE,
    BodyKind,
    Message,
    Origin,
)
from sluicemq.protocols.java import MAX_SIZE, inflate, json_of_map, json_of_stream

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_TEXT: Final = BodyKind.TEXT
_JSON: Final = BodyKind.JSON
_BYTES: Final = BodyKind.BYTES
_MAP: Final = BodyKind.MAP
_STREAM: Final = BodyKind.STREAM
_OBJECT: Final = BodyKind.OBJECT

COMPRESSION: Final = frozenset({COMPRESS, COMPRESSED_SIZE, UNCOMPRESSED_SIZE})
"""Properties that describe a body's form on a JMQ connection. Other protocols omit them."""

_ORIGINS_WITHOUT_TEXT: Final = frozenset({Origin.INTERNAL, Origin.PHPMQ, Origin.MSGLITE})
"""Origins whose BYTES bodies may be text, because their protocols do not distinguish."""

_PARSING_WORK: Final = 32
"""Work of parsing a byte of a Java stream, relative to that of decompressing a byte."""

_JSON_STRING: Final = re.compile(rb'[ \t\r\n]*"')

_FLAGS_AT: Final = 62
_COMPRESSED: Final = 0x04
"""Flag in the first byte of the flags of a JMQ packet."""


# --- bodies --------------------------------------------------------------------------------------


def plain_body(message: Message, limit: int = MAX_SIZE) -> tuple[BodyKind, bytes]:
    """Return the body for a protocol that distinguishes text from bytes.

    The kind is NONE, TEXT or JSON (UTF-8), BYTES, or OBJECT (bytes that only Java can read). BYTES
    bodies that were published over PHPMQ or msglite are TEXT if they are valid UTF-8. A compressed
    body that has more than `limit` bytes is OBJECT, and stays compressed.
    """
    kind, body = _read(message, limit)
    if kind is _TEXT or kind is _JSON:
        return (kind if _is_text(body) else _BYTES), body
    if kind is _BYTES and message.origin in _ORIGINS_WITHOUT_TEXT and _is_text(body):
        return _TEXT, body
    return kind, body


def content(message: Message) -> bytes:
    """Return the body for a protocol that does not distinguish text from bytes."""
    kind, body = _read(message)
    if kind is _JSON:
        return text_of_json(body)
    return b64encode(body) if kind is _OBJECT else body


def conversion_work(message: Message) -> int:
    """Return the work of converting a body, as the size of a compressed text with the same work; 0
    if it stays unchanged.

    Ten kilobytes of a Java stream take about ten milliseconds.
    """
    kind = message.kind
    size = expanded_size(message)
    work = _PARSING_WORK * size if kind is _MAP or kind is _STREAM else size
    return work if work > len(message.body) else 0


def conversion_memory(message: Message) -> int:
    """Return the bytes of memory that the conversion of a body needs.

    For a map or stream these are the Java stream, the text in it with two bytes for each character,
    and the JSON in a buffer that grows. Rare texts need up to three times as much: one character
    beyond U+FFFF makes each take four bytes, and a control character has six in JSON. Values that
    are referenced repeatedly add to that (`java.MAX_SIZE`). A small value takes up to 170 bytes.
    """
    kind = message.kind
    return (5 if kind is _MAP or kind is _STREAM else 2) * expanded_size(message)


def text_of_json(body: bytes) -> bytes:
    """Return JSON as text for a protocol that has no JSON.

    A JSON string becomes its text. Other values, and strings that UTF-8 cannot encode (half a
    surrogate pair), stay JSON.
    """
    if _JSON_STRING.match(body):
        try:
            return msgspec.json.decode(body, type=str).encode()
        except (msgspec.DecodeError, UnicodeError):
            pass
    return body


def _read(message: Message, limit: int = MAX_SIZE) -> tuple[BodyKind, bytes]:
    kind = message.kind
    body = message.body
    try:
        body = expanded(message, limit)
        if kind is _MAP:
            return _JSON, json_of_map(body)
        if kind is _STREAM:
            return _JSON, json_of_stream(body)
    except ProtocolError:
        return _OBJECT, body
    return kind, body


def _is_text(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- compressed bodies ---------------------------------------------------------------------------


def expanded_size(message: Message) -> int:
    """Return the maximum number of bytes that `expanded` returns, without decompressing."""
    if not _is_compressed(message):
        return len(message.body)
    size = _stated_size(message)
    return MAX_SIZE if size is None else min(max(0, size), MAX_SIZE)


def expanded(message: Message, limit: int = MAX_SIZE) -> bytes:
    """Return a message's body, decompressed to at most `limit` bytes if its JMQ client compressed
    it.

    Raises ProtocolError as `inflate`.
    """
    if not _is_compressed(message):
        return message.body
    return inflate(message.body, _stated_size(message), limit)


def _is_compressed(message: Message) -> bool:
    native = message.native
    return message.origin is Origin.JMQ and bool(native) and bool(native[_FLAGS_AT] & _COMPRESSED)


def _stated_size(message: Message) -> int | None:
    """Return the size of the decompressed body according to its publisher, None if unknown."""
    size = (message.properties or {}).get(UNCOMPRESSED_SIZE)
    return size if isinstance(size, int) else None


# --- requests and responses ----------------------------------------------------------------------


def answer_correlation(request: Message) -> str:
    """Return the correlation id for a response to `request`, or "".

    It is the request's correlation id; for JMQ requests without one it is the request's message id
    (JMS 1.1 section 3.4.5).
    """
    if request.correlation_id or request.origin is not Origin.JMQ:
        return request.correlation_id
    return request.message_id
