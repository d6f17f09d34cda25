from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.phpmq import wire

names = st.binary(min_size=1, max_size=12) | st.sampled_from([b"orders", b"P01", b"H0100102"])
bodies = st.binary(max_size=40) | st.sampled_from([b"", b"H0100103P01", b"\n", b"x" * 300])
ids = st.sampled_from([b"0" * 32, b"d7e7f68761d34838494b233148b5486c"]) | st.binary(max_size=64)
numbers = st.integers(0, 10**20 - 1) | st.sampled_from([0, 1, 3600])
newlines = st.sampled_from([b"", b"\n", b"\r\n"])


@st.composite
def client_messages(draw: st.DrawFn) -> tuple[wire.Frame, int, list[tuple[int, bytes]]]:
    """A frame, its header's packet count, and its packets in any order."""
    kind = draw(st.sampled_from(sorted(wire.FROM_CLIENT)))
    queue, body, message_id, number = draw(names), draw(bodies), draw(ids), draw(numbers)
    packets = [(wire.QUEUE_NAME, queue)]
    if kind == wire.SEND:
        packets.append((wire.CONTENT, body))
        if draw(st.booleans()):
            packets.append((wire.TIME_TO_LIVE, b"%d" % number))
        else:
            number = -1
        frame = (kind, queue, body, b"", number)
    elif kind == wire.CONSUME:
        packets.append((wire.COUNT, b"%d" % number))
        frame = (kind, queue, b"", b"", number)
    else:
        packets.append((wire.MESSAGE_ID, message_id))
        if kind == wire.REQUEUE:
            packets.append((wire.TIME_TO_LIVE, b"%d" % number))
        else:
            number = -1
        frame = (kind, queue, b"", message_id, number)
    return frame, len(packets), draw(st.permutations(packets))


def write(kind: int, packets: list[tuple[int, bytes]], newline: bytes) -> bytes:
    header = b"H01%03d%02d" % (kind, len(packets))
    parts = [b"P%02d%029d" % (packet, len(content)) for packet, content in packets]
    contents = [content for _, content in packets]
    return b"".join(
        (
            header,
            newline,
            *(p + newline + c + newline for p, c in zip(parts, contents, strict=True)),
        )
    )


@given(
    st.lists(client_messages(), min_size=1, max_size=8),
    newlines,
    st.lists(st.integers(0, 3000), max_size=20),
)
def test_any_segmentation_and_any_packet_order_give_the_same_frames(
    messages: list[tuple[wire.Frame, int, list[tuple[int, bytes]]]],
    newline: bytes,
    cuts: list[int],
) -> None:
    stream = b"".join(write(frame[0], packets, newline) for frame, _, packets in messages)
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    ends = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for start, end in pairwise(ends):
        frames += decoder.feed(stream[start:end])
    assert decoder.error is None
    assert frames == [frame for frame, _, _ in messages]
    assert not decoder.incomplete


@given(st.lists(client_messages(), min_size=1, max_size=4), newlines)
def test_byte_by_byte(
    messages: list[tuple[wire.Frame, int, list[tuple[int, bytes]]]], newline: bytes
) -> None:
    stream = b"".join(write(frame[0], packets, newline) for frame, _, packets in messages)
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    for position in range(len(stream)):
        frames += decoder.feed(stream[position : position + 1])
    assert frames == [frame for frame, _, _ in messages]


@given(
    names,
    st.lists(
        st.tuples(bodies, st.binary(min_size=32, max_size=32), st.just(-1) | numbers), max_size=8
    ),
    newlines,
)
def test_what_a_server_writes_a_client_reads(
    queue: bytes, messages: list[tuple[bytes, bytes, int]], newline: bytes
) -> None:
    encoder = wire.DispatchEncoder(queue, newline)
    chunks: list[bytes] = []
    for body, message_id, ttl in messages:
        encoder.add(chunks, body, message_id, ttl)
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    assert decoder.feed(b"".join(chunks)) == [
        (wire.DISPATCH, queue, body, message_id, max(0, ttl)) for body, message_id, ttl in messages
    ]


fragments = st.sampled_from(
    [b"H01", b"H0100102", b"H0100103", b"H0100402", b"P01", b"P02", b"P05", b"0" * 28, b"\r", b"\n"]
)


@given(st.lists(fragments | st.binary(max_size=40), max_size=20), st.integers(1, 50))
def test_garbage_is_a_protocol_error_or_a_wait_and_segmentation_does_not_decide_which(
    parts: list[bytes], step: int
) -> None:
    garbage = b"".join(parts)
    limits = wire.Limits(body=1000)
    reference = wire.Decoder(limits)
    frames = reference.feed(garbage)
    assert reference.error is None or isinstance(reference.error, ProtocolError)
    piecewise = wire.Decoder(limits)
    frames_in_parts: list[wire.Frame] = []
    for start in range(0, len(garbage), step):
        frames_in_parts += piecewise.feed(garbage[start : start + step])
    assert frames_in_parts == frames
    assert str(piecewise.error) == str(reference.error)


@given(client_messages(), st.integers(0, 400), st.binary(min_size=1, max_size=1))
def test_one_damaged_byte_never_raises(
    message: tuple[wire.Frame, int, list[tuple[int, bytes]]], place: int, byte: bytes
) -> None:
    frame, _, packets = message
    stream = bytearray(write(frame[0], packets, b"") * 2)
    place %= len(stream)
    stream[place : place + 1] = byte
    decoder = wire.Decoder()
    decoder.feed(bytes(stream))
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)
