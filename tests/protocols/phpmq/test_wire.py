from __future__ import annotations

import pytest

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.phpmq import wire
from tests.protocols.phpmq.harness import encode_dispatch, in_line_form

ID = b"d7e7f68761d34838494b233148b5486c"

# The examples of the PHPMQ protocol document, section "Full message examples", as printed.
EXAMPLES = {
    "send": (
        b"H0100103\nP0100000000000000000000000000003\nFoo\n"
        b"P0200000000000000000000000000011\nHello World\n"
        b"P0500000000000000000000000000004\n3600\n",
        (wire.SEND, b"Foo", b"Hello World", b"", 3600),
    ),
    "consume": (
        b"H0100202\nP0100000000000000000000000000003\nFoo\nP0400000000000000000000000000001\n5\n",
        (wire.CONSUME, b"Foo", b"", b"", 5),
    ),
    "dispatch": (
        b"H0100304\nP0100000000000000000000000000003\nFoo\n"
        b"P0200000000000000000000000000011\nHello World\n"
        b"P0300000000000000000000000000032\nd7e7f68761d34838494b233148b5486c\n"
        b"P0500000000000000000000000000004\n3300\n",
        (wire.DISPATCH, b"Foo", b"Hello World", ID, 3300),
    ),
    "acknowledge": (
        b"H0100402\nP0100000000000000000000000000003\nFoo\n"
        b"P0300000000000000000000000000032\nd7e7f68761d34838494b233148b5486c\n",
        (wire.ACKNOWLEDGE, b"Foo", b"", ID, -1),
    ),
    "requeue": (
        b"H0100503\nP0100000000000000000000000000003\nFoo\n"
        b"P0300000000000000000000000000032\nd7e7f68761d34838494b233148b5486c\n"
        b"P0500000000000000000000000000004\n3600\n",
        (wire.REQUEUE, b"Foo", b"", ID, 3600),
    ),
    "dead letter": (
        b"H0100602\nP0100000000000000000000000000003\nFoo\n"
        b"P0300000000000000000000000000032\nd7e7f68761d34838494b233148b5486c\n",
        (wire.DEAD_LETTER, b"Foo", b"", ID, -1),
    ),
}


def decoder_for(frame: wire.Frame, limits: wire.Limits | None = None) -> wire.Decoder:
    kinds = wire.FROM_SERVER if frame[0] == wire.DISPATCH else wire.FROM_CLIENT
    return wire.Decoder(limits or wire.Limits(), kinds)


def encode(frame: wire.Frame) -> bytes:
    kind, queue, content, message_id, number = frame
    if kind == wire.SEND:
        return wire.encode_send(queue, content, number)
    if kind == wire.CONSUME:
        return wire.encode_consume(queue, number)
    if kind == wire.DISPATCH:
        return encode_dispatch(queue, content, message_id, number)
    if kind == wire.ACKNOWLEDGE:
        return wire.encode_acknowledge(queue, message_id)
    if kind == wire.REQUEUE:
        return wire.encode_requeue(queue, message_id, number)
    return wire.encode_dead_letter(queue, message_id)


@pytest.mark.parametrize("name", EXAMPLES)
def test_decodes_examples_of_document(name: str) -> None:
    printed, frame = EXAMPLES[name]
    compact = printed.replace(b"\n", b"")
    decoder = decoder_for(frame)
    # three times: the second and third may take the fast path that the first has opened
    assert decoder.feed(compact * 3) == [frame] * 3
    assert decoder.error is None
    assert decoder.newline == b""
    assert encode(frame) == compact


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_decodes_examples_in_line_form(name: str, newline: bytes) -> None:
    printed, frame = EXAMPLES[name]
    lines = printed.replace(b"\n", newline)
    decoder = decoder_for(frame)
    assert decoder.feed((lines + newline) * 2) == [frame] * 2
    assert decoder.error is None
    assert decoder.newline == newline
    assert in_line_form(encode(frame), newline) == lines


