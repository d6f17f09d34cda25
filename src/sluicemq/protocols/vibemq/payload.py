"""Validation of payloads: accepts the JSON that every client can read.

The .NET client parses every payload while it reads the frame, and closes its connection on one that
System.Text.Json rejects: a broker that accepted such a message would break the connection of each
subscriber, again and again. So this check is as strict as System.Text.Json is by default: strict
UTF-8 without a byte order mark, one value, no comments, no trailing commas, no NaN, no depth beyond
64. It is no stricter: numbers may have any length and size, keys may be repeated, and escaped lone
surrogates (`\\ud800`), which .NET rejects only when the string is used, are accepted. Payloads are
never parsed and encoded again, because that would change them.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

import msgspec

from sluicemq.model.errors import ProtocolError

MAX_DEPTH: Final = 64
"""Maximum nesting of arrays and objects."""

_parse: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks the syntax without creating objects. It does not validate UTF-8."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {0x5B: 1, 0x5D: -1}
_QUICK_LEVELS: Final = 8

PIECE: Final = 256 * 1024
"""Bytes of a payload that are checked at a time. The check blocks other threads for some ms."""
_OPENERS: Final = {0x5D: 0x5B, 0x7D: 0x7B}
_CLOSERS: Final = {0x5B: b"]", 0x7B: b"}"}
_MOST_WITHOUT_COMMA: Final = 5 * MAX_DEPTH
"""Quotes, or brackets, that JSON may have between two commas: each level has one key at most."""


def check(payload: bytes) -> None:
    """Raise ProtocolError if System.Text.Json could not read the payload, also if it is empty.

    Takes time in proportion to the payload's size, however it is nested.
    """
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _depth(payload) > MAX_DEPTH:
        raise ProtocolError(f"the payload is nested deeper than {MAX_DEPTH}")
    _check_syntax(payload)


def _check_syntax(payload: bytes) -> None:
    """Check a payload as `check` does, without the depth."""
    try:
        if not payload.isascii():
            payload.decode()
        _parse(payload)
    except msgspec.DecodeError as error:
        # replace each half of a surrogate pair by a valid escape and check the text again
        harmless, halves = _SURROGATE.subn(rb"\\u0041", payload)
        if halves and _is_json(harmless):
            return
        raise ProtocolError(f"the payload is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the payload is not UTF-8: byte {error.start}") from None


def _is_json(ascii_text: bytes) -> bool:
    try:
        _parse(ascii_text)
    except msgspec.DecodeError:
        return False
    return True


def _depth(payload: bytes) -> int:
    """Return the nesting depth of arrays and objects.

    For text that is not JSON the result may be too high, but never too low.
    """
    if b"\\" in payload:
        payload = payload.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside_strings = b"".join(payload.split(b'"')[::2])
    brackets = outside_strings.translate(_SQUARE, _NO_BRACKETS)
    levels = 0
    while brackets and levels < _QUICK_LEVELS:
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    return levels + max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def check_in_chunks(payload: bytes, size: int = PIECE) -> None:
    """Check a large payload as `check` does, in another thread.

    Other threads run between the pieces, and the memory needed is small for any payload. The
    payload is cut in front of commas between values. Each piece is completed: it is prefixed with
    the brackets open there and a value in the innermost one, and the brackets open at its end are
    closed.

    size  bytes of a piece, if there is such a comma
    """
    start = position = 0
    inside = False
    """True if `position` is within a string."""
    open_brackets = bytearray()
    while position + size < len(payload):
        data = _without_escapes(payload, position, size)
        comma = _last_comma(data, inside)
        if comma < 0 or position + comma == start:
            parts = data.split(b'"')
            brackets = b"".join(parts[inside::2]).translate(None, _NO_BRACKETS)
            if max(len(parts), len(brackets)) > _MOST_WITHOUT_COMMA:
                raise ProtocolError("the payload is not JSON: values without commas")
            inside ^= len(parts) % 2 == 0
            position += len(data)
            continue
        cut = position + comma
        _check_piece(payload, start, cut, open_brackets)
        start = position = cut
        inside = False
    _check_piece(payload, start, len(payload), open_brackets)


def _without_escapes(payload: bytes, position: int, size: int) -> bytes:
    """Return `size` bytes from a position on, with escaped quotes and backslashes replaced.

    The text does not end within an escape.
    """
    text = payload[position : position + size].replace(b"\\\\", b"__")
    if text.endswith(b"\\"):
        text = text[:-1] + b"__"  # with the escaped character
    return text.replace(b'\\"', b"__")


def _last_comma(text: bytes, inside: bool) -> int:
    """Return the index of the last comma outside strings, -1 if there is none."""
    parts = text.split(b'"')
    end = len(text)
    for index in range(len(parts) - 1, -1, -1):
        end -= len(parts[index])
        if index % 2 == inside and (comma := parts[index].rfind(b",")) >= 0:
            return end + comma
        end -= 1
    return -1


def _check_piece(payload: bytes, start: int, end: int, open_brackets: bytearray) -> None:
    """Check `payload[start:end]`, which begins outside strings.

    `open_brackets` are those open before the piece; they are updated to those open after it.
    """
    piece = payload[start:end]
    lead = b""
    if open_brackets:
        lead = b"".join(b"[" if bracket == 0x5B else b'{"":' for bracket in open_brackets[:-1])
        lead += b"[0" if open_brackets[-1] == 0x5B else b'{"":0'
    if end < len(payload) and piece.rstrip(b" \t\r\n").endswith((b"[", b"{")):
        raise ProtocolError("the payload is not JSON: a comma without a value before it")
    text = piece
    if b"\\" in piece:
        text = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(text.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    depth = _nest(open_brackets, brackets)
    tail = b""
    if end < len(payload):
        tail = b"".join(_CLOSERS[bracket] for bracket in reversed(open_brackets))
    try:
        (_check_syntax if depth <= MAX_DEPTH else check)(lead + piece + tail)
    except ProtocolError as error:
        if start:
            raise ProtocolError(f"{error}, counted from byte {start - len(lead)}") from None
        raise


def _nest(open_brackets: bytearray, brackets: bytes) -> int:
    """Add brackets to the open ones, and return a lower bound of their nesting depth.

    Raises ProtocolError if they do not match.
    """
    depth = len(open_brackets)
    for _ in range(MAX_DEPTH + 1):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(brackets) == before:
            break
        depth += 2
    for bracket in brackets:
        opener = _OPENERS.get(bracket)
        if opener is None:
            open_brackets.append(bracket)
            depth += 1
            if len(open_brackets) > MAX_DEPTH:
                raise ProtocolError(f"the payload is nested deeper than {MAX_DEPTH}")
        elif not open_brackets or open_brackets.pop() != opener:
            raise ProtocolError("the payload is not JSON: brackets that do not match")
    return depth
