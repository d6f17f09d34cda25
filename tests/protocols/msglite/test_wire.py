from __future__ import annotations

import pytest

from sluicemq.model.errors import FrameTooLarge
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.wire import (
    ERROR,
    MAX_TIMEOUT,
    MESSAGE,
    QUERY,
    QUIT,
    READY,
    TIMEOUT,
    Decoder,
    Frame,
    Limits,
)

SMALL = Limits(line=64, body=100)

ACCEPTED: list[tuple[bytes, list[Frame]]] = [
    # the conversation of the protocol page
    (b"> 5 1 someAddress\r\nhello\r\n", [(MESSAGE, 1, (b"someAddress",), b"hello")]),
    (b"< 1 someAddress\r\n", [(READY, 1, (b"someAddress",), b"")]),
    (b"> 2 9 to reply\r\nhi\r\n", [(MESSAGE, 9, (b"to", b"reply"), b"hi")]),
    (b"? 2 9 to\r\nhi\r\n", [(QUERY, 9, (b"to",), b"hi")]),
    (b".\r\n", [(QUIT, 0, (), b"")]),
    (b". and good bye\r\n", [(QUIT, 0, (), b"")]),
    (b"< 0 1 2 3 4 5 6 7 8\r\n", [(READY, 0, tuple(b"%d" % n for n in range(1, 9)), b"")]),
    # no body, no line end for it; clients of the original server write one after "? 0"
    (b"> 0 1 a\r\n< 2 b\r\n", [(MESSAGE, 1, (b"a",), b""), (READY, 2, (b"b",), b"")]),
    (b"? 0 1 a\r\n\r\n. \r\n", [(QUERY, 1, (b"a",), b""), (QUIT, 0, (), b"")]),
    (b"> 000 1 a\r\n", [(MESSAGE, 1, (b"a",), b"")]),
    # blanks: the Perl client leaves one at the end
    (b"> 5 1 addr \r\nhello\r\n", [(MESSAGE, 1, (b"addr",), b"hello")]),
    (b" \t >  5\t1   addr\t\r\nhello\r\n", [(MESSAGE, 1, (b"addr",), b"hello")]),
    (b"< 1 a\n", [(READY, 1, (b"a",), b"")]),
    (b"\r\n\n  \r\n< 1 a\r\n\n", [(READY, 1, (b"a",), b"")]),
    # only blank, tab, CR and LF separate
    (b"< 1 a\x0bb c\x0cd\r\n", [(READY, 1, (b"a\x0bb", b"c\x0cd"), b"")]),
    (b"< 1 \xc2\x85\xa0 \x00\xff\r\n", [(READY, 1, (b"\xc2\x85\xa0", b"\x00\xff"), b"")]),
    # bodies are opaque
    (b"> 6 1 a\r\n\r\n\x00\n> \r\n", [(MESSAGE, 1, (b"a",), b"\r\n\x00\n> ")]),
    # numbers
    (b"< +5 a\r\n", [(READY, 5, (b"a",), b"")]),
    (b"< -5 a\r\n", [(READY, 0, (b"a",), b"")]),
    (b"< 9223372036854775807 a\r\n", [(READY, MAX_TIMEOUT, (b"a",), b"")]),
    (b"< 00000000000000000000000000001 a\r\n", [(READY, 1, (b"a",), b"")]),
    (b"> -0 1 a\r\n", [(MESSAGE, 1, (b"a",), b"")]),
    # the limits themselves
    (b"< 1 " + b"a" * 60 + b"\n", [(READY, 1, (b"a" * 60,), b"")]),
    (b"> 100 1 a\r\n" + bytes(100) + b"\r\n", [(MESSAGE, 1, (b"a",), bytes(100))]),
]

REFUSED: list[tuple[bytes, str]] = [
    (b"hello\r\n", "unknown command 'hello'"),
    (b">5 1 a\r\n", "unknown command '>5'"),
    (b"*\r\n", "unknown command"),
    (b"- text\r\n", "unknown command"),
    (b"> 5 1\r\n", "3 or 4 arguments, not 2"),
    (b"> 5 1 a b c\r\n", "3 or 4 arguments, not 5"),
    (b"? 5 1\r\n", "3 arguments, not 2"),
    (b"? 5 1 a b\r\n", "3 arguments, not 4"),
    (b"<\r\n", "arguments, not 0"),
    (b"< 1\r\n", "2 to 9 arguments, not 1: a timeout and 1 to 8 addresses"),
    (b"< 1 1 2 3 4 5 6 7 8 9\r\n", "arguments, not 10"),
    (b"> x 1 a\r\n", "length 'x' is not a number"),
    (b"> 1.5 1 a\r\n", "is not a number"),
    (b"> 1_0 1 a\r\n", "is not a number"),
    (b"> \xd9\xa1 1 a\r\n", "is not a number"),
    (b"> - 1 a\r\n", "is not a number"),
    (b"> +-1 1 a\r\n", "is not a number"),
    (b"> 5 soon a\r\n", "timeout 'soon' is not a number"),
    (b"< 9223372036854775808 a\r\n", "out of range"),
    (b"< -9223372036854775809 a\r\n", "out of range"),
    (b"> -1 1 a\r\n", "length is negative"),
    (b"? -5 1 a\r\n", "length is negative"),
    (b"> 5 1 a\r\nhello\n", "not followed by CR LF"),
    (b"> 5 1 a\r\nhello world\r\n", "not followed by CR LF"),
    (b"> 101 1 a\r\n", "the limit is 100"),
    (b"> 9999999999999999999999999 1 a\r\n", "out of range"),
    (b"< 1 " + b"a" * 61 + b"\n", "longer than 64 bytes"),
    (b"<" * 65, "longer than 64 bytes"),
]


