"""Encoding of the parts of packets: ids, names, the variable header, properties and logins.

    SysMessageID  32 bytes   timestamp:i64 address:16 port:i32 sequence:i32
                             bytes 20-51 of the packet that carried the message
    ack block     36 or 40   consumer id (i32 or i64), SysMessageID
    Xid           136 bytes  format id:i32 gtrid length:i16 bqual length:i16 gtrid:64 bqual:64

The address is an IPv4 address mapped to IPv6, an IPv6 address, or Open MQ's own form that has a
pseudo MAC address before an IPv4 address: FF 00 00 00, 6 bytes, FF FF, 4 bytes. It only makes ids
unique and is not used as an address. (Protocol specification, "SysMessageID", "Xid".)

Names of destinations: the Java client accepts only names that are Java identifiers with dots, also
in messages; those of temporary destinations begin with `temporary_destination://`. JMQ clients use
`orders_HYPHEN_eu` for the queue `orders-eu` (model/identifiers.py).

    header  = record *  0:i16  0-4 bytes of zeros      empty, or at least the end
    record  = id:i16  length:i16  bytes

     1 destination name      5 JMSType                    9 producer id    i64
     2 message id            6 class of the destination  10 delivery time  i64, ms
     3 correlation id        7 class of the reply-to     11 delivery count i32
     4 reply-to name         8 transaction id  i64

Records of other ids are skipped, and bytes after the end are ignored. In the header of a stored
message (`VariableHeader.stored`) record 11 is the first and record 8 is missing, so that a delivery
can overwrite the count at a fixed offset. (Protocol specification, "Variable Header".)

    block  = version:i32 (1)  count:i32  entry * count
    entry  = key:str  tag:i16  value            an entry with an empty key ends the block early
    str    = length:u16, modified UTF-8

    tag  1 Boolean:u8  2 Byte:i8  3 Short:i16  4 Integer:i32  5 Long:i64  6 Float:f32  7 Double:f64
         8 String:str  9 anything else: length:i32, a Java serialization stream

A value is written with the tag of its Python type: bool, int (Integer if it fits into 32 bits, else
Long), float (Double), str. The classes of `sluicemq.protocols.java` select another tag, because
clients cast values, and a Long that is sent as an Integer breaks them. Decoded values have plain
types, without the widths of integers. bytes are written as a byte[] under tag 9, which C clients
cannot read.
(Protocol specification, "Properties"; the order of bytes was never published.)

Bodies of AUTHENTICATE (section 5.2):

    basic   user:str  base64 of the password:str
    digest  user:str  H(H(user ":" password) ":" nonce):str

H is the MD5 as a signed hexadecimal number without leading zeros, so it may begin with `-`. The
published protocol page has 32 hexadecimal digits instead; a broker accepts both forms.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from struct import Struct, error
from typing import Final, NamedTuple

from sluicemq.model.destination import Address, Kind, is_jms_temporary
from sluicemq.model.errors import ConfigurationError, ProtocolError
from sluicemq.model.identifiers import from_identifier, to_identifier
from sluicemq.model.message import Property
from sluicemq.protocols.java import (
    I32,
    I64,
    U16,
    Byte,
    Float,
    Long,
    SerialError,
    Short,
    StreamReader,
    decode_utf,
    dumps,
    encode_utf,
    loads,
)

# --- ids of messages -----------------------------------------------------------------------------

SYSID_SIZE: Final = 32
XID_SIZE: Final = 136
NO_XID: Final = -1
"""Format id of the Xid that means no transaction."""
LONG_BLOCK: Final = 40
"""Bytes of an ack block with an i64 consumer id, the usual form."""
INT_BLOCK: Final = 36
"""Bytes of an ack block with an i32 consumer id, of protocol level 100."""
NULL_ADDRESS: Final = bytes(10) + b"\xff\xff" + bytes(4)

CONTROL_SYSID: Final = bytes(8) + NULL_ADDRESS + bytes(8)
"""SysMessageID of packets without a message; it is not read."""

_sysid: Final = Struct(">q16sii")
_blocks: Final = {LONG_BLOCK: Struct(">q32s"), INT_BLOCK: Struct(">i32s")}
_xid: Final = Struct(">ihh64s64s")
_MAPPED: Final = NULL_ADDRESS[:12]
_MAC_BEGIN: Final = b"\xff\x00\x00\x00"
_MAC_END: Final = b"\xff\xff"
_LOW_BITS: Final = 0x7FFF_FFFF
_LOOPBACK: Final = b"\x7f\x01"


def encode_sysid(timestamp: int, address: bytes, port: int, sequence: int) -> bytes:
    """Encode a SysMessageID: time in ms, address of 16 bytes, signed 32-bit port and sequence."""
    return _sysid.pack(timestamp, address, port, sequence)


def make_sysid(identity: bytes, sequence: int, timestamp: int) -> bytes:
    """Return the SysMessageID of a message of another protocol.

    identity   `Broker.identity`, 8 bytes: ids of two brokers differ
    sequence   the journal's, 0 to 2^62 - 1: ids of one broker differ
    timestamp  ms; clients show it as the time of sending
    """
    address = b"".join(
        (
            _MAC_BEGIN,
            bytes((identity[0] | 0x80,)),  # no real MAC address begins with this bit
            identity[1:6],
            _MAC_END,
            _LOOPBACK,
            identity[6:8],
        )
    )
    return _sysid.pack(timestamp, address, sequence >> 31, sequence & _LOW_BITS)


def origin_text(origin: bytes) -> str:
    """Return the middle of an id's text, `-<address>-<port>-`; `origin` is address and port, 20
    bytes."""
    address = origin[:16]
    if address[:12] == _MAPPED:
        text = _dotted(address[12:])
    elif address[:4] == _MAC_BEGIN and address[10:12] == _MAC_END:
        text = f"{_dotted(address[12:])}({':'.join(f'{byte:x}' for byte in address[4:10])})"
    else:
        text = str(IPv6Address(address))
    return f"-{text}-{int.from_bytes(origin[16:20], 'big', signed=True)}-"


def sysid_text(sysid: bytes) -> str:
    """Return the JMSMessageID: "ID:" and `<sequence>-<address>-<port>-<timestamp>`."""
    timestamp, _, _, sequence = _sysid.unpack(sysid)
    return f"ID:{sequence}{origin_text(sysid[8:28])}{timestamp}"


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))


def decode_blocks(body: bytes, width: int = LONG_BLOCK) -> Iterator[tuple[int, bytes]]:
    """Return an iterator over the blocks: (consumer id, SysMessageID).

    `width` is LONG_BLOCK or INT_BLOCK. Raises ProtocolError if the body is not a whole number of
    blocks.
    """
    if len(body) % width:
        raise ProtocolError(f"{len(body)} bytes are not a multiple of the block size, {width}")
    return _blocks[width].iter_unpack(body)


def encode_blocks(blocks: list[tuple[int, bytes]], width: int = LONG_BLOCK) -> bytes:
    """Encode (consumer id, SysMessageID) of each block; the inverse of `decode_blocks`."""
    pack = _blocks[width].pack
    return b"".join([pack(consumer_id, sysid) for consumer_id, sysid in blocks])


class Xid(NamedTuple):
    """Name of a global transaction (JTA's Xid).

    format_id  i32; NO_XID means that there is no transaction
    gtrid      global transaction id, up to 64 bytes
    bqual      branch qualifier, up to 64 bytes
    """

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        """Return bqual and gtrid in hex, for display; two Xids can have the same text."""
        if self.format_id == NO_XID:
            return "NULL_XID"
        return (self.bqual + self.gtrid).hex().upper()


def decode_xid(body: bytes) -> Xid:
    """Decode a Xid. Raises ProtocolError unless the body is one Xid."""
    if len(body) != XID_SIZE:
        raise ProtocolError(f"a Xid has {XID_SIZE} bytes, not {len(body)}")
    format_id, gtrid_size, bqual_size, gtrid, bqual = _xid.unpack(body)
    if not (0 <= gtrid_size <= len(gtrid) and 0 <= bqual_size <= len(bqual)):
        raise ProtocolError(f"a Xid's parts have 0-64 bytes, not {gtrid_size} and {bqual_size}")
    return Xid(format_id, gtrid[:gtrid_size], bqual[:bqual_size])


def encode_xid(xid: Xid) -> bytes:
    """Encode a Xid in 136 bytes. Raises ProtocolError if a part is longer than 64 bytes."""
    if len(xid.gtrid) > 64 or len(xid.bqual) > 64:
        raise ProtocolError("a part of a Xid is longer than 64 bytes")
    return _xid.pack(xid.format_id, len(xid.gtrid), len(xid.bqual), xid.gtrid, xid.bqual)


# --- names of destinations -----------------------------------------------------------------------

DEAD_MESSAGES: Final = Address(Kind.QUEUE, "mq.sys.dmq")
"""Dead message queue."""


def read_name(name: str) -> str:
    """Return the broker's name of a destination, given the client's."""
    return name if is_jms_temporary(name) else from_identifier(name)


def format_name(name: str) -> str:
    """Return the name for clients; `read_name` is the inverse."""
    return name if is_jms_temporary(name) else to_identifier(name, dotted=True)


# --- properties ----------------------------------------------------------------------------------

INTEGER: Final = 4
LONG: Final = 5
STRING: Final = 8
OTHER: Final = 9

MAX_STRING: Final = 65_535
"""Maximum bytes of a key or a String in modified UTF-8."""

_VERSION: Final = 1
_HEAD_SIZE: Final = 8

_head: Final = Struct(">ii")

_LAYOUTS: Final = {bool: "?", Byte: "b", Short: "h", int: "i", Long: "q", Float: "f", float: "d"}
"""Layouts of values of a fixed size, in the order of their tags."""
_TAGS: Final = {kind: tag for tag, kind in enumerate(_LAYOUTS, 1)}
_tagged: Final = {tag: Struct(f">h{_LAYOUTS[kind]}") for kind, tag in _TAGS.items()}


def decode_properties(block: bytes) -> dict[str, Property]:
    """Decode the properties of a block; none for b"". Raises ProtocolError.

    If a key is repeated, its last value counts. A value under tag 9 is decoded if the stream
    contains a Property; otherwise it is the bytes of the stream.
    """
    return _parse_block(block)[0] if block else {}


def _parse_block(block: bytes) -> tuple[dict[str, Property], int, int]:
    """Return the properties, the number of entries, and the end offset of the last one."""
    properties: dict[str, Property] = {}
    size = len(block)
    if size < _HEAD_SIZE:
        raise _truncated_error()
    version, count = _head.unpack_from(block)
    if version != _VERSION:
        raise ProtocolError(f"unknown version {version} of a property block")
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
                    raise _truncated_error()
                try:
                    properties[name] = block[start:position].decode()
                except UnicodeDecodeError:
                    properties[name] = decode_utf(block[start:position])
            elif code := _tagged.get(tag):
                position = end + code.size
                properties[name] = code.unpack_from(block, end)[1]
            elif tag == OTHER:
                length = I32.unpack_from(block, start)[0]
                start += I32.size
                position = start + length
                if length < 0 or position > size:
                    raise _truncated_error()
                properties[name] = _decode_serialized(block[start:position])
            else:
                raise ProtocolError(f"unknown property type {tag}")
            number += 1
    except (IndexError, error):
        raise _truncated_error() from None
    return properties, number, position


def _decode_serialized(stream: bytes) -> Property:
    try:
        value = loads(stream)
    except SerialError:
        return stream
    if isinstance(value, dict):
        return stream
    for plain_type in (bool, int, float, str):
        if isinstance(value, plain_type):
            return plain_type(value)  # the journal's encoder accepts no subclasses
    return value


def _truncated_error() -> ProtocolError:
    return ProtocolError("a property block ends within a property")


def encode_properties(properties: Mapping[str, object]) -> bytes:
    """Encode properties as a block; b"" for none.

    Raises ProtocolError for a key that is empty or too long, a String that is too long, an int of
    more than 64 bits, and a value of another type.
    """
    if not properties:
        return b""
    return b"".join((_head.pack(_VERSION, len(properties)), *_encode_entries(properties.items())))


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
            *_encode_entries(properties.items()),
        )
    )


def _encode_entries(items: Iterable[tuple[str, object]]) -> list[bytes]:
    parts: list[bytes] = []
    append = parts.append
    for name, value in items:
        key = encode_utf(name)
        if not 0 < len(key) <= MAX_STRING:
            raise ProtocolError(f"a property's name has {len(key)} bytes, not 1 to {MAX_STRING}")
        append(U16.pack(len(key)))
        append(key)
        append(_encode_value(value))
    return parts


def _encode_value(value: object) -> bytes:
    kind = type(value)
    tag = _TAGS.get(kind)
    if isinstance(value, int) and (tag is None or tag == INTEGER):
        tag = INTEGER if -0x8000_0000 <= value <= 0x7FFF_FFFF else LONG
    try:
        if tag is not None:
            return _tagged[tag].pack(tag, value)
    except (error, OverflowError):
        raise ProtocolError(f"a property is out of the range of Java's {kind.__name__}") from None
    if isinstance(value, bytes):
        stream = dumps(value)
        return _tagged[INTEGER].pack(OTHER, len(stream)) + stream
    if isinstance(value, str):
        raw = encode_utf(value)
        if len(raw) > MAX_STRING:
            raise ProtocolError(f"a property of {len(raw)} bytes, the limit is {MAX_STRING}")
        return b"\0\x08" + U16.pack(len(raw)) + raw
    raise ProtocolError(f"a property cannot be a {kind.__name__}")


# --- variable header -----------------------------------------------------------------------------

TRANSACTION_ID: Final = 8
"""First record with a number; those before it have texts."""
DELIVERY_COUNT: Final = 11
"""Last record."""

QUEUE_CLASS: Final = "com.sun.messaging.BasicQueue"
TOPIC_CLASS: Final = "com.sun.messaging.BasicTopic"
TEMPORARY_QUEUE_CLASS: Final = "com.sun.messaging.jmq.jmsclient.TemporaryQueueImpl"
TEMPORARY_TOPIC_CLASS: Final = "com.sun.messaging.jmq.jmsclient.TemporaryTopicImpl"
TEMPORARY_QUEUE: Final = "temporary_destination://queue/"
TEMPORARY_TOPIC: Final = "temporary_destination://topic/"
"""Prefixes of the names of temporary destinations."""

MAX_HEADER_STRING: Final = 32_767
"""Bytes of a string: the length is a signed number of 16 bits."""

_record: Final = Struct(">hh")
_long: Final = Struct(">hhq")
_int: Final = Struct(">hhi")
_COUNT: Final = _int.pack(DELIVERY_COUNT, I32.size, 0)
_MAX_CACHED: Final = 512
"""Maximum size of a cached header in bytes: the headers of one producer's messages repeat."""


class VariableHeader:
    """Fields of a variable header. Do not change it: packets share it.

    Strings are None and numbers 0 when they are absent.

    queue   address of the destination if the packet has the Q flag
    topic   address of the destination if it has not
    stored  the header in the form in which messages are stored, see above
    """

    __slots__ = (
        "correlation_id",
        "delivery_count",
        "delivery_time",
        "destination",
        "destination_class",
        "message_id",
        "producer_id",
        "queue",
        "reply_to",
        "reply_to_class",
        "stored",
        "topic",
        "transaction_id",
        "type",
    )

    def __init__(self, texts: list[str | None], numbers: list[int], stored: bytes) -> None:
        """Create a header; the index of each text and number is the id of its record."""
        _, self.destination, self.message_id, self.correlation_id, self.reply_to = texts[:5]
        self.type, self.destination_class, self.reply_to_class = texts[5:]
        self.transaction_id, self.producer_id, self.delivery_time, self.delivery_count = numbers[8:]
        self.stored = stored
        name = read_name(self.destination or "")
        self.queue = Address(Kind.QUEUE, name)
        self.topic = Address(Kind.TOPIC, name)

    def reply_address(self, is_queue: bool) -> Address | None:
        """Return the address for replies. `is_queue`: the message's Q flag, used if the kind is not
        given otherwise."""
        name = self.reply_to
        if not name:
            return None
        hint = self.reply_to_class or ""
        if "Topic" in hint or "Queue" in hint:
            topic = "Topic" in hint.rpartition(".")[2]
        elif name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC)):
            topic = name.startswith(TEMPORARY_TOPIC)
        else:
            topic = not is_queue
        return Address(Kind.TOPIC if topic else Kind.QUEUE, read_name(name))


