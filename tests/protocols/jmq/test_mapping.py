from __future__ import annotations

import zlib
from struct import pack, unpack_from

import pytest

from sluicemq.model.dead_letters import dead_letter_of
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Message, Origin, Property
from sluicemq.protocols import java
from sluicemq.protocols.java import Byte, Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import (
    QUEUE_CLASS,
    TOPIC_CLASS,
    encode_header,
    encode_sysid,
    make_sysid,
    sysid_text,
)
from sluicemq.protocols.jmq.mapping import (
    encode_delivery,
    message_of,
    sysid_of,
    with_properties,
)
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import Decoder, Packet, encode_packet
from sluicemq.protocols.transcoding import expanded

IDENTITY = bytes(range(8))
ADDRESS = bytes.fromhex("ff000000de6e438d7202ffff7f000001")
SYSID = encode_sysid(1795239283638, ADDRESS, 32894, 41)
QUEUE = Address(Kind.QUEUE, "q")
CLASSIC = packets.Q | packets.P | packets.A


def decode_packet(data: bytes) -> Packet:
    decoder = Decoder()
    [packet] = decoder.feed(data)
    assert decoder.error is None
    assert type(packet) is Packet
    return packet


def client_packet(
    kind: int = 1,
    flags: int = CLASSIC,
    header: bytes | None = None,
    properties: dict[str, object] | None = None,
    body: bytes = b"later",
    priority: int = 4,
    expiration: int = 0,
    sysid: bytes = SYSID,
) -> Packet:
    """Return a message as a client sends it."""
    if header is None:
        header = encode_header("dq", destination_class=QUEUE_CLASS, producer_id=7)
    return decode_packet(
        encode_packet(kind, flags, 10, properties, header, body, priority, expiration, sysid)
    )


def deliver(message: Message, flags: int = 0, count: int = 1, consumer: int = 99) -> Packet:
    chunks = encode_delivery(message, consumer, flags, count, IDENTITY)
    assert chunks[0][20:52] == sysid_of(message, IDENTITY)
    packet = decode_packet(b"".join(chunks))
    assert packet.version == 301
    assert packet.consumer_id == consumer
    assert packet.variable.delivery_count == count
    return packet


# --- incoming messages ---------------------------------------------------------------------------


def test_converts_message_of_java_client() -> None:
    header = encode_header(
        "dq",
        "correlated",
        "answers",
        "my-type",
        QUEUE_CLASS,
        TOPIC_CLASS,
        transaction_id=3,
        producer_id=7,
        delivery_time=1795239283900,
    )
    message = message_of(
        client_packet(header=header, properties={"n": Long(5)}, expiration=1795239284000), "anna"
    )
    assert message.destination == Address(Kind.QUEUE, "dq")
    assert message.body == b"later"
    assert message.kind is BodyKind.TEXT
    assert message.origin is Origin.JMQ
    assert message.durability is Durability.SYNC
    assert message.priority == 4
    assert message.timestamp == 1795239283638
    assert message.expiration == 1795239284000
    assert message.deliver_at == 1795239283900
    assert message.message_id == "ID:41-127.0.0.1(de:6e:43:8d:72:2)-32894-1795239283638"
    assert message.message_id == sysid_text(SYSID)
    assert message.correlation_id == "correlated"
    assert message.reply_to == Address(Kind.TOPIC, "answers")
    assert message.type == "my-type"
    assert message.properties == {"n": 5}
    assert message.sender == "anna"


def test_absent_header_fields() -> None:
    message = message_of(client_packet(6, 0, encode_header("t"), body=b""))
    assert message.destination == Address(Kind.TOPIC, "t")
    assert message.kind is BodyKind.NONE
    assert message.durability is Durability.NONE
    assert message.properties is None
    assert message.reply_to is None
    assert message.correlation_id == message.type == ""
    assert message.expiration == message.deliver_at == 0


