"""Representation of messages in the API: decoded by the code of the protocol that published them,
and never as content that a browser would execute.

    encoding  value
    text      text
    json      text that is JSON, as it was sent
    map       {"name": {"type": …, "value": …}}
    stream    [{"type": …, "value": …}]
    object    base64 of a Java serialisation stream, which is not decoded; `class` is its class name
    base64    any other bytes, and bodies that are too long to be decoded as a map or a stream

Values that not every JSON reader can represent are text: integers beyond 2^53, NaN and infinities.
Bytes are in base64.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from math import isfinite
from typing import Any, Final

import msgspec

from sluicemq.admin.printable_names import base64_of, printable
from sluicemq.model.dead_letters import ATTEMPTS, REASON, TIME, origin_of
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.java import (
    Byte,
    Char,
    Float,
    Long,
    Short,
    expanded,
    loads_map,
    loads_stream,
)
from sluicemq.protocols.transcoding import plain_body

OFF_LOOP_BYTES: Final = 64 * 1024
"""Size above which a body is decoded on another thread."""
PROTOCOLS: Final = {
    Origin.INTERNAL: "http",
    Origin.PHPMQ: "phpmq",
    Origin.VIBEMQ: "vibemq",
    Origin.JMQ: "jmq",
    Origin.MSGLITE: "msglite",
}
_EXACT: Final = 1 << 53
_CLASS_AT: Final = 8
"""Offset of the class name in a serialisation stream that begins with an object."""


class PropertyView(msgspec.Struct, kw_only=True, frozen=True):
    """A property, or a value in a map or a stream.

    type   boolean, int, float, string, bytes, null; in maps and streams also byte, short, char,
           long, double and map
    value  see the module
    """

    type: str
    value: Any


class BodyView(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A body, or its beginning.

    kind       none, text, json, bytes, map, stream, object
    class_     of an object
    """

    kind: str
    encoding: str
    value: Any
    truncated: bool
    class_: str = msgspec.field(name="class", default="")


class AddressView(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A destination's kind and name."""

    kind: str
    name: str
    name_base64: str | None = None


class DeadLetterView(msgspec.Struct, kw_only=True, frozen=True):
    """Origin of a dead letter, and the reason why it became one.

    original_destination  destination that it was published to
    subscription          subscription of a topic that it was in; otherwise ""
    time                  time at which it became a dead letter, in ISO 8601
    """

    reason: str
    original_destination: AddressView | None
    subscription: str
    attempts: int | None
    time: str


def address_view(address: Address) -> AddressView:
    """Return the JSON view of an address."""
    return AddressView(
        kind="topic" if address.kind is Kind.TOPIC else "queue",
        name=printable(address.name),
        name_base64=base64_of(address.name),
    )


def property_views(message: Message) -> dict[str, PropertyView]:
    """Return the views of the properties by name."""
    return {printable(name): _view(value) for name, value in (message.properties or {}).items()}


def death_view(message: Message) -> DeadLetterView | None:
    """Return the dead-letter view of a message; None if it is not a dead letter."""
    properties = message.properties or {}
    reason = properties.get(REASON)
    if reason is None:
        return None
    origin = origin_of(message)
    attempts = properties.get(ATTEMPTS)
    return DeadLetterView(
        reason=printable(str(reason)),
        original_destination=address_view(origin.address) if origin is not None else None,
        subscription=printable(origin.subscription) if origin is not None else "",
        attempts=attempts if isinstance(attempts, int) else None,
        time=printable(str(properties.get(TIME, ""))),
    )


async def body_view(message: Message, most: int) -> BodyView:
    """Return the view of the body, or of its first `most` bytes."""
    if len(message.body) > OFF_LOOP_BYTES:
        return await asyncio.to_thread(view_of_body, message, most)
    return view_of_body(message, most)


def view_of_body(message: Message, most: int) -> BodyView:
    """Return the same as `body_view`, decoded on this thread."""
    kind = message.kind
    name = kind.name.lower()
    if kind in (BodyKind.MAP, BodyKind.STREAM):
        try:
            body = expanded(message)
            if len(body) <= most:
                return _decoded(kind, name, body)
        except ProtocolError:
            body = message.body
        return _in_base64(name, "base64", body, most)
    plain, body = plain_body(message)
    if kind is BodyKind.OBJECT:
        view = _in_base64(name, "object", body, most)
        return msgspec.structs.replace(view, class_=class_named(body))
    if plain in (BodyKind.TEXT, BodyKind.JSON, BodyKind.NONE):
        return BodyView(
            kind=plain.name.lower(),
            encoding="json" if plain is BodyKind.JSON else "text",
            value=body[:most].decode("utf-8", "ignore"),
            truncated=len(body) > most,
        )
    return _in_base64(name, "base64", body, most)


def raw_body(message: Message) -> bytes:
    """Return the body as the publishing program supplied it; as it was sent if it cannot be
    decoded."""
    try:
        return expanded(message)
    except ProtocolError:
        return message.body


def class_named(stream: bytes) -> str:
    """Return the class name of the first object of a Java serialisation stream, or ""; no class is
    loaded."""
    if stream[4:6] != b"sr":
        return ""
    length = int.from_bytes(stream[_CLASS_AT - 2 : _CLASS_AT], "big")
    name = stream[_CLASS_AT : _CLASS_AT + length].decode("ascii", "replace")
    return printable(name) if len(name) == length else ""


def _decoded(kind: BodyKind, name: str, body: bytes) -> BodyView:
    """Return the decoded body. Raises ProtocolError for an invalid body."""
    value: Any
    if kind is BodyKind.MAP:
        value = {printable(key): _view(each, True) for key, each in loads_map(body).items()}
    else:
        value = [_view(each, True) for each in loads_stream(body)]
    return BodyView(kind=name, encoding=name, value=value, truncated=False)


def _in_base64(kind: str, encoding: str, body: bytes, most: int) -> BodyView:
    return BodyView(
        kind=kind,
        encoding=encoding,
        value=b64encode(body[:most]).decode(),
        truncated=len(body) > most,
    )


_JAVA: Final = {
    Byte: "byte",
    Short: "short",
    Char: "char",
    Long: "long",
    Float: "float",
    int: "int",
    float: "double",
}


def _view(value: object, java: bool = False) -> PropertyView:
    """Return the view of a value; `java` if it is from a map or stream, whose numbers have
    widths."""
    if value is None:
        return PropertyView(type="null", value=None)
    if isinstance(value, bool):
        return PropertyView(type="boolean", value=value)
    if isinstance(value, int):
        name = _JAVA.get(type(value), "int") if java else "int"
        return PropertyView(type=name, value=int(value) if -_EXACT < value < _EXACT else str(value))
    if isinstance(value, float):
        name = _JAVA.get(type(value), "double") if java else "float"
        return PropertyView(type=name, value=float(value) if isfinite(value) else str(float(value)))
    if isinstance(value, bytes):
        return PropertyView(type="bytes", value=b64encode(value).decode())
    if isinstance(value, dict):
        inner = {printable(str(key)): _view(each, java) for key, each in value.items()}
        return PropertyView(type="map", value=inner)
    text = str(value)
    name = _JAVA.get(type(value), "string") if java else "string"
    return PropertyView(type=name, value=_speakable(text))


def _speakable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot represent."""

    try:
        text.encode()
    except UnicodeEncodeError:
        return ascii(text)[1:-1]
    return text
