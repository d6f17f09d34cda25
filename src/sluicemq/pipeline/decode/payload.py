"""Payloads, read from a capture where its notes say they stand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np

from sluicemq.pipeline.decode.captures import Integers
from sluicemq.pipeline.decode.reassembly import Run

PORTION: Final = 256 << 10
"""Bytes that are handed out at a time, or one piece if that has more."""

_NEAR: Final = 4096
"""Bytes between two pieces that are read along: cheaper than another call of the system."""
_SPAN: Final = 2 << 20
"""Bytes read in one call."""


class Portion:
    """Bytes of one direction.

    offset  place of the first one in the stream
    data    they
    ends    place behind each piece
    time    of each piece
    """

    __slots__ = ("data", "ends", "offset", "time")

    def __init__(self, offset: int, data: bytes, ends: Integers, time: Integers) -> None:
        self.offset = offset
        self.data = data
        self.ends = ends
        self.time = time

    def times(self, places: list[int]) -> list[int]:
        """At which the stream was complete up to each of these places, which ascend."""
        at = np.searchsorted(self.ends, np.array(places, np.int64))
        times: list[int] = self.time[np.minimum(at, len(self.time) - 1)].tolist()
        return times


class CaptureFile:
    """A file that is read at any place. It is not mapped: one that is cut short while it is read
    would end the process."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def portions(self, run: Run) -> Iterator[Portion]:
        """The bytes of a run. Raises OSError, and EOFError if the file has become shorter."""
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
        pieces: list[memoryview] = []
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
                pieces.append(span[place - begin : place - begin + length])
            first = last
        return b"".join(pieces)

    def _read(self, at: int, size: int) -> bytes:
        data = os.pread(self._file, size, at)
        while len(data) < size:
            more = os.pread(self._file, size - len(data), at + len(data))
            if not more:
                raise EOFError("the file has become shorter while it was read")
            data += more
        return data

    def close(self) -> None:
        """The file; nothing can be read afterwards."""
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
