from __future__ import annotations

from struct import pack

import pytest

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols import java
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header, encode_properties, encode_sysid
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.wire import (
    FIXED_SIZE,
    Decoder,
    Limits,
    Oversized,
    Packet,
    encode_head,
    encode_packet,
    encode_reply,
)

ADDRESS = bytes.fromhex("ff000000de6e438d7202ffff7f000001")
MESSAGE = encode_packet(
    PacketType.TEXT_MESSAGE,
    packets.Q | packets.P | packets.A,
    10,
    {"n": 5, "id": Long(6)},
    encode_header("dq", destination_class="com.sun.messaging.BasicQueue", producer_id=7),
    b"later",
    4,
    1795239283615,
    encode_sysid(1795239283638, ADDRESS, 32894, 41),
)


def fixed_header(
    version: int = 301,
    kind: int = 1,
    size: int = 72,
    offset: int = 72,
    block: int = 0,
    magic: int = packets.MAGIC,
) -> bytes:
    """Encode a fixed header, whose fields may be inconsistent."""
    return (
        pack(">IhhI", magic, version, kind, size & 0xFFFF_FFFF)
        + bytes(40)
        + pack(">ii", offset, block)
        + bytes(12)
    )


def decode_one(data: bytes, limits: Limits | None = None) -> Packet:
    decoder = Decoder(limits) if limits else Decoder()
    [packet] = decoder.feed(data)
    assert decoder.error is None
    assert not decoder.incomplete
    assert type(packet) is Packet
    return packet


# --- decoding ------------------------------------------------------------------------------------


def test_decodes_packet() -> None:
    packet = decode_one(MESSAGE)
    assert packet.type == PacketType.TEXT_MESSAGE
    assert packet.is_message
    assert packet.version == 301
    assert packet.flags == 0x15
    assert packet.consumer_id == 10
    assert packet.priority == 4
    assert packet.expiration == 1795239283615
    assert packet.timestamp == 1795239283638
    assert packet.sequence == 41
    assert packet.sysid == encode_sysid(1795239283638, ADDRESS, 32894, 41)
    assert packet.properties == {"n": 5, "id": 6}
    assert packet.properties is packet.properties
    assert packet.variable.destination == "dq"
    assert packet.variable.producer_id == 7
    assert packet.transaction_id == 0
    assert packet.body == b"later"
    assert packet.head + packet.body == MESSAGE
    assert packet.head == MESSAGE[:FIXED_SIZE] + packet.header + packet.block


def test_decodes_first_packet_of_c_client() -> None:
    # cut down to one property; C clients number their requests from the other end
    hello = (
        bytes.fromhex("1bffe3c2 012d 000a 00000068")
        + bytes(28)
        + bytes(12)
        + bytes.fromhex("00000048 00000020 05 00 0010 8000000000000001")
        + bytes.fromhex("00000001 00000001 0010")
        + b"JMQProtocolLevel"
        + bytes.fromhex("0004 000001f4")
    )
    packet = decode_one(hello)
    assert packet.type == PacketType.HELLO
    assert packet.flags == packets.A
    assert packet.consumer_id == -(2**63) + 1
    assert packet.properties == {"JMQProtocolLevel": 500}


def test_decodes_packets_in_any_fragmentation() -> None:
    stream = MESSAGE + encode_reply(9, 5, Status.OK) + MESSAGE
    for step in (1, 3, 71, 72, 73, 100, len(MESSAGE), len(stream)):
        decoder = Decoder()
        received = []
        for start in range(0, len(stream), step):
            received += decoder.feed(stream[start : start + step])
            assert decoder.error is None
        assert [packet.type for packet in received] == [1, 9, 1]
        assert not decoder.incomplete
    decoder = Decoder()
    decoder.feed(stream[:-1])
    assert decoder.incomplete


