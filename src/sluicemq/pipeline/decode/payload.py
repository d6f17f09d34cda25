"""Payloads, read from a capture at the positions in its notes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from sluicemq.pipeline.decode.captures import Integers
from sluicemq.pipeline.decode.reassembly import ByteRange

PORTION: Final = 256 << 10
"""Maximum size of a portion in bytes, unless one piece is larger."""

_NEAR: Final = 4096
"""Maximum gap in bytes between pieces of one read; cheaper than another system call."""
_SPAN: Final = 2 << 20
"""Maximum number of bytes of one read."""


class Portion:
    """Bytes of one direction.

    offset  position of the first one in the stream
    data    the bytes
    ends    position behind each piece
    time    time of each piece
    """

    __slots__ = ("data", "ends", "offset", "time")

    def __init__(self, offset: int, data: bytes, ends: Integers, time: Integers) -> None:
        self.offset = offset
        self.data = data
        self.ends = ends
        self.time = time

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
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def portions(self, run: ByteRange) -> Iterator[Portion]:
        """Yield the bytes of a run. Raises OSError, and EOFError if the file was truncated."""
        ends = run.offset + np.cumsum(run.size)
        start = 0
        while start < len(ends):
            offset = int(ends[start] - run.size[start])
            stop = int(np.searchsorted(ends, offset + PORTION, "right"))
            stop = max(stop, start + 1)
            part = slice(start, stop)
            data = self._gather(run.at[part].tolist(), run.size[part].tolist())
            yield Portion(offset, data, ends[part], run.time[part])
            start = stop

    def _gather(self, at: list[int], size: list[int]) -> bytes:
        chunks: list[memoryview] = []
        count = len(at)
        first = 0
        while first < count:
            begin = at[first]
            end = begin + size[first]
            last = first + 1
            while (
                last < count
                and end <= at[last] <= end + _NEAR
                and at[last] + size[last] - begin <= _SPAN
            ):
                end = at[last] + size[last]
                last += 1
            span = memoryview(self._read(begin, end - begin))
            for place, length in zip(at[first:last], size[first:last], strict=True):
                chunks.append(span[place - begin : place - begin + length])
            first = last
        return b"".join(chunks)

    def _read(self, at: int, size: int) -> bytes:
        data = os.pread(self._file, size, at)
        while len(data) < size:
            more = os.pread(self._file, size - len(data), at + len(data))
            if not more:
                raise EOFError("the file was truncated while it was read")
            data += more
        return data

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
