"""Messages as Python sees them. Public through `client`.

    JMS            Python
    TextMessage    str
    BytesMessage   bytes (bytearray, memoryview)
    MapMessage     dict, names to values
    StreamMessage  list (tuple) of values
    ObjectMessage  JavaObject, which is the serialised bytes
    Message        None

Values in maps and streams are None, bool, int, float, str, bytes; `sluicemq.protocols.java` has
Byte, Short, Long, Float and Char for receivers that insist on the type of Java's: a plain int is an
Integer, or a Long if it is too large for that, a plain float is a Double. Properties are the same,
without None and bytes.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Property
from sluicemq.protocols import java
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.client.destinations import Destination, destination
from sluicemq.protocols.jmq.header import VariableHeader
from sluicemq.protocols.jmq.ids import sysid_text
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import Packet

COMPRESS: Final = "JMS_SUN_COMPRESS"
"""Property of a message that is sent compressed."""
COMPRESSED_SIZE: Final = "JMS_SUN_COMPRESSED_SIZE"
UNCOMPRESSED_SIZE: Final = "JMS_SUN_UNCOMPRESSED_SIZE"

LARGEST: Final = 1 << 28
"""Bytes of a body that is decompressed here."""


class MessageFormatError(ValueError):
    """A body that is not what its type says, or cannot be a body."""


class JavaObject(bytes):
    """A serialised Java object. It stays bytes: only `value` looks into it, and it reads nothing
    but the closed set of types that maps and streams may hold, and maps and lists of them."""

    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Self:
        """Serialise a value of the closed set. Raises MessageFormatError."""
        try:
            return cls(java.dumps(value))
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None

    @property
    def value(self) -> object:
        """Raises MessageFormatError for an object of any other class."""
        try:
            return java.loads(self)
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None


Body = str | bytes | bytearray | memoryview | Mapping[str, object] | list[object] | None
"""Of a message that is sent; a tuple counts as a list."""


def encode_body(body: object) -> tuple[PacketType, bytes]:
    """The type of message that a value makes, and its bytes. Raises MessageFormatError."""
    try:
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
    except (ProtocolError, UnicodeEncodeError) as error:
        raise MessageFormatError(str(error)) from None
    raise MessageFormatError(f"a {type(body).__name__} is no body of a message")


def decode_body(packet: Packet) -> object:
    """The inverse, from a packet that came. Raises MessageFormatError."""
    try:
        body = _inflated(packet) if packet.flags & packets.Z else packet.body
        match packet.type:
            case PacketType.TEXT_MESSAGE:
                return body.decode()
            case PacketType.MAP_MESSAGE:
                return java.loads_map(body)
            case PacketType.STREAM_MESSAGE:
                return java.loads_stream(body)
            case PacketType.OBJECT_MESSAGE:
                return JavaObject(body)
            case PacketType.BYTES_MESSAGE:
                return body
        return None
    except (ProtocolError, UnicodeDecodeError) as error:
        raise MessageFormatError(str(error)) from None


def _inflated(packet: Packet) -> bytes:
    size = packet.properties.get(UNCOMPRESSED_SIZE)
    if not isinstance(size, int) or not 0 <= size <= LARGEST:
        raise MessageFormatError(f"a compressed body does not say its size, but {size!r}")
    return java.inflate(packet.body, size, LARGEST)


class Options(NamedTuple):
    """What is said of a message when it is sent, beside its body.

    persistent   it survives the broker; sending waits until it would
    priority     0-9
    ttl          seconds, 0 = for ever
    delay        seconds until a consumer may have it
    """

    persistent: bool = True
    priority: int = 4
    ttl: float = 0.0
    delay: float = 0.0

    def changed(
        self,
        persistent: bool | None,
        priority: int | None,
        ttl: float | None,
        delay: float | None,
    ) -> Options:
        """With what is not None. Raises ValueError."""
        options = Options(
            self.persistent if persistent is None else persistent,
            self.priority if priority is None else priority,
            self.ttl if ttl is None else ttl,
            self.delay if delay is None else delay,
        )
        if not 0 <= options.priority <= 9:
            raise ValueError(f"a priority is 0 to 9, not {priority}")
        if options.ttl < 0 or options.delay < 0:
            raise ValueError("ttl and delay are not negative")
        return options


def deflated(
    body: bytes, properties: Mapping[str, object] | None
) -> tuple[bytes, dict[str, object]]:
    """A body that is to be compressed, and the properties that say so (section 9.5)."""
    small = zlib.compress(body)
    return small, {
        **(properties or {}),
        COMPRESS: True,
        UNCOMPRESSED_SIZE: len(body),
        COMPRESSED_SIZE: len(small),
    }


_UNREAD: Final = object()
_NOT_PASSED_ON: Final = ("JMSX", "JMS_SUN_")
"""How names of properties begin that are not the application's."""


