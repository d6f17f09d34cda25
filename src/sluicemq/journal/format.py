"""Binary format of records.

A segment file is a header, records, and once it is sealed an index and a trailer (segment.py). All
numbers are little-endian. Every record starts at a multiple of 8:

    offset  size
       0     4   size          bytes of the record with this header, without the padding
       4     4   crc           CRC-32 (zlib) of bytes 8 .. size
       8     8   sequence      ascending through the whole journal; gaps are allowed
      16     8   time          µs since 1970-01-01 UTC, signed
      24     8   expiration    ms since 1970-01-01 UTC; 0 = never
      32     8   reference     sequence number of the record that this one is about, or 0
      40     4   destination   its number (see DESTINATION_CREATED), or 0
      44     1   type          RecordType
      45     1   flags         UNIT_END, GROUP_START, ROUTED, ENTRY, DELAYED
      46     1   priority      0-9
      47     1   origin        model.Origin
      48     1   kind          model.BodyKind of a message, Cause of a COMPLETED record
      49     1   durability    model.Durability
      50     2   references    releases after which the record is not live; 0 = it is never live
      52     4   body          where the body starts, counted from the record's start
      56     …   meta          message fields that are rarely set, as one msgpack array, see below
    body     …   body
    size   0-7   padding       zeros, up to a multiple of 8

Records from one with UNIT_END (exclusive) to the next (inclusive) are a unit: recovery keeps all
of them or none. A record with GROUP_START is the first of a write: when it was written,
everything before it was on disk already. So recovery can distinguish a torn tail from damage.

Bodies by type:

    MESSAGE              the message's body
    RELOCATED            copy of a live record from an older segment, with its body and header;
                         `reference` is the original sequence number, `references` the remaining
                         references
    COMPLETED            u32 subscription, u32 count, u64 sequence x count
    DESTINATION_CREATED  u8 kind, then the name of the destination with the header's number
    DESTINATION_DELETED  same body; the number is never reused
    STARTED, STOPPED     JSON, for operators
    INDEX                see segment.py
    SNAPSHOT             empty; start of a snapshot of all records up to this one
    SEQUENCE_RESERVED    empty; prevents reuse of numbers that were assigned without a record
    DELIVERED            as COMPLETED; first deliveries of messages, per event loop iteration
    REDELIVERED          as DELIVERED, for redeliveries, then u32 delivery count x count
    DEPTH                u64 ready, u64 unacked, u32 consumers, u32 0; depth of a destination
    CLOCK_STEP           i64 ms: a step of the wall clock (broker/records.py)
    the others           are the broker's (broker/codec.py)

The meta of a message has the fields that are rarely set, as one msgpack array:

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

import sys
from array import array
from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

import msgspec
from msgspec.msgpack import Ext

from sluicemq.model.destination import Address, Kind, decode_name, encode_name
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin


class RecordType(IntEnum):
    """Type of a record."""

    MESSAGE = 1
    COMPLETED = 2
    DESTINATION_CREATED = 3
    DESTINATION_DELETED = 4
    DESTINATION_SETTINGS = 5
    SUBSCRIPTION_CREATED = 6
    SUBSCRIPTION_DELETED = 7
    REQUEUED = 8
    DELIVERY_ATTEMPTS = 9
    TRANSACTION_PREPARED = 10
    TRANSACTION_RESOLVED = 11
    RELOCATED = 12
    SNAPSHOT = 13
    INDEX = 14
    STARTED = 15
    STOPPED = 16
    SEQUENCE_RESERVED = 17
    DELIVERED = 18
    REDELIVERED = 19
    DEPTH = 20
    BATCH_PART = 21
    CLOCK_STEP = 22


class Cause(IntEnum):
    """Reason for the end of a delivery. MOVED: to another destination; DISCARDED: the subscription
    was deleted."""

    ACKNOWLEDGED = 1
    EXPIRED = 2
    DEAD_LETTERED = 3
    DROPPED = 4
    PURGED = 5
    MOVED = 6
    DISCARDED = 7

    @property
    def label(self) -> str:
        """The name that users see, as that of the event in Spark: `dead-lettered`."""
        return self.name.lower().replace("_", "-")


UNIT_END: Final = 1
GROUP_START: Final = 2
ROUTED: Final = 4
"""Flag: the message lists the durable subscriptions it was routed to (Message.routes)."""
ENTRY: Final = 8
"""Flag: the RELOCATED record is not a message but of another live type (TRANSACTION_PREPARED)."""
DELAYED: Final = 16
"""Flag: the message is not deliverable before a time (Message.deliver_at)."""

FORMAT_VERSION: Final = 1
"""Version of segments and snapshots. A file of another version is refused."""
HEADER_BYTES: Final = 56
MAX_RECORD_BYTES: Final = 0xFFFFFFFF
MAX_REFERENCES: Final = 0xFFFF
MAX_COMPLETED: Final = 1 << 16
"""Maximum sequence numbers in one COMPLETED, DELIVERED or REDELIVERED record; a longer list is
split into several records."""

FIELDS: Final[tuple[tuple[str, Literal["Q", "q", "I", "H", "B"], int], ...]] = (
    ("size", "I", 0),
    ("crc", "I", 4),
    ("sequence", "Q", 8),
    ("time", "q", 16),
    ("expiration", "q", 24),
    ("reference", "Q", 32),
    ("destination", "I", 40),
    ("type", "B", 44),
    ("flags", "B", 45),
    ("priority", "B", 46),
    ("origin", "B", 47),
    ("kind", "B", 48),
    ("durability", "B", 49),
    ("references", "H", 50),
    ("body", "I", 52),
)
"""Fields of the header without gaps: name, format as in `struct`, offset."""
TYPE_AT: Final = 44
FLAGS_AT: Final = 45
SIZE_AND_CRC: Final = Struct("<II")
REST: Final = Struct("<" + "".join(code for _, code, _ in FIELDS[2:]))
"""Header from `sequence` on, which the CRC covers."""
HEADER: Final = Struct("<" + "".join(code for _, code, _ in FIELDS))
PADDING: Final = tuple(bytes(-size % 8) for size in range(8))
"""Padding bytes, indexed by size & 7."""
COMPLETED_HEAD: Final = Struct("<II")
COMPLETED_ONE: Final = Struct("<IIQ")
DEPTH: Final = Struct("<QQII")

LAST_TYPE: Final = max(RecordType)

Checksum = Callable[[memoryview], int]
"""CRC-32 of zlib."""

Buffer = bytes | bytearray | memoryview

if sys.byteorder != "little":
    raise ImportError("the journal maps its files as they are and so needs a little-endian machine")


class Record(NamedTuple):
    """One record with decoded header and raw body. Times are in the units of the header."""

    sequence: int
    type: int
    time: int
    expiration: int
    reference: int
    destination: int
    flags: int
    priority: int
    origin: int
    kind: int
    durability: int
    references: int
    meta: bytes
    body: bytes

    @property
    def identity(self) -> int:
        """Sequence number by which COMPLETED records refer to the record."""
        return self.reference if self.type == RecordType.RELOCATED else self.sequence

    @property
    def is_message(self) -> bool:
        return self.type == RecordType.MESSAGE or (
            self.type == RecordType.RELOCATED and not self.flags & ENTRY
        )

    @property
    def lists_messages(self) -> bool:
        """True if the record lists messages whose deliveries began, were repeated or ended."""
        return self.type in (RecordType.COMPLETED, RecordType.DELIVERED, RecordType.REDELIVERED)

    @property
    def subscription(self) -> int:
        """Subscription of a record that lists messages."""
        return int.from_bytes(self.body[:4], "little")

    @property
    def sequences(self) -> list[int]:
        """Sequence numbers of a record that lists messages."""
        return decode_deliveries(self.body)[1]

    @property
    def address(self) -> Address:
        """Address in a DESTINATION_CREATED or DESTINATION_DELETED record."""
        return decode_address(self.body)


def encode_record(
    type: int,
    sequence: int,
    time: int,
    body: bytes,
    *,
    meta: bytes = b"",
    expiration: int = 0,
    reference: int = 0,
    destination: int = 0,
    flags: int = UNIT_END,
    priority: int = 0,
    origin: int = 0,
    kind: int = 0,
    durability: int = 0,
    references: int = 0,
) -> tuple[bytes, bytes, bytes]:
    """Return header, meta with body, and padding. The journal's hot path does the same inline."""
    start = HEADER_BYTES + len(meta)
    if meta:
        body = meta + body
    size = HEADER_BYTES + len(body)
    rest = REST.pack(
        sequence,
        time,
        expiration,
        reference,
        destination,
        type,
        flags,
        priority,
        origin,
        kind,
        durability,
        references,
        start,
    )
    return SIZE_AND_CRC.pack(size, crc32(body, crc32(rest))) + rest, body, PADDING[size & 7]


