"""Decoding and encoding of JMQ packets, without I/O, for client and server.

    packet  = fixed header:72  variable header  property block  body        all big-endian

    version 301, 200                          version 103
     0 magic:u32 (1B FF E3 C2)                 0 magic
     4 version:i16                             4 version
     6 type:i16                                6 type
     8 size of the whole packet:i32            8 size
    12 expiration:i64 ms, 0 = never           12 transaction id:i32
    20 timestamp:i64 ms        ┐              16 expiration
    28 address:16              │ SysMessageID 24 timestamp
    44 port:i32                │              32 address
    48 sequence:i32            ┘              48 port
    52 offset of the properties:i32           52 sequence
    56 size of the properties:i32             56 offset, 60 size of the properties
    60 priority:u8                            64 priority
    61 encryption:u8, of no effect            65 encryption
    62 flags:u16                              66 flags: only the low 8 bits
    64 consumer id:i64                        68 consumer id:i32

    port mapper, client  "101\\n", or nothing if it is older than iMQ 3.0
                 broker  "101 <instance> 301\\n"
                         "<service> <protocol> <type> <port>\\n" …
                         ".\\n", and the end of its output

The port mapper tells JMS clients the port of each service (section 1). Clients select a row by
name, protocol and type. There must be only one `tcp NORMAL` row, because the C client uses any of
them.

Variable header and property block are in fields.py; before version 301 the
block is a Java-serialized Hashtable. Only 301 is written. (Protocol specification, "Packet
Format".)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from sluicemq.model.errors import ConnectionLost, FrameTooLarge, ProtocolError
from sluicemq.model.message import Property
from sluicemq.protocols.framing import FrameDecoder
from sluicemq.protocols.java import I64, loads_map
from sluicemq.protocols.jmq.fields import (
    CONTROL_SYSID,
    VariableHeader,
    decode_header,
    decode_properties,
    encode_properties,
)
from sluicemq.protocols.jmq.packets import (
    LAST_MESSAGE_TYPE,
    MAGIC,
    VERSION,
    RejectedRequest,
    Status,
)

ValueT = TypeVar("ValueT", bool, int, str)

FIXED_SIZE: Final = 72
"""Bytes before the variable header."""
FIXED: Final = Struct(">Ihhiq32siiBxHq")
"""Magic, version, type, size, expiration, SysMessageID, offset and size of the properties,
priority, flags, consumer id."""
CONTROL_PRIORITY: Final = 5

MAX_PACKET: Final = 73_400_320
"""Bytes of a packet by default, as in Open MQ."""


MAX_HEADER: Final = 262_144
"""Bytes of a variable header by default: it holds seven strings of the largest size."""
MAX_PROPERTIES: Final = 1_048_576
"""Bytes of a property block by default."""


class Limits(NamedTuple):
    """Largest input accepted; a larger packet is skipped and reported as `Oversized`.

    packet      bytes of a whole packet
    header      bytes of its variable header
    properties  bytes of its property block
    """

    packet: int = MAX_PACKET
    header: int = MAX_HEADER
    properties: int = MAX_PROPERTIES


class Packet:
    """Received packet.

    type, flags, priority, consumer_id, expiration, timestamp, sequence: see above
    version      packet version
    transaction  transaction id of the fixed header, version 103 only; else 0
    head         fixed header, variable header and property block, as received
    header       variable header, as received
    block        property block, as received
    """

    __slots__ = (
        "_properties",
        "block",
        "body",
        "consumer_id",
        "expiration",
        "flags",
        "head",
        "header",
        "priority",
        "sequence",
        "timestamp",
        "transaction",
        "type",
        "version",
    )

    def __init__(
        self,
        type: int,
        flags: int,
        consumer_id: int,
        header: bytes,
        block: bytes,
        body: bytes,
        head: bytes,
        priority: int,
        expiration: int,
        timestamp: int,
        sequence: int,
        version: int,
        transaction: int,
    ) -> None:
        self.type = type
        self.flags = flags
        self.consumer_id = consumer_id
        self.header = header
        self.block = block
        self.body = body
        self.head = head
        self.priority = priority
        self.expiration = expiration
        self.timestamp = timestamp
        self.sequence = sequence
        self.version = version
        self.transaction = transaction
        self._properties: dict[str, Property] | None = None

    @property
    def is_message(self) -> bool:
        """True if the packet contains an application message."""
        return 0 < self.type <= LAST_MESSAGE_TYPE

    @property
    def sysid(self) -> bytes:
        """SysMessageID, 32 bytes."""
        start = 20 if self.version != _OLDEST else 24
        return self.head[start : start + 32]

    @property
    def properties(self) -> dict[str, Property]:
        """Properties, decoded on first use. Raises ProtocolError."""
        properties = self._properties
        if properties is None:
            block = self.block if self.version == VERSION else self.current_block()
            properties = self._properties = decode_properties(block)
        return properties

    @property
    def variable(self) -> VariableHeader:
        """Decoded variable header. Raises ProtocolError."""
        return decode_header(self.header)

    @property
    def transaction_id(self) -> int:
        """Id of the packet's transaction, or 0. Raises ProtocolError."""
        return self.transaction or decode_header(self.header).transaction_id

    def current_block(self) -> bytes:
        """Return the property block in the encoding of version 301. Raises ProtocolError."""
        if self.version == VERSION or not self.block:
            return self.block
        return encode_properties(loads_map(self.block))

    def __repr__(self) -> str:
        return f"<Packet {self.type}, flags {self.flags:x}, {len(self.body)} bytes>"


