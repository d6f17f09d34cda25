"""Codec of msglite frames. Sans-I/O, for client and server.

    line    = [blanks] token *(1*blank token) [blanks] [CR] LF
    command = line [body CR LF]              the body only if the length is not 0

    >  length timeout to [reply]      both ways      message
    <  timeout address{1,8}           to the server  ready for one message
    ?  length timeout to              to the server  query: a message, and ready for its reply
    .                                 to the server  quit
    *                                 to the client  timeout: the response to < or ?
    -  text                           to the client  error; the connection ends

(msglite protocol page.) Lengths count bytes, timeouts seconds. Lines are written with single blanks
and CR LF. The decoder also accepts runs of blanks and tabs, also at the end, where some clients
write one; a bare LF; and empty lines, which it ignores. A body must be followed by CR LF. Addresses
are opaque bytes without blank, tab, CR and LF; no other bytes separate.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.protocols.framing import FrameDecoder

MESSAGE: Final = 0x3E
READY: Final = 0x3C
QUERY: Final = 0x3F
QUIT: Final = 0x2E
TIMEOUT: Final = 0x2A
ERROR: Final = 0x2D

FROM_CLIENT: Final = frozenset({MESSAGE, READY, QUERY, QUIT})
FROM_SERVER: Final = frozenset({MESSAGE, TIMEOUT, ERROR})

Frame = tuple[int, int, tuple[bytes, ...], bytes]
"""Kind (the first byte), timeout, addresses, body.

           timeout      addresses          body
MESSAGE    seconds      (to,) (to, reply)  body
QUERY      seconds      (to,)              body
READY      seconds      1 to 8, as listed  b""
QUIT       0            ()                 b""
TIMEOUT    0            ()                 b""
ERROR      0            ()                 the text

A timeout is 0 to MAX_TIMEOUT; a negative one is read as 0.
"""

MAX_TIMEOUT: Final = (1 << 63) - 1
MAX_ADDRESSES: Final = 8

QUIT_LINE: Final = b".\r\n"
TIMEOUT_LINE: Final = b"*\r\n"


class Limits(NamedTuple):
    """Limits of the input, in bytes.

    line  a command line without its LF
    body  checked against the announced length, before the body arrives
    name  the name of a queue or topic; checked by the session, because a reply address that
          contains it is longer
    """

    line: int = 64 * 1024
    body: int = 64 * 1024 * 1024
    name: int = 1024


_Head = tuple[int, Frame]
"""Parsed command line: the length of the body, and the frame without it."""

_DEFAULT_LIMITS: Final = Limits()
_BLANKS: Final = b" \t\r\n"
_TO_BLANK: Final = bytes.maketrans(_BLANKS, b"    ")
_CR: Final = 0x0D
_LF: Final = 0x0A

_MAX_CACHED_LINES: Final = 64
_MAX_CACHED_BYTES: Final = 128
"""The decoder caches 64 lines of up to 128 bytes: most clients repeat themselves."""

_START: Final = 64
"""Bytes of an unfinished line that are searched for its first token."""

_NAMES: Final = {
    MESSAGE: b"message",
    READY: b"ready",
    QUERY: b"query",
    QUIT: b"quit",
    TIMEOUT: b"time-out",
    ERROR: b"error",
}


class Decoder(FrameDecoder[Frame]):
    """Decodes the bytes of one direction of one connection into frames.

    `has_command` is True after the first valid command line.
    """

    __slots__ = (
        "_body_limit",
        "_commands",
        "_kinds",
        "_line_limit",
        "_lines",
        "has_command",
    )

    def __init__(
        self, limits: Limits = _DEFAULT_LIMITS, kinds: frozenset[int] = FROM_CLIENT
    ) -> None:
        """`kinds` are the commands that the peer may send: FROM_CLIENT or FROM_SERVER."""
        super().__init__()
        self.has_command = False
        self._kinds = kinds
        self._line_limit = limits.line
        self._body_limit = limits.body
        self._lines: dict[bytes, _Head] = {}
        self._commands: dict[bytes, Frame] = {}
        """Cache: the frame of input that is exactly one command without a body."""

    @property
    def incomplete(self) -> bool:
        """True if a command has been received in part."""
        return bool(self._rest.strip(_BLANKS))

    def feed(self, data: bytes) -> list[Frame]:
        """Decode received bytes and return the complete frames. Never raises."""
        if not self._rest and len(data) <= _MAX_CACHED_BYTES:
            frame = self._commands.get(data)
            if frame is not None and self.error is None:
                return [frame]
        return super().feed(data)

    def _parse(self, data: bytes, frames: list[Frame]) -> int:
        """Append the complete frames, as `FrameDecoder` requires.

        An invalid unfinished line is rejected early: clients of other protocols may never end it.
        """
        size = len(data)
        position = 0
        lines = self._lines
        find = data.find
        append = frames.append
        self._need = 0
        while position < size:
            newline = find(b"\n", position)
            if newline < 0:
                self._check_start(data[position : position + _START], size - position)
                break
            line = data[position:newline]
            head = lines.get(line) or self._read_line(line)
            start = newline + 1
            if head is None:
                position = start
                continue
            length, frame = head
            if not length:
                append(frame)
                position = start
                continue
            end = start + length
            if end + 2 > size:
                self._need = end + 2 - position
                break
            if data[end] != _CR or data[end + 1] != _LF:
                raise ProtocolError("the body is not followed by CR LF")
            append((frame[0], frame[1], frame[2], data[start:end]))
            position = end + 2
        return position

    def _check_start(self, start: bytes, length: int) -> None:
        """Reject a line, of `length` bytes so far, whose first token is complete and no command, or
        that is too long."""
        token, blank, _ = start.translate(_TO_BLANK).lstrip(b" ").partition(b" ")
        if token and blank:
            self._kind(token)
        if length > self._line_limit:
            raise FrameTooLarge(f"the command line is longer than {self._line_limit} bytes")

    def _kind(self, token: bytes) -> int:
        """Return the command of a line's first token. Raises ProtocolError."""
        kind = token[0] if len(token) == 1 else 0
        if kind not in self._kinds:
            raise ProtocolError(f"unknown command {_show(token)}")
        return kind

    def _read_line(self, line: bytes) -> _Head | None:
        """Parse a line; None if it is blank. Raises ProtocolError, FrameTooLarge."""
        if len(line) > self._line_limit:
            self._check_start(line[:_START], len(line))
        # bytes.split() would split at these two characters as well
        tokens = line.split() if b"\x0b" not in line and b"\x0c" not in line else _split(line)
        if not tokens:
            return None
        kind = self._kind(tokens[0])
        count = len(tokens) - 1
        length = 0
        if kind in (MESSAGE, QUERY):
            if count != 3 and (count != 4 or kind == QUERY):
                raise _wrong_count(kind, count, "3" if kind == QUERY else "3 or 4")
            length = _number(tokens[1], "length")
            if length < 0:
                raise ProtocolError("the length is negative")
            if length > self._body_limit:
                raise FrameTooLarge(
                    f"a body of {length} bytes is announced, the limit is {self._body_limit}"
                )
            frame: Frame = (kind, max(0, _number(tokens[2], "timeout")), tuple(tokens[3:]), b"")
        elif kind == READY:
            if not 2 <= count <= 1 + MAX_ADDRESSES:
                raise _wrong_count(kind, count, "2 to 9", ": a timeout and 1 to 8 addresses")
            frame = (kind, max(0, _number(tokens[1], "timeout")), tuple(tokens[2:]), b"")
        elif kind == ERROR:
            frame = (kind, 0, (), line.strip(_BLANKS)[1:].strip(_BLANKS))
        else:  # arguments of "." and "*" are ignored, as in the original
            frame = (kind, 0, (), b"")
        self.has_command = True
        head = length, frame
        # lines with a reply address are not cached: each reply address is different
        if len(line) <= _MAX_CACHED_BYTES and (count != 4 or kind != MESSAGE):
            if len(self._lines) >= _MAX_CACHED_LINES:
                self._lines.clear()
                self._commands.clear()
            self._lines[line] = head
            if not length:
                self._commands[line + b"\n"] = frame
        return head


