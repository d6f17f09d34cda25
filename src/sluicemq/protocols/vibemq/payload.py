"""Whether a payload is JSON to everybody who will get it.

The .NET client reads every payload while it takes the frame apart, and drops its connection over
one that System.Text.Json cannot read: the message that a broker lets pass would cost each of its
subscribers its connection, again and again. So this is as strict as System.Text.Json is by default:
strict UTF-8 without a byte order mark, one value, no comments, no commas at the end, no NaN, no
depth beyond 64. And no stricter: a number may have any length and size, a key may come twice, and
an escaped half of a surrogate pair (`\\ud800`), which .NET minds only when the string is used, may
stand. Payloads are never parsed and written anew, because that would change them.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

import msgspec

from sluicemq.model.errors import ProtocolError

MAX_DEPTH: Final = 64
"""Arrays and objects inside each other."""

_parse: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks the syntax and makes no objects. It does not look at what is not ASCII."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_STEPS: Final = {0x5B: 1, 0x5D: -1}
_QUICK_LEVELS: Final = 8


def check(payload: bytes) -> None:
    """Raises ProtocolError if System.Text.Json could not read it; so it could not if it is empty.

    Takes time in proportion to the payload's size, however it is nested.
    """
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH and _depth(payload) > MAX_DEPTH:
        raise ProtocolError(f"the payload is nested deeper than {MAX_DEPTH}")
    try:
        if not payload.isascii():
            payload.decode()
        _parse(payload)
    except msgspec.DecodeError as error:
        # the same text with a harmless letter in the place of each half of a surrogate pair
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
    """How deep arrays and objects are inside each other, if it is JSON.

    What is not JSON may count as deeper than it is, never as less deep than a parser would get.
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