def size_at(buffer: Buffer, offset: int) -> int:
    """Return the field `size` of the header at `offset`, 0 if the buffer ends before it."""
    return int.from_bytes(buffer[offset : offset + 4], "little")


def sequence_at(buffer: Buffer, offset: int) -> int:
    """Return the sequence number of the record at `offset`."""
    return int.from_bytes(buffer[offset + 8 : offset + 16], "little")


def body_at(buffer: Buffer, offset: int) -> int:
    """Return where the body of the record at `offset` starts, counted from that offset."""
    return int.from_bytes(buffer[offset + 52 : offset + 56], "little")


def record_size(buffer: memoryview, offset: int, checksum: Checksum = crc32) -> int:
    """Return the size without padding of the intact record at `offset`, 0 if there is none."""
    if offset + HEADER_BYTES > len(buffer):
        return 0
    size, crc = SIZE_AND_CRC.unpack_from(buffer, offset)
    end = offset + size
    padded = end + (-size & 7)
    if size < HEADER_BYTES or padded > len(buffer):
        return 0
    if checksum(buffer[offset + 8 : end]) != crc or any(buffer[end:padded]):
        return 0
    if not 0 < buffer[offset + TYPE_AT] <= LAST_TYPE:
        return 0
    if not HEADER_BYTES <= body_at(buffer, offset) <= size:
        return 0
    return int(size)