def test_persistent_flag_selects_durability() -> None:
    for flags, durability in ((packets.P, Durability.LAZY), (0, Durability.SYNC)):
        message = message_of(client_packet(flags=flags), None, Durability.LAZY, Durability.SYNC)
        assert message.durability is durability


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (PacketType.TEXT_MESSAGE, BodyKind.TEXT),
        (PacketType.BYTES_MESSAGE, BodyKind.BYTES),
        (PacketType.MAP_MESSAGE, BodyKind.MAP),
        (PacketType.STREAM_MESSAGE, BodyKind.STREAM),
        (PacketType.OBJECT_MESSAGE, BodyKind.OBJECT),
        (PacketType.MESSAGE, BodyKind.NONE),
    ],
)
def test_message_types_survive_round_trip(kind: PacketType, expected: BodyKind) -> None:
    message = message_of(client_packet(kind, body=b"\xac\xed anything"))
    assert message.kind is expected
    packet = deliver(message)
    assert packet.type == kind
    assert packet.body == b"\xac\xed anything"


def test_jmsmessageid_property_replaces_packet_id() -> None:
    message = message_of(client_packet(header=encode_header("q", message_id="ID:mine")))
    assert message.message_id == "ID:mine"
    assert deliver(message).sysid == SYSID


def test_clamps_times_and_priorities_out_of_range() -> None:
    wild = client_packet(
        header=encode_header("q", delivery_time=2**63 - 1),
        priority=255,
        expiration=2**63 - 1,
        sysid=encode_sysid(-1, ADDRESS, 0, 0),
    )
    message = message_of(wild)
    assert message.deliver_at == message.expiration == LAST_TIME
    assert message.timestamp == 0
    assert message.priority == 9
    message = message_of(client_packet(header=encode_header("q", delivery_time=-5), expiration=-5))
    assert message.deliver_at == message.expiration == 0
    packet = deliver(message)
    assert packet.expiration == packet.variable.delivery_time == -5


@pytest.mark.parametrize("header", [b"", encode_header(""), b"\0\1\0\7q", encode_header(type="t")])
def test_message_without_destination_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        message_of(client_packet(header=header))


def test_malformed_property_block_is_refused() -> None:
    packet = client_packet(properties={"a": "b"})
    packet.block = packet.block[:-1]
    with pytest.raises(ProtocolError):
        message_of(packet)


# --- forwarding to JMS clients -------------------------------------------------------------------


def test_delivery_changes_only_delivery_fields() -> None:
    header = encode_header(
        "dq", "c", "r", "t", QUEUE_CLASS, TOPIC_CLASS, 3, 7, 1795239283900, message_id="m"
    )
    properties: dict[str, object] = {"a": Byte(1), "b": Long(2)}
    packet = client_packet(
        2,
        CLASSIC | packets.Z | packets.R | packets.C | packets.F | packets.L | packets.I,
        header,
        properties,
        b"body",
        7,
        8,
    )
    delivery = deliver(message_of(packet), packets.R | packets.C, 3)
    assert delivery.flags == CLASSIC | packets.Z | packets.R | packets.C
    assert delivery.block == packet.block
    assert delivery.body == packet.body
    assert delivery.sysid == packet.sysid
    assert (delivery.type, delivery.priority, delivery.expiration) == (2, 7, 8)
    for name in (
        "destination",
        "message_id",
        "correlation_id",
        "reply_to",
        "type",
        "destination_class",
        "reply_to_class",
        "producer_id",
        "delivery_time",
    ):
        assert getattr(delivery.variable, name) == getattr(packet.variable, name) is not None
    assert delivery.variable.transaction_id == 0
    assert len(delivery.header) % 4 == 0
    # the header of the client is kept byte for byte
    assert packet.header[12:].rstrip(b"\0") in delivery.header


def test_flags_are_set_for_each_delivery() -> None:
    message = message_of(client_packet())
    assert deliver(message).flags == CLASSIC
    assert deliver(message, packets.R | packets.F).flags == CLASSIC | packets.R | packets.F
    assert deliver(message, packets.L, 7).flags == CLASSIC | packets.L
    assert deliver(message).flags == CLASSIC


def test_delivered_packet_can_be_forwarded() -> None:
    first = deliver(message_of(client_packet(properties={"a": 1})), packets.R | packets.C, 5)
    second = deliver(message_of(first), 0, 1)
    assert second.header.count(b"\0\x0b\0\4") == 1
    assert second.flags == CLASSIC | packets.R  # the sender sets the flag
    assert second.properties == {"a": 1}


