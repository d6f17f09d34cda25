"""Messages that a data pipeline writes, as rows: what travels between the sink and the broker.

A part of a batch is any number of frames, one after another:

    u32      length of what follows, little-endian
    length   a msgpack array of rows, at most FRAME_ROWS of them; each row is an array (`Row`)

Frames are what is decoded at a time: few rows in each let the broker do other things between them.
Rows of a later version may be longer; those of an earlier one shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Annotated, Any, Final
from zlib import crc32

import msgspec
from msgspec import Meta

from sluicemq.model.destination import decode_name
from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import DEFAULT_PRIORITY, BodyKind, Durability, Property

FRAME_ROWS: Final = 1024
"""Rows that a frame may have."""
USUAL_ROWS: Final = 256
"""Rows of the frames that `encode` makes, at most."""
USUAL_BYTES: Final = 256 * 1024
"""Bytes of bodies at which `encode` ends a frame."""
MOST_PROPERTIES_BYTES: Final = 1024 * 1024
"""Bytes that the properties of a row may have."""
MOST_NAME_BYTES: Final = 65_540
"""Bytes that a destination's name may have, before anything else is asked of it."""

MAX_TIME: Final = 253_402_300_799_999
"""The end of the year 9999, in ms since the epoch: latest time, and longest life."""

DIGEST_MASK: Final = (1 << 64) - 1
"""Digests are 64 bits, and add up modulo 2^64."""

NIL: Final = msgspec.Raw(b"\xc0")
"""No properties."""

LENGTH: Final = Struct("<I")

_FIXARRAY: Final = 0x90
_ARRAY16: Final = 0xDC
_ARRAY32: Final = 0xDD

Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class Row(msgspec.Struct, array_like=True, gc=False):
    """One message to be written, as the broker reads it. Times in ms since the epoch, 0 = none.

    destination     its name: text, or binary data where a name is not UTF-8 (`name_of`)
    topic           it is a topic, and no queue
    body            bytes, which are what `body_kind` says
    body_kind       0 none, 1 text, 2 JSON, 3 bytes, 4 map, 5 stream, 6 object (BodyKind)
    priority        0-9
    ttl             ms that the message may live from when the broker takes it; 0 = no limit
    expiration      when its life ends; with a `ttl` the earlier one counts
    deliver_at      when it may be delivered first
    message_id      the sender's own, or ""
    correlation_id  or ""
    reply_to        name of the destination for answers, or None
    reply_topic     that is a topic
    type            JMSType or similar, or ""
    durability      0 in memory only, 1 journaled, 2 journaled and waited for (Durability); what a
                    batch writes is journaled and waited for whatever this says, as it is one unit
    properties      a map of scalars, or nil (`properties_of`)
    timestamp       when it was sent; 0 = when the broker takes it
    """

    destination: msgspec.Raw
    topic: bool = False
    body: bytes = b""
    body_kind: Annotated[int, Meta(ge=0, le=6)] = BodyKind.BYTES.value
    priority: Annotated[int, Meta(ge=0, le=9)] = DEFAULT_PRIORITY
    ttl: Milliseconds = 0
    expiration: Milliseconds = 0
    deliver_at: Milliseconds = 0
    message_id: str = ""
    correlation_id: str = ""
    reply_to: str | None = None
    reply_topic: bool = False
    type: str = ""
    durability: Annotated[int, Meta(ge=0, le=2)] = Durability.SYNC.value
    properties: msgspec.Raw = NIL
    timestamp: Milliseconds = 0


RowValues = tuple[
    str | bytes,
    bool,
    bytes,
    int,
    int,
    int,
    int,
    int,
    str,
    str,
    str | None,
    bool,
    str,
    int,
    dict[str, Property] | None,
    int,
]
"""A row as its writer has it: the fields of `Row`, in their order."""


def name_of(raw: bytes | msgspec.Raw) -> str:
    """The name that `Row.destination` or the like is. ProtocolError if it is none."""
    try:
        name: Any = _any.decode(raw) if len(raw) <= MOST_NAME_BYTES else None
    except _UNREADABLE as error:
        raise ProtocolError(f"the destination is no text: {error}") from None
    if isinstance(name, bytes):
        name = decode_name(name)
    if not isinstance(name, str):
        raise ProtocolError("the destination is neither text nor binary data, or far too long")
    return name


def properties_of(raw: msgspec.Raw) -> dict[str, Property] | None:
    """`Row.properties`. ProtocolError says what is wrong."""
    if len(raw) > MOST_PROPERTIES_BYTES:
        raise ProtocolError(f"the properties have more than {MOST_PROPERTIES_BYTES} bytes")
    try:
        properties = _properties.decode(raw)
    except _UNREADABLE as error:
        raise ProtocolError(f"the properties are no map of scalars: {error}") from None
    if properties is not None and not _SCALARS.issuperset(map(type, properties.values())):
        raise ProtocolError("the properties are no map of scalars")
    return properties


