"""Codecs of PHPMQ, msglite, VibeMQ and JMQ."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.pipeline.decode.codec import (
    HIDDEN,
    Codec,
    FrameColumns,
    Pairs,
    printable_bytes,
    printable_name,
    printable_properties,
    printable_text,
)
from sluicemq.protocols.java import inflate
from sluicemq.protocols.jmq import wire as jmq
from sluicemq.protocols.jmq.fields import INT_BLOCK, LONG_BLOCK, decode_blocks, sysid_text
from sluicemq.protocols.jmq.packets import MAGIC, BodyType, DestType, PacketType, Q, Z
from sluicemq.protocols.msglite import wire as msglite
from sluicemq.protocols.phpmq import wire as phpmq
from sluicemq.protocols.vibemq import mapping as vibemq_mapping
from sluicemq.protocols.vibemq import wire as vibemq
from sluicemq.protocols.vibemq.wire import Decoder as VibemqDecoder
from sluicemq.protocols.vibemq.wire import Limits as VibemqLimits

_BLANKS: Final = b" \t\r\n"


class PhpmqCodec(Codec):
    """Codec of PHPMQ."""

    name = "phpmq"
    signature = re.compile(rb"H01\d{5}(?:\r?\n)?P\d{31}")

    _FRAMES: ClassVar = {
        phpmq.SEND: "send",
        phpmq.CONSUME: "consume",
        phpmq.DISPATCH: "dispatch",
        phpmq.ACKNOWLEDGE: "acknowledge",
        phpmq.REQUEUE: "requeue",
        phpmq.DEAD_LETTER: "dead-letter",
    }
    _HEADER: Final = 8
    _PACKET_HEADER: Final = 32

    def _new_decoder(self) -> phpmq.Decoder:
        kinds = phpmq.FROM_CLIENT if self.to_server else phpmq.FROM_SERVER
        return phpmq.Decoder(phpmq.Limits(body=self.limit), kinds)

    def size(self, data: bytes, at: int, frame: phpmq.Frame) -> int:
        start = at
        lines = self._decoder.newline != b""
        while lines and data[at] in b"\r\n":
            at += 1
        packets = int(data[at + 6 : at + self._HEADER])
        at += self._HEADER
        if not lines:
            for _ in range(packets):
                at += self._PACKET_HEADER + int(data[at + 3 : at + self._PACKET_HEADER])
            return at - start
        at = _after_line(data, at)
        for _ in range(packets):
            length = int(data[at + 3 : at + self._PACKET_HEADER])
            at = _after_line(data, _after_line(data, at + self._PACKET_HEADER) + length)
        return at - start

    def describe(self, frame: phpmq.Frame) -> FrameColumns:
        kind, queue, content, message_id, number = frame
        properties: Pairs | None = None
        if number >= 0:
            properties = [("count" if kind == phpmq.CONSUME else "ttl", str(number))]
        carries = kind in (phpmq.SEND, phpmq.DISPATCH)
        return FrameColumns(
            self._FRAMES[kind],
            kind,
            printable_bytes(queue),
            "queue",
            printable_bytes(message_id) or None,
            properties=properties,
            body_kind="bytes" if carries else None,
            body=content if carries else None,
        )


def _after_line(data: bytes, at: int) -> int:
    return at + (2 if data[at] == 0x0D else 1)


class MsgliteCodec(Codec):
    """Codec of msglite."""

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
        return msglite.Decoder(msglite.Limits(body=self.limit), kinds)

    def size(self, data: bytes, at: int, frame: msglite.Frame) -> int:
        start = at
        while True:
            end = data.index(b"\n", at) + 1
            if data[at:end].strip(_BLANKS):
                body = frame[3]
                carried = len(body) + 2 if body and frame[0] != msglite.ERROR else 0
                return end - start + carried
            at = end  # an empty line before it

    def describe(self, frame: msglite.Frame) -> FrameColumns:
        kind, timeout, addresses, body = frame
        carries = kind in (msglite.MESSAGE, msglite.QUERY)
        to = addresses if kind == msglite.READY else addresses[:1]
        properties: Pairs | None = None
        if addresses:
            properties = [("timeout", str(timeout))]
        elif kind == msglite.ERROR:
            properties = [("text", printable_bytes(body))]
        return FrameColumns(
            self._FRAMES[kind],
            kind,
            printable_bytes(b" ".join(to)) or None,
            "queue" if addresses else None,
            reply_to=printable_bytes(addresses[1]) if carries and len(addresses) > 1 else None,
            properties=properties,
            body_kind="bytes" if carries else None,
            body=body if carries else None,
        )


_VIBEMQ_FRAMES: Final = {
    getattr(vibemq, name): name
    for name in (
        "CONNECT",
        "CONNECT_ACK",
        "DISCONNECT",
        "PING",
        "PONG",
        "PUBLISH",
        "PUBLISH_ACK",
        "SUBSCRIBE",
        "SUBSCRIBE_ACK",
        "UNSUBSCRIBE",
        "UNSUBSCRIBE_ACK",
        "DELIVER",
        "ACK",
        "CREATE_QUEUE",
        "DELETE_QUEUE",
        "QUEUE_INFO",
        "LIST_QUEUES",
        "CREATE_USER",
        "DELETE_USER",
        "CHANGE_PASSWORD",
        "GRANT_PERMISSION",
        "REVOKE_PERMISSION",
        "LIST_USERS",
        "GET_USER_PERMISSIONS",
        "ERROR",
    )
}


class VibemqCodec(Codec):
    """Codec of VibeMQ."""

    name = "vibemq"
    # a length below 16 MiB, then a plain body of version 1 with a known type and an id of less than
    # 256 bytes, or a body with the mark of gzip or Brotli
    signature = re.compile(
        rb"\x00[\x00-\xff]{3}(?:\x00\x01[%b]\x00[^\x00]|\x01\x1f\x8b|\x02)"
        % re.escape(bytes(_VIBEMQ_FRAMES)),
        re.DOTALL,
    )

    _MESSAGES: ClassVar = frozenset(
        {vibemq.PUBLISH, vibemq.PUBLISH_ACK, vibemq.DELIVER, vibemq.ACK}
    )
    """Frame types whose id is the message's id."""
    _SECRETS: ClassVar = frozenset({"authPassword", "authToken"})
    _WITH_PASSWORD: ClassVar = frozenset({vibemq.CREATE_USER, vibemq.CHANGE_PASSWORD})

    def _new_decoder(self) -> VibemqDecoder:
        unpacked = max(self.limit, vibemq.MAX_UNPACKED)
        return VibemqDecoder(VibemqLimits(frame=self.limit, unpacked=unpacked))

    def size(self, data: bytes, at: int, frame: vibemq.Frame) -> int:
        return vibemq.HEADER_SIZE + int.from_bytes(data[at : at + 4])

    def describe(self, frame: vibemq.Frame) -> FrameColumns:
        kind = frame.type
        headers = frame.headers
        hidden = frozenset() if self.secrets else self._SECRETS
        properties = printable_properties(
            (name, HIDDEN if name in hidden else value) for name, value in (headers or {}).items()
        )
        if frame.error_code or frame.error_message:
            properties = [
                *(properties or []),
                ("errorCode", printable_text(frame.error_code)),
                ("errorMessage", printable_text(frame.error_message)),
            ]
        carries = kind in (vibemq.PUBLISH, vibemq.DELIVER)
        body: bytes | None = frame.payload if carries or frame.payload else None
        if kind in self._WITH_PASSWORD and self.to_server and not self.secrets:
            body = HIDDEN.encode()
        identity = printable_text(frame.id)
        return FrameColumns(
            _VIBEMQ_FRAMES.get(kind) or f"type {kind}",
            kind,
            printable_name(frame.queue),
            "queue" if frame.queue else None,
            identity if kind in self._MESSAGES else None,
            printable_name(headers.get(vibemq_mapping.CORRELATION_ID)) if headers else None,
            identity,
            printable_name(headers.get(vibemq_mapping.REPLY_TO)) if headers else None,
            properties=properties,
            body_kind=("json" if frame.payload else "none") if carries else None,
            body=body,
        )