def test_packets_of_old_versions_are_converted() -> None:
    table = java.dumps_map({"n": Long(5), "s": "text"}, hashtable=True)
    header = encode_header("q", "c")
    oldest = decode_packet(
        pack(">Ihhi", packets.MAGIC, 103, 1, 72 + len(header) + len(table) + 4)
        + pack(">iq", 77, 0)
        + SYSID
        + pack(">ii", 72 + len(header), len(table))
        + bytes([9, 0, 0xFF, CLASSIC])
        + pack(">i", -6)
        + header
        + table
        + b"body"
    )
    old = bytearray(
        encode_packet(1, CLASSIC, header=header, body=table + b"body", priority=9, sysid=SYSID)
    )
    old[4:6] = pack(">h", 200)
    old[56:60] = pack(">i", len(table))
    for packet in (oldest, decode_packet(bytes(old))):
        message = message_of(packet)
        assert message.properties == {"n": 5, "s": "text"}
        assert message.message_id == sysid_text(SYSID)
        delivery = deliver(message)
        assert delivery.properties == message.properties
        assert b"\0\1n\0\5" in delivery.block
        assert delivery.sysid == SYSID
        assert delivery.body == b"body"
        assert delivery.flags == CLASSIC
        assert delivery.priority == 9
        assert delivery.variable.destination == "q"
        assert delivery.variable.correlation_id == "c"


# --- dead letters --------------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [None, {"n": Long(5), "colour": "red"}])
def test_properties_are_added_without_changing_others(
    properties: dict[str, object] | None,
) -> None:
    packet = client_packet(properties=properties, body=b"the body")
    message = message_of(packet)
    message.native = with_properties(message, {"colour": "blue", "added": "é"})
    packet_out = deliver(message)
    assert packet_out.properties == {**(properties or {}), "colour": "blue", "added": "é"}
    assert packet.block[8:] in packet_out.block  # integers keep their widths
    assert packet_out.body == b"the body"
    assert packet_out.sequence == packet.sequence
    assert packet_out.variable.queue == packet.variable.queue


def make_dead_letter(message: Message, reason: str = "expired") -> Message:
    dead_letter = dead_letter_of(message, "dq", reason, 2, 1795239285147)
    dead_letter.destination = Address(Kind.QUEUE, "mq.sys.dmq")
    return dead_letter


def test_dead_letter_has_its_history() -> None:
    packet = client_packet(flags=packets.P, properties={"b": Byte(1), "n": Long(5)}, expiration=88)
    delivery = deliver(make_dead_letter(message_of(packet)))
    assert delivery.sysid == SYSID
    assert delivery.flags == packets.Q | packets.P
    assert delivery.expiration == 88
    assert delivery.variable.destination == "dq"
    assert delivery.body == b"later"
    assert delivery.properties == {
        "b": 1,
        "n": 5,
        "deadLetterReason": "expired",
        "originalQueue": "dq",
        "deliveryAttempts": 2,
        "failedAt": "2026-11-21T05:34:45.147+00:00",
        "JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP": 1795239285147,
        "JMS_SUN_DMQ_UNDELIVERED_REASON": "EXPIRED",
        "JMS_SUN_DMQ_UNDELIVERED_COMMENT": "the message expired before it was acknowledged",
        "JMS_SUN_DMQ_DELIVERY_COUNT": 2,
        "JMS_SUN_DMQ_BODY_TRUNCATED": False,
        "JMS_SUN_DMQ_PRODUCING_BROKER": "SluiceMQ",
        "JMS_SUN_DMQ_DEAD_BROKER": "SluiceMQ",
    }
    # the sender's own as they were, a Long as a Long
    assert packet.block[8:] in delivery.block
    assert b"UNDELIVERED_TIMESTAMP\0\5" in delivery.block


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("expired", "EXPIRED"),
        ("max-attempts", "UNDELIVERABLE"),
        ("overflow", "OLDEST"),
        ("client", "UNDELIVERABLE"),
        ("something", "ERROR"),
    ],
)
def test_dead_letter_reasons(reason: str, expected: str) -> None:
    delivery = deliver(make_dead_letter(message_of(client_packet()), reason))
    assert delivery.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] == expected