class Oversized(Packet):
    """Packet above a limit, whose body and properties are skipped, as is a header above its limit.

    size    announced size in bytes
    reason  the limit and what exceeds it
    """

    __slots__ = ("reason", "size")

    size: int
    reason: str


_DEFAULT_LIMITS: Final = Limits()
_OLDEST: Final = 103
_VERSIONS: Final = (VERSION, 200, _OLDEST)
_MAX_INT: Final = 0x7FFF_FFFF
_MAGIC: Final = MAGIC.to_bytes(4, "big")

_prefix: Final = Struct(">Ihhi")
"""Magic, version, type, size."""
_fixed: Final = Struct(">Ihhiqq20xiiiBxHq")
"""Fixed header without address and port."""
_oldest: Final = Struct(">Ihhiiqq20xiiiBxxBi")


class Decoder(FrameDecoder[Packet]):
    """Decoder of the packets of one direction of a connection.

    Variable headers and property blocks are decoded on first use, which raises the error of an
    invalid one; the connection can continue.
    """

    __slots__ = ("_header_limit", "_limit", "_property_limit", "_skips_oversized")

    def __init__(self, limits: Limits = _DEFAULT_LIMITS, *, skips_oversized: bool = True) -> None:
        """Without `skips_oversized`, a packet above a limit is an error."""
        super().__init__()
        self.allow(limits)
        self._skips_oversized = skips_oversized

    def allow(self, limits: Limits) -> None:
        """Set the limits of the packets that have not been received in part."""
        self._limit = min(limits.packet, _MAX_INT - FIXED_SIZE)  # so that kept data is a packet
        self._header_limit = FIXED_SIZE + limits.header
        self._property_limit = limits.properties

    def _parse(self, data: bytes, frames: list[Packet]) -> int:
        """Append the complete packets, as `FrameDecoder` requires."""
        size = len(data)
        position = 0
        limit = self._limit
        header_limit = self._header_limit
        property_limit = self._property_limit
        unpack = _fixed.unpack_from
        append = frames.append
        while position < size:
            if size - position < FIXED_SIZE:
                self._need = _bytes_needed(data, position)
                break
            (
                magic,
                version,
                kind,
                total,
                expiration,
                timestamp,
                sequence,
                offset,
                block_size,
                priority,
                flags,
                number,
            ) = unpack(data, position)
            transaction = 0
            if magic != MAGIC or version != VERSION or total < FIXED_SIZE:
                _check_prefix(magic, version, total)
                if version == _OLDEST:
                    (
                        *_,
                        transaction,
                        expiration,
                        timestamp,
                        sequence,
                        offset,
                        block_size,
                        priority,
                        flags,
                        number,
                    ) = _oldest.unpack_from(data, position)
            if not (FIXED_SIZE <= offset <= total and 0 <= block_size <= total - offset):
                raise ProtocolError(
                    f"a packet of {total} bytes announces {block_size} bytes of properties at "
                    f"{offset}"
                )
            block_at = position + offset
            end = position + total
            if total > limit or offset > header_limit or block_size > property_limit:
                reason = self._describe_excess(total, offset, block_size)
                if not self._skips_oversized:
                    raise FrameTooLarge(reason)
                header = b""
                if offset <= header_limit:
                    if block_at > size:
                        self._need = offset
                        break
                    header = data[position + FIXED_SIZE : block_at]
                oversized = Oversized(
                    kind,
                    flags,
                    number,
                    header,
                    b"",
                    b"",
                    b"",
                    priority,
                    expiration,
                    timestamp,
                    sequence,
                    version,
                    transaction,
                )
                oversized.size = total
                oversized.reason = reason
                append(oversized)
                self._skip = max(0, end - size)
                position = min(end, size)
                continue
            if end > size:
                self._need = total
                break
            body_at = block_at + block_size
            append(
                Packet(
                    kind,
                    flags,
                    number,
                    data[position + FIXED_SIZE : block_at],
                    data[block_at:body_at],
                    data[body_at:end],
                    data[position:body_at],
                    priority,
                    expiration,
                    timestamp,
                    sequence,
                    version,
                    transaction,
                )
            )
            position = end
        return position

    def _describe_excess(self, total: int, offset: int, block_size: int) -> str:
        """Return the reason for which a packet is above a limit, for `Oversized`."""
        if total > self._limit:
            return f"packets have up to {self._limit} bytes, this one {total}"
        if offset > self._header_limit:
            limit = self._header_limit - FIXED_SIZE
            return f"variable headers have up to {limit} bytes, this one {offset - FIXED_SIZE}"
        return f"properties have up to {self._property_limit} bytes together, these {block_size}"


