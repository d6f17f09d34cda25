"""Payloads, read from a capture at the positions in its notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sluicemq.pipeline.decode.captures import Integers
from sluicemq.pipeline.decode.reassembly import ByteRange

PORTION: Final = 256 << 10
"""Maximum size of a portion in bytes, unless one piece is larger."""

_NEAR: Final = 4096
"""Maximum gap in bytes between pieces of one read; cheaper than another system call."""
_SPAN: Final = 2 << 20
"""Maximum number of bytes of one read."""


class Portion(NamedTuple):
    """Bytes of one direction.

    offset  position of the first one in the stream
    data    the bytes
    ends    position behind each piece
    time    time of each piece
    """

    offset: int
    data: bytes
    ends: Integers
    time: Integers

    def times(self, places: list[int]) -> list[int]:
        """Return the times at which the stream was complete up to these ascending positions."""
        at = np.searchsorted(self.ends, np.array(places, np.int64))
        times: list[int] = self.time[np.minimum(at, len(self.time) - 1)].tolist()
        return times


class CaptureFile:
    """Capture file with random access.

    It is not memory-mapped: a file truncated while it is read would crash the process."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self._file = path.open("rb")

    def portions(self, run: ByteRange) -> Iterator[Portion]:
        """Yield the bytes of a run. Raises OSError, and EOFError if the file was truncated."""
        ends = run.offset + np.cumsum(run.size)
        start = 0
        while start < len(ends):
            offset = int(ends[start] - run.size[start])
            stop = max(int(np.searchsorted(ends, offset + PORTION, "right")), start + 1)
            part = slice(start, stop)
            data = self._gather(run.at[part].tolist(), run.size[part].tolist())
            yield Portion(offset, data, ends[part], run.time[part])
            start = stop

    def _gather(self, at: list[int], size: list[int]) -> bytes:
        chunks: list[memoryview] = []
        first = 0
        while first < len(at):
            begin = at[first]
            end = begin + size[first]
            last = first + 1
            while (
                last < len(at)
                and end <= at[last] <= end + _NEAR
                and at[last] + size[last] - begin <= _SPAN
            ):
                end = at[last] + size[last]
                last += 1
            span = memoryview(self._read(begin, end - begin))
            pieces = zip(at[first:last], size[first:last], strict=True)
            chunks += [span[place - begin : place - begin + length] for place, length in pieces]
            first = last
        return b"".join(chunks)

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        data = self._file.read(size)
        if len(data) < size:
            raise EOFError("the file was truncated while it was read")
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()
