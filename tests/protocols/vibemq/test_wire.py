from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.wire import Decoder, Frame, Limits, decode_headers, encode

HELLO = Frame(wire.PUBLISH, "msg_123", "notifications", b'{"title":"Hello"}')


def decoded(data: bytes, limits: Limits | None = None) -> list[Frame]:
    decoder = Decoder(limits or Limits())
    frames = decoder.feed(data)
    assert decoder.error is None
    assert not decoder.incomplete
    return frames


def refused(data: bytes, limits: Limits | None = None) -> ProtocolError:
    decoder = Decoder(limits or Limits())
    assert decoder.feed(data) == []
    assert decoder.error is not None
    return decoder.error


def framed(body: bytes, flag: int = 0) -> bytes:
    return len(body).to_bytes(4, "big") + bytes([flag]) + body


def string(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def body(
    kind: int = wire.PUBLISH,
    identity: bytes = b"i",
    queue: bytes = b"q",
    payload: bytes = b"1",
    headers: tuple[tuple[bytes, bytes], ...] = (),
    trailer: bytes = b"\0\0\0\0",
    version: int = 1,
) -> bytes:
    pairs = b"".join(string(key) + string(value) for key, value in headers)
    return (
        bytes([version, kind])
        + string(identity)
        + string(queue)
        + len(payload).to_bytes(4, "big")
        + payload
        + len(headers).to_bytes(2, "big")
        + pairs
        + trailer
    )


def test_dotnet_clients_connect() -> None:
    """The frame given for orientation in the notes on the .NET client: 85 bytes."""
    identity = b"0123456789abcdef0123456789abcdef"
    data = (
        bytes.fromhex("00000050 00 01 00 0020")
        + identity
        + bytes.fromhex("0000 00000000 0001 0015")
        + b"supported-compression\x00\x0bbrotli,gzip"
    )
    assert len(data) == 85
    (frame,) = decoded(data)
    headers = {"supported-compression": "brotli,gzip"}
    assert frame == Frame(wire.CONNECT, identity.decode(), headers=headers)
    assert encode(frame, trailer=False) == data


def test_bytes_of_publish() -> None:
    frame = HELLO._replace(headers={"priority": "high"})
    expected = (
        b"\x00\x00\x00\x45\x00"
        b"\x01\x14"
        b"\x00\x07msg_123"
        b"\x00\x0dnotifications"
        b'\x00\x00\x00\x11{"title":"Hello"}'
        b"\x00\x01\x00\x08priority\x00\x04high"
        b"\x00\x00\x00\x00"
    )
    assert encode(frame) == expected
    block = b"\x00\x01\x00\x08priority\x00\x04high"
    assert decoded(expected) == [frame._replace(raw_headers=block)]


@pytest.mark.parametrize("kind", sorted(wire.FROM_CLIENT | wire.FROM_SERVER | {255}))
@pytest.mark.parametrize("trailer", [True, False])
def test_every_type_with_and_without_trailer(kind: int, trailer: bool) -> None:
    frame = Frame(kind, "i", "q", b"[1]", {"a": "b"})
    if kind == wire.ERROR:
        frame = frame._replace(error_code="SERVER_ERROR", error_message="it broke")
    (decoded_frame,) = decoded(encode(frame, trailer=trailer))
    assert decoded_frame._replace(raw_headers=b"") == frame


def test_only_publish_keeps_its_raw_headers() -> None:
    for kind in (wire.PUBLISH, wire.DELIVER, wire.CONNECT):
        (decoded_frame,) = decoded(encode(Frame(kind, "i", headers={"a": "b"})))
        assert decoded_frame.raw_headers == (b"\0\1\0\1a\0\1b" if kind == wire.PUBLISH else b"")


def test_error_strings_of_frame_that_is_no_error() -> None:
    frame = Frame(wire.QUEUE_INFO, "i", "q", error_code="QUEUE_NOT_FOUND")
    assert decoded(encode(frame)) == [frame]
    assert decoded(encode(frame, trailer=False)) == [Frame(wire.QUEUE_INFO, "i", "q")]


@pytest.mark.parametrize(
    "trailer", [b"", b"\0", b"\0\0\0", b"\0\0\0\0", b"\0\0\0\0more", b"\xff\xffx"]
)
@pytest.mark.parametrize("headers", [(), ((b"k", b"v"),)])
def test_data_after_last_field_is_ignored(
    trailer: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    (frame,) = decoded(framed(body(headers=headers, trailer=trailer)))
    assert frame[:4] == (wire.PUBLISH, "i", "q", b"1")
    assert (frame.error_code, frame.error_message) == ("", "")


def test_error_without_its_strings_is_no_frame() -> None:
    assert "error code" in str(refused(framed(body(wire.ERROR, trailer=b""))))
    assert "error message" in str(refused(framed(body(wire.ERROR, trailer=b"\0\1E"))))


def test_version_is_not_looked_at() -> None:
    assert decoded(framed(body(version=7)))[0].id == "i"


def test_header_without_key_or_value_is_dropped_and_does_not_come_back() -> None:
    headers = ((b"", b"x"), (b"a", b"1"), (b"b", b""), (b"c", b"2"))
    (frame,) = decoded(framed(body(headers=headers)))
    assert frame.headers == {"a": "1", "c": "2"}
    assert frame.raw_headers == wire.encode_headers(frame.headers)
    assert decoded(framed(body(headers=((b"", b"x"),)))) == [Frame(wire.PUBLISH, "i", "q", b"1")]


def test_last_of_two_equal_keys_wins_in_place_of_first() -> None:
    (frame,) = decoded(framed(body(headers=((b"a", b"1"), (b"A", b"2"), (b"a", b"3")))))
    assert list(frame.headers.items()) == [("a", "3"), ("A", "2")]
    assert decode_headers(frame.raw_headers) == frame.headers
    assert frame.raw_headers[:2] == b"\0\2"


def test_bytes_that_are_not_utf8_are_replaced_except_in_payload() -> None:
    raw = b"x\xff"
    (frame,) = decoded(framed(body(wire.PUBLISH, raw, raw, raw, ((raw, raw), (b"\xc3\xa4", b"1")))))
    assert frame[:4] == (wire.PUBLISH, "x\ufffd", "x\ufffd", raw)
    assert frame.headers == {"x\ufffd": "x\ufffd", "ä": "1"}
    assert frame.raw_headers == wire.encode_headers(frame.headers)


def test_headers_beyond_ascii_are_forwarded_as_they_came() -> None:
    block = wire.encode_headers({"grüße": "日本", "a": "😀"})
    (frame,) = decoded(
        framed(body(headers=(("grüße".encode(), "日本".encode()), (b"a", "😀".encode()))))
    )
    assert frame.raw_headers == block


def test_string_that_grows_by_replacement_beyond_what_can_be_sent_is_refused() -> None:
    assert "too long" in str(refused(framed(body(identity=b"\xff" * 30_000))))
    assert decoded(framed(body(identity=b"\xff" * 20_000)))[0].id == "\ufffd" * 20_000


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1])
def test_body_that_is_too_short_is_refused_by_its_length_alone(length: int) -> None:
    error = refused(length.to_bytes(4, "big"))
    assert not isinstance(error, FrameTooLarge)
    assert str(error) == f"a frame announces a body of {length} bytes"


