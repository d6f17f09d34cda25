"""Conversion of messages between clients of each protocol and the broker, by the real codecs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from sluicemq.protocols import java
from sluicemq.protocols.jmq import mapping as jmq
from sluicemq.protocols.jmq.fields import class_of, encode_header, encode_sysid, format_name
from sluicemq.protocols.jmq.packets import P, PacketType, Q
from sluicemq.protocols.jmq.wire import Decoder as JmqDecoder
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from sluicemq.protocols.msglite import mapping as msglite
from sluicemq.protocols.msglite import wire as msglite_wire
from sluicemq.protocols.phpmq import session as phpmq
from sluicemq.protocols.phpmq import wire as phpmq_wire
from sluicemq.protocols.transcoding import content
from sluicemq.protocols.vibemq import mapping as vibemq
from sluicemq.protocols.vibemq import wire as vibemq_wire
from sluicemq.protocols.vibemq.wire import Decoder as VibemqDecoder

NOW = 1_700_000_000_000
IDENTITY = bytes(range(8))
ADDRESS = Address(Kind.QUEUE, "q")

TEXT, BYTES, MAP, STREAM, OBJECT, NONE = (
    PacketType.TEXT_MESSAGE,
    PacketType.BYTES_MESSAGE,
    PacketType.MAP_MESSAGE,
    PacketType.STREAM_MESSAGE,
    PacketType.OBJECT_MESSAGE,
    PacketType.MESSAGE,
)


@dataclass
class ClientMessage:
    """A message as a client receives it; fields that its protocol lacks keep their defaults.

    body         bytes; the payload for VibeMQ; for JMS str, bytes, dict, list or None, by `type`
    type         the type of a JMS message
    ttl_seconds  time until the message expires; 0: never
    """

    body: Any = b""
    type: PacketType = NONE
    properties: dict[str, Any] = field(default_factory=dict)
    priority: int = 4
    correlation: str = ""
    jms_type: str = ""
    reply_to: Address | None = None
    ttl_seconds: int = 0


class Converter(Protocol):
    """Conversion between messages of a client and of the broker, in both directions."""

    def to_broker(self, client_message: ClientMessage) -> Message: ...

    def to_client(self, message: Message) -> ClientMessage: ...


class PhpmqConverter:
    def to_broker(self, client_message: ClientMessage) -> Message:
        data = phpmq_wire.encode_send(b"q", client_message.body, client_message.ttl_seconds)
        ((_, _, body, _, ttl),) = phpmq_wire.Decoder().feed(data)
        return phpmq.to_message(ADDRESS, body, ttl, Durability.SYNC, NOW)

    def to_client(self, message: Message) -> ClientMessage:
        ttl_seconds = phpmq_wire.seconds_left(message.expiration, NOW)
        return ClientMessage(content(message), ttl_seconds=ttl_seconds)


class MsgliteConverter:
    def to_broker(self, client_message: ClientMessage) -> Message:
        reply = b""
        if client_message.reply_to is not None:
            request = Message(ADDRESS, b"", reply_to=client_message.reply_to)
            request.correlation_id = client_message.correlation
            reply = msglite.wire_reply(request)
        return self.decode(
            client_message.body, client_message.ttl_seconds or msglite.NO_EXPIRY, reply
        )

    def decode(self, body: bytes, timeout: int, reply: bytes) -> Message:
        data = msglite_wire.encode_message(timeout, b"q", body, reply)
        ((_, timeout, addresses, body),) = msglite_wire.Decoder().feed(data)
        reply = addresses[1] if len(addresses) > 1 else b""
        return msglite.to_message(ADDRESS, body, timeout, reply, Durability.NONE, NOW)

    def to_client(self, message: Message) -> ClientMessage:
        reply = msglite.wire_reply(message)
        ttl_seconds = msglite.wire_timeout(message)
        address, correlation = msglite.read_address(reply) if reply else (None, "")
        return ClientMessage(
            content(message),
            correlation=correlation,
            reply_to=address,
            ttl_seconds=0 if ttl_seconds == msglite.NO_EXPIRY else ttl_seconds,
        )


class VibemqConverter:
    def to_broker(self, client_message: ClientMessage) -> Message:
        headers = dict(client_message.properties)
        if client_message.priority != 4:
            headers["priority"] = vibemq.PRIORITIES[(1, 4, 6, 9).index(client_message.priority)]
        fields = {
            "correlationId": client_message.correlation,
            "JMSType": client_message.jms_type,
            "replyTo": str(client_message.reply_to or ""),
        }
        headers |= {name: text for name, text in fields.items() if text}
        frame = vibemq_wire.Frame(vibemq_wire.PUBLISH, "id", "q", client_message.body, headers)
        return self.decode(vibemq_wire.encode(frame))

    def decode(self, data: bytes) -> Message:
        decoder = VibemqDecoder()
        (frame,) = decoder.feed(data)
        assert decoder.error is None
        return vibemq.to_message(ADDRESS, frame, Durability.SYNC, NOW)

    def to_client(self, message: Message) -> ClientMessage:
        identity = vibemq.wire_id(message, IDENTITY).encode()
        decoder = VibemqDecoder()
        (frame,) = decoder.feed(vibemq.to_deliver(message, identity, b"q", 1))
        assert decoder.error is None
        headers = dict(frame.headers)
        assert headers.pop("deliveryAttempts") == "1"
        reply = headers.pop("replyTo", "")
        priority = headers.pop("priority", "Normal")
        return ClientMessage(
            frame.payload,
            priority=(1, 4, 6, 9)[vibemq.PRIORITIES.index(priority)],
            correlation=headers.pop("correlationId", ""),
            jms_type=headers.pop("JMSType", ""),
            reply_to=vibemq.read_address(reply) if reply else None,
            properties=headers,
        )


class JmsConverter:
    def __init__(self) -> None:
        self.numbers = 0

    def to_broker(self, client_message: ClientMessage) -> Message:
        return self.message_of(self.packet(client_message))

    def packet(self, client_message: ClientMessage) -> bytes:
        reply = client_message.reply_to
        header = encode_header(
            "q",
            client_message.correlation or None,
            format_name(reply.name) if reply else None,
            client_message.jms_type or None,
            class_of(ADDRESS),
            class_of(reply) if reply else None,
        )
        self.numbers += 1
        return encode_packet(
            client_message.type,
            P | Q,
            0,
            client_message.properties,
            header,
            encoded_body(client_message),
            client_message.priority,
            NOW + client_message.ttl_seconds * 1000 if client_message.ttl_seconds else 0,
            encode_sysid(NOW, b"\0" * 10 + b"\xff\xff\x7f\0\0\x01", 4711, self.numbers),
        )

    def message_of(self, data: bytes) -> Message:
        return jmq.message_of(read_packet(data))

    def to_client(self, message: Message) -> ClientMessage:
        data = b"".join(jmq.encode_delivery(message, 1, 0, 1, IDENTITY))
        packet = read_packet(data)
        variable = packet.variable
        return ClientMessage(
            decoded_body(packet),
            PacketType(packet.type),
            packet.properties,
            packet.priority,
            variable.correlation_id or "",
            variable.type or "",
            variable.reply_address(bool(packet.flags & Q)),
            -((NOW - packet.expiration) // 1000) if packet.expiration else 0,
        )


def read_packet(data: bytes) -> Packet:
    decoder = JmqDecoder()
    (packet,) = decoder.feed(data)
    assert decoder.error is None
    assert type(packet) is Packet
    return packet


def encoded_body(client_message: ClientMessage) -> bytes:
    body = client_message.body
    if client_message.type == TEXT:
        return str(body).encode()
    if client_message.type == MAP:
        return java.dumps_map(body)
    if client_message.type == STREAM:
        return java.dumps_stream(body)
    return bytes(body or b"")


def decoded_body(packet: Packet) -> Any:
    if packet.type == TEXT:
        return packet.body.decode()
    if packet.type == MAP:
        return java.loads_map(packet.body)
    if packet.type == STREAM:
        return java.loads_stream(packet.body)
    return packet.body if packet.type != NONE else b""


PHPMQ, MSGLITE, VIBEMQ, JMS = (
    PhpmqConverter(),
    MsgliteConverter(),
    VibemqConverter(),
    JmsConverter(),
)


def round_trip_via(
    sender: Converter, other: Converter, client_message: ClientMessage
) -> ClientMessage:
    """Return a message after it was sent by one protocol, relayed by another and received."""
    transcoded = other.to_client(with_sequence(sender.to_broker(client_message)))
    return sender.to_client(with_sequence(other.to_broker(transcoded)))


def with_sequence(message: Message) -> Message:
    """Assign a sequence number to the message, as the journal does."""
    message.sequence = 77
    return message


def jms_text(text: str, **fields: Any) -> ClientMessage:
    return replace(ClientMessage(text, TEXT), **fields)