def _split(line: bytes) -> list[bytes]:
    return [token for token in line.translate(_TO_BLANK).split(b" ") if token]


def _number(token: bytes, name: str) -> int:
    """Parse a decimal number that fits into 64 bits with sign. Raises ProtocolError."""
    # bytes.isdigit() accepts ASCII digits only; int() alone would accept underscores
    if token.isdigit() and len(token) < 19:
        return int(token)
    digits = token[1:] if token[:1] in (b"-", b"+") else token
    if not digits.isdigit():
        raise ProtocolError(f"the {name} {_show(token)} is not a number")
    # int() rejects numbers of thousands of digits, even leading zeros
    digits = digits.lstrip(b"0") or b"0"
    value = int(digits) if len(digits) <= 19 else MAX_TIMEOUT + 1
    if value > MAX_TIMEOUT:
        raise ProtocolError(f"the {name} is out of range")
    return -value if token[:1] == b"-" else value


def _wrong_count(kind: int, count: int, expected: str, meaning: str = "") -> ProtocolError:
    return ProtocolError(
        f"a {_NAMES[kind].decode()} command takes {expected} arguments, not {count}{meaning}"
    )


def _show(token: bytes) -> str:
    """Return a token for an error message: printable and short."""
    text = token[:24].decode("ascii", "backslashreplace")
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return f"'{text}'" if len(token) <= 24 else f"'{text}…'"


def is_address(raw: bytes) -> bool:
    """Return whether the bytes are a valid address."""
    return bool(raw) and not any(blank in raw for blank in _BLANKS)


def message_head(length: int, timeout: int, to: bytes, reply: bytes = b"") -> bytes:
    """Return the line before a message's body. CR LF must follow a body that is not empty."""
    if reply:
        return b"> %d %d %b %b\r\n" % (length, timeout, to, reply)
    return b"> %d %d %b\r\n" % (length, timeout, to)


def encode_message(timeout: int, to: bytes, body: bytes, reply: bytes = b"") -> bytes:
    """Encode `>`. `timeout` in seconds; the addresses satisfy `is_address`, or `reply` is b""."""
    if reply or not body:
        head = message_head(len(body), timeout, to, reply)
        return b"%b%b\r\n" % (head, body) if body else head
    return b"> %d %d %b\r\n%b\r\n" % (len(body), timeout, to, body)


def encode_ready(timeout: int, addresses: tuple[bytes, ...]) -> bytes:
    """Encode `<`. `timeout` in seconds, 0 = do not wait; 1 to 8 addresses."""
    return b"< %d %b\r\n" % (timeout, b" ".join(addresses))


def encode_query(timeout: int, to: bytes, body: bytes) -> bytes:
    """Encode `?`. `timeout` in seconds, of the message and for the reply."""
    if not body:
        return b"? 0 %d %b\r\n" % (timeout, to)
    return b"? %d %d %b\r\n%b\r\n" % (len(body), timeout, to, body)


def encode_error(text: str) -> bytes:
    """Encode `-`. Line breaks and tabs become blanks."""
    line = text.encode("utf-8", "surrogateescape")[:1000].translate(_TO_BLANK)
    return b"- %b\r\n" % line