@pytest.mark.parametrize("length", [wire.MAX_BODY + 1, 0x80000000, 0xFFFFFFFF])
def test_body_that_is_too_long_is_refused_by_its_length_alone(length: int) -> None:
    decoder = Decoder()
    assert decoder.feed(length.to_bytes(4, "big")[:3]) == []
    assert decoder.error is None
    decoder.feed(length.to_bytes(4, "big")[3:])
    assert isinstance(decoder.error, FrameTooLarge)


def test_limit_is_inclusive() -> None:
    limits = Limits(frame=100)
    frame = Frame(wire.PUBLISH, "i", "q", b"1" * 86)
    data = encode(frame, limit=100)
    assert len(data) == 105
    assert decoded(data, limits) == [frame]
    decoder = Decoder(limits)
    assert decoder.feed(data[:50]) == []
    assert decoder.feed(data[50:]) == [frame]
    assert isinstance(refused(framed(b"1" * 101), limits), FrameTooLarge)


def test_unknown_flag_is_refused_by_header() -> None:
    assert str(refused(b"\0\0\0\x64\x03")) == "unknown compression 3"


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_compressed_frames_between_plain_ones(how: Compression) -> None:
    large_frame = HELLO._replace(payload=b'"%b"' % (b"x" * 5000), headers={"a": "b"})
    plain_frame = encode(HELLO)
    packed = wire.compressed(encode(large_frame), how)
    assert packed[4] == how
    assert len(packed) < 200
    frames = decoded(plain_frame + packed + packed + plain_frame)
    assert [frame._replace(raw_headers=b"") for frame in frames] == [
        HELLO,
        large_frame,
        large_frame,
        HELLO,
    ]


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_limit_holds_after_decompression(how: Compression) -> None:
    data = encode(HELLO._replace(payload=b"1" * 2000))
    packed = wire.compressed(data, how)
    size = len(data) - wire.HEADER_SIZE
    assert len(decoded(packed, Limits(unpacked=size))) == 1
    error = refused(packed, Limits(unpacked=size - 1))
    assert isinstance(error, FrameTooLarge)


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_limit_of_frame_is_that_of_what_travels(how: Compression) -> None:
    data = encode(HELLO._replace(payload=b'"%b"' % (b"1" * 100_000)))
    packed = wire.compressed(data, how)
    size = len(packed) - wire.HEADER_SIZE
    assert len(decoded(packed, Limits(frame=size))) == 1
    assert isinstance(refused(packed, Limits(frame=size - 1)), FrameTooLarge)
    assert isinstance(refused(packed, Limits(frame=size - 1, skip=True)), FrameTooLarge)