def _bytes_needed(data: bytes, position: int) -> int:
    """Return the number of bytes of an incomplete fixed header that are needed to continue.

    Raises ProtocolError, because an invalid byte is reported as soon as it arrives.
    """
    available = len(data) - position
    if available >= _prefix.size:
        magic, version, _, total = _prefix.unpack_from(data, position)
        _check_prefix(magic, version, total)
        return FIXED_SIZE
    if not _MAGIC.startswith(data[position : position + len(_MAGIC)]):
        raise ProtocolError("the bytes are not a JMQ packet")
    return available + 1


def _check_prefix(magic: int, version: int, total: int) -> None:
    if magic != MAGIC:
        raise ProtocolError("the bytes are not a JMQ packet")
    if version not in _VERSIONS:
        raise ProtocolError(f"unknown packet version {version}")
    if total < FIXED_SIZE:
        raise ProtocolError(f"a packet announces a size of {total} bytes")


# --- properties of requests ----------------------------------------------------------------------


def number(packet: Packet, name: str, default: int | None = None) -> int:
    """Return an integral property of any width, or `default` if it is absent.

    Raises RejectedRequest; also for an absent property without `default`.
    """
    return _property(packet, name, int, default)


def text(packet: Packet, name: str) -> str:
    """Return a String property, "" if it is absent. Raises RejectedRequest."""
    return _property(packet, name, str, "")


def boolean(packet: Packet, name: str, default: bool = False) -> bool:
    """Return a Boolean property, or `default` if it is absent. Raises RejectedRequest."""
    return _property(packet, name, bool, default)


def _property(packet: Packet, name: str, kind: type[ValueT], default: ValueT | None) -> ValueT:
    value = packet.properties.get(name)
    if value is None:
        if default is None:
            raise RejectedRequest(Status.BAD_REQUEST, f"{name} is missing")
        return default
    # a Boolean is an int in Python, but no Integer in Java
    if isinstance(value, bool) is not (kind is bool) or not isinstance(value, kind):
        raise RejectedRequest(Status.BAD_REQUEST, f"{name} cannot be {str(value)[:80]!r}")
    return value


# --- writing -----------------------------------------------------------------------------------


