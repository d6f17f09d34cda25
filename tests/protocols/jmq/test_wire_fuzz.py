from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols import java
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.mapping import encode_delivery, message_of
from sluicemq.protocols.jmq.packets import MAGIC, PacketType
from sluicemq.protocols.jmq.wire import Decoder, Limits, Packet, encode_packet

texts = st.text(st.characters(codec="utf-8"), max_size=10)
i64 = st.integers(-(2**63), 2**63 - 1)
properties = st.dictionaries(texts.filter(bool), st.booleans() | i64 | texts, max_size=3)
headers = st.builds(
    encode_header,
    texts | st.none(),
    texts | st.none(),
    texts | st.none(),
    transaction_id=i64,
    producer_id=i64,
    delivery_time=i64,
    message_id=texts | st.none(),
)
written = st.builds(
    encode_packet,
    st.sampled_from(list(PacketType)) | st.integers(-(2**15), 2**15 - 1),
    st.integers(0, 0xFFFF),
    i64,
    properties,
    headers,
    st.binary(max_size=40),
    st.integers(0, 255),
    i64,
    st.binary(min_size=32, max_size=32),
)
cuts = st.lists(st.integers(1, 90), min_size=1, max_size=5)


def feed_fragments(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Packet]:
    """Feed data in fragments, whose lengths repeat `cuts`."""
    packets: list[Packet] = []
    position = index = 0
    while position < len(data):
        step = cuts[index % len(cuts)]
        packets += decoder.feed(data[position : position + step])
        position += step
        index += 1
    return packets


@given(st.lists(written, max_size=6), cuts)
def test_packets_are_decoded_from_any_fragments(sent: list[bytes], cuts: list[int]) -> None:
    decoder = Decoder()
    received = feed_fragments(decoder, b"".join(sent), cuts)
    assert decoder.error is None
    assert not decoder.incomplete
    decoded = []
    for packet in received:
        assert type(packet) is Packet
        assert packet.head + packet.body == sent[len(decoded)]
        decoded.append(
            encode_packet(
                packet.type,
                packet.flags,
                packet.consumer_id,
                packet.properties,
                packet.header,
                packet.body,
                packet.priority,
                packet.expiration,
                packet.sysid,
            )
        )
    assert decoded == sent


edges = st.sampled_from(
    [
        number.to_bytes(width, "big", signed=True)
        for width in (2, 4, 8)
        for number in (-1, 0, 1, 2, 71, 72, 73, 200, 103, 301, 2 ** (8 * width - 1) - 1)
        if number < 2 ** (8 * width - 1)
    ]
    + [(1 << (8 * width - 1)).to_bytes(width, "big") for width in (2, 4, 8)]
)
chunks = st.one_of(
    st.binary(max_size=8),
    edges,
    st.just(MAGIC.to_bytes(4, "big")),
    st.just(java.dumps_map({"a": 1}, hashtable=True)),
)


@st.composite
def damaged_packets(draw: st.DrawFn) -> bytes:
    """Draw a damaged packet, most often with a wrong length."""
    packet = bytearray(draw(written))
    for _ in range(draw(st.integers(1, 3))):
        if not packet:
            break
        position = draw(
            st.sampled_from([4, 6, 8, 52, 56, 62, 72, 74]) | st.integers(0, len(packet) - 1)
        )
        piece = draw(chunks)
        match draw(st.integers(0, 2)):
            case 0:
                packet[position : position + len(piece)] = piece
            case 1:
                packet[position:position] = piece
            case _:
                del packet[position : position + draw(st.integers(1, 8))]
    return bytes(packet)


@given(st.lists(written | damaged_packets() | st.binary(max_size=100), max_size=4), cuts)
def test_any_bytes_are_packets_or_an_error(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(sent)
    for limits in (Limits(), Limits(packet=150, header=40, properties=40)):
        decoder = Decoder(limits)
        items = feed_fragments(decoder, data, cuts)
        reference = Decoder(limits)
        at_once = reference.feed(data)
        assert [item.type for item in at_once] == [item.type for item in items]
        assert (reference.error is None) == (decoder.error is None)
        for packet in items:
            for name in ("variable", "properties", "transaction_id"):
                with suppress(ProtocolError):
                    getattr(packet, name)
            if type(packet) is Packet and packet.is_message:
                forward_packet(packet)


def forward_packet(packet: Packet) -> None:
    """Deliver the packet if it is a message; assert that it arrives unchanged."""
    try:
        message = message_of(packet)
    except ProtocolError:
        return
    delivery = b"".join(encode_delivery(message, 5, 0, 1, bytes(8)))
    [arrived] = Decoder().feed(delivery)
    assert type(arrived) is Packet
    assert arrived.body == packet.body
    assert arrived.sysid == packet.sysid
    assert arrived.variable.delivery_count == 1
    returned = message_of(arrived)
    for name in ("destination", "kind", "priority", "message_id", "correlation_id", "reply_to"):
        assert getattr(returned, name) == getattr(message, name)