def test_compressed_frames_are_refused_where_they_are_not_accepted() -> None:
    packed = wire.compressed(encode(HELLO._replace(payload=b"1" * 2000)), Compression.BROTLI)
    assert "before the login" in str(refused(packed, Limits(compressed=False)))


def long_frame(payload: int = 3000) -> bytes:
    return encode(Frame(wire.PUBLISH, "long", "q", b"1" * payload))


def test_plain_frame_that_is_too_long_is_skipped_and_next_is_read() -> None:
    decoder = Decoder(Limits(frame=1000, skip=True))
    last = encode(HELLO)
    refusal, hello = decoder.feed(long_frame() + last)
    assert (refusal.type, refusal.id) == (wire.REFUSED, "long")
    assert "1000" in refusal.error_message
    assert hello == HELLO
    assert decoder.buffered == 0
    assert not decoder.incomplete


def test_skipped_data_is_not_buffered() -> None:
    decoder = Decoder(Limits(frame=1000, skip=True))
    announced = (0x7FFFFFFF).to_bytes(4, "big") + b"\0\1\x14\0\4long"
    [refusal] = decoder.feed(announced)
    assert refusal.id == "long"
    for _ in range(100):
        assert decoder.feed(bytes(100_000)) == []
        assert decoder.buffered == 1  # so that the timeout of unfinished frames applies
        assert decoder.incomplete
    assert decoder.error is None


def test_longest_lengths_are_no_frames() -> None:
    assert isinstance(refused(b"\x80\0\0\0", Limits(skip=True)), FrameTooLarge)


def test_id_of_frame_that_is_too_long_is_waited_for() -> None:
    decoder = Decoder(Limits(frame=1000, skip=True))
    data = long_frame()
    for position in range(12):
        assert decoder.feed(data[position : position + 1]) == []
    assert decoder.buffered == 12
    [refusal] = decoder.feed(data[12:13])
    assert refusal.id == "long"
    assert decoder.buffered == 1
    assert decoder.feed(data[13:] + encode(HELLO)) == [HELLO]


@pytest.mark.parametrize("id_size", [0, 2000])
def test_frame_that_is_too_long_and_has_no_id_is_error(id_size: int) -> None:
    data = (1500).to_bytes(4, "big") + b"\0\1\x14" + id_size.to_bytes(2, "big")
    assert str(refused(data, Limits(frame=1000, skip=True))) == "a frame has no id"


