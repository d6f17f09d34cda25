"""Lag of a reader: the number of records between two positions of a journal.

The distance of two sequence numbers is not that number: each restart of the broker skips a million
of them, between two segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Any

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.journal_storage import JournalStorage
from sluicemq.pipeline.source.offsets import read_offset


class LagCounter:
    """Counter of the unread records of one journal. Keeps the counts of sealed segments."""

    def __init__(self, storage: JournalStorage) -> None:
        self._storage = storage
        self._counts: dict[int, int] = {}
        """Number of records by first sequence number of the segment."""

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> int:
        """Return the number of records from offset `start` to offset `end` of a query's progress.

        It is too high by the sequence numbers without a record in the segments that are read in
        part, which messages in memory take, but never exceeds the records of these segments.
        Raises ConfigurationError, JournalError, ClientError.
        """
        low, high = read_offset(start, ""), read_offset(end, "")
        if low.sequence >= high.sequence:
            return 0
        if low.segment and low.segment == high.segment:
            return _in_bytes(high.sequence - low.sequence, high.offset - low.offset)
        firsts = self._storage.state().firsts
        if not firsts:
            return 0
        begin = max(low.sequence, firsts[0])
        place = bisect_right(firsts, begin) - 1
        between = firsts[place + 1 : bisect_left(firsts, high.sequence)]
        bounds = [begin, *between, high.sequence]
        count = 0
        for first, (lower, upper) in zip(firsts[place:], pairwise(bounds), strict=False):
            distance = upper - lower
            if upper == high.sequence:
                count += _in_bytes(distance, high.offset)
            else:
                count += min(distance, self._records(first, distance))
        self._counts = {first: n for first, n in self._counts.items() if first >= firsts[place]}
        return count

    def _records(self, first: int, unknown: int) -> int:
        """Return the number of records of a segment, `unknown` if it is not sealed or removed."""
        if first not in self._counts:
            try:
                found = self._storage.count(first)
            except RecordNotFound:
                found = None
            if found is None:
                return unknown
            self._counts[first] = found
        return self._counts[first]


def _in_bytes(distance: int, size: int) -> int:
    """Return a distance of sequence numbers, at most the number of records that fit in `size`
    bytes; 0 bytes = unknown."""
    return min(distance, size // HEADER_BYTES) if size > 0 else distance
