from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.wire import Decoder, Frame, Limits, decode_headers, encode

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = texts.filter(bool)
headers = st.dictionaries(names, names, max_size=4)
frames = st.builds(
    Frame,
    st.integers(0, 255),
    names,
    texts,
    st.binary(max_size=40),
    headers,
    texts,
    texts,
    st.just(b""),
)
algorithms = st.sampled_from(list(Compression))
cuts = st.lists(st.integers(1, 60), min_size=1, max_size=5)


def fed(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Frame]:
    """Feed in pieces whose lengths are `cuts`, over and over."""
    frames: list[Frame] = []
    position = index = 0
    while position < len(data):
        step = cuts[index % len(cuts)]
        frames += read(decoder, data[position : position + step])
        position += step
        index += 1
    return frames


def read(decoder: Decoder, data: bytes) -> list[Frame]:
    """Feed, and read the large frames."""
    frames = decoder.feed(data)
    while decoder.large is not None:
        try:
            frame = decoder.read_large(decoder.large, 30) or decoder.read_large(decoder.large)
            assert frame is not None
            frames.append(frame)
        except ProtocolError as error:
            decoder.finish_large(error)
        else:
            decoder.finish_large()
            frames += decoder.feed(b"")
    return frames


@given(st.lists(st.tuples(frames, algorithms), max_size=8), cuts, st.sampled_from([0, 1, 40]))
def test_what_is_encoded_is_decoded_however_it_is_cut_and_compressed(
    sent: list[tuple[Frame, Compression]], cuts: list[int], inline: int
) -> None:
    decoder = Decoder(Limits(inline=inline))
    data = b"".join(wire.compressed(encode(frame), compression, 0) for frame, compression in sent)
    received = fed(decoder, data, cuts)
    assert decoder.error is None
    assert not decoder.incomplete
    assert [frame._replace(raw_headers=b"") for frame in received] == [frame for frame, _ in sent]
    for frame in received:
        if frame.type == wire.PUBLISH and frame.headers:
            assert decode_headers(frame.raw_headers) == frame.headers


@given(frames)
def test_the_special_encoders_write_the_same(frame: Frame) -> None:
    identity, queue = frame.id.encode(), frame.queue.encode()
    block = wire.encode_headers(frame.headers)
    headers = {"messageId": frame.id, "queueName": frame.queue}
    ack = Frame(wire.PUBLISH_ACK, frame.id, frame.queue, headers=headers)
    assert not queue or wire.AckTemplate(queue).fill(identity) == encode(ack)
    deliver = frame._replace(type=wire.DELIVER, error_code="", error_message="")
    assert wire.encode_deliver(identity, queue, frame.payload, block) == encode(deliver)


def strings(raw: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return raw.map(lambda text: len(text).to_bytes(2, "big") + text)


chunks = st.one_of(st.binary(max_size=6), strings(st.binary(max_size=6)), st.just(b"\0\0\0\0"))
bodies = st.one_of(
    st.lists(chunks, max_size=10).map(lambda parts: b"\1\x14" + b"".join(parts)),
    frames.map(lambda frame: encode(frame)[wire.HEADER_SIZE :]),
)
flags = st.one_of(st.just(0), st.integers(0, 3))


def framed(body: bytes, flag: int) -> bytes:
    return len(body).to_bytes(4, "big") + bytes([flag]) + body


def mutated(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for position, value in changes:
        if changed:
            changed[position % len(changed)] = value
    return bytes(changed)


streams = st.one_of(
    st.binary(max_size=60),
    st.lists(st.builds(framed, bodies, flags), max_size=6).map(b"".join),
    st.builds(
        mutated,
        st.lists(
            st.builds(lambda f, how: wire.compressed(encode(f), how, 0), frames, algorithms),
            min_size=1,
            max_size=5,
        ).map(b"".join),
        st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=4),
    ),
)


@given(
    streams,
    cuts,
    st.sampled_from([0, 20]),
    st.booleans(),
    st.sampled_from([Limits(), Limits(frame=150), Limits(frame=80, unpacked=60)]),
)
def test_garbage_is_refused_the_same_way_however_it_is_cut(
    data: bytes, cuts: list[int], inline: int, skip: bool, limits: Limits
) -> None:
    limits = limits._replace(headers=5, inline=inline, skip=skip)
    reference, cut = Decoder(limits), Decoder(limits)
    frames = read(reference, data)
    assert fed(cut, data, cuts) == frames
    assert (reference.error is None) == (cut.error is None)
    assert reference.error_id == cut.error_id
    if reference.error is not None:
        assert isinstance(reference.error, ProtocolError)
        assert str(reference.error) == str(cut.error)
    for frame in frames:
        assert frame.id
        if frame.type == wire.REFUSED:
            assert skip
            continue
        assert len(frame.headers) <= 5
        encode(frame, limit=1000)  # whatever was read can be sent back
        if frame.headers and frame.type == wire.PUBLISH:
            assert decode_headers(frame.raw_headers) == frame.headers
            assert wire.encode_headers(frame.headers) == frame.raw_headers
