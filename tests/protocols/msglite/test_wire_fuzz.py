from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.wire import Decoder, Frame, Limits

addresses = st.binary(min_size=1, max_size=12).filter(wire.is_address)
timeouts = st.integers(0, wire.MAX_TIMEOUT)
bodies = st.binary(max_size=40)
blanks = st.sampled_from([b"", b"\r\n", b"\n", b" \t\r\n"])

messages = st.tuples(
    st.just(wire.MESSAGE),
    timeouts,
    st.lists(addresses, min_size=1, max_size=2).map(tuple),
    bodies,
)
from_client = st.one_of(
    messages,
    st.tuples(st.just(wire.QUERY), timeouts, st.tuples(addresses), bodies),
    st.tuples(
        st.just(wire.READY),
        timeouts,
        st.lists(addresses, min_size=1, max_size=8).map(tuple),
        st.just(b""),
    ),
    st.just((wire.QUIT, 0, (), b"")),
)
from_server = st.one_of(messages, st.just((wire.TIMEOUT, 0, (), b"")))


def encode_frame(frame: Frame) -> bytes:
    kind, timeout, names, body = frame
    if kind == wire.MESSAGE:
        return wire.encode_message(timeout, names[0], body, *names[1:])
    if kind == wire.QUERY:
        return wire.encode_query(timeout, names[0], body)
    if kind == wire.READY:
        return wire.encode_ready(timeout, names)
    return wire.QUIT_LINE if kind == wire.QUIT else wire.TIMEOUT_LINE


def feed_fragments(decoder: Decoder, data: bytes, cuts: list[int]) -> list[Frame]:
    """Feed data in fragments, whose lengths repeat `cuts`."""
    frames: list[Frame] = []
    position = index = 0
    while position < len(data):
        step = cuts[index % len(cuts)]
        frames += decoder.feed(data[position : position + step])
        position += step
        index += 1
    return frames


@given(
    st.lists(st.tuples(blanks, from_client), max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
def test_what_is_encoded_is_decoded_however_it_is_cut(
    commands: list[tuple[bytes, Frame]], cuts: list[int]
) -> None:
    decoder = Decoder()
    data = b"".join(before + encode_frame(frame) for before, frame in commands)
    assert feed_fragments(decoder, data, cuts) == [frame for _, frame in commands]
    assert decoder.error is None
    assert not decoder.incomplete


@given(st.lists(from_server, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_the_same_from_the_server(frames: list[Frame], cuts: list[int]) -> None:
    decoder = Decoder(kinds=wire.FROM_SERVER)
    assert feed_fragments(decoder, b"".join(map(encode_frame, frames)), cuts) == frames
    assert decoder.error is None


chunks = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"> ", b"< ", b"? ", b".", b"\r\n", b"\n", b" ", b"5 ", b"-1", b"+", b"a "]),
    from_client.map(encode_frame),
)


@given(
    st.lists(chunks, max_size=20).map(b"".join),
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
@example(b"> " + b"9" * 5000 + b" 1 a\r\n", [7])
@example(b"> " + b"0" * 5000 + b" 1 a\r\n", [9999])
def test_garbage_is_refused_the_same_way_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    limits = Limits(line=100, body=30)
    reference, cut = Decoder(limits), Decoder(limits)
    frames = reference.feed(data)
    assert feed_fragments(cut, data, cuts) == frames
    assert (reference.error is None) == (cut.error is None)
    if reference.error is not None:
        assert isinstance(reference.error, ProtocolError)
        assert str(reference.error) == str(cut.error)
    for frame in frames:
        assert len(frame[3]) <= 30
        assert 0 <= frame[1] <= wire.MAX_TIMEOUT
