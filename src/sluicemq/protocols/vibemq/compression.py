"""Compression of one frame's body: gzip (RFC 1952) and Brotli (RFC 7932). Keeps no state.

The flag byte of a frame says how its body travels; any flag may come at any time, also without
having been negotiated (VibeMQ protocol, "Compression"). What is negotiated binds the writer only.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final

import brotli

from sluicemq.model.errors import FrameTooLarge, ProtocolError

THRESHOLD: Final = 1024
"""Bytes of a body from which on it is compressed, unless configured otherwise."""

_GZIP: Final = 31
"""zlib's number for the gzip format with its largest window."""
_MOST_MEMBERS: Final = 16
"""A gzip body may be made of several members. Nobody sends more than one; thousands of empty ones
would cost a frame's length of copying each."""
_STEP: Final = 1 << 20
"""Bytes that one step of decompression yields at most. Other threads run between two steps."""


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


_LEVELS: Final[dict[Compression, tuple[int, ...]]] = {
    Compression.GZIP: (1, 9),
    Compression.BROTLI: (1, 5),
}
"""Levels of effort, tried in this order. The first is the .NET client's. Brotli's highest levels
would take minutes for 64 MiB and gain little over 5 with a large window."""
_BROTLI_WINDOW: Final = 22
"""The .NET client's, as a power of 2."""
_BROTLI_LARGEST_WINDOW: Final = 24
"""The largest that every decoder reads."""


def compress(
    body: bytes, how: Compression, threshold: int = THRESHOLD
) -> tuple[Compression, bytes]:
    """The flag and the body as it is sent: plain if it is shorter than `threshold` bytes, or if
    compression gains nothing.

    Fastest levels, as the .NET client's.
    """
    if how is Compression.NONE or len(body) < threshold:
        return Compression.NONE, body
    packed = _packed(body, how, _LEVELS[how][0])
    return (how, packed) if len(packed) < len(body) else (Compression.NONE, body)


def compress_to_fit(body: bytes, how: Compression, limit: int) -> bytes | None:
    """Return the compressed body, with a higher quality if the first has more than `limit` bytes;
    None if no quality makes it fit. `how` is not NONE. Takes seconds for 64 MiB."""
    for level in _LEVELS[how]:
        packed = _packed(body, how, level)
        if len(packed) <= limit:
            return packed
    return None


def _packed(body: bytes, how: Compression, level: int) -> bytes:
    if how is Compression.GZIP:
        return zlib.compress(body, level, _GZIP)
    window = _BROTLI_WINDOW if level == 1 else _BROTLI_LARGEST_WINDOW
    packed: bytes = brotli.compress(body, quality=level, lgwin=window)
    return packed


def decompress(data: bytes, flag: int, limit: int) -> bytes:
    """The body as it was before `compress`; never holds much more than `limit` bytes of it.

    Raises FrameTooLarge if it has more than `limit`, ProtocolError if it is damaged, cut short or
    followed by something else.
    """
    if flag == Compression.NONE:
        return data
    unpacker = Unpacker(data, flag, limit)
    unpacker.unpack(limit)
    return unpacker.body()


class Unpacker:
    """Decompresses one body, at once or with a pause in between. It may be continued by another
    thread.

    unpacked  bytes of the body so far
    """

    __slots__ = ("_gzip", "_limit", "_members", "_parts", "_rest", "_stream", "unpacked")

    def __init__(self, data: bytes, flag: int, limit: int) -> None:
        """`limit`: bytes of the body. Raises ProtocolError if there is no compression `flag`."""
        if flag not in (Compression.GZIP, Compression.BROTLI):
            raise ProtocolError(f"there is no compression {flag}")
        self._gzip = flag == Compression.GZIP
        self._limit = limit
        self._rest = data
        """What has not been decompressed yet."""
        self._members = 1
        self._stream: Any = zlib.decompressobj(_GZIP) if self._gzip else brotli.Decompressor()
        self._parts: list[bytes] = []
        self.unpacked = 0

    def unpack(self, size: int) -> bool:
        """Go on until the body is complete, or until it has more than `size` bytes. Returns
        whether it is complete.

        Raises FrameTooLarge if it has more than the limit, ProtocolError if it is damaged, cut
        short or followed by something else.
        """
        size = min(size, self._limit)
        while not (self._ungzip(size) if self._gzip else self._unbrotli(size)):
            if self.unpacked > self._limit:
                raise FrameTooLarge(f"the decompressed body is longer than {self._limit} bytes")
            if self.unpacked > size:
                return False
        return True

    def body(self) -> bytes:
        """Return the complete body, once."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _keep(self, part: bytes) -> None:
        self.unpacked += len(part)
        if part:
            self._parts.append(part)

    def _ungzip(self, size: int) -> bool:
        """Take the next step; True when the last member has ended."""
        try:
            part = self._stream.decompress(self._rest, min(size + 1 - self.unpacked, _STEP))
        except zlib.error as error:
            raise ProtocolError(f"the gzip body cannot be read: {error}") from None
        self._keep(part)
        if self._stream.eof:
            self._rest = self._stream.unused_data
            if self.unpacked > self._limit:
                return False
            if not self._rest:
                return True
            if self._members == _MOST_MEMBERS:
                raise ProtocolError(f"the gzip body has more than {_MOST_MEMBERS} members")
            self._members += 1
            self._stream = zlib.decompressobj(_GZIP)
            return False
        self._rest = self._stream.unconsumed_tail
        if not part and not self._rest:
            raise ProtocolError("the gzip body is cut short")
        return False

    def _unbrotli(self, size: int) -> bool:
        """Take the next step; True at the end of the stream."""
        room = min(size + 1 - self.unpacked, _STEP)
        try:
            part = self._stream.process(self._rest, output_buffer_limit=room)
            self._rest = b""
            self._keep(part)
            if self.unpacked > self._limit:
                return False
            if self._stream.is_finished():
                return True
            if not part and self._stream.can_accept_more_data():
                raise ProtocolError("the Brotli body is cut short")
        except brotli.error:
            raise ProtocolError("the Brotli body cannot be read") from None
        return False