def class_of(address: Address) -> str:
    """Return the Java client's class of a destination: it has other classes for temporary ones, and
    accepts their names only with those."""
    temporary = address.name.startswith((TEMPORARY_QUEUE, TEMPORARY_TOPIC))
    if address.kind is Kind.QUEUE:
        return TEMPORARY_QUEUE_CLASS if temporary else QUEUE_CLASS
    return TEMPORARY_TOPIC_CLASS if temporary else TOPIC_CLASS


def decode_header(raw: bytes) -> VariableHeader:
    """Decode a variable header.

    Raises ProtocolError for a record that runs past the end or has the wrong length, and for
    strings that are not UTF-8.
    """
    return _decode_cached(raw) if len(raw) <= _MAX_CACHED else _decode(raw)


def _decode(raw: bytes) -> VariableHeader:
    texts: list[str | None] = [None] * TRANSACTION_ID
    numbers = [0] * (DELIVERY_COUNT + 1)
    records: list[bytes] = [_COUNT]
    size = len(raw)
    position = 0
    while position + 2 <= size:
        if raw[position] == 0 and raw[position + 1] == 0:
            break
        if position + _record.size > size:
            raise ProtocolError("a variable header ends within a record")
        number, length = _record.unpack_from(raw, position)
        start = position
        position += _record.size
        end = position + length
        if length < 0 or end > size:
            raise ProtocolError(f"record {number} of a variable header has a length of {length}")
        if 0 < number < TRANSACTION_ID:
            texts[number] = decode_utf(raw[position:end])
        elif TRANSACTION_ID <= number <= DELIVERY_COUNT:
            code = I32 if number == DELIVERY_COUNT else I64
            if length != code.size:
                raise ProtocolError(
                    f"record {number} of a variable header has {length} bytes, not {code.size}"
                )
            numbers[number] = code.unpack_from(raw, position)[0]
        if number not in (TRANSACTION_ID, DELIVERY_COUNT):
            records.append(raw[start:end])
        position = end
    records.append(_end_and_padding(sum(map(len, records))))
    return VariableHeader(texts, numbers, b"".join(records))