def test_large_packet_in_small_chunks_is_not_parsed_at_each() -> None:
    looks = 0

    class Counting(bytearray):
        def clear(self) -> None:
            nonlocal looks
            looks += 1
            super().clear()

    data = encode_packet(PacketType.BYTES_MESSAGE, body=bytes(100_000))
    decoder = Decoder()
    decoder._rest = Counting()  # cleared whenever it is joined to new input and parsed
    for start in range(0, len(data) - 1, 10):
        assert decoder.feed(data[start : min(start + 10, len(data) - 1)]) == []
    assert looks == 2  # at the first 12 bytes, and the whole fixed header
    [packet] = decoder.feed(data[-1:])
    assert type(packet) is Packet
    assert packet.head + packet.body == data


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"1",
        b"101\n",
        b"\x1b\xff\xe3\xc3",
        b"\x1b\xfe",
        fixed_header(magic=0),
        fixed_header(version=300),
        fixed_header(version=302),
        fixed_header(version=0),
        fixed_header(version=-1)[:12],
        fixed_header(size=71)[:12],
        fixed_header(size=0),
        fixed_header(size=-1),
        fixed_header(size=0x8000_0000),
        fixed_header(size=100, offset=71) + bytes(28),
        fixed_header(size=100, offset=0) + bytes(28),
        fixed_header(size=100, offset=-1) + bytes(28),
        fixed_header(size=100, offset=101) + bytes(28),
        fixed_header(size=100, offset=0x7FFF_FFFF) + bytes(28),
        fixed_header(size=100, block=-1) + bytes(28),
        fixed_header(size=100, block=29) + bytes(28),
        fixed_header(size=100, offset=100, block=1) + bytes(28),
        fixed_header(size=100, offset=0x7FFF_FFFF, block=0x7FFF_FFFF) + bytes(28),
        fixed_header(version=200, size=100, offset=101) + bytes(28),
        # contradictory sizes are refused before the packet is complete
        fixed_header(size=73_000_000, offset=71),
        fixed_header(size=73_000_000, offset=72, block=72_999_929),
        # nor skipped
        fixed_header(size=0x7FFF_FFFF, offset=71),
    ],
)
def test_malformed_packet_ends_decoding(data: bytes) -> None:
    for step in (len(data), 1):
        decoder = Decoder()
        received = decoder.feed(MESSAGE)
        for start in range(0, len(data), step):
            received += decoder.feed(data[start : start + step])
        assert len(received) == 1
        assert isinstance(decoder.error, ProtocolError)
        assert decoder.feed(MESSAGE) == []


def test_packets_before_fault_are_returned() -> None:
    decoder = Decoder()
    assert len(decoder.feed(MESSAGE + MESSAGE + b"garbage")) == 2
    assert decoder.error is not None


def test_every_boundary_of_sizes() -> None:
    body = bytes(28)
    for size, offset, block in (
        (72, 72, 0),
        (100, 72, 28),
        (100, 100, 0),
        (100, 99, 1),
        (100, 72, 0),
    ):
        packet = decode_one(fixed_header(size=size, offset=offset, block=block) + body[: size - 72])
        assert len(packet.header) == offset - 72
        assert len(packet.block) == block
        assert len(packet.body) == size - offset - block


def test_malformed_header_or_block_raises_on_access() -> None:
    packet = decode_one(encode_head(1, 0, 0, b"\0\1\0\7", b"\0\0\0\7", 4) + b"body")
    assert packet.body == b"body"
    for attribute in ("properties", "variable", "transaction_id"):
        with pytest.raises(ProtocolError):
            getattr(packet, attribute)


def test_unknown_packet_type_is_decoded() -> None:
    for kind in (0, 7, 80, 32_767, -1):
        packet = decode_one(encode_packet(kind))
        assert packet.type == kind
        assert not packet.is_message


# --- old versions --------------------------------------------------------------------------------


def test_version_200_properties_are_serialized_hashtable() -> None:
    table = java.dumps_map({"JMQStatus": 200, "id": Long(5), "b": True}, hashtable=True)
    head = bytearray(encode_head(15, packets.A, 6, encode_header("q"), table, 4))
    head[4:6] = pack(">h", 200)
    packet = decode_one(bytes(head) + b"body")
    assert packet.version == 200
    assert packet.properties == {"JMQStatus": 200, "id": 5, "b": True}
    assert packet.variable.destination == "q"
    assert packet.current_block() == encode_properties(
        java.loads_map(table)  # types and all
    )
    assert b"\0\2id\0\5" in packet.current_block()


@pytest.mark.parametrize("block", [b"x", java.dumps("text"), encode_properties({"a": 1})])
def test_version_200_block_that_is_not_hashtable_is_refused(block: bytes) -> None:
    head = bytearray(encode_head(15, 0, 0, b"", block, 0))
    head[4:6] = pack(">h", 200)
    with pytest.raises(ProtocolError):
        _ = decode_one(bytes(head)).properties


def test_version_103_fields_are_shifted_by_four_bytes() -> None:
    table = java.dumps_map({"JMQStatus": 200}, hashtable=True)
    header = encode_header("q")
    sysid = encode_sysid(3, ADDRESS, 4, 5)
    data = (
        pack(">Ihhi", packets.MAGIC, 103, 1, 72 + len(header) + len(table) + 4)
        + pack(">iq", 77, 88)
        + sysid
        + pack(">ii", 72 + len(header), len(table))
        + bytes([9, 0, 0xFF, packets.Q | packets.A])
        + pack(">i", -6)
        + header
        + table
        + b"body"
    )
    packet = decode_one(data)
    assert packet.version == 103
    assert packet.transaction_id == packet.transaction == 77
    assert packet.expiration == 88
    assert packet.sysid == sysid
    assert (packet.timestamp, packet.sequence) == (3, 5)
    assert packet.priority == 9
    assert packet.flags == packets.Q | packets.A
    assert packet.consumer_id == -6
    assert packet.properties == {"JMQStatus": 200}
    assert packet.variable.destination == "q"
    assert packet.body == b"body"