def decode_record(buffer: memoryview, offset: int, size: int) -> Record:
    """Return the record at `offset`, which `record_size` has found intact."""
    (
        _,
        _,
        sequence,
        time,
        expiration,
        reference,
        destination,
        type,
        flags,
        priority,
        origin,
        kind,
        durability,
        references,
        body,
    ) = HEADER.unpack_from(buffer, offset)
    return Record(
        sequence,
        type,
        time,
        expiration,
        reference,
        destination,
        flags,
        priority,
        origin,
        kind,
        durability,
        references,
        bytes(buffer[offset + HEADER_BYTES : offset + body]),
        bytes(buffer[offset + body : offset + size]),
    )


def encode_completed(subscription: int, sequences: list[int]) -> bytes:
    """Return the body of a COMPLETED record."""
    if len(sequences) == 1:
        return COMPLETED_ONE.pack(subscription, 1, sequences[0])
    return COMPLETED_HEAD.pack(subscription, len(sequences)) + array("Q", sequences).tobytes()


def encode_redelivered(subscription: int, sequences: list[int], attempts: list[int]) -> bytes:
    """Return the body of a REDELIVERED record."""
    return encode_completed(subscription, sequences) + array("I", attempts).tobytes()


def decode_deliveries(body: bytes) -> tuple[int, list[int], list[int]]:
    """Return subscription, sequence numbers and delivery counts of a record that lists messages.

    Only a REDELIVERED record has counts; for others the list is empty. Raises JournalDamaged.
    """
    subscription, count = COMPLETED_HEAD.unpack_from(body.ljust(8, b"\0"))
    end = 8 + 8 * count
    if len(body) not in (end, end + 4 * count):
        raise JournalDamaged(f"a record of {len(body)} bytes announces {count} messages")
    return subscription, array("Q", body[8:end]).tolist(), array("I", body[end:]).tolist()


def decode_depth(body: bytes) -> tuple[int, int, int]:
    """Return the counts of ready and unacked messages and consumers. Raises JournalDamaged."""
    if len(body) != DEPTH.size:
        raise JournalDamaged(f"a DEPTH record has {len(body)} bytes, not {DEPTH.size}")
    ready, unacked, consumers, _ = DEPTH.unpack(body)
    return ready, unacked, consumers


def encode_address(address: Address) -> bytes:
    """Return the body of a DESTINATION_CREATED or DESTINATION_DELETED record."""
    return bytes([address.kind]) + encode_name(address.name)


def decode_address(body: bytes) -> Address:
    """Decode what `encode_address` returns. Raises JournalDamaged."""
    if not body or body[0] not in (Kind.QUEUE, Kind.TOPIC):
        raise JournalDamaged("the destination in a record is of an unknown kind")
    return Address(Kind(body[0]), decode_name(body[1:]))


RAW_TEXT: Final = 1
BIG_INTEGER: Final = 2

# In CPython 3.11, the look-up of an enum member takes 20 times as long as that of a global.
_JMQ: Final = Origin.JMQ
_BODY_KINDS: Final = {int(kind): kind for kind in BodyKind}
_ORIGINS: Final = {int(origin): origin for origin in Origin}
_DURABILITIES: Final = {int(durability): durability for durability in Durability}


def has_client_timestamp(message: Message) -> bool:
    """Return whether the timestamp is the client's own, and not the arrival time."""
    return message.timestamp != message.arrival or message.origin is _JMQ


def encode_meta(message: Message) -> bytes:
    """Return the encoded fields, b"" if no such field is set."""
    if not (
        message.message_id
        or message.properties
        or message.native
        or message.reply_to
        or message.correlation_id
        or message.type
        or message.routes
        or message.deliver_at
        or message.timestamp != message.arrival
    ):
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
        raise JournalDamaged(f"record {record.sequence} has an invalid header")
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