_decode_cached = lru_cache(maxsize=2048)(_decode)


def _end_and_padding(size: int) -> bytes:
    """Return end and padding after `size` bytes of records, up to a multiple of 4."""
    return bytes(2 + 4 - (size + 2) % 4)


def encode_header(
    destination: str | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    type: str | None = None,
    destination_class: str | None = None,
    reply_to_class: str | None = None,
    transaction_id: int = 0,
    producer_id: int = 0,
    delivery_time: int = 0,
    delivery_count: int | None = None,
    message_id: str | None = None,
) -> bytes:
    """Encode a variable header with its end and padding; b"" if all fields are absent.

    Strings that are None and numbers that are 0 are left out; `delivery_count` is written whenever
    it is given, and as the first record. Raises ProtocolError for strings of more than 32,767
    bytes.
    """
    parts: list[bytes] = []
    if delivery_count is not None:
        parts.append(_int.pack(DELIVERY_COUNT, I32.size, delivery_count))
    for number, value in enumerate((transaction_id, producer_id, delivery_time), TRANSACTION_ID):
        if value:
            parts.append(_long.pack(number, I64.size, value))
    texts = (
        destination,
        message_id,
        correlation_id,
        reply_to,
        type,
        destination_class,
        reply_to_class,
    )
    for number, text in enumerate(texts, 1):
        if text is not None:
            raw = _encode_text(text)
            if len(raw) > MAX_HEADER_STRING:
                raise ProtocolError(
                    f"{len(raw)} bytes in a variable header, the limit is {MAX_HEADER_STRING}"
                )
            parts.append(_record.pack(number, len(raw)))
            parts.append(raw)
    if not parts:
        return b""
    parts.append(_end_and_padding(sum(map(len, parts))))
    return b"".join(parts)