@pytest.mark.parametrize("how", list(Compression))
def test_large_frame_is_left_to_be_read(how: Compression) -> None:
    decoder = Decoder(Limits(inline=1000))
    large_frame = wire.compressed(long_frame(500_000), how)
    assert decoder.feed(encode(HELLO) + large_frame + encode(HELLO)) == [HELLO]
    assert decoder.large is not None
    assert decoder.buffered >= 1000
    assert not decoder.incomplete
    assert decoder.feed(encode(HELLO)) == []
    assert decoder.read_large(decoder.large, 100_000) is None
    frame = decoder.read_large(decoder.large)
    assert frame is not None
    assert (frame.id, frame.payload) == ("long", b"1" * 500_000)
    decoder.finish_large()
    assert decoder.backlog
    assert decoder.feed(b"") == [HELLO, HELLO]
    assert decoder.buffered == 0


def test_large_frame_that_cannot_be_read_is_error() -> None:
    decoder = Decoder(Limits(inline=1000, unpacked=400_000))
    decoder.feed(wire.compressed(long_frame(500_000), Compression.GZIP) + encode(HELLO))
    assert decoder.large is not None
    with pytest.raises(FrameTooLarge) as caught:
        decoder.read_large(decoder.large)
    decoder.finish_large(caught.value)
    assert decoder.feed(b"") == []
    assert decoder.error is caught.value


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_frame_is_fitted_by_higher_quality(how: Compression) -> None:
    words = [b"%x" % (n * 2654435761 % 997) for n in range(600_000)]
    data = encode(Frame(wire.DELIVER, "i", "q", b" ".join(words)), limit=wire.MAX_UNPACKED)
    frame = wire.compressed(data, how)
    assert len(frame) <= wire.MAX_BODY + wire.HEADER_SIZE
    assert decoded(frame) == decoded(data, Limits(frame=wire.MAX_UNPACKED))


@pytest.mark.parametrize("how", list(Compression))
def test_frame_that_cannot_be_made_to_fit(how: Compression) -> None:
    noise = random.Random(1).randbytes(2 * wire.MAX_BODY)
    data = encode(Frame(wire.DELIVER, "i", "q", noise), limit=wire.MAX_UNPACKED)
    with pytest.raises(FrameTooLarge):
        wire.compressed(data, how)


def test_small_frames_are_not_compressed() -> None:
    data = encode(HELLO)
    size = len(data) - wire.HEADER_SIZE
    repeating = encode(HELLO._replace(payload=b"1" * 200))
    assert wire.compressed(repeating, Compression.GZIP, 1024) == repeating
    assert wire.compressed(repeating, Compression.NONE, 0) == repeating
    assert wire.compressed(data, Compression.GZIP, size) == data  # it would become longer
    edge = len(repeating) - wire.HEADER_SIZE
    assert wire.compressed(repeating, Compression.GZIP, edge)[4] == Compression.GZIP
    assert wire.compressed(repeating, Compression.GZIP, edge + 1) == repeating


def test_too_many_headers_for_any_server() -> None:
    headers = tuple((b"%d" % number, b"1") for number in range(11))
    decoder = Decoder(Limits(headers=10))
    decoder.feed(framed(body(headers=headers)))
    assert str(decoder.error) == "a frame has 11 headers, the limit is 10"
    assert decoder.error_id == "i"
    assert len(decoded(framed(body(headers=headers[:10])), Limits(headers=10))) == 1


# --- broken frames -----------------------------------------------------------------------------


def test_every_truncated_body_is_refused() -> None:
    complete = body(wire.ERROR, b"id", b"qu", b"[1]", ((b"k", b"v"),), b"\0\1E\0\1m")
    assert decoded(framed(complete)) == [
        Frame(wire.ERROR, "id", "qu", b"[1]", {"k": "v"}, "E", "m")
    ]
    for size in range(2, len(complete)):
        assert "ends within" in str(refused(framed(complete[:size])))


def test_frames_before_fault_are_returned_and_none_after_it() -> None:
    decoder = Decoder()
    valid_frame = encode(HELLO)
    assert decoder.feed(valid_frame + framed(body(identity=b"")) + valid_frame) == [HELLO]
    assert str(decoder.error) == "a frame has no id"
    assert decoder.feed(valid_frame) == []
    assert not decoder.incomplete