class Message:
    """A message that has been received. Nothing in it changes.

    Its fields can raise MessageFormatError, for a header, a property or a body that is broken.
    """

    __slots__ = ("_body", "_header", "packet")

    def __init__(self, packet: Packet) -> None:
        self.packet = packet
        self._header: VariableHeader | None = None
        self._body: object = _UNREAD

    @property
    def id(self) -> str:
        """JMSMessageID."""
        return self._variable.message_id or sysid_text(self.packet.sysid)

    @property
    def kind(self) -> PacketType:
        """TEXT_MESSAGE, BYTES_MESSAGE, …"""
        return PacketType(self.packet.type)

    @property
    def body(self) -> object:
        """See the table above; decoded when it is first asked for."""
        if self._body is _UNREAD:
            self._body = decode_body(self.packet)
        return self._body

    @property
    def raw(self) -> bytes:
        """The body's bytes, not decoded but decompressed."""
        try:
            packet = self.packet
            return _inflated(packet) if packet.flags & packets.Z else packet.body
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None

    @property
    def shown(self) -> bytes:
        """The body as text for people: maps and streams as JSON, others as they are."""
        try:
            match self.packet.type:
                case PacketType.MAP_MESSAGE:
                    return java.json_of_map(self.raw)
                case PacketType.STREAM_MESSAGE:
                    return java.json_of_stream(self.raw)
            return self.raw
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None

    @property
    def seconds_left(self) -> float:
        """Until it expires; 0 = it never does, or has."""
        return max(0.0, (self.expiration - now_ms()) / 1000) if self.expiration else 0.0

    @property
    def properties(self) -> dict[str, Property]:
        try:
            return self.packet.properties
        except ProtocolError as error:
            raise MessageFormatError(str(error)) from None

    @property
    def own_properties(self) -> dict[str, Property]:
        """Without those that JMS and Open MQ themselves use."""
        return {
            name: value
            for name, value in self.properties.items()
            if not name.startswith(_NOT_PASSED_ON)
        }

    @property
    def destination(self) -> Destination:
        """Where it was sent to."""
        header = self._variable
        return destination(header.queue if self.packet.flags & packets.Q else header.topic)

    @property
    def reply_to(self) -> Destination | None:
        """Where a reply is wanted."""
        address = self._variable.reply_address(bool(self.packet.flags & packets.Q))
        return None if address is None else destination(address)

    @property
    def correlation_id(self) -> str:
        """ "" without one."""
        return self._variable.correlation_id or ""

    @property
    def type(self) -> str:
        """JMSType; "" without one."""
        return self._variable.type or ""

    @property
    def priority(self) -> int:
        """0-9."""
        return self.packet.priority

    @property
    def persistent(self) -> bool:
        return bool(self.packet.flags & packets.P)

    @property
    def timestamp(self) -> int:
        """When it was sent; ms since the epoch."""
        return self.packet.timestamp

    @property
    def expiration(self) -> int:
        """ms since the epoch; 0 = never."""
        return self.packet.expiration

    @property
    def delivery_time(self) -> int:
        """Before which no consumer was to see it; ms since the epoch, 0 = at once."""
        return self._variable.delivery_time

    @property
    def redelivered(self) -> bool:
        """It may have been received before."""
        return bool(self.packet.flags & packets.R)

    @property
    def delivery_count(self) -> int:
        """How often it has been delivered, this time included; 0 if the broker does not say."""
        return self._variable.delivery_count

    @property
    def _variable(self) -> VariableHeader:
        if self._header is None:
            try:
                self._header = self.packet.variable
            except ProtocolError as error:
                raise MessageFormatError(str(error)) from None
        return self._header

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {sysid_text(self.packet.sysid)}>"


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