def row(
    destination: str | bytes,
    body: bytes = b"",
    *,
    topic: bool = False,
    body_kind: int = BodyKind.BYTES.value,
    priority: int = DEFAULT_PRIORITY,
    ttl: int = 0,
    expiration: int = 0,
    deliver_at: int = 0,
    message_id: str = "",
    correlation_id: str = "",
    reply_to: str | None = None,
    reply_topic: bool = False,
    type: str = "",
    durability: int = Durability.SYNC.value,
    properties: dict[str, Property] | None = None,
    timestamp: int = 0,
) -> RowValues:
    """A row of which only some fields are set; see `Row`."""
    return (
        destination,
        topic,
        body,
        body_kind,
        priority,
        ttl,
        expiration,
        deliver_at,
        message_id,
        correlation_id,
        reply_to,
        reply_topic,
        type,
        durability,
        properties,
        timestamp,
    )


def encode(rows: Iterable[RowValues]) -> Iterator[bytes]:
    """Frames of those rows, each with its length in front; to be joined, or sent as they come."""
    collected: list[RowValues] = []
    size = 0
    for values in rows:
        collected.append(values)
        size += len(values[2])
        if len(collected) >= USUAL_ROWS or size >= USUAL_BYTES:
            yield frame(collected)
            collected = []
            size = 0
    if collected:
        yield frame(collected)


def frame(rows: Sequence[Sequence[object]]) -> bytes:
    """One frame with its length. `rows` has at most FRAME_ROWS, each the fields of `Row`."""
    buffer = bytearray(LENGTH.size)
    _encoder.encode_into(rows, buffer, LENGTH.size)
    LENGTH.pack_into(buffer, 0, len(buffer) - LENGTH.size)
    return bytes(buffer)


def frames(data: memoryview) -> Iterator[memoryview]:
    """The frames of a part, without their lengths. ProtocolError when the last is incomplete."""
    position = 0
    end = len(data)
    while position < end:
        start = position + LENGTH.size
        if start > end:
            raise ProtocolError("the last frame has no complete length")
        position = start + LENGTH.unpack_from(data, position)[0]
        if position > end:
            raise ProtocolError(
                f"a frame announces {position - start} bytes, of which {end - start} are there"
            )
        yield data[start:position]


def decode(data: memoryview | bytes) -> list[Row]:
    """The rows of one frame. ProtocolError says which row and field are wrong; FrameTooLarge for
    more rows than FRAME_ROWS, before anything is decoded."""
    _expect_few(data)
    try:
        return _decoder.decode(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame is no array of rows: {error}") from None


def digest(data: memoryview | bytes) -> int:
    """Return the sum of the digests of a frame's rows, modulo 2^64.

    The order of the rows and the frames that they are in make no difference. It tells rows that
    changed by accident, not those that somebody made to have the same digest. Raises as `decode`.
    """
    _expect_few(data)
    try:
        rows = _raw_rows.decode(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame is no array of rows: {error}") from None
    total = 0
    for raw in rows:
        # CRCs are linear: rows that exchange a value could have the same sum. Products whose halves
        # are combined are not.
        mixed = (len(raw) << 32 | crc32(raw)) * _MIX & DIGEST_MASK
        total += mixed ^ mixed >> 32
    return total & DIGEST_MASK


def _expect_few(data: memoryview | bytes) -> None:
    announced = announced_rows(data)
    if announced > FRAME_ROWS:
        raise FrameTooLarge(
            f"a frame has {announced} rows; {FRAME_ROWS} are the most: make more frames"
        )


def announced_rows(data: memoryview | bytes) -> int:
    """How many rows a frame says it has; 0 if it is no array, which the decoder says better."""
    first = data[0] if data else 0
    if first & 0xF0 == _FIXARRAY:
        return first & 0x0F
    if first == _ARRAY16:
        return int.from_bytes(data[1:3], "big")
    if first == _ARRAY32:
        return int.from_bytes(data[1:5], "big")
    return 0


_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoders raise: nesting has its limits, too."""
_SCALARS: Final = frozenset({bool, int, float, str, bytes, type(None)})
_encoder: Final = msgspec.msgpack.Encoder()
_any: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(Any)
_properties: Final[msgspec.msgpack.Decoder[dict[str, Any] | None]] = msgspec.msgpack.Decoder(
    dict[str, Any] | None
)
_decoder: Final = msgspec.msgpack.Decoder(list[Row])
_raw_rows: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_MIX: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: an odd number without a pattern."""
