"""Typed property block of a packet.

    block  = version:i32 (1)  count:i32  entry * count
    entry  = key:str  tag:i16  value            an entry with an empty key ends the block early
    str    = length:u16, modified UTF-8

    tag  1 Boolean:u8  2 Byte:i8  3 Short:i16  4 Integer:i32  5 Long:i64  6 Float:f32  7 Double:f64
         8 String:str  9 anything else: length:i32, a Java serialisation stream

A value is written with the tag of its Python type: bool, int (Integer if it fits into 32 bits, else
Long), float (Double), str, and the classes of `sluicemq.protocols.java` where that would be wrong:
clients cast, and a Long sent as an Integer breaks them. Read values are plain; the widths of
integers are not kept. bytes are written as a byte[] under tag 9, on which C clients give up.

(Protocol specification, "Properties"; the order of bytes was never published.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct, error
from typing import Final

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Property
from sluicemq.protocols.java import (
    Byte,
    Float,
    Long,
    SerialError,
    Short,
    decode_utf,
    dumps,
    encode_utf,
    loads,
)

BOOLEAN: Final = 1
BYTE: Final = 2
SHORT: Final = 3
INTEGER: Final = 4
LONG: Final = 5
FLOAT: Final = 6
DOUBLE: Final = 7
STRING: Final = 8
OTHER: Final = 9

MAX_STRING: Final = 65_535
"""Maximum bytes of a key or a String in modified UTF-8."""

_VERSION: Final = 1
_HEAD_SIZE: Final = 8

_head: Final = Struct(">ii")
_u16: Final = Struct(">H")
_tag: Final = Struct(">h")
_i32: Final = Struct(">i")
_read_integer: Final = _i32.unpack_from

_tagged: Final = {
    BOOLEAN: Struct(">h?"),
    BYTE: Struct(">hb"),
    SHORT: Struct(">hh"),
    INTEGER: Struct(">hi"),
    LONG: Struct(">hq"),
    FLOAT: Struct(">hf"),
    DOUBLE: Struct(">hd"),
}
_TAGS: Final[dict[type, int]] = {
    bool: BOOLEAN,
    Byte: BYTE,
    Short: SHORT,
    Long: LONG,
    Float: FLOAT,
    float: DOUBLE,
}
_fixed: Final = {
    BYTE: Struct(">b"),
    SHORT: Struct(">h"),
    LONG: Struct(">q"),
    FLOAT: Struct(">f"),
    DOUBLE: Struct(">d"),
}


# --- reading -----------------------------------------------------------------------------------


def decode_properties(block: bytes) -> dict[str, Property]:
    """Decode the properties of a block; none for b"". Raises ProtocolError.

    Of a key that comes twice the last value counts. A value under tag 9 is what the stream holds if
    that is a Property, else the stream's bytes.
    """
    return _parse_block(block)[0] if block else {}


def _parse_block(block: bytes) -> tuple[dict[str, Property], int, int]:
    """Return the properties, the number of entries, and the end offset of the last one."""
    properties: dict[str, Property] = {}
    size = len(block)
    if size < _HEAD_SIZE:
        raise _short()
    version, count = _head.unpack_from(block)
    if version != _VERSION:
        raise ProtocolError(f"there is no property block of version {version}")
    if count < 0:
        raise ProtocolError(f"a property block announces {count} properties")
    position = _HEAD_SIZE
    number = 0
    try:
        while number < count:
            start = position + 2
            end = start + (block[position] << 8) + block[position + 1]
            if end == start:
                break
            try:
                name = block[start:end].decode()
            except UnicodeDecodeError:
                name = decode_utf(block[start:end])
            tag = block[end] << 8 | block[end + 1]
            start = end + 2
            if tag == STRING:
                start += 2
                position = start + (block[end + 2] << 8) + block[end + 3]
                if position > size:
                    raise _short()
                try:
                    properties[name] = block[start:position].decode()
                except UnicodeDecodeError:
                    properties[name] = decode_utf(block[start:position])
            elif tag == INTEGER:
                position = start + 4
                properties[name] = _read_integer(block, start)[0]
            elif tag == BOOLEAN:
                position = start + 1
                properties[name] = block[start] != 0
            elif tag in _fixed:
                code = _fixed[tag]
                position = start + code.size
                properties[name] = code.unpack_from(block, start)[0]
            elif tag == OTHER:
                length = _i32.unpack_from(block, start)[0]
                start += _i32.size
                position = start + length
                if length < 0 or position > size:
                    raise _short()
                properties[name] = _other(block[start:position])
            else:
                raise ProtocolError(f"there is no property type {tag}")
            number += 1
    except (IndexError, error):
        raise _short() from None
    return properties, number, position


def _other(stream: bytes) -> Property:
    try:
        value = loads(stream)
    except SerialError:
        return stream
    if isinstance(value, dict):
        return stream
    # the journal's encoder accepts no subclasses
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _short() -> ProtocolError:
    return ProtocolError("a property block ends within a property")


# --- writing -----------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, object]) -> bytes:
    """Encode properties as a block; b"" for none.

    Raises ProtocolError for what has no place in one: a key that is empty or too long, a String
    that is too long, an int of more than 64 bits, a value of another type.
    """
    if not properties:
        return b""
    return b"".join((_head.pack(_VERSION, len(properties)), *_entries(properties.items())))


def extend_block(block: bytes, properties: Mapping[str, object]) -> bytes:
    """Return the block with additional properties, which replace those of the same names.

    Existing entries keep their bytes. Raises ProtocolError as `decode_properties` and
    `encode_properties`.
    """
    if not block:
        return encode_properties(properties)
    _, count, end = _parse_block(block)
    return b"".join(
        (
            _head.pack(_VERSION, count + len(properties)),
            block[_HEAD_SIZE:end],
            *_entries(properties.items()),
        )
    )


def _entries(items: Iterable[tuple[str, object]]) -> list[bytes]:
    parts: list[bytes] = []
    append = parts.append
    for name, value in items:
        key = encode_utf(name)
        if not 0 < len(key) <= MAX_STRING:
            raise ProtocolError(f"a property's name has {len(key)} bytes, 1 to {MAX_STRING} can be")
        append(_u16.pack(len(key)))
        append(key)
        append(_value(value))
    return parts


def _value(value: object) -> bytes:
    kind = type(value)
    try:
        tag = _TAGS.get(kind)
        if tag is not None:
            return _tagged[tag].pack(tag, value)
        if isinstance(value, int):
            tag = INTEGER if -0x8000_0000 <= value <= 0x7FFF_FFFF else LONG
            return _tagged[tag].pack(tag, value)
    except (error, OverflowError):
        raise ProtocolError(f"a property is out of the range of Java's {kind.__name__}") from None
    if isinstance(value, bytes):
        stream = dumps(value)
        return _tag.pack(OTHER) + _i32.pack(len(stream)) + stream
    if isinstance(value, str):
        raw = encode_utf(value)
        if len(raw) > MAX_STRING:
            raise ProtocolError(f"a property of {len(raw)} bytes, the limit is {MAX_STRING}")
        return b"\0\x08" + _u16.pack(len(raw)) + raw
    raise ProtocolError(f"a property cannot be a {kind.__name__}")
