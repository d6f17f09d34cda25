"""Codecs: how each protocol's frames are decoded, measured and described; options and columns.

All of them use the server's own codecs (protocols/*/wire.py). Options are for facts that captures
do not contain.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from sluicemq.model.errors import ConfigurationError, ProtocolError
from sluicemq.model.message import UNCOMPRESSED_SIZE, Property
from sluicemq.model.url import PROTOCOLS
from sluicemq.pipeline.schema import escape_invalid, property_text
from sluicemq.protocols.java import inflate
from sluicemq.protocols.jmq import wire as jmq
from sluicemq.protocols.jmq.fields import INT_BLOCK, LONG_BLOCK, decode_blocks, sysid_text
from sluicemq.protocols.jmq.packets import MAGIC, BodyType, DestType, PacketType, Q, Z
from sluicemq.protocols.msglite import wire as msglite
from sluicemq.protocols.phpmq import wire as phpmq
from sluicemq.protocols.vibemq import mapping as vibemq_mapping
from sluicemq.protocols.vibemq import wire as vibemq

REPORTED: Final = ("tls", "phpmq-maintenance", "http", "msglite-http", "jmq-portmapper")
"""Protocols that are reported and not decoded."""

PORTS: Final = {protocol.port: name for name, protocol in PROTOCOLS.items() if protocol.port}

HIDDEN: Final = "***"
"""Replacement for passwords."""

FRAMES: Final = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("connection", pa.int64()),
        pa.field("stream", pa.string()),
        pa.field("direction", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("frame", pa.string()),
        pa.field("packet_type", pa.int32()),
        pa.field("destination", pa.string()),
        pa.field("destination_kind", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("body_kind", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("error", pa.string()),
    ]
)
"""Columns of decoded traffic (docs/pipeline/decode.md); one row is one frame or one error."""

Row = dict[str, Any]
"""Columns by name; absent ones are null, and names that are not in FRAMES are ignored."""
Pairs = list[tuple[str, str | None]]


class Raw(NamedTuple):
    """Format of files that contain the bytes of one direction instead of a capture.

    protocol  one of CODECS, or None to detect it
    role      sender of the bytes: "client" or "server"
    """

    protocol: str | None = None
    role: str = "client"


@dataclass(frozen=True)
class DecodeOptions:
    """Options of decoding.

    ports            protocol of each server port
    raw              format of raw logs; None for captures
    max_frame_bytes  a frame with a greater length is an error, for which no memory is allocated;
                     by default, the maximum of a JMS broker (Open MQ's imq.message.max_size)
    secrets          include passwords and tokens instead of "***"
    """

    ports: Mapping[int, str] = field(default_factory=lambda: PORTS)
    raw: Raw | None = None
    max_frame_bytes: int = jmq.MAX_PACKET
    secrets: bool = False

    def __post_init__(self) -> None:
        """Validate the options. Raises ConfigurationError."""
        for port, protocol in self.ports.items():
            if not 0 < port < 65_536:
                raise ConfigurationError(f"ports: {port} is not a port number (1 to 65535)")
            _check_protocol("ports", protocol, (*CODECS, *REPORTED))
        if self.raw is not None:
            if self.raw.protocol is not None:
                _check_protocol("protocol", self.raw.protocol, CODECS)
            if self.raw.role not in ("client", "server"):
                raise ConfigurationError(
                    f"role: {self.raw.role!r} is neither client nor server: name the sender"
                )
        if self.max_frame_bytes < 1:
            raise ConfigurationError("max_frame_bytes: must be at least 1")


def _check_protocol(name: str, protocol: str, known: Collection[str]) -> None:
    if protocol not in known:
        raise ConfigurationError(
            f"{name}: unknown protocol {protocol!r}; there are {', '.join(known)}"
        )


def parse_ports(text: str) -> dict[int, str]:
    """Parse ports such as "9200=phpmq,9300=jmq" and add PORTS. Raises ConfigurationError."""
    ports = dict(PORTS)
    for pair in filter(None, (part.strip() for part in text.split(","))):
        port, equals, protocol = pair.partition("=")
        if not equals or not port.strip().isdecimal() or not port.isascii():
            raise ConfigurationError(f"ports: {pair!r} is not PORT=PROTOCOL, as in 9200=phpmq")
        ports[int(port)] = protocol.strip()
    return ports


class Codec(ABC):
    """Decoder of one direction of a connection, starting at the beginning of a frame.

    Frames come from `decoder`, the server's own, which does not report their boundaries; `size`
    computes the length of each.
    """

    name: ClassVar[str]
    signature: ClassVar[re.Pattern[bytes]]
    """Pattern of the beginning of a frame, for resynchronisation. Its matches do not overlap, so
    bytes at which another frame may begin are in a lookahead."""

    def __init__(self, to_server: bool, options: DecodeOptions) -> None:
        self.to_server = to_server
        self.options = options
        self.decoder = self._new_decoder()

    @abstractmethod
    def _new_decoder(self) -> Any:
        """Return the server's decoder, with `error`, `incomplete` and `feed`."""

    @classmethod
    def starts(cls, data: bytes | bytearray, at: int = 0) -> Iterator[int]:
        """Yield the positions from `at` on at which a frame may begin."""
        return (match.start() for match in cls.signature.finditer(data, at))

    @abstractmethod
    def size(self, data: bytearray, at: int, frame: Any) -> int:
        """Return the size in bytes of a decoded frame, which begins at `data[at]`."""

    @abstractmethod
    def describe(self, frame: Any) -> Row:
        """Return a frame's columns, all from `frame` on.

        Never raises: an invalid part sets the column `error`."""

    def _redact(self, value: Any) -> Any:
        if self.options.secrets:
            return value
        return HIDDEN.encode() if isinstance(value, bytes) else HIDDEN


class PhpmqCodec(Codec):
    name = "phpmq"
    signature = re.compile(rb"H(?=01\d{5}(?:\r?\n)?P\d{31})")

    _FRAMES: ClassVar = {
        phpmq.SEND: "send",
        phpmq.CONSUME: "consume",
        phpmq.DISPATCH: "dispatch",
        phpmq.ACKNOWLEDGE: "acknowledge",
        phpmq.REQUEUE: "requeue",
        phpmq.DEAD_LETTER: "dead-letter",
    }

    def _new_decoder(self) -> phpmq.Decoder:
        kinds = phpmq.FROM_CLIENT if self.to_server else phpmq.FROM_SERVER
        return phpmq.Decoder(phpmq.Limits(body=self.options.max_frame_bytes), kinds)

    def size(self, data: bytearray, at: int, frame: phpmq.Frame) -> int:
        start = at
        while data[at] in b"\r\n":
            at += 1  # blank lines before the frame
        packets = int(data[at + 6 : at + 8])
        at = self._skip_newline(data, at + 8)
        for _ in range(packets):
            length = int(data[at + 3 : at + 32])
            at = self._skip_newline(data, self._skip_newline(data, at + 32) + length)
        return at - start

    def _skip_newline(self, data: bytearray, at: int) -> int:
        """Return the index behind the end of line at `at`, in the line form of the protocol."""
        return at if not self.decoder.newline else at + 2 if data[at] == 0x0D else at + 1

    def describe(self, frame: phpmq.Frame) -> Row:
        kind, queue, content, message_id, number = frame
        name = "count" if kind == phpmq.CONSUME else "ttl"
        has_body = kind in (phpmq.SEND, phpmq.DISPATCH)
        return {
            "frame": self._FRAMES[kind],
            "packet_type": kind,
            "destination": _from_bytes(queue),
            "destination_kind": "queue",
            "message_id": _from_bytes(message_id) or None,
            "properties": [(name, str(number))] if number >= 0 else None,
            "body_kind": "bytes" if has_body else None,
            "body": content if has_body else None,
        }


class MsgliteCodec(Codec):
    name = "msglite"
    # commands without numbers are too short to be accepted except at the beginning of a line
    signature = re.compile(
        rb"(?m:^)[ \t]*[>?][ \t]+\d+[ \t]+-?\d+[ \t]|"
        rb"(?<=\n)[ \t]*(?:<[ \t]+-?\d+[ \t]|[.*][ \t]*\r?\n|-[ \t])"
    )

    _FRAMES: ClassVar = {
        msglite.MESSAGE: "message",
        msglite.READY: "ready",
        msglite.QUERY: "query",
        msglite.QUIT: "quit",
        msglite.TIMEOUT: "time-out",
        msglite.ERROR: "error",
    }

    def _new_decoder(self) -> msglite.Decoder:
        kinds = msglite.FROM_CLIENT if self.to_server else msglite.FROM_SERVER
        return msglite.Decoder(msglite.Limits(body=self.options.max_frame_bytes), kinds)

    def size(self, data: bytearray, at: int, frame: msglite.Frame) -> int:
        start, end = at, data.index(b"\n", at) + 1
        while not data[at:end].strip():
            at, end = end, data.index(b"\n", end) + 1  # an empty line before it
        body = frame[3]
        return end - start + (len(body) + 2 if body and frame[0] != msglite.ERROR else 0)

    def describe(self, frame: msglite.Frame) -> Row:
        kind, timeout, addresses, body = frame
        has_body = kind in (msglite.MESSAGE, msglite.QUERY)
        destinations = addresses if kind == msglite.READY else addresses[:1]
        properties: Pairs | None = None
        if addresses:
            properties = [("timeout", str(timeout))]
        elif kind == msglite.ERROR:
            properties = [("text", _from_bytes(body))]
        return {
            "frame": self._FRAMES[kind],
            "packet_type": kind,
            "destination": _from_bytes(b" ".join(destinations)) or None,
            "destination_kind": "queue" if addresses else None,
            "reply_to": _from_bytes(addresses[1]) if has_body and len(addresses) > 1 else None,
            "properties": properties,
            "body_kind": "bytes" if has_body else None,
            "body": body if has_body else None,
        }


_VIBEMQ_FRAMES: Final = {
    value: name
    for name, value in vars(vibemq).items()
    if isinstance(value, int)
    and value in vibemq.FROM_CLIENT | vibemq.FROM_SERVER
    and name[0] != "_"
}
"""Names of the frame types, as in the module with their numbers."""


class VibemqCodec(Codec):
    name = "vibemq"
    # a length below 16 MiB, then a plain body of version 1 with a known type and an id of less than
    # 256 bytes, or a body with the mark of gzip or Brotli
    signature = re.compile(
        rb"\x00(?=[\x00-\xff]{3}(?:\x00\x01[%b]\x00[^\x00]|\x01\x1f\x8b|\x02))"
        % re.escape(bytes(_VIBEMQ_FRAMES)),
        re.DOTALL,
    )

    _MESSAGES: ClassVar = (vibemq.PUBLISH, vibemq.PUBLISH_ACK, vibemq.DELIVER, vibemq.ACK)
    """Frame types whose id is the message's id."""
    _SECRETS: ClassVar = ("authPassword", "authToken")

    def _new_decoder(self) -> vibemq.Decoder:
        unpacked = max(self.options.max_frame_bytes, vibemq.MAX_UNPACKED)
        return vibemq.Decoder(vibemq.Limits(frame=self.options.max_frame_bytes, unpacked=unpacked))

    def size(self, data: bytearray, at: int, frame: vibemq.Frame) -> int:
        return vibemq.HEADER_SIZE + int.from_bytes(data[at : at + 4])

    def describe(self, frame: vibemq.Frame) -> Row:
        kind = frame.type
        headers = frame.headers or {}
        properties: dict[str, Property] = dict(headers)
        for name in properties.keys() & self._SECRETS:
            properties[name] = self._redact(properties[name])
        if frame.error_code or frame.error_message:
            properties |= {"errorCode": frame.error_code, "errorMessage": frame.error_message}
        has_body = kind in (vibemq.PUBLISH, vibemq.DELIVER)
        body: bytes | None = frame.payload if has_body or frame.payload else None
        if kind in (vibemq.CREATE_USER, vibemq.CHANGE_PASSWORD) and self.to_server:
            body = self._redact(body or b"")
        identity = _printable(frame.id)
        return {
            "frame": _VIBEMQ_FRAMES.get(kind) or f"type {kind}",
            "packet_type": kind,
            "destination": _printable(frame.queue),
            "destination_kind": "queue" if frame.queue else None,
            "message_id": identity if kind in self._MESSAGES else None,
            "correlation_id": _printable(headers.get(vibemq_mapping.CORRELATION_ID)),
            "request_id": identity,
            "reply_to": _printable(headers.get(vibemq_mapping.REPLY_TO)),
            "properties": _texts(properties.items()),
            "body_kind": ("json" if frame.payload else "none") if has_body else None,
            "body": body,
        }


class JmqCodec(Codec):
    name = "jmq"
    signature = re.compile(re.escape(MAGIC.to_bytes(4, "big")) + rb"(?:\x01\x2d|\0\xc8|\0\x67)")

    _FRAMES: ClassVar = {kind.value: kind.name for kind in PacketType}
    _BODIES: ClassVar = {
        PacketType.TEXT_MESSAGE.value: "text",
        PacketType.BYTES_MESSAGE.value: "bytes",
        PacketType.MAP_MESSAGE.value: "map",
        PacketType.STREAM_MESSAGE.value: "stream",
        PacketType.OBJECT_MESSAGE.value: "object",
        PacketType.MESSAGE.value: "none",
    }

    def _new_decoder(self) -> jmq.Decoder:
        # the announced size may be wrong: search for the next packet, do not skip that many bytes
        limits = jmq.Limits(packet=self.options.max_frame_bytes)
        return jmq.Decoder(limits, skips_oversized=False)

    def size(self, data: bytearray, at: int, frame: jmq.Packet) -> int:
        return len(frame.head) + len(frame.body)

    def describe(self, frame: jmq.Packet) -> Row:
        is_login = frame.type == PacketType.AUTHENTICATE
        columns: Row = {
            "frame": self._FRAMES.get(frame.type) or f"type {frame.type}",
            "packet_type": frame.type,
            "request_id": str(frame.consumer_id) if frame.consumer_id else None,
            "body": (self._redact(frame.body) if is_login else frame.body) or None,
        }
        try:
            properties = frame.properties if frame.block else {}
            columns["properties"] = _texts(properties.items())
            describe = self._message if frame.is_message else self._control
            return columns | describe(frame, properties)
        except ProtocolError as error:
            return {**columns, "error": str(error)}

    def _control(self, packet: jmq.Packet, properties: dict[str, Property]) -> Row:
        """Return the other columns of a packet without a message. Raises ProtocolError."""
        columns: Row = {}
        target = properties.get("JMQDestination")
        if isinstance(target, str) and target:
            bits = properties.get("JMQDestType")
            is_topic = isinstance(bits, int) and bool(bits & DestType.TOPIC)
            columns["destination"] = _printable(target)
            columns["destination_kind"] = "topic" if is_topic else "queue"
        if packet.type in (PacketType.ACKNOWLEDGE, PacketType.REDELIVER) and packet.body:
            has_int_ids = properties.get("JMQBodyType") == BodyType.CONSUMERID_I_SYSMESSAGEID
            blocks = decode_blocks(packet.body, INT_BLOCK if has_int_ids else LONG_BLOCK)
            columns["message_id"] = " ".join(sysid_text(sysid) for _, sysid in blocks)
        return columns

    def _message(self, packet: jmq.Packet, properties: dict[str, Property]) -> Row:
        """Return the other columns of a packet with a message. Raises ProtocolError."""
        variable = packet.variable
        body = packet.body
        if packet.flags & Z:
            size = properties.get(UNCOMPRESSED_SIZE)
            body = inflate(
                body, size if isinstance(size, int) else None, self.options.max_frame_bytes
            )
        return {
            "destination": _printable(variable.destination),
            "destination_kind": "queue" if packet.flags & Q else "topic",
            "message_id": _printable(variable.message_id or sysid_text(packet.sysid)),
            "correlation_id": _printable(variable.correlation_id),
            "reply_to": _printable(variable.reply_to),
            "priority": packet.priority,
            "body_kind": self._BODIES[packet.type],
            "body": body,
        }


CODECS: Final[dict[str, type[Codec]]] = {
    kind.name: kind for kind in (JmqCodec, PhpmqCodec, VibemqCodec, MsgliteCodec)
}
"""By name, in the order in which they are tried with a connection of an unknown protocol."""


def _from_bytes(raw: bytes) -> str:
    """Return a name as text; a byte that is not UTF-8 becomes \\xNN."""
    return raw.decode("utf-8", "backslashreplace")


def _printable(text: str | None) -> str | None:
    """Return text that a table can store, None for no text."""
    return escape_invalid(text) if text else None


def _texts(properties: Iterable[tuple[str, Property]]) -> Pairs | None:
    """Return values as text: true and false, decimal numbers, bytes in base64."""
    texts = ((escape_invalid(name), property_text(value)) for name, value in properties)
    return [(name, None if text is None else escape_invalid(text)) for name, text in texts] or None