def test_id_of_broken_frame_is_known_if_it_could_be_read() -> None:
    decoder = Decoder()
    decoder.feed(encode(HELLO) + framed(body(identity=b"broken")[:-8]))
    assert decoder.error is not None
    assert decoder.error_id == "broken"
    decoder = Decoder()
    decoder.feed(encode(HELLO) + framed(b"\1\x14\0\x09id"))
    assert decoder.error is not None
    assert decoder.error_id == ""


def test_client_of_protocol_1_0_is_recognised_before_it_is_waited_for() -> None:
    old = (6).to_bytes(4, "big") + b"\x01\x00\x00\x01i\x00"
    for cut in range(1, len(old)):
        decoder = Decoder()
        assert decoder.feed(old[:cut]) == decoder.feed(old[cut:]) == []
        assert "protocol 1.0" in str(decoder.error)
    decoder = Decoder()
    assert decoder.feed(encode(HELLO)) == [HELLO]
    decoder.feed(old)
    assert str(decoder.error) == "the frame is marked gzip and is not"


def test_incomplete() -> None:
    decoder = Decoder()
    data = encode(HELLO)
    for position in range(len(data) - 1):
        assert decoder.feed(data[position : position + 1]) == []
        assert decoder.incomplete
    assert decoder.feed(data[-1:]) == [HELLO]
    assert not decoder.incomplete


def test_queue_names_are_forgotten_before_they_fill_memory() -> None:
    decoder = Decoder()
    for number in range(2000):
        (frame,) = decoder.feed(encode(Frame(wire.PUBLISH, "i", f"queue{number}")))
        assert frame.queue == f"queue{number}"
    assert len(decoder._queues) <= 256


# --- writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["id", "queue", "error_code", "error_message"])
def test_strings_too_long_for_their_length_field_are_refused(field: str) -> None:
    longest = {field: "ä" * 32767 + "x"}
    (frame,) = decoded(encode(Frame(wire.ERROR, "i")._replace(**longest)))
    assert frame == Frame(wire.ERROR, "i")._replace(**longest)
    with pytest.raises(ProtocolError, match="65536 bytes"):
        encode(Frame(wire.ERROR, "i")._replace(**{field: "ä" * 32768}))


def test_headers_too_long_for_their_length_fields_are_refused() -> None:
    for headers in ({"a": "x" * 65_536}, {"x" * 65_536: "a"}):
        with pytest.raises(ProtocolError):
            encode(Frame(wire.CONNECT, "i", headers=headers))
    with pytest.raises(ProtocolError, match="65536 headers"):
        wire.encode_headers({str(number): "1" for number in range(65_536)})


def test_frame_without_id_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no id"):
        encode(Frame(wire.PING, ""))


def test_empty_headers_are_not_written() -> None:
    headers = {"a": "", "": "b", "c": "d"}
    assert wire.encode_headers(headers) == wire.encode_headers({"c": "d"}) == b"\0\1\0\1c\0\1d"
    assert wire.encode_headers({}) == wire.encode_headers({"a": ""}) == b"\0\0"


def test_half_surrogate_pair_becomes_what_reader_would_make_of_it() -> None:
    (frame,) = decoded(encode(Frame(wire.PUBLISH, "a\ud800b", "\udcff")))
    assert (frame.id, frame.queue) == ("a\ufffdb", "\ufffd")


def test_frame_beyond_limit_is_refused_and_trailer_given_up_before() -> None:
    frame = Frame(wire.PUBLISH, "i", "q", b"1" * 86)
    assert encode(frame, limit=104)[-4:] == b"\0\0\0\0"
    for limit in (100, 103):
        assert encode(frame, limit=limit) == encode(frame, trailer=False)
    with pytest.raises(FrameTooLarge):
        encode(frame, limit=99)
    error = Frame(wire.ERROR, "i", error_message="m" * 100)
    with pytest.raises(FrameTooLarge):
        encode(error, limit=110)


@pytest.mark.parametrize("attempts", [0, 1, 63, 64, 1_000_000])
@pytest.mark.parametrize("headers", [{}, {"priority": "high", "x": "ü"}])
def test_delivery(attempts: int, headers: dict[str, str]) -> None:
    block = wire.encode_headers(headers) if headers else b""
    expected = headers | ({"deliveryAttempts": str(attempts)} if attempts else {})
    data = wire.encode_deliver(b"id", b"q", b"{}", block, attempts)
    assert data == encode(Frame(wire.DELIVER, "id", "q", b"{}", expected))
    assert decoded(data) == [Frame(wire.DELIVER, "id", "q", b"{}", expected)]


