"""What becomes of a message that leaves by another protocol than it came by, as far as the rooms
have to agree on it; docs/crossing.md has the whole table.

The body of a MAP, STREAM or OBJECT message is a Java serialisation stream, and any body that came
by JMQ may be compressed (`Message.native` says so, JMQ document section 9.5). Here such bodies
become what others can read:

    MAP      a JSON object       }  if it can be read; else, like OBJECT, a stream that only Java
    STREAM   a JSON array        }  can read, in base64 wherever text is expected
    TEXT     UTF-8; bytes if it is not
"""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Final

import msgspec

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.java import expanded, json_of_map, json_of_stream

COMPRESSION: Final = frozenset(
    {"JMS_SUN_COMPRESS", "JMS_SUN_UNCOMPRESSED_SIZE", "JMS_SUN_COMPRESSED_SIZE"}
)
"""Properties that speak of a body's form on a JMQ connection, which no other protocol shows."""

_TELL_NO_TEXT: Final = frozenset({Origin.INTERNAL, Origin.PHPMQ, Origin.MSGLITE})
"""Origins whose bytes may well be text: their protocols do not distinguish."""

_JSON_STRING: Final = re.compile(rb'[ \t\r\n]*"')


# --- bodies --------------------------------------------------------------------------------------


def plain_body(message: Message) -> tuple[BodyKind, bytes]:
    """The body for a protocol that tells text from bytes: NONE, TEXT and JSON, which are UTF-8,
    BYTES, or OBJECT, which are bytes that only Java can read.

    PHPMQ and msglite do not tell: what is UTF-8 of theirs is TEXT.
    """
    kind, body = _read(message)
    if kind is BodyKind.TEXT or kind is BodyKind.JSON:
        return (kind if _is_text(body) else BodyKind.BYTES), body
    if kind is BodyKind.BYTES and message.origin in _TELL_NO_TEXT and _is_text(body):
        return BodyKind.TEXT, body
    return kind, body


def content(message: Message) -> bytes:
    """Return the body for a protocol that does not tell text from bytes."""
    kind, body = _read(message)
    if kind is BodyKind.JSON:
        return text_of_json(body)
    return b64encode(body) if kind is BodyKind.OBJECT else body


def text_of_json(body: bytes) -> bytes:
    """Return JSON for a protocol that knows text only: of a JSON string the text, of all else,
    and of a string that no UTF-8 can spell (half a surrogate pair), the JSON."""
    if _JSON_STRING.match(body):
        try:
            return msgspec.json.decode(body, type=str).encode()
        except (msgspec.DecodeError, UnicodeError):
            pass
    return body


def _read(message: Message) -> tuple[BodyKind, bytes]:
    kind = message.kind
    body = message.body
    try:
        body = expanded(message)
        if kind is BodyKind.MAP:
            return BodyKind.JSON, json_of_map(body)
        if kind is BodyKind.STREAM:
            return BodyKind.JSON, json_of_stream(body)
    except ProtocolError:
        return BodyKind.OBJECT, body
    return kind, body


def _is_text(body: bytes) -> bool:
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- requests and answers ------------------------------------------------------------------------


def answer_correlation(request: Message) -> str:
    """The correlation id of an answer, or "": that of the request; in JMS (1.1 section 3.4.5) the
    id of the request if it has none."""
    if request.correlation_id or request.origin is not Origin.JMQ:
        return request.correlation_id
    return request.message_id