def test_dead_letter_keeps_its_own_reason_and_truncation_mark() -> None:
    dead_letter = make_dead_letter(message_of(client_packet()))
    dead_letter.body = b""
    assert dead_letter.properties is not None
    dead_letter.properties["JMS_SUN_DMQ_BODY_TRUNCATED"] = True
    dead_letter.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] = "LOW_PRIORITY"
    dead_letter.properties["JMS_SUN_DMQ_UNDELIVERED_COMMENT"] = "why"
    delivery = deliver(dead_letter)
    assert delivery.body == b""
    assert delivery.properties["JMS_SUN_DMQ_BODY_TRUNCATED"] is True
    assert delivery.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] == "LOW_PRIORITY"
    assert delivery.properties["JMS_SUN_DMQ_UNDELIVERED_COMMENT"] == "why"


def test_message_dead_lettered_again_has_new_reason() -> None:
    first = deliver(make_dead_letter(message_of(client_packet())))
    second = deliver(make_dead_letter(message_of(first), "overflow"))
    assert second.properties["deadLetterReason"] == "overflow"
    assert second.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] == "OLDEST"


def test_delivers_dead_letter_of_another_protocol() -> None:
    dead_letter = make_dead_letter(foreign_message(b"text"))
    dead_letter.sequence = 5
    delivery = deliver(dead_letter)
    assert delivery.variable.destination == "mq.sys.dmq"
    assert delivery.properties["JMS_SUN_DMQ_DELIVERY_COUNT"] == 2
    assert delivery.properties["originalQueue"] == "dq"


# --- messages of other protocols -----------------------------------------------------------------


def foreign_message(
    body: bytes,
    kind: BodyKind = BodyKind.TEXT,
    origin: Origin = Origin.VIBEMQ,
    properties: dict[str, Property] | None = None,
    address: Address = QUEUE,
) -> Message:
    message = Message(
        address, body, kind, origin, timestamp=1795239283638, properties=properties, native=b"own"
    )
    message.sequence = 12
    return message


@pytest.mark.parametrize(
    ("kind", "body", "origin", "expected"),
    [
        (BodyKind.TEXT, "é".encode(), Origin.VIBEMQ, PacketType.TEXT_MESSAGE),
        (BodyKind.TEXT, b"\xff", Origin.VIBEMQ, PacketType.BYTES_MESSAGE),
        (BodyKind.JSON, b'{"a":1}', Origin.VIBEMQ, PacketType.TEXT_MESSAGE),
        (BodyKind.BYTES, b"bytes", Origin.VIBEMQ, PacketType.BYTES_MESSAGE),
        (BodyKind.BYTES, b"\xff", Origin.PHPMQ, PacketType.BYTES_MESSAGE),
        (BodyKind.BYTES, b"text", Origin.PHPMQ, PacketType.TEXT_MESSAGE),
        (BodyKind.BYTES, b"text", Origin.MSGLITE, PacketType.TEXT_MESSAGE),
        (BodyKind.NONE, b"", Origin.VIBEMQ, PacketType.MESSAGE),
        (BodyKind.MAP, java.dumps_map({}, True), Origin.INTERNAL, PacketType.MAP_MESSAGE),
        (BodyKind.STREAM, java.dumps_stream([1]), Origin.INTERNAL, PacketType.STREAM_MESSAGE),
        (BodyKind.OBJECT, java.dumps(5), Origin.INTERNAL, PacketType.OBJECT_MESSAGE),
        (BodyKind.OBJECT, b"no stream", Origin.INTERNAL, PacketType.BYTES_MESSAGE),
        (BodyKind.MAP, b"{}", Origin.INTERNAL, PacketType.BYTES_MESSAGE),
    ],
)
def test_bodies_of_other_protocols(
    kind: BodyKind, body: bytes, origin: Origin, expected: PacketType
) -> None:
    delivery = deliver(foreign_message(body, kind, origin))
    assert delivery.type == expected
    assert delivery.body == body