def test_delivery_leaves_its_additions_out_before_it_exceeds_limit() -> None:
    bare = wire.body_size(b"id", b"q", b"1" * 100, b"\0\1\0\1a\0\1b")
    added = 4 + len("deliveryAttempts") + 1
    for limit, attempts, trailer in (
        (bare + added + 4, True, True),
        (bare + added + 3, True, False),
        (bare + added, True, False),
        (bare + added - 1, False, True),
        (bare + 4, False, True),
        (bare + 3, False, False),
        (bare, False, False),
    ):
        data = wire.encode_deliver(b"id", b"q", b"1" * 100, b"\0\1\0\1a\0\1b", 1, limit)
        size = bare + added * attempts + 4 * trailer
        assert len(data) - wire.HEADER_SIZE == size
        (frame,) = decoded(data)
        assert ("deliveryAttempts" in frame.headers) is attempts


@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=300), st.binary())
def test_first_delivery_without_headers(identity: bytes, queue: bytes, payload: bytes) -> None:
    expected = wire.encode_deliver(identity, queue, payload, b"\0\0", 1)
    assert wire.encode_deliver(identity, queue, payload, b"", 1) == expected


def test_first_delivery_about_limit() -> None:
    for size in range(wire.MAX_BODY - 60, wire.MAX_BODY + 1):
        expected = wire.encode_deliver(b"i", b"q", b"1" * size, b"\0\0", 1)
        assert wire.encode_deliver(b"i", b"q", b"1" * size, b"", 1) == expected


def test_attempts_find_no_place_behind_65535_headers() -> None:
    block = wire.encode_headers({str(number): "1" for number in range(65_535)})
    data = wire.encode_deliver(b"id", b"q", b"", block, 1)
    (frame,) = decoded(data, Limits(headers=65_535))
    assert len(frame.headers) == 65_535
    assert "deliveryAttempts" not in frame.headers


def test_acknowledgements() -> None:
    headers = {"messageId": "id", "queueName": "queue"}
    expected = Frame(wire.PUBLISH_ACK, "id", "queue", headers=headers)
    assert wire.AckTemplate(b"queue").fill(b"id") == encode(expected)
    longest = b"i" * 65_535
    (frame,) = decoded(wire.AckTemplate(longest).fill(longest))
    assert frame.headers["messageId"] == longest.decode()


# --- content of compressed frames --------------------------------------------------------------


def bomb(count: int) -> bytes:
    """Frames of some bytes each that unpack to 100 kB each."""
    payload = b'"%b"' % bytes(100_000)
    return b"".join(
        wire.compressed(
            wire.encode(Frame(wire.PUBLISH, str(number), "q", payload)), Compression.BROTLI, 0
        )
        for number in range(count)
    )


def test_compressed_frames_are_unpacked_piece_by_piece() -> None:
    decoder = Decoder(Limits(batch=250_000))
    data = bomb(10) + wire.encode(Frame(wire.PUBLISH, "last", "q"))
    frames = decoder.feed(data + b"\0")
    sizes = [len(frames)]
    assert not decoder.incomplete
    while decoder.backlog:
        assert 250_000 <= decoder.unpacked < 400_000
        added = decoder.feed(b"")
        sizes.append(len(added))
        frames += added
    assert sizes == [3, 3, 3, 2]
    assert [frame.id for frame in frames] == [*map(str, range(10)), "last"]
    assert decoder.buffered == 1
    assert decoder.incomplete
    decoder.discard()
    assert decoder.buffered == 0


def test_input_behind_backlog_is_kept_in_order() -> None:
    decoder = Decoder(Limits(batch=1))
    frames = decoder.feed(bomb(3))
    frames += decoder.feed(wire.encode(Frame(wire.PUBLISH, "last", "q")))
    while decoder.backlog:
        frames += decoder.feed(b"")
    assert [frame.id for frame in frames] == ["0", "1", "2", "last"]
