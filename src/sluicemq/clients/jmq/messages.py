"""Destinations, messages, and their conversion to Python values. Public through the package.

A destination is a `model.destination.Address`, made by `Queue` or `Topic`; a plain `str` names a
queue. Creating one does not contact the broker.

    JMS            Python
    TextMessage    str
    BytesMessage   bytes (bytearray, memoryview)
    MapMessage     dict, names to values
    StreamMessage  list (tuple) of values
    ObjectMessage  JavaObject, which is the serialized bytes
    Message        None

Values in maps and streams are None, bool, int, float, str, bytes. Receivers that require another
Java type get it with Byte, Short, Long, Float and Char of `sluicemq.protocols.java`: a plain int is
an Integer, or a Long if it does not fit, and a plain float is a Double. Properties are the same,
without None and bytes.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Final, NamedTuple, Self

from sluicemq.model.destination import Address, Kind, is_jms_temporary
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import COMPRESS, COMPRESSED_SIZE, UNCOMPRESSED_SIZE, Property
from sluicemq.protocols import java
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import (
    TEMPORARY_QUEUE,
    TEMPORARY_TOPIC,
    VariableHeader,
    encode_properties,
    sysid_text,
)
from sluicemq.protocols.jmq.packets import DestType, PacketType
from sluicemq.protocols.jmq.wire import Packet

# --- destinations

Queue: Final = partial(Address, Kind.QUEUE)
"""Destination that delivers each message to one consumer, by its name. The name is one or more Java
identifiers joined by `.`; the broker refuses invalid names."""

Topic: Final = partial(Address, Kind.TOPIC)
"""Destination that delivers each message to every subscription. Its name may contain the wildcards
`*`, `**` and `>`."""


def to_address(name: str | Address) -> Address:
    """Return the destination; a plain name becomes a queue."""
    return Queue(name) if isinstance(name, str) else name


def temporary_name(kind: Kind, origin: str, port: int) -> str:
    """Make a name for a temporary destination, in the form that the Java client uses (section 6).

    The name ends with 128 random bits instead of the Java client's number, so that only clients
    that receive the name can send to the destination.
    """
    prefix = TEMPORARY_QUEUE if kind is Kind.QUEUE else TEMPORARY_TOPIC
    return f"{prefix}{origin}/{port}/{secrets.token_hex(16)}"


def properties_of(destination: Address) -> dict[str, object]:
    """Return the properties of a request that name its destination."""
    bits = DestType.QUEUE if destination.kind is Kind.QUEUE else DestType.TOPIC
    if is_jms_temporary(destination.name):
        bits |= DestType.TEMP
    return {"JMQDestination": destination.name, "JMQDestType": bits}


# --- bodies

MAX_DECOMPRESSED: Final = 1 << 28
"""Maximum size of a decompressed body, in bytes."""


class MessageFormatError(ValueError):
    """Body that does not match its message type, or value that cannot be a body."""


@contextmanager
def _format_errors() -> Iterator[None]:
    """Raise MessageFormatError for values and bytes that cannot be converted."""
    try:
        yield
    except (ProtocolError, UnicodeError) as error:
        raise MessageFormatError(str(error)) from None


class JavaObject(bytes):
    """Serialized Java object, kept as bytes. `value` decodes only the closed set of types that
    maps and streams may hold, and maps of them with text keys, nested once."""

    __slots__ = ()

    @classmethod
    @_format_errors()
    def of(cls, value: object) -> Self:
        """Serialize a value of the closed set. Raises MessageFormatError."""
        return cls(java.dumps(value))

    @property
    @_format_errors()
    def value(self) -> object:
        """Decoded object. Raises MessageFormatError for an object of any other class."""
        return java.loads(self, limited=False)


def encode_body(body: object) -> tuple[PacketType, bytes]:
    """Encode a value; return the message type and the bytes. Raises MessageFormatError."""
    match body:
        case None:
            return PacketType.MESSAGE, b""
        case str():
            return PacketType.TEXT_MESSAGE, body.encode()
        case JavaObject():
            return PacketType.OBJECT_MESSAGE, bytes(body)
        case bytes() | bytearray() | memoryview():
            return PacketType.BYTES_MESSAGE, bytes(body)
        case Mapping():
            return PacketType.MAP_MESSAGE, java.dumps_map(body)
        case list() | tuple():
            return PacketType.STREAM_MESSAGE, java.dumps_stream(body)
    raise MessageFormatError(f"a {type(body).__name__} cannot be the body of a message")


_MAX_SECONDS: Final = 1 << 52
"""Maximum time to live and delay: the format has the end in ms since 1970, as a signed 64-bit
number."""


class SendOptions(NamedTuple):
    """Delivery options of a sent message.

    persistent   the message survives a broker restart; the broker confirms it
    priority     0-9
    ttl          lifetime in seconds, 0 = unlimited
    delay        seconds before the message becomes deliverable
    """

    persistent: bool = True
    priority: int = 4
    ttl: float = 0.0
    delay: float = 0.0

    def with_overrides(
        self,
        persistent: bool | None,
        priority: int | None,
        ttl: float | None,
        delay: float | None,
    ) -> SendOptions:
        """Return a copy with the values that are not None. Raises ValueError."""
        options = SendOptions(
            self.persistent if persistent is None else persistent,
            self.priority if priority is None else priority,
            self.ttl if ttl is None else ttl,
            self.delay if delay is None else delay,
        )
        if not 0 <= options.priority <= 9:
            raise ValueError(f"a priority is 0 to 9, not {priority}")
        if not (0 <= options.ttl <= _MAX_SECONDS and 0 <= options.delay <= _MAX_SECONDS):
            raise ValueError(f"ttl and delay are 0 to {_MAX_SECONDS} seconds")
        return options


_NOT_PASSED_ON: Final = ("JMSX", "JMS_SUN_")
"""Prefixes of property names reserved for JMS and Open MQ."""
_DECODERS: Final[Mapping[int, Callable[[bytes], object]]] = {
    PacketType.TEXT_MESSAGE: bytes.decode,
    PacketType.BYTES_MESSAGE: bytes,
    PacketType.MAP_MESSAGE: partial(java.loads_map, limited=False),
    PacketType.STREAM_MESSAGE: partial(java.loads_stream, limited=False),
    PacketType.OBJECT_MESSAGE: JavaObject,
}
"""Decoders of bodies by the type of the message; a message of another type has none."""
_JSON_ENCODERS: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    PacketType.MAP_MESSAGE: java.json_of_map,
    PacketType.STREAM_MESSAGE: java.json_of_stream,
}


class Message:
    """Received message; immutable.

    Its fields raise MessageFormatError for an invalid header, property or body.
    """

    def __init__(self, packet: Packet) -> None:
        self.packet = packet

    @property
    def id(self) -> str:
        """JMSMessageID."""
        return self._variable.message_id or sysid_text(self.packet.sysid)

    @property
    def kind(self) -> PacketType:
        """Message type: TEXT_MESSAGE, BYTES_MESSAGE, …"""
        return PacketType(self.packet.type)

    @cached_property
    @_format_errors()
    def body(self) -> object:
        """Body as a Python value (table in the module docstring); decoded on first access."""
        decode = _DECODERS.get(self.packet.type)
        return None if decode is None else decode(self.raw)

    @property
    @_format_errors()
    def raw(self) -> bytes:
        """Body as bytes, decompressed but not decoded."""
        packet = self.packet
        if not packet.flags & packets.Z:
            return packet.body
        size = packet.properties.get(UNCOMPRESSED_SIZE)
        if not isinstance(size, int) or not 0 <= size <= MAX_DECOMPRESSED:
            raise MessageFormatError(f"the size of a compressed body is invalid: {size!r}")
        return java.inflate(packet.body, size, MAX_DECOMPRESSED)

    @property
    @_format_errors()
    def readable_body(self) -> bytes:
        """Body as readable text: maps and streams as JSON, others unchanged."""
        return _JSON_ENCODERS.get(self.packet.type, bytes)(self.raw)

    @property
    def seconds_left(self) -> float:
        """Seconds until the message expires; 0 = never, or already expired."""
        return max(0.0, (self.expiration - now_ms()) / 1000) if self.expiration else 0.0

    @property
    @_format_errors()
    def properties(self) -> dict[str, Property]:
        return self.packet.properties

    @property
    def own_properties(self) -> dict[str, Property]:
        """Properties without those reserved for JMS and Open MQ."""
        return {
            name: value
            for name, value in self.properties.items()
            if not name.startswith(_NOT_PASSED_ON)
        }

    @property
    def destination(self) -> Address:
        """Destination the message was sent to."""
        header = self._variable
        return header.queue if self.packet.flags & packets.Q else header.topic

    @property
    def reply_to(self) -> Address | None:
        """Destination for replies, or None."""
        return self._variable.reply_address(bool(self.packet.flags & packets.Q))

    @property
    def correlation_id(self) -> str:
        """JMSCorrelationID; "" if absent."""
        return self._variable.correlation_id or ""

    @property
    def type(self) -> str:
        """JMSType; "" if absent."""
        return self._variable.type or ""

    @property
    def priority(self) -> int:
        """Priority, 0-9."""
        return self.packet.priority

    @property
    def persistent(self) -> bool:
        return bool(self.packet.flags & packets.P)

    @property
    def timestamp(self) -> int:
        """Time of sending, in ms since the epoch."""
        return self.packet.timestamp

    @property
    def expiration(self) -> int:
        """Expiration time in ms since the epoch; 0 = never."""
        return self.packet.expiration

    @property
    def delivery_time(self) -> int:
        """Earliest delivery time in ms since the epoch; 0 = immediately."""
        return self._variable.delivery_time

    @property
    def redelivered(self) -> bool:
        """True if the message may have been delivered before."""
        return bool(self.packet.flags & packets.R)

    @property
    def delivery_count(self) -> int:
        """Number of deliveries including this one; 0 if the broker does not send it."""
        return self._variable.delivery_count

    @cached_property
    @_format_errors()
    def _variable(self) -> VariableHeader:
        return self.packet.variable

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {sysid_text(self.packet.sysid)}>"


@_format_errors()
def encode_content(
    body: object, properties: Mapping[str, object] | None, compress: bool
) -> tuple[PacketType, bytes, bytes]:
    """Encode a body, or that of a received message, and properties.

    Returns the message type, the body and the property block; the properties mark a compressed body
    (section 9.5). Raises MessageFormatError.
    """
    kind, content = (body.kind, body.raw) if isinstance(body, Message) else encode_body(body)
    if compress:
        size, content = len(content), zlib.compress(content)
        properties = {
            **(properties or {}),
            COMPRESS: True,
            UNCOMPRESSED_SIZE: size,
            COMPRESSED_SIZE: len(content),
        }
    return kind, content, encode_properties(properties or {})


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