def test_headers_of_other_protocols() -> None:
    message = foreign_message(b"x", address=Address(Kind.TOPIC, "t"))
    message.reply_to = Address(Kind.QUEUE, "answers")
    message.correlation_id = "c"
    message.type = "type"
    message.priority = 8
    message.expiration = 77
    message.deliver_at = 66
    delivery = deliver(message, packets.R | packets.C, 2)
    assert delivery.flags == packets.P | packets.R | packets.C
    assert delivery.priority == 8
    assert delivery.expiration == 77
    assert delivery.timestamp == message.timestamp
    assert delivery.sysid == make_sysid(IDENTITY, 12, message.timestamp)
    header = delivery.variable
    assert (header.destination, header.destination_class) == ("t", TOPIC_CLASS)
    assert (header.reply_to, header.reply_to_class) == ("answers", QUEUE_CLASS)
    assert (header.correlation_id, header.type, header.delivery_time) == ("c", "type", 66)
    message = foreign_message(b"x")
    message.durability = Durability.NONE
    delivery = deliver(message)
    assert delivery.flags == packets.Q
    assert delivery.variable.destination_class == QUEUE_CLASS
    assert (
        delivery.variable.reply_to
        is delivery.variable.correlation_id
        is delivery.variable.type
        is None
    )


def test_properties_of_other_protocols() -> None:
    delivery = deliver(
        foreign_message(
            b"x",
            properties={
                "content-type": "a/b",
                "n": 5,
                "long": 2**40,
                "yes": True,
                "ratio": 0.5,
                "raw": b"\xff",
                "none": None,
                "long text": "x" * 65_536,
                "long in bytes": "é" * 32_768,
                "x" * 65_536: 1,
                "": 1,
                "longest": "x" * 65_535,
                "JMS_SUN_COMPRESS": True,
            },
        )
    )
    assert delivery.properties == {
        "content_HYPHEN_type": "a/b",
        "n": 5,
        "long": 2**40,
        "yes": True,
        "ratio": 0.5,
        "raw": "/w==",
        "longest": "x" * 65_535,
    }


def test_integers_beyond_java_long_become_text() -> None:
    properties: dict[str, Property] = {"huge": 2**64, "most": 2**63 - 1, "least": -(2**63)}
    assert deliver(foreign_message(b"x", properties=properties)).properties == {
        **properties,
        "huge": hex(2**64),
    }
    assert deliver(foreign_message(b"x", properties={"huge": 1 << 400_000})).properties == {}


def test_values_too_long_for_header_are_omitted() -> None:
    message = foreign_message(b"x")
    message.correlation_id = message.type = "x" * 40_000
    delivery = deliver(message)
    assert delivery.variable.correlation_id is delivery.variable.type is None
    with pytest.raises(ProtocolError):
        encode_delivery(
            foreign_message(b"", address=Address(Kind.QUEUE, "q" * 40_000)), 1, 0, 1, IDENTITY
        )


def test_names_that_are_not_utf_8_are_delivered() -> None:
    chunks = encode_delivery(
        foreign_message(b"", address=Address(Kind.QUEUE, "\udcff")), 1, 0, 1, IDENTITY
    )
    assert b"\0\1\0\7_xDCFF_" in b"".join(chunks)


def test_message_without_its_original_packet_is_encoded() -> None:
    message = foreign_message(b"x", origin=Origin.JMQ)
    message.native = b""
    assert deliver(message).sysid == make_sysid(IDENTITY, 12, message.timestamp)


def test_compressed_body_stays_compressed() -> None:
    body = zlib.compress(b"a" * 100)
    properties: dict[str, object] = {
        "JMS_SUN_COMPRESS": True,
        "JMS_SUN_UNCOMPRESSED_SIZE": 100,
        "JMS_SUN_COMPRESSED_SIZE": len(body),
    }
    packet = client_packet(flags=CLASSIC | packets.Z, properties=properties, body=body)
    message = message_of(packet)
    assert expanded(message) == b"a" * 100
    delivery = deliver(message)
    assert delivery.body == body
    assert delivery.flags == CLASSIC | packets.Z


def test_offset_of_delivery_count_in_stored_head() -> None:
    native = message_of(client_packet()).native
    assert unpack_from(">HHi", native, 72) == (11, 4, 0)
    assert (
        native[:8]
        == decode_packet(b"".join(encode_delivery(message_of(client_packet()), 1, 0, 1, b""))).head[
            :8
        ]
    )
