from __future__ import annotations

import pytest

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.msglite import wire

M, R, Q = wire.MESSAGE, wire.READY, wire.QUERY


def decode(data: bytes, limits: wire.Limits | None = None) -> list[wire.Frame]:
    decoder = wire.Decoder(limits or wire.Limits())
    frames = decoder.feed(data)
    assert decoder.error is None
    assert not decoder.incomplete
    return frames


def fault(data: bytes, limits: wire.Limits | None = None) -> ProtocolError:
    decoder = wire.Decoder(limits or wire.Limits())
    decoder.feed(data)
    assert decoder.error is not None, "accepted"
    return decoder.error


def test_the_conversation_of_the_protocol_page() -> None:
    sent = b"> 5 1 someAddress\r\nhello\r\n< 1 someAddress\r\n"
    assert decode(sent) == [(M, 1, (b"someAddress",), b"hello"), (R, 1, (b"someAddress",), b"")]
    answered = wire.encode_message(1, b"someAddress", b"hello")
    assert answered == b"> 5 1 someAddress\r\nhello\r\n"
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    assert decoder.feed(answered) == [(M, 1, (b"someAddress",), b"hello")]


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        (b"> 0 1 a\r\n", (M, 1, (b"a",), b"")),
        (b"> 0 1 a r\r\n", (M, 1, (b"a", b"r"), b"")),
        (b"> 0 1 a \r\n", (M, 1, (b"a",), b"")),
        (b" \t>\t0  1 \t a  r\t\n", (M, 1, (b"a", b"r"), b"")),
        (b"> 0 1 a\rb\r\n", (M, 1, (b"a", b"b"), b"")),
        (b"> 0 1 \xc2\xa0\x0b\x0c\xff\0\xc2\x85\n", (M, 1, (b"\xc2\xa0\x0b\x0c\xff\0\xc2\x85",), b"")),
        (b"> 0 1 \x0b\t\rr\x0c \n", (M, 1, (b"\x0b", b"r\x0c"), b"")),
        (b"> +2 +1 a\nxy\r\n", (M, 1, (b"a",), b"xy")),
        (b"> -0 -1 a\n", (M, 0, (b"a",), b"")),
        (b"> 00000000000000000000001 000000000000000000000000000007 a\nx\r\n", (M, 7, (b"a",), b"x")),
        (b"> 0 " + b"0" * 5000 + b" a\n", (M, 0, (b"a",), b"")),
        (b"> 0 9223372036854775807 a\n", (M, 2**63 - 1, (b"a",), b"")),
        (b"> 0 -9223372036854775807 a\n", (M, 0, (b"a",), b"")),
        (b"> 4 1 a\n\r\n\0\xff\r\n", (M, 1, (b"a",), b"\r\n\0\xff")),
        (b"< 0 a\r\n", (R, 0, (b"a",), b"")),
        (b"< -5 a\r\n", (R, 0, (b"a",), b"")),
        (b"< 1 1 2 3 4 5 6 7 8\n", (R, 1, tuple(b"%d" % n for n in range(1, 9)), b"")),
        (b"< 1 a a\n", (R, 1, (b"a", b"a"), b"")),
        (b"? 2 3 a\nhi\r\n", (Q, 3, (b"a",), b"hi")),
        (b"? 0 3 a\n", (Q, 3, (b"a",), b"")),
        (b".\n", (wire.QUIT, 0, (), b"")),
        (b". now please\r\n", (wire.QUIT, 0, (), b"")),
    ],
)
def test_commands_of_clients(line: bytes, frame: wire.Frame) -> None:
    assert decode(line) == [frame]
    # the second time the line is known, the third time something follows
    assert decode(line * 2 + b"\n\r\n \t\r\n" + line) == [frame] * 3