# --- limits --------------------------------------------------------------------------------------


def test_packet_above_limit_is_skipped_and_reported() -> None:
    small = encode_packet(1, body=b"x" * 28)
    oversized_packet = encode_packet(
        1, packets.A | packets.C, 6, header=encode_header("q", producer_id=8), body=b"y" * 200
    )
    limits = Limits(packet=len(oversized_packet) - 1)
    stream = small + oversized_packet + small + oversized_packet + small
    for step in (1, 7, 100, 150, 290, 450, len(stream)):
        decoder = Decoder(limits)
        items = []
        for start in range(0, len(stream), step):
            items += decoder.feed(stream[start : start + step])
        assert decoder.error is None
        assert not decoder.incomplete
        assert [type(item) for item in items] == [Packet, Oversized, Packet, Oversized, Packet]
        oversized = items[1]
        assert isinstance(oversized, Oversized)
        assert (oversized.type, oversized.flags, oversized.consumer_id) == (
            1,
            packets.A | packets.C,
            6,
        )
        assert oversized.size == len(oversized_packet)
        assert oversized.variable.producer_id == 8
    assert type(Decoder(Limits(packet=len(oversized_packet))).feed(oversized_packet)[0]) is Packet


def test_skipped_data_is_not_buffered() -> None:
    decoder = Decoder(Limits(packet=1000))
    [oversized] = decoder.feed(fixed_header(size=0x7FFF_FFFF))
    assert isinstance(oversized, Oversized)
    assert oversized.size == 0x7FFF_FFFF
    assert decoder.incomplete
    for _ in range(5):
        assert decoder.feed(MESSAGE) == []
    remaining = 0x7FFF_FFFF - 72 - 5 * len(MESSAGE)
    chunk = bytes(1 << 24)
    while remaining > len(chunk):
        assert decoder.feed(chunk) == []
        remaining -= len(chunk)
    assert len(decoder.feed(chunk[:remaining] + MESSAGE)) == 1
    assert not decoder.incomplete


def test_headers_and_blocks_have_size_limits() -> None:
    limits = Limits(packet=10_000, header=100, properties=50)
    largest = encode_head(1, 0, 0, bytes(100), bytes(50), 5) + b"abcde"
    assert decode_one(largest, limits).body == b"abcde"
    for header, block, header_size in ((101, 0, 0), (100, 51, 100), (9000, 51, 0)):
        decoder = Decoder(limits)
        data = encode_head(1, packets.A, 4, bytes(header), bytes(block), 5) + b"abcde"
        [oversized, packet] = decoder.feed(data + largest)
        assert isinstance(oversized, Oversized)
        assert (oversized.type, oversized.flags, oversized.consumer_id) == (1, packets.A, 4)
        assert (oversized.size, oversized.header, oversized.block, oversized.body) == (
            len(data),
            bytes(header_size),
            b"",
            b"",
        )
        assert type(packet) is Packet


# --- encoding ------------------------------------------------------------------------------------


def test_encodes_reply() -> None:
    for consumer_id in (1, -(2**63) + 1, 2**63 - 1):
        reply = encode_reply(PacketType.SEND_REPLY, consumer_id, Status.NOT_FOUND)
        packet = decode_one(reply)
        assert packet.type == PacketType.SEND_REPLY
        assert packet.consumer_id == consumer_id
        assert packet.flags == 0
        assert packet.priority == 5
        assert packet.properties == {"JMQStatus": 404}
        assert reply == encode_packet(9, 0, consumer_id, {"JMQStatus": 404})


def test_encodes_reply_with_properties() -> None:
    packet = decode_one(encode_reply(15, 3, 200, {"JMQConsumerID": Long(4)}, b"body"))
    assert packet.properties == {"JMQStatus": 200, "JMQConsumerID": 4}
    assert packet.block == encode_properties({"JMQStatus": 200, "JMQConsumerID": Long(4)})
    assert packet.body == b"body"
    assert decode_one(encode_reply(27, 3, 200, body=b"ids")).body == b"ids"


def test_empty_packet_has_neither_header_nor_block() -> None:
    start = encode_packet(PacketType.START)
    assert len(start) == FIXED_SIZE
    assert start[28:44] == bytes(10) + b"\xff\xff" + bytes(4)


def test_packets_that_are_too_large_are_not_encoded() -> None:
    assert len(encode_head(1, 0, 0, b"", b"", 0x7FFF_FFFF - 72)) == FIXED_SIZE
    with pytest.raises(FrameTooLarge):
        encode_head(1, 0, 0, b"", b"", 0x7FFF_FFFF - 71)