_JMQ_FRAMES: Final = {kind.value: kind.name for kind in PacketType}
_JMQ_BODIES: Final = {
    PacketType.TEXT_MESSAGE.value: "text",
    PacketType.BYTES_MESSAGE.value: "bytes",
    PacketType.MAP_MESSAGE.value: "map",
    PacketType.STREAM_MESSAGE.value: "stream",
    PacketType.OBJECT_MESSAGE.value: "object",
    PacketType.MESSAGE.value: "none",
}


class JmqCodec(Codec):
    """Codec of JMQ."""

    name = "jmq"
    signature = re.compile(re.escape(MAGIC.to_bytes(4, "big")) + rb"(?:\x01\x2d|\0\xc8|\0\x67)")
    keeps = False

    _WITH_BLOCKS: ClassVar = frozenset({PacketType.ACKNOWLEDGE.value, PacketType.REDELIVER.value})

    _oversized: ProtocolError | None = None

    def _new_decoder(self) -> jmq.Decoder:
        return jmq.Decoder(jmq.Limits(packet=self.limit))

    @property
    def error(self) -> ProtocolError | None:
        return self._oversized or super().error

    def feed(self, data: bytes) -> list[jmq.Packet]:
        if self._oversized is not None:
            return []
        packets = super().feed(data)
        for number, packet in enumerate(packets):
            if isinstance(packet, jmq.Oversized):
                # the announced size may be wrong: the next packet is searched for
                self._oversized = FrameTooLarge(
                    f"a packet of {packet.size} bytes, or one of its headers, is above the limit"
                )
                return packets[:number]
        return packets

    def size(self, data: bytes, at: int, frame: jmq.Packet) -> int:
        return len(frame.head) + len(frame.body)

    def describe(self, frame: jmq.Packet) -> FrameColumns:
        kind = frame.type
        name = _JMQ_FRAMES.get(kind) or f"type {kind}"
        request = str(frame.consumer_id) if frame.consumer_id else None
        try:
            properties = frame.properties if frame.block else {}
            if frame.is_message:
                return self._message(frame, name, request)
            destination, is_topic = None, False
            target = properties.get("JMQDestination")
            if isinstance(target, str):
                bits = properties.get("JMQDestType")
                destination = printable_text(target)
                is_topic = isinstance(bits, int) and bool(bits & DestType.TOPIC)
            body: bytes | None = frame.body or None
            message_ids = None
            if kind == PacketType.AUTHENTICATE and not self.secrets:
                body = HIDDEN.encode()
            elif kind in self._WITH_BLOCKS and body:
                old = properties.get("JMQBodyType") == BodyType.CONSUMERID_I_SYSMESSAGEID
                blocks = decode_blocks(body, INT_BLOCK if old else LONG_BLOCK)
                message_ids = " ".join(sysid_text(sysid) for _, sysid in blocks)
            return FrameColumns(
                name,
                kind,
                destination,
                ("topic" if is_topic else "queue") if destination else None,
                message_ids,
                request_id=request,
                properties=printable_properties(properties.items()),
                body=body,
            )
        except ProtocolError as fault:
            return FrameColumns(
                name, kind, request_id=request, body=frame.body or None, error=str(fault)
            )

    def _message(self, packet: jmq.Packet, name: str, request: str | None) -> FrameColumns:
        """Return the columns of a packet with a message. Raises ProtocolError."""
        variable = packet.variable
        body = packet.body
        properties = packet.properties if packet.block else {}
        if packet.flags & Z:
            size = properties.get("JMS_SUN_UNCOMPRESSED_SIZE")
            body = inflate(body, size if isinstance(size, int) else None, self.limit)
        return FrameColumns(
            name,
            packet.type,
            printable_name(variable.destination),
            "queue" if packet.flags & Q else "topic",
            printable_text(variable.message_id or sysid_text(packet.sysid)),
            printable_name(variable.correlation_id),
            request,
            printable_name(variable.reply_to),
            packet.priority,
            printable_properties(properties.items()) if properties else None,
            _JMQ_BODIES[packet.type],
            body,
        )
