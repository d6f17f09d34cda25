"""Compression of one frame's body: gzip (RFC 1952) and Brotli (RFC 7932). Keeps no state.

The flag byte of a frame says how its body travels; any flag may come at any time, also without
having been negotiated (VibeMQ protocol, "Compression"). What is negotiated binds the writer only.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from enum import IntEnum
from typing import Final

import brotli

from sluicemq.model.errors import FrameTooLarge, ProtocolError

THRESHOLD: Final = 1024
"""Bytes of a body from which on it is compressed, unless configured otherwise."""

_GZIP: Final = 31
"""zlib's number for the gzip format with its largest window."""
_MOST_MEMBERS: Final = 16
"""A gzip body may be made of several members. Nobody sends more than one; thousands of empty ones
would cost a frame's length of copying each."""


class Compression(IntEnum):
    """How a body travels. The value is the frame's flag byte."""

    NONE = 0
    GZIP = 1
    BROTLI = 2


_NAMES: Final = {"gzip": Compression.GZIP, "brotli": Compression.BROTLI}

SUPPORTED: Final = (Compression.BROTLI, Compression.GZIP)
"""All there is, the best first."""


def negotiate(offered: str, supported: Collection[Compression] = SUPPORTED) -> Compression:
    """The first of the client's list that this side supports; NONE if there is none.

    `offered` is the header `supported-compression`: names in descending preference, separated by
    commas; letter case does not matter, and unknown names are passed over.
    """
    for name in offered.split(","):
        how = _NAMES.get(name.strip().lower())
        if how is not None and how in supported:
            return how
    return Compression.NONE


def names(algorithms: Collection[Compression]) -> str:
    """The algorithms as a header lists them."""
    return ",".join(how.name.lower() for how in algorithms if how is not Compression.NONE)


def compress(
    body: bytes, how: Compression, threshold: int = THRESHOLD
) -> tuple[Compression, bytes]:
    """The flag and the body as it is sent: plain if it is shorter than `threshold` bytes, or if
    compression gains nothing.

    Fastest levels, as the .NET client's.
    """
    if how is Compression.NONE or len(body) < threshold:
        return Compression.NONE, body
    if how is Compression.GZIP:
        packed = zlib.compress(body, 1, _GZIP)
    else:
        packed = brotli.compress(body, quality=1, lgwin=22)
    return (how, packed) if len(packed) < len(body) else (Compression.NONE, body)


def decompress(data: bytes, flag: int, limit: int) -> bytes:
    """The body as it was before `compress`; never holds much more than `limit` bytes of it.

    Raises FrameTooLarge if it has more than `limit`, ProtocolError if it is damaged, cut short or
    followed by something else.
    """
    if flag == Compression.NONE:
        return data
    if flag == Compression.GZIP:
        return _gunzip(data, limit)
    if flag == Compression.BROTLI:
        return _unbrotli(data, limit)
    raise ProtocolError(f"there is no compression {flag}")


def _gunzip(data: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    room = limit + 1
    for _ in range(_MOST_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(data, room)
        except zlib.error as error:
            raise ProtocolError(f"the gzip body cannot be read: {error}") from None
        room -= len(part)
        if not room:
            raise _too_large(limit)
        if not member.eof:
            raise ProtocolError("the gzip body is cut short")
        parts.append(part)
        data = member.unused_data
        if not data:
            return b"".join(parts)
    raise ProtocolError(f"the gzip body has more than {_MOST_MEMBERS} members")


def _unbrotli(data: bytes, limit: int) -> bytes:
    stream = brotli.Decompressor()
    parts: list[bytes] = []
    room = limit + 1
    try:
        while True:
            part = stream.process(data, output_buffer_limit=room)
            room -= len(part)
            if room <= 0:
                raise _too_large(limit)
            parts.append(part)
            if stream.is_finished():
                return b"".join(parts)
            if stream.can_accept_more_data():
                raise ProtocolError("the Brotli body is cut short")
            data = b""
    except brotli.error:
        raise ProtocolError("the Brotli body cannot be read") from None


def _too_large(limit: int) -> FrameTooLarge:
    return FrameTooLarge(f"the decompressed body is longer than {limit} bytes")