def encode_head(
    type: int,
    flags: int,
    consumer_id: int,
    header: bytes,
    block: bytes,
    body_size: int,
    priority: int = CONTROL_PRIORITY,
    expiration: int = 0,
    sysid: bytes = CONTROL_SYSID,
) -> bytes:
    """Encode the part of a packet before its body.

    header, block  as of `encode_header` and `encode_properties`
    body_size      bytes; raises FrameTooLarge if the packet would have 2^31 or more
    expiration     wall ms, 0 = never
    sysid          see fields.py
    """
    offset = FIXED_SIZE + len(header)
    total = offset + len(block) + body_size
    if total > _MAX_INT:
        raise FrameTooLarge(f"a packet cannot have {total} bytes")
    return b"".join(
        (
            FIXED.pack(
                MAGIC,
                VERSION,
                type,
                total,
                expiration,
                sysid,
                offset,
                len(block),
                priority,
                flags,
                consumer_id,
            ),
            header,
            block,
        )
    )


def encode_packet(
    type: int,
    flags: int = 0,
    consumer_id: int = 0,
    properties: Mapping[str, object] | None = None,
    header: bytes = b"",
    body: bytes = b"",
    priority: int = CONTROL_PRIORITY,
    expiration: int = 0,
    sysid: bytes = CONTROL_SYSID,
) -> bytes:
    """Encode a packet of version 301. Raises ProtocolError for invalid properties."""
    block = encode_properties(properties) if properties else b""
    return (
        encode_head(type, flags, consumer_id, header, block, len(body), priority, expiration, sysid)
        + body
    )


def encode_reply(
    type: int,
    consumer_id: int,
    status: int,
    properties: Mapping[str, object] | None = None,
    body: bytes = b"",
    flags: int = 0,
) -> bytes:
    """Encode a reply with JMQStatus; `type` is the reply's, `consumer_id` the request's.

    A reply without properties and body has no flags.

    Raises ProtocolError for properties that cannot be written.
    """
    if properties or body:
        return encode_packet(
            type, flags, consumer_id, {"JMQStatus": int(status), **(properties or {})}, b"", body
        )
    before, after = _encode_short_reply(type, status)
    return before + I64.pack(consumer_id) + after


@lru_cache(maxsize=1024)
def _encode_short_reply(type: int, status: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the consumer id of a reply without properties."""
    packet = encode_packet(type, properties={"JMQStatus": int(status)})
    return packet[: FIXED_SIZE - I64.size], packet[FIXED_SIZE:]


# --- port mapper -------------------------------------------------------------------------------

PORT_MAPPER_VERSION: Final = 101
"""Version of the port mapper protocol; clients refuse any other."""
MAX_LINE: Final = 128
"""Maximum size of the client's line, in bytes; the line ends there at the latest."""


class Service(NamedTuple):
    """Row of the reply. Fields must not contain blanks; `port` is 1-65535.

    name      "jms", "ssljms", "portmapper"
    protocol  "tcp" or "tls"
    type      "NORMAL" for services that carry messages, "PORTMAPPER"
    """

    name: str
    protocol: str
    type: str
    port: int


def encode_services(instance: str, services: Iterable[Service]) -> bytes:
    """Encode the port mapper's reply. `instance` is the broker's name, without blanks.

    The packet version keeps the Java client from falling back to version 200.
    """
    rows = [f"{row.name} {row.protocol} {row.type} {row.port}\n" for row in services]
    return "".join([f"{PORT_MAPPER_VERSION} {instance} {VERSION}\n", *rows, ".\n"]).encode()


def read_services(reply: bytes) -> list[Service]:
    """Parse a port mapper's reply. Raises ConnectionLost if it is not one."""
    head, *lines = reply.splitlines()[:1000] or [b""]
    if head.split(b" ")[:1] != [b"%d" % PORT_MAPPER_VERSION]:
        raise ConnectionLost("the server's reply is not one of a port mapper")
    services = []
    for line in lines:
        words = line.decode("utf-8", "replace").split(" ")
        if words[0] in ("", "."):
            break
        if len(words) >= 4 and words[3].isascii() and words[3].isdigit():
            services.append(Service(words[0], words[1], words[2], int(words[3])))
    return services