def test_decodes_sends_of_both_dispatch_versions() -> None:
    decoder = wire.Decoder()
    first = wire.encode_send(b"q", b"one", dispatch_version=1)
    second = wire.encode_send(b"q", b"two", dispatch_version=2)
    assert first.startswith(b"H0100102")
    assert second.startswith(b"H0100103")
    for _ in range(2):  # the second time by the short way
        frames = decoder.feed(first + second + first)
        assert [(frame[2], frame[4]) for frame in frames] == [
            (b"one", -1),
            (b"two", 0),
            (b"one", -1),
        ]


def test_decodes_dispatches_of_both_versions() -> None:
    three = encode_dispatch(b"q", b"body", ID, 7, dispatch_version=1)
    four = encode_dispatch(b"q", b"body", ID, 7)
    for_ever = encode_dispatch(b"q", b"body", ID)
    assert three.startswith(b"H0100303")
    assert four.startswith(b"H0100304")
    assert four.endswith(b"P05" + b"1".zfill(29) + b"7")
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    frames = decoder.feed((three + four + for_ever) * 2)
    assert frames == [(wire.DISPATCH, b"q", b"body", ID, ttl) for ttl in (0, 7, 0)] * 2


def test_batch_encoder_equals_single_encoder() -> None:
    encoder = wire.DispatchEncoder(b"queue")
    chunks: list[bytes] = []
    bodies = [b"", b"a", b"b", b"x" * 1000]
    for ttl, body in enumerate(bodies, -1):
        encoder.add(chunks, body, ID, ttl)
    assert any(chunk is bodies[3] for chunk in chunks)
    assert b"".join(chunks) == b"".join(
        encode_dispatch(b"queue", body, ID, ttl) for ttl, body in enumerate(bodies, -1)
    )


def test_batch_encoder_cache_is_bounded() -> None:
    encoder = wire.DispatchEncoder(b"q")
    for length in range(3000):
        chunks: list[bytes] = []
        encoder.add(chunks, bytes(length), ID, 0)
        if length % 500 == 0:
            decoder = wire.Decoder(kinds=wire.FROM_SERVER)
            assert decoder.feed(b"".join(chunks))[0][2] == bytes(length)
    assert len(encoder._prefixes) <= 1024


def test_decodes_ids_of_other_lengths() -> None:
    for message_id in (b"", b"1", b"x" * 64):
        dispatch = encode_dispatch(b"q", b"b", message_id)
        assert wire.Decoder(kinds=wire.FROM_SERVER).feed(dispatch * 2)[1][3] == message_id
        acknowledge = wire.encode_acknowledge(b"q", message_id)
        assert wire.Decoder().feed(acknowledge * 2)[1][3] == message_id


def test_names_and_bodies_are_bytes() -> None:
    all_bytes = bytes(range(256))
    send = wire.encode_send(all_bytes, all_bytes * 4)
    assert wire.Decoder().feed(send) == [(wire.SEND, all_bytes, all_bytes * 4, b"", 0)]


def test_accepts_leading_zeros_in_numbers() -> None:
    decoder = wire.Decoder()
    message = b"H0100202P01" + b"1".zfill(29) + b"qP04" + b"4".zfill(29) + b"0005"
    assert decoder.feed(message) == [(wire.CONSUME, b"q", b"", b"", 5)]


def packet(kind: bytes, content: bytes, length: bytes | None = None) -> bytes:
    digits = b"%029d" % len(content) if length is None else length
    return b"P" + kind + digits + content


QUEUE = packet(b"01", b"Foo")
BODY = packet(b"02", b"body")

