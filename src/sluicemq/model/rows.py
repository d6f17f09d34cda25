"""Rows: wire format of the messages that a data pipeline writes, between the sink and the broker.

A part of a batch is any number of frames in sequence:

    u32      length of the rest of the frame, little-endian
    length   a msgpack array of rows, at most FRAME_ROWS of them; each row is an array (`Row`)

The broker decodes one frame at a time: with few rows in each it can do other work between them.
Rows of a later version may be longer, those of an earlier one shorter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Annotated, Any, Final, TypeVar
from zlib import crc32

import msgspec
from msgspec import Meta

from sluicemq.model.destination import decode_name
from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import DEFAULT_PRIORITY, BodyKind, Durability, Property

FRAME_ROWS: Final = 1024
"""Largest number of rows in a frame."""
DEFAULT_FRAME_ROWS: Final = 256
"""Largest number of rows in a frame made by `encode`."""
DEFAULT_FRAME_BYTES: Final = 256 * 1024
"""Bytes of bodies at which `encode` ends a frame."""
MAX_PROPERTIES_BYTES: Final = 1024 * 1024
"""Largest size of a row's properties in bytes."""
MAX_NAME_BYTES: Final = 65_540
"""Largest size of a destination's name in bytes, checked before the name is decoded."""

MAX_TIME: Final = 253_402_300_799_999
"""End of the year 9999 in ms since the epoch: latest time, and longest lifetime."""

DIGEST_MASK: Final = (1 << 64) - 1
"""Digests have 64 bits and are added modulo 2^64."""

NIL: Final = msgspec.Raw(b"\xc0")
"""Encoding of absent properties."""

LENGTH: Final = Struct("<I")

_FIXARRAY: Final = 0x90
_ARRAY16: Final = 0xDC
_ARRAY32: Final = 0xDD

RowT = TypeVar("RowT")
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_TIME)]


class Row(msgspec.Struct, array_like=True, gc=False):
    """Message to be written, as decoded by the broker. Times in ms since the epoch, 0 = none.

    destination     name as text, or as binary data if it is not UTF-8; an array of the name and the
                    reason in a row that its sender could not convert (`name_of`)
    topic           True for a topic, False for a queue
    body            bytes of the type `body_kind`
    body_kind       0 none, 1 text, 2 JSON, 3 bytes, 4 map, 5 stream, 6 object (BodyKind)
    priority        0-9
    ttl             lifetime in ms from its acceptance by the broker; 0 = no limit
    expiration      time of expiry; with a `ttl` the earlier one counts
    deliver_at      earliest time of delivery
    message_id      id set by the sender, or ""
    correlation_id  correlation id, or ""
    reply_to        name of the destination for replies, or None
    reply_topic     True if `reply_to` is a topic
    type            JMSType or similar, or ""
    durability      0 in memory only, 1 journaled, 2 journaled and synced (Durability); a batch is
                    always journaled and synced, because it is one unit
    properties      a map of scalars, or nil (`properties_of`)
    timestamp       time of sending; 0 = time of its acceptance by the broker
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
"""Row before it is encoded: the fields of `Row` in their order."""


class UnusableRow(ProtocolError):
    """Raised for a row that its sender could not convert; the text has the sender's reason.

    name  name of its destination
    """

    def __init__(self, reason: str, name: str) -> None:
        super().__init__(reason)
        self.name = name


def name_of(raw: bytes | msgspec.Raw) -> str:
    """Return the name encoded in `Row.destination`. Raises ProtocolError (UnusableRow)."""
    reason = None
    try:
        name: Any = _any.decode(raw) if len(raw) <= MAX_NAME_BYTES else None
    except _UNREADABLE as error:
        raise ProtocolError(f"the destination is not text: {error}") from None
    if isinstance(name, list) and len(name) == 2 and isinstance(name[1], str):
        name, reason = name
    if isinstance(name, bytes):
        name = decode_name(name)
    if not isinstance(name, str):
        raise ProtocolError("the destination is neither text nor binary data, or far too long")
    if reason is not None:
        raise UnusableRow(reason, name)
    return name


def properties_of(raw: msgspec.Raw) -> dict[str, Property] | None:
    """Return the decoded `Row.properties`. Raises ProtocolError."""
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(f"the properties have more than {MAX_PROPERTIES_BYTES} bytes")
    try:
        properties = _properties.decode(raw)
    except _UNREADABLE as error:
        raise ProtocolError(f"the properties are not a map of scalars: {error}") from None
    if properties is not None and not _SCALARS.issuperset(map(type, properties.values())):
        raise ProtocolError("the properties are not a map of scalars")
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
    """Return a row with defaults for the other fields; see `Row`."""
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
    """Yield frames of the rows, each preceded by its length, to be joined or sent one by one."""
    batch: list[RowValues] = []
    size = 0
    for values in rows:
        batch.append(values)
        size += len(values[2])
        if len(batch) >= DEFAULT_FRAME_ROWS or size >= DEFAULT_FRAME_BYTES:
            yield frame(batch)
            batch = []
            size = 0
    if batch:
        yield frame(batch)


def frame(rows: Sequence[Sequence[object]]) -> bytes:
    """Return one frame with its length. `rows` has at most FRAME_ROWS, each the fields of `Row`."""
    buffer = bytearray(LENGTH.size)
    _encoder.encode_into(rows, buffer, LENGTH.size)
    LENGTH.pack_into(buffer, 0, len(buffer) - LENGTH.size)
    return bytes(buffer)


def frames(data: memoryview) -> Iterator[memoryview]:
    """Yield the frames of a part without their lengths. Raises ProtocolError if one is
    incomplete.
    """
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
    """Decode the rows of one frame. Raises ProtocolError with the row and field that are wrong.

    Raises FrameTooLarge for more rows than FRAME_ROWS, before decoding.
    """
    return _decoded(data, _decoder)


def digest(data: memoryview | bytes) -> int:
    """Return the sum of the digests of a frame's rows, modulo 2^64.

    It is independent of the order of the rows and of their split into frames. It detects accidental
    changes, not rows constructed to have the same digest. Raises as `decode`.
    """
    total = 0
    for raw in _decoded(data, _raw_rows):
        # CRCs are linear: rows that exchange a value could have the same sum. Products whose halves
        # are combined are not.
        product = (len(raw) << 32 | crc32(raw)) * _MIX & DIGEST_MASK
        total += product ^ product >> 32
    return total & DIGEST_MASK


def _decoded(data: memoryview | bytes, decoder: msgspec.msgpack.Decoder[list[RowT]]) -> list[RowT]:
    row_count = announced_rows(data)
    if row_count > FRAME_ROWS:
        raise FrameTooLarge(
            f"a frame has {row_count} rows; {FRAME_ROWS} are the most: make more frames"
        )
    try:
        return decoder.decode(data)
    except _UNREADABLE as error:
        raise ProtocolError(f"a frame is not an array of rows: {error}") from None


def announced_rows(data: memoryview | bytes) -> int:
    """Return the number of rows announced by a frame; 0 if it is no array, which `decode`
    reports.
    """
    first = data[0] if data else 0
    if first & 0xF0 == _FIXARRAY:
        return first & 0x0F
    if first == _ARRAY16:
        return int.from_bytes(data[1:3], "big")
    if first == _ARRAY32:
        return int.from_bytes(data[1:5], "big")
    return 0


_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Errors raised by the decoders; nesting is limited as well."""
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
