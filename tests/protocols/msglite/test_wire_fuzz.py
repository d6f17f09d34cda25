from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.msglite import wire

addresses = st.binary(min_size=1, max_size=12).filter(wire.is_address)
bodies = st.binary(max_size=40)
timeouts = st.integers(0, wire.MAX_TIMEOUT)
blanks = st.text(" \t", max_size=3).map(str.encode)
line_ends = st.sampled_from([b"\r\n", b"\n", b" \r\n"])


@st.composite
def commands(draw: st.DrawFn) -> tuple[wire.Frame, bytes]:
    """A frame, and one of the ways to write it."""
    kind = draw(st.sampled_from([wire.MESSAGE, wire.READY, wire.QUERY, wire.QUIT]))
    timeout = draw(timeouts)
    body = b""
    names: tuple[bytes, ...] = ()
    tokens = [bytes([kind])]
    if kind == wire.QUIT:
        timeout = 0
    else:
        most = {wire.MESSAGE: 2, wire.READY: 8, wire.QUERY: 1}[kind]
        names = tuple(draw(st.lists(addresses, min_size=1, max_size=most)))
        if kind != wire.READY:
            body = draw(bodies)
            tokens.append(b"%d" % len(body))
        tokens += [b"%d" % timeout, *names]
    line = draw(blanks) + b"".join(token + b" " + draw(blanks) for token in tokens)
    line += draw(line_ends)
    if body:
        line += body + b"\r\n"
    return (kind, timeout, names, body), line + draw(st.sampled_from([b"", b"\r\n", b" \n"]))


def feed(decoder: wire.Decoder, data: bytes, steps: list[int]) -> list[wire.Frame]:
    frames: list[wire.Frame] = []
    position = turn = 0
    while position < len(data):
        step = steps[turn % len(steps)]
        frames += decoder.feed(data[position : position + step])
        position += step
        turn += 1
    return frames


sizes = st.lists(st.integers(1, 70), min_size=1, max_size=6)


@given(st.lists(commands(), max_size=8), sizes)
def test_every_segmentation_of_every_spelling_gives_the_frames(
    stream: list[tuple[wire.Frame, bytes]], steps: list[int]
) -> None:
    decoder = wire.Decoder()
    frames = feed(decoder, b"".join(data for _, data in stream), steps)
    assert decoder.error is None
    assert not decoder.incomplete
    assert frames == [frame for frame, _ in stream]


@given(timeouts, addresses, bodies, st.one_of(st.just(b""), addresses))
def test_what_one_side_writes_the_other_reads(
    timeout: int, to: bytes, body: bytes, reply: bytes
) -> None:
    for kinds in (wire.FROM_CLIENT, wire.FROM_SERVER):
        decoder = wire.Decoder(kinds=kinds)
        frames = decoder.feed(wire.encode_message(timeout, to, body, reply))
        names = (to, reply) if reply else (to,)
        assert frames == [(wire.MESSAGE, timeout, names, body)]
    decoder = wire.Decoder()
    data = wire.encode_query(timeout, to, body) + wire.encode_ready(timeout, (to,) * 8)
    assert decoder.feed(data) == [
        (wire.QUERY, timeout, (to,), body),
        (wire.READY, timeout, (to,) * 8, b""),
    ]


fragments = st.sampled_from(
    [b"> ", b"< ", b"? ", b".", b"*", b"- x", b"\r", b"\n", b"\r\n", b"5 ", b"-1 ", b"a ", b"\x0b"]
)


@given(st.lists(fragments | st.binary(max_size=20), max_size=30), sizes, st.booleans())
def test_garbage_is_a_protocol_error_or_a_wait_and_segmentation_does_not_decide_which(
    parts: list[bytes], steps: list[int], server: bool
) -> None:
    garbage = b"".join(parts)
    limits = wire.Limits(line=60, body=50)
    kinds = wire.FROM_SERVER if server else wire.FROM_CLIENT
    whole = wire.Decoder(limits, kinds)
    frames = whole.feed(garbage)
    assert whole.error is None or isinstance(whole.error, ProtocolError)
    assert b"\n" not in str(whole.error).encode()
    piecewise = wire.Decoder(limits, kinds)
    assert feed(piecewise, garbage, steps) == frames
    assert str(piecewise.error) == str(whole.error)
    assert piecewise.incomplete == whole.incomplete


@given(st.lists(commands(), min_size=1, max_size=3), st.integers(0, 400), st.binary(max_size=1))
def test_one_damaged_byte_never_raises(
    stream: list[tuple[wire.Frame, bytes]], place: int, byte: bytes
) -> None:
    data = bytearray(b"".join(part for _, part in stream))
    place %= len(data)
    data[place : place + 1] = byte
    decoder = wire.Decoder()
    decoder.feed(bytes(data))
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)


@given(st.text(max_size=1500))
def test_an_error_is_one_line_whatever_its_text(text: str) -> None:
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    line = wire.encode_error(text.encode("utf-8", "replace").decode())
    assert line.count(b"\n") == 1
    assert [frame[0] for frame in decoder.feed(line)] == [wire.ERROR]
