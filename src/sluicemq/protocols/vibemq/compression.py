"""Compression of one frame's body: gzip (RFC 1952) and Brotli (RFC 7932). Keeps no state.

The flag byte of a frame names the compression of its body. A peer may send any flag at any time,
also without negotiation (VibeMQ protocol, "Compression"). The negotiation binds the writer only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator
from enum import IntEnum
from functools import partial
from typing import Final

import brotli

from sluicemq.model.errors import FrameTooLarge, ProtocolError

THRESHOLD: Final = 1024
"""Default size of a body, in bytes, from which it is compressed."""

_GZIP: Final = 31
"""zlib's wbits value for the gzip format with its largest window."""
_MAX_MEMBERS: Final = 16
"""Maximum number of members of a gzip body. Known clients send one; thousands of empty ones would
each cost a copy of the frame."""
_STEP: Final = 1 << 18
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
    by_name = {algorithm.name.lower(): algorithm for algorithm in supported}
    algorithms = (by_name.get(name.strip().lower()) for name in offered.split(","))
    return next(filter(None, algorithms), Compression.NONE)


def algorithm_names(algorithms: Collection[Compression]) -> str:
    """Return the algorithms as a header lists them."""
    return ",".join(
        algorithm.name.lower() for algorithm in algorithms if algorithm is not Compression.NONE
    )


_COMPRESSORS: Final[dict[Compression, tuple[Callable[[bytes], bytes], ...]]] = {
    Compression.GZIP: (
        partial(zlib.compress, level=1, wbits=_GZIP),
        partial(zlib.compress, level=9, wbits=_GZIP),
    ),
    Compression.BROTLI: (
        partial(brotli.compress, quality=1, lgwin=22),
        partial(brotli.compress, quality=5, lgwin=24),
    ),
}
"""Compressors in the order in which they are tried. The first has the .NET client's level and
window. Every decoder reads Brotli windows of up to 2^24 bytes. Brotli's highest levels would take
minutes for 64 MiB and save little over 5 with that window."""


def compress(body: bytes, algorithm: Compression, limit: int) -> bytes | None:
    """Return the body compressed, shorter than before and at most `limit` bytes; else None.

    Only a body above the limit is compressed in a higher level than the first, which takes seconds
    for 64 MiB. `algorithm` is not NONE.
    """
    compressors = _COMPRESSORS[algorithm]
    for compressor in compressors if len(body) > limit else compressors[:1]:
        packed = compressor(body)
        if len(packed) <= limit and len(packed) < len(body):
            return packed
    return None


class Unpacker:
    """Decompresses one body, in one or several steps, which different threads may run.

    unpacked  bytes of the body so far
    """

    __slots__ = ("_limit", "_parts", "_remaining", "unpacked")

    def __init__(self, data: bytes, flag: int, limit: int) -> None:
        """`limit`: bytes of the body. `flag`: one of `Compression`."""
        self._limit = limit
        self._remaining = _READERS[flag](data)
        """Parts that are not decompressed yet."""
        self._parts: list[bytes] = []
        self.unpacked = 0

    def unpack(self, size: int) -> bool:
        """Decompress until the body is complete or has more than `size` bytes.

        Return whether it is complete. Raises FrameTooLarge if it has more bytes than the limit,
        ProtocolError if it is corrupt, truncated or followed by other data.
        """
        size = min(size, self._limit)
        for part in self._remaining:
            self._parts.append(part)
            self.unpacked += len(part)
            if self.unpacked > self._limit:
                raise FrameTooLarge(f"the decompressed body is longer than {self._limit} bytes")
            if self.unpacked > size:
                return False
        return self.unpacked <= size

    def body(self) -> bytes:
        """Return the complete body, once."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _gunzip(data: bytes) -> Iterator[bytes]:
    """Yield the parts of a gzip body, up to the end of the last member. Raises ProtocolError."""
    for _ in range(_MAX_MEMBERS):
        stream = zlib.decompressobj(_GZIP)
        while not stream.eof:
            try:
                part = stream.decompress(data, _STEP)
            except zlib.error as error:
                raise ProtocolError(f"the gzip body cannot be read: {error}") from None
            data = stream.unconsumed_tail
            if part:
                yield part
            elif not data and not stream.eof:
                raise ProtocolError("the gzip body is cut short")
        data = stream.unused_data
        if not data:
            return
    raise ProtocolError(f"the gzip body has more than {_MAX_MEMBERS} members")


def _unbrotli(data: bytes) -> Iterator[bytes]:
    """Yield the parts of a Brotli body. Raises ProtocolError."""
    stream = brotli.Decompressor()
    while not stream.is_finished():
        try:
            part = stream.process(data, output_buffer_limit=_STEP)
        except brotli.error:
            raise ProtocolError("the Brotli body cannot be read") from None
        data = b""
        if part:
            yield part
        elif stream.can_accept_more_data() and not stream.is_finished():
            raise ProtocolError("the Brotli body is cut short")


_READERS: Final[dict[int, Callable[[bytes], Iterator[bytes]]]] = {
    Compression.NONE: lambda data: iter((data,)),
    Compression.GZIP: _gunzip,
    Compression.BROTLI: _unbrotli,
}