def _encode_text(text: str) -> bytes:
    """Encode a string in standard UTF-8, which all clients read here; Java clients write modified
    UTF-8."""
    try:
        return text.encode("utf-8", "surrogateescape")  # names of other protocols: decode_name
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


# --- credentials in AUTHENTICATE -----------------------------------------------------------------

GUEST: Final = "guest"
"""Default user name and password, as in Open MQ's clients."""
BASIC: Final = "basic"
DIGEST: Final = "digest"
PAGE_SPELLINGS: Final = {"jmqbasic": BASIC, "jmqdigest": DIGEST}
"""JMQAuthType values of the published protocol page. AUTHENTICATE may use either spelling; the
broker sends the short names, because Open MQ's clients know no others."""


def basic_login(user: str, password: str) -> bytes:
    """Encode a `basic` login, with a readable password. Raises ConfigurationError if too long."""
    return _login_string(user) + _login_string(base64.b64encode(password.encode()).decode())


def digest_login(user: str, password: str, nonce: bytes) -> bytes:
    """Encode a `digest` login, valid for this nonce. Raises ConfigurationError if too long."""
    login_digest = _md5(f"{user}:{password}".encode())
    return _login_string(user) + _login_string(_md5(f"{login_digest}:".encode() + nonce))


def _md5(data: bytes) -> str:
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return f"{int.from_bytes(digest, 'big', signed=True):x}"


def _login_string(text: str) -> bytes:
    raw = encode_utf(text)
    if len(raw) > MAX_STRING:
        raise ConfigurationError("a user name or a password is too long")
    return U16.pack(len(raw)) + raw


def read_login(body: bytes) -> tuple[str, str]:
    """Return the user name and the credential of a body; ignore trailing bytes.

    Raises ProtocolError.
    """
    reader = StreamReader(body)
    return reader.text(), reader.text()


def login_password(text: str) -> str:
    """Decode the password of a `basic` login. Raises ProtocolError.

    Line breaks are ignored, because C clients insert them.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, ValueError):
        raise ProtocolError("the password is not in base64") from None
