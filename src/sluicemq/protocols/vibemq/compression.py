"""Compression of one frame's body: gzip (RFC 1952) and Brotli (RFC 7932). Keeps no state.

The flag byte of a frame names the compression of its body. A peer may send any flag at any time,
also without negotiation (VibeMQ protocol, "Compression"). The negotiation binds the writer only.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from enum import IntEnum
from typing import Any, Final

import brotli

from sluicemq.model.errors import FrameTooLarge, ProtocolError

THRESHOLD: Final = 1024
"""Default size of a body, in bytes, from which it is compressed."""

_GZIP: Final = 31
"""zlib's wbits value for the gzip format with its largest window."""
_MOST_MEMBERS: Final = 16
"""Maximum number of members of a gzip body. Known clients send one; thousands of empty ones would
each cost a copy of the frame."""
_STEP: Final = 1 << 20
"""Maximum bytes that one step of decompression yields. Other threads run between two steps."""


class Compression(IntEnum):
    """Compression of a body. The value is the frame's flag byte."""

    NONE = 0
    GZIP = 1
    BROTLI = 2


SUPPORTED: Final = (Compression.BROTLI, Compression.GZIP)
"""All algorithms, the best first."""


def negotiate(offered: str, supported: Collection[Compression] = SUPPORTED) -> Compression:
    """Return the first algorithm of the client's list that is supported; NONE if there is none.

    `offered` is the header `supported-compression`: names in descending preference, separated by
    commas. Letter case is ignored, and unknown names are skipped.
    """
    by_name = {how.name.lower(): how for how in supported}
    found = (by_name.get(name.strip().lower()) for name in offered.split(","))
    return next(filter(None, found), Compression.NONE)


def names(algorithms: Collection[Compression]) -> str:
    """Return the algorithms as a header lists them."""
    return ",".join(how.name.lower() for how in algorithms if how is not Compression.NONE)


_LEVELS: Final[dict[Compression, tuple[int, ...]]] = {
    Compression.GZIP: (1, 9),
    Compression.BROTLI: (1, 5),
}
"""Compression levels, tried in this order. The first is the .NET client's. Brotli's highest levels
would take minutes for 64 MiB and save little over 5 with a large window."""
_BROTLI_WINDOW: Final = 22
"""Window size of the .NET client, as a power of 2."""
_BROTLI_LARGEST_WINDOW: Final = 24
"""Largest window size that every decoder reads."""


def compress(body: bytes, how: Compression, limit: int) -> bytes | None:
    """Return the body compressed, shorter than before and at most `limit` bytes; else None.

    Only a body above the limit is compressed in a higher level than the first, which takes seconds
    for 64 MiB. `how` is not NONE.
    """
    for level in _LEVELS[how] if len(body) > limit else _LEVELS[how][:1]:
        packed = _packed(body, how, level)
        if len(packed) <= limit and len(packed) < len(body):
            return packed
    return None


def _packed(body: bytes, how: Compression, level: int) -> bytes:
    if how is Compression.GZIP:
        return zlib.compress(body, level, _GZIP)
    window = _BROTLI_WINDOW if level == 1 else _BROTLI_LARGEST_WINDOW
    packed: bytes = brotli.compress(body, quality=level, lgwin=window)
    return packed


class Unpacker:
    """Decompresses one body, in one or several steps, which different threads may run. A plain one
    is complete from the start.

    unpacked  bytes of the body so far
    """

    __slots__ = (
        "_complete",
        "_gzip",
        "_limit",
        "_members",
        "_parts",
        "_rest",
        "_stream",
        "unpacked",
    )

    def __init__(self, data: bytes, flag: int, limit: int) -> None:
        """`limit`: bytes of the body. `flag`: one of `Compression`."""
        self._limit = limit
        self._gzip = flag == Compression.GZIP
        self._complete = flag == Compression.NONE
        self._rest = data
        """Compressed data that is not processed yet."""
        self._members = 1
        self._stream: Any = zlib.decompressobj(_GZIP) if self._gzip else brotli.Decompressor()
        self._parts = [data] if self._complete else []
        self.unpacked = len(data) if self._complete else 0

    def unpack(self, size: int) -> bool:
        """Decompress until the body is complete or has more than `size` bytes.

        Return whether it is complete. Raises FrameTooLarge if it has more bytes than the limit,
        ProtocolError if it is corrupt, truncated or followed by other data.
        """
        size = min(size, self._limit)
        while not self._complete:
            self._complete = self._ungzip(size) if self._gzip else self._unbrotli(size)
            if self.unpacked > self._limit:
                raise FrameTooLarge(f"the decompressed body is longer than {self._limit} bytes")
            if self.unpacked > size:
                return False
        return self.unpacked <= size

    def body(self) -> bytes:
        """Return the complete body, once."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _keep(self, part: bytes) -> None:
        self.unpacked += len(part)
        if part:
            self._parts.append(part)

    def _ungzip(self, size: int) -> bool:
        """Run one step. Return True after the end of the last member."""
        try:
            part = self._stream.decompress(self._rest, min(size + 1 - self.unpacked, _STEP))
        except zlib.error as error:
            raise ProtocolError(f"the gzip body cannot be read: {error}") from None
        self._keep(part)
        if not self._stream.eof:
            self._rest = self._stream.unconsumed_tail
            if not part and not self._rest:
                raise ProtocolError("the gzip body is cut short")
            return False
        self._rest = self._stream.unused_data
        if not self._rest:
            return True
        if self._members == _MOST_MEMBERS:
            raise ProtocolError(f"the gzip body has more than {_MOST_MEMBERS} members")
        self._members += 1
        self._stream = zlib.decompressobj(_GZIP)
        return False

    def _unbrotli(self, size: int) -> bool:
        """Run one step. Return True after the end of the stream."""
        limit = min(size + 1 - self.unpacked, _STEP)
        try:
            part = self._stream.process(self._rest, output_buffer_limit=limit)
            self._rest = b""
            self._keep(part)
            if self._stream.is_finished():
                return True
            if not part and self._stream.can_accept_more_data():
                raise ProtocolError("the Brotli body is cut short")
        except brotli.error:
            raise ProtocolError("the Brotli body cannot be read") from None
        return False
