"""Parts of a partition: rows that are written in one transaction and sent in one request.

The boundaries of parts and frames depend on the rows alone, not on Spark's batches: a partition
that is written again after a failure has the same parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from sluicemq.model.rows import USUAL_BYTES, USUAL_ROWS, frame
from sluicemq.pipeline.sink.conversion import Values

ROW_BYTES: Final = 64
"""Size of a row in addition to its body."""


class EncodedPart:
    """Encoded rows.

    number  index in its partition, from 0
    """

    __slots__ = ("frames", "number", "rows", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.frames: list[bytes] = []
        self.rows = 0
        self.size = 0
        """Bytes of bodies plus ROW_BYTES for each row."""


class Parts:
    """Collects the rows of one partition."""

    def __init__(self, part_rows: int, part_bytes: int) -> None:
        """Set the limits of a part; a larger row forms a part alone."""
        self._part_rows = part_rows
        self._part_bytes = part_bytes
        self._part = EncodedPart(0)
        self._rows: list[Values] = []
        self._size = 0

    def add(self, rows: Sequence[Values], sizes: Sequence[int]) -> Iterator[EncodedPart]:
        """Add rows with the sizes of their bodies; yield each full part except the last."""
        totals = list(accumulate((size + ROW_BYTES for size in sizes), initial=0))
        start, count = 0, len(rows)
        while start < count:
            part = self._part
            most_rows = min(USUAL_ROWS, self._part_rows - part.rows) - len(self._rows)
            most_bytes = min(USUAL_BYTES, self._part_bytes - part.size) - self._size
            end = min(start + most_rows, bisect_right(totals, totals[start] + most_bytes) - 1)
            if end <= start:
                if self._rows:
                    self._end_frame()
                    continue
                size = totals[start + 1] - totals[start]
                if part.rows and (most_rows == 0 or part.size + size > self._part_bytes):
                    self._part = EncodedPart(part.number + 1)
                    yield part
                    continue
                end = start + 1
            self._rows += rows[start:end]
            self._size += totals[end] - totals[start]
            start = end

    def cut(self) -> EncodedPart | None:
        """Return the collected rows as a part that is not the last; None if there are none."""
        self._end_frame()
        part = self._part
        if not part.rows:
            return None
        self._part = EncodedPart(part.number + 1)
        return part

    def last(self) -> EncodedPart | None:
        """Return the last part, empty after a `cut`; None if there were no rows."""
        self._end_frame()
        return self._part if self._part.rows or self._part.number else None

    def _end_frame(self) -> None:
        if self._rows:
            part = self._part
            part.frames.append(frame(self._rows))
            part.rows += len(self._rows)
            part.size += self._size
            self._rows = []
            self._size = 0