def test_blank_lines_also_after_bodyless_queries_are_ignored() -> None:
    assert decode(b"\n\r\n? 0 1 a\r\n\r\n< 1 b\r\n\t\n") == [
        (Q, 1, (b"a",), b""),
        (R, 1, (b"b",), b""),
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b">5 1 a\r\n", "unknown command '>5'"),
        (b"SEND 5 1 a\r\n", "unknown command 'SEND'"),
        (b"*\r\n", "unknown command"),
        (b"- text\r\n", "unknown command"),
        (b">> 1\n", "unknown command"),
        (b"\x0b> 0 1 a\n", "unknown command"),
        (b"\xc3\xa9\x1b[2J" + b"x" * 50 + b"\n", r"unknown command '\xc3\xa9\x1b[2Jxxx"),
        (b">\n", "takes 3 or 4 arguments, not 0"),
        (b"> 5 1\n", "takes 3 or 4 arguments, not 2"),
        (b"> 5 1 a b c\n", "takes 3 or 4 arguments, not 5"),
        (b"? 5 1\n", "takes 3 arguments, not 2"),
        (b"? 5 1 a b\n", "takes 3 arguments, not 4"),
        (b"<\n", "1 to 8 addresses"),
        (b"< 1\n", "1 to 8 addresses"),
        (b"< 1 1 2 3 4 5 6 7 8 9\n", "1 to 8 addresses"),
        (b"> x 1 a\n", "length 'x' is not a number"),
        (b"> 1_0 1 a\n", "length '1_0' is not a number"),
        (b"> 1.0 1 a\n", "is not a number"),
        (b"> \xd9\xa1 1 a\n", "is not a number"),
        (b"> 0x1 1 a\n", "is not a number"),
        (b"> - 1 a\n", "length '-' is not a number"),
        (b"> +-1 1 a\n", "is not a number"),
        (b"> 1 1.5 a\n", "timeout '1.5' is not a number"),
        (b"> 1  a\n", "takes 3 or 4"),
        (b"< a b\n", "timeout 'a' is not a number"),
        (b"> 0 9223372036854775808 a\n", "timeout is out of range"),
        (b"< " + b"9" * 6000 + b" a\n", "timeout is out of range"),
        (b"> 99999999999999999999 1 a\n", "length is out of range"),
        (b"> -1 1 a\n", "length is negative"),
        (b"? -5 1 a\n", "length is negative"),
        (b"> 2 1 a\r\nabX", None),
        (b"> 2 1 a\r\nabXY", "not followed by CR LF"),
        (b"> 2 1 a\r\nab\nX", "not followed by CR LF"),
        (b"> 2 1 a\r\nab\rX", "not followed by CR LF"),
        (b"> 2 1 a\r\nabc\r\n", "not followed by CR LF"),
    ],
)
def test_bad_data(data: bytes, says: str | None) -> None:
    decoder = wire.Decoder()
    good = b"> 2 1 a\r\nok\r\n"
    assert decoder.feed(good + data) == [(M, 1, (b"a",), b"ok")]
    if says is None:
        assert decoder.error is None
        assert decoder.incomplete
        return
    assert says in str(decoder.error)
    assert decoder.feed(good) == [], "something was read behind the fault"


def test_the_line_limit_counts_everything_before_the_line_feed() -> None:
    limits = wire.Limits(line=20)
    line = b"< 1 " + b"a" * 15 + b"\r"
    assert len(line) == 20
    assert decode(line + b"\n", limits) == [(R, 1, (b"a" * 15,), b"")]
    assert isinstance(fault(b" " + line + b"\n", limits), FrameTooLarge)
    decoder = wire.Decoder(limits)
    for byte in line:
        decoder.feed(bytes([byte]))
    assert decoder.error is None
    decoder.feed(b"a")
    assert isinstance(decoder.error, FrameTooLarge), "an endless line is kept in memory"
    assert not decoder.incomplete


def test_the_body_limit_is_checked_before_the_body_comes() -> None:
    limits = wire.Limits(body=10)
    assert decode(b"> 10 1 a\n0123456789\r\n", limits)[0][3] == b"0123456789"
    assert isinstance(fault(b"> 11 1 a\n", limits), FrameTooLarge)
    assert isinstance(fault(b"? 9223372036854775807 1 a\n", limits), FrameTooLarge)
    assert isinstance(fault(b"> 67108865 1 a\n"), FrameTooLarge)


def test_a_large_body_in_small_pieces_is_put_together_once() -> None:
    body = bytes(range(256)) * 4096
    data = wire.encode_message(1, b"a", body)
    decoder = wire.Decoder()
    frames: list[wire.Frame] = []
    for start in range(0, len(data), 1000):
        assert frames == []
        frames = decoder.feed(data[start : start + 1000])
    assert frames == [(M, 1, (b"a",), body)]
    assert not decoder.incomplete


def test_answers_of_servers() -> None:
    decoder = wire.Decoder(kinds=wire.FROM_SERVER)
    data = wire.TIMEOUT_LINE + wire.encode_message(3, b"a", b"", b"r")
    data += wire.encode_error("bad  data\r\n> 0 1 a\r\n") + b"-\r\n"
    assert decoder.feed(data) == [
        (wire.TIMEOUT, 0, (), b""),
        (M, 3, (b"a", b"r"), b""),
        (wire.ERROR, 0, (), b"bad  data  > 0 1 a"),
        (wire.ERROR, 0, (), b""),
    ]
    assert decoder.error is None
    for line in (b"< 1 a\n", b"? 0 1 a\n", b".\n"):
        decoder = wire.Decoder(kinds=wire.FROM_SERVER)
        decoder.feed(line)
        assert decoder.error is not None


def test_what_is_written_has_single_blanks_and_nothing_after_an_empty_body() -> None:
    assert wire.encode_message(7, b"to", b"x", b"re") == b"> 1 7 to re\r\nx\r\n"
    assert wire.encode_message(7, b"to", b"") == b"> 0 7 to\r\n"
    assert wire.encode_ready(0, (b"a", b"b")) == b"< 0 a b\r\n"
    assert wire.encode_query(1, b"a", b"xy") == b"? 2 1 a\r\nxy\r\n"
    assert wire.encode_query(1, b"a", b"") == b"? 0 1 a\r\n"
    assert wire.QUIT_LINE == b".\r\n"
    assert wire.TIMEOUT_LINE == b"*\r\n"


@pytest.mark.parametrize("raw", [b"", b"a b", b"a\t", b"\r", b"a\nb"])
def test_what_is_no_address(raw: bytes) -> None:
    assert not wire.is_address(raw)
    assert wire.is_address(b"\x0b\xc2\xa0\xff")