@pytest.mark.parametrize(("data", "frames"), ACCEPTED)
def test_decodes_valid_commands(data: bytes, frames: list[Frame]) -> None:
    decoder = Decoder(SMALL)
    assert decoder.feed(data) == frames
    assert decoder.error is None
    assert not decoder.incomplete


@pytest.mark.parametrize(("data", "frames"), ACCEPTED)
def test_decodes_valid_commands_byte_by_byte(data: bytes, frames: list[Frame]) -> None:
    decoder = Decoder(SMALL)
    assert [f for i in range(len(data)) for f in decoder.feed(data[i : i + 1])] == frames
    assert decoder.error is None


@pytest.mark.parametrize(
    "first", [b"hello world", b" GET / HTTP", b">5 1 a", b"AMQP\0\0\t\1", b"x\r"]
)
@pytest.mark.parametrize("step", [1, 100])
def test_unknown_command_is_error_before_its_line_ends(first: bytes, step: int) -> None:
    decoder = Decoder(SMALL)
    for start in range(0, len(first), step):
        assert decoder.feed(first[start : start + step]) == []
    assert "unknown command" in str(decoder.error)


@pytest.mark.parametrize(("data", "text"), REFUSED)
@pytest.mark.parametrize("whole", [True, False])
def test_invalid_commands_are_refused_after_earlier_frames(
    data: bytes, text: str, whole: bool
) -> None:
    decoder = Decoder(SMALL)
    stream = b"< 1 before\r\n" + data + b"\r\n< 1 behind\r\n"
    step = len(stream) if whole else 1
    frames = [f for i in range(0, len(stream), step) for f in decoder.feed(stream[i : i + step])]
    assert frames == [(READY, 1, (b"before",), b"")]
    assert text in str(decoder.error)


def test_frame_above_limits_is_refused_before_its_body() -> None:
    decoder = Decoder(SMALL)
    assert decoder.feed(b"> 101 1 a\r\n") == []
    assert isinstance(decoder.error, FrameTooLarge)


def test_decodes_frames_of_server() -> None:
    decoder = Decoder(SMALL, wire.FROM_SERVER)
    data = b"*\r\n> 1 7 a\r\nx\r\n- not  like this \r\n"
    assert decoder.feed(data) == [
        (TIMEOUT, 0, (), b""),
        (MESSAGE, 7, (b"a",), b"x"),
        (ERROR, 0, (), b"not  like this"),
    ]
    assert decoder.feed(b"< 1 a\r\n") == []
    assert "unknown command '<'" in str(decoder.error)


def test_incomplete_is_true_within_command_only() -> None:
    decoder = Decoder()
    decoder.feed(b"  \r\n  ")
    assert not decoder.incomplete
    decoder.feed(b"> 5 1 a\r\nhel")
    assert decoder.incomplete


def test_more_lines_than_cache_holds() -> None:
    decoder = Decoder()
    for number in range(1000):
        assert decoder.feed(b"> 1 %d a\r\nx\r\n" % number) == [(MESSAGE, number, (b"a",), b"x")]
    assert decoder.feed(b"> 1 0 a\r\ny\r\n") == [(MESSAGE, 0, (b"a",), b"y")]


def test_encodes_with_single_blanks_and_crlf() -> None:
    assert wire.encode_message(1, b"a", b"hello") == b"> 5 1 a\r\nhello\r\n"
    assert wire.encode_message(1, b"a", b"hello", b"r") == b"> 5 1 a r\r\nhello\r\n"
    assert wire.encode_message(1, b"a", b"") == b"> 0 1 a\r\n"
    assert wire.encode_ready(5, (b"a", b"b")) == b"< 5 a b\r\n"
    assert wire.encode_query(5, b"a", b"x") == b"? 1 5 a\r\nx\r\n"
    assert wire.encode_query(5, b"a", b"") == b"? 0 5 a\r\n"
    assert wire.encode_error("two\r\nlines") == b"- two  lines\r\n"


@pytest.mark.parametrize("raw", [b"", b"a b", b"a\tb", b"a\r", b"\n"])
def test_invalid_addresses(raw: bytes) -> None:
    assert not wire.is_address(raw)


def test_error_quotes_nothing_that_could_break_its_line() -> None:
    decoder = Decoder()
    decoder.feed(b"\x1b[2J\xff" + b"x" * 100 + b"\r\n")
    assert str(decoder.error).isprintable()
    assert len(str(decoder.error)) < 80