# Section 3 of the notes on the original server, row by row: everything here closes a connection.
MALFORMED = {
    "first byte": b"X0100102" + QUEUE + BODY,
    "packet without P": b"H0100102" + b"X" + QUEUE[1:] + BODY,
    "version": b"H0200102" + QUEUE + BODY,
    "letters as type": b"H01abc02" + QUEUE + BODY,
    "superscript digits as type": b"H01\xb2\xb2\xb202" + QUEUE + BODY,
    "type 000": b"H0100002" + QUEUE + BODY,
    "type 007": b"H0100702" + QUEUE + BODY,
    "dispatch from a client": b"H0100303" + QUEUE + BODY + packet(b"03", ID),
    "too few packets": b"H0100101" + QUEUE,
    "too many packets": b"H0100104" + QUEUE + BODY + packet(b"05", b"1") + BODY,
    "no packets": b"H0100100" + QUEUE,
    "letters as length": b"H0100102" + packet(b"01", b"Foo", b"x".zfill(29)) + BODY,
    "negative length": b"H0100102" + packet(b"01", b"Foo", b"-" + b"3".zfill(28)) + BODY,
    "plus sign in length": b"H0100102" + packet(b"01", b"Foo", b"+" + b"3".zfill(28)) + BODY,
    "blanks in length": b"H0100102" + packet(b"01", b"Foo", b"3".rjust(29)) + BODY,
    "underscore in length": b"H0100102" + packet(b"01", b"Foo", b"0_3".zfill(29)) + BODY,
    "packet type 00": b"H0100102" + packet(b"00", b"Foo") + BODY,
    "packet type 06": b"H0100102" + packet(b"06", b"Foo") + BODY,
    "packet of another type": b"H0100102" + QUEUE + packet(b"03", ID),
    "same packet twice": b"H0100102" + QUEUE + QUEUE,
    "count is text": b"H0100202" + QUEUE + packet(b"04", b"five"),
    "count is negative": b"H0100202" + QUEUE + packet(b"04", b"-5"),
    "count has a sign": b"H0100202" + QUEUE + packet(b"04", b"+5"),
    "count has a blank": b"H0100202" + QUEUE + packet(b"04", b" 5"),
    "count has an underscore": b"H0100202" + QUEUE + packet(b"04", b"1_0"),
    "count is empty": b"H0100202" + QUEUE + packet(b"04", b""),
    "count has 21 digits": b"H0100202" + QUEUE + packet(b"04", b"1".zfill(21)),
    "ttl is text": b"H0100103" + QUEUE + BODY + packet(b"05", b"soon"),
    "ttl of a requeue is text": b"H0100503" + QUEUE + packet(b"03", ID) + packet(b"05", b"?"),
    "empty queue name": b"H0100102" + packet(b"01", b"") + BODY,
    "queue name over 1 KiB": b"H0100102" + packet(b"01", b"q" * 1025) + BODY,
    "id over 64 bytes": b"H0100402" + QUEUE + packet(b"03", b"1" * 65),
    "the document's packet header of 36": b"H0100102P01" + b"3".zfill(33) + b"Foo" + BODY,
    "line breaks only later": b"H0100102" + QUEUE[:32] + b"\n" + QUEUE[32:] + b"\n" + BODY,
    "line breaks that stop": b"H0100102\n" + QUEUE + BODY,
    "carriage return alone": b"H0100102\r" + QUEUE + b"\r" + BODY + b"\r",
    "carriage return alone, later": b"H0100102\n" + QUEUE[:32] + b"\rFoo" + BODY,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input_is_error_after_frames_before_it(name: str) -> None:
    valid_frame = wire.encode_send(b"q", b"before")
    frame = (wire.SEND, b"q", b"before", b"", 0)
    lines = b"\n" in MALFORMED[name][8:9]
    if not lines:
        decoder = wire.Decoder()
        assert decoder.feed(valid_frame + valid_frame + MALFORMED[name] + valid_frame) == [
            frame,
            frame,
        ]
        assert isinstance(decoder.error, ProtocolError)
        assert decoder.feed(valid_frame) == []
    second_decoder = wire.Decoder()
    assert second_decoder.feed(MALFORMED[name] + b"\n" * 64) == []
    assert isinstance(second_decoder.error, ProtocolError)


@pytest.mark.parametrize(
    "first",
    [
        b"H0199902",
        b"H0100103"[:7] + b"9",
        b"H01001\r\n",
        b"H0100303",
        b"HELO x\r\n",
        b"X",
        b"\xff\0",
    ],
)
@pytest.mark.parametrize("step", [1, 4, 8])
def test_malformed_first_bytes_are_error_at_once(first: bytes, step: int) -> None:
    decoder = wire.Decoder()
    for start in range(0, len(first), step):
        assert decoder.feed(first[start : start + step]) == []
    assert isinstance(decoder.error, ProtocolError)


@pytest.mark.parametrize("newline", [b"", b"\n", b"\r\n"])
def test_complete_header_waits_for_byte_that_decides_form(newline: bytes) -> None:
    decoder = wire.Decoder()
    message = in_line_form(wire.encode_send(b"q", b"body"), newline)
    assert decoder.feed(message[:8]) == []
    assert decoder.error is None
    assert len(decoder.feed(message[8:])) == 1
    assert decoder.newline == newline


def test_client_accepts_dispatches_only() -> None:
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    assert decoder.feed(wire.encode_send(b"q", b"body")) == []
    assert isinstance(decoder.error, ProtocolError)


def test_limit_is_applied_before_content_arrives() -> None:
    decoder = wire.Decoder(wire.Limits(body=10))
    at_limit = wire.encode_send(b"q", b"x" * 10)
    assert len(decoder.feed(at_limit * 2)) == 2
    above = wire.encode_send(b"q", b"x" * 11)
    assert decoder.feed(above[: above.index(b"P02") + 32]) == []
    assert isinstance(decoder.error, FrameTooLarge)
    huge = wire.Decoder()
    huge.feed(b"H0100102" + QUEUE + b"P02" + b"9" * 29)
    assert isinstance(huge.error, FrameTooLarge)


def test_limit_applies_on_fast_path() -> None:
    message = wire.encode_send(b"q", b"x" * 11)
    assert len(wire.Decoder().feed(message * 2)) == 2
    decoder = wire.Decoder(wire.Limits(body=10))
    assert len(decoder.feed(wire.encode_send(b"q", b"x") + message)) == 1
    assert isinstance(decoder.error, FrameTooLarge)


def test_large_body_in_small_chunks_is_not_copied_at_each() -> None:
    message = wire.encode_send(b"q", bytes(4 << 20))
    frames: list[wire.Frame] = []
    copied = 0

    class Counting(bytearray):
        def clear(self) -> None:
            nonlocal copied
            copied += 1
            super().clear()

    decoder = wire.Decoder()
    decoder._rest = Counting()  # cleared whenever it is joined to new input
    for start in range(0, len(message), 256):
        frames += decoder.feed(message[start : start + 256])
    assert [len(frame[2]) for frame in frames] == [4 << 20]
    assert 1 <= copied < 20
    assert not decoder.incomplete


def test_incomplete_is_true_only_inside_message() -> None:
    decoder = wire.Decoder()
    message = wire.encode_send(b"q", b"body")
    assert not decoder.incomplete
    decoder.feed(message[:5])
    assert decoder.incomplete
    decoder.feed(message[5:])
    assert not decoder.incomplete


def test_fast_path_does_not_accept_malformed_messages() -> None:
    odd_send = b"H0100102" + packet(b"02", b"abc") + packet(b"01", b"def")
    odd_acknowledge = b"H0100402" + packet(b"03", ID) + packet(b"01", ID)
    line_send = in_line_form(wire.encode_send(b"Foo", b"body", dispatch_version=1), b"\n")
    for valid, invalid in (
        (odd_send, b"H0100102" + packet(b"02", b"abc") + packet(b"02", b"def")),
        (odd_acknowledge, b"H0100402" + packet(b"03", ID) * 2),
        (line_send, line_send[:40] + b"???" + packet(b"02", b"body")),
    ):
        decoder = wire.Decoder()
        assert len(decoder.feed(valid + invalid + b"\n" * 64)) == 1
        assert decoder.error is not None


def test_many_packet_headers_do_not_grow_cache() -> None:
    decoder = wire.Decoder()
    for length in range(5000):
        decoder.feed(wire.encode_send(b"q" * (1 + length % 1000), bytes(length)))
    assert decoder.error is None
    assert len(wire._packet_headers) <= 4096
    assert len(decoder._prefixes) <= 256
