"""Lag of a reader: what is between two positions of a journal, in records, bytes and time.

The distance of two sequence numbers is not the number of records: each restart of the broker skips
a million of them, between two segments.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES
from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.heads import ignore_damage, record_heads, segment_heads
from sluicemq.pipeline.source.journal_storage import JournalState, JournalStorage
from sluicemq.pipeline.source.offsets import Offset


class Lag(NamedTuple):
    """Unread part of a journal.

    records  number of records, see LagCounter.lag
    bytes    size of these records
    seconds  time since the first of them was written, by the clocks of the broker and of the
             driver; 0 if there is none
    """

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0


class LagCounter:
    """Counter of the unread records of one journal. Keeps the counts of sealed segments."""

    def __init__(self, storage: JournalStorage) -> None:
        self._storage = storage
        self._counts: dict[int, int] = {}
        """Number of records by first sequence number of the segment."""
        self._ends: dict[int, int] = {}
        """Offset at which the records of a segment end that is not the last one."""

    def lag(self, start: Offset, end: Offset) -> Lag:
        """Return what is from `start` up to `end`, which is the end of the journal.

        The number of records is too high by the sequence numbers without a record in the segments
        that are read in part, which messages in memory take, but never exceeds the records of these
        segments.
        Raises RecordNotFound if the first record has been removed, JournalError, ClientError.
        """
        if start.sequence >= end.sequence:
            return Lag()
        state = self._storage.state()
        firsts = state.firsts
        if not firsts or start.sequence < firsts[0]:
            raise RecordNotFound(f"the record {start.sequence} has been removed")
        place, offset, written = self._first(state, start)
        last = bisect_left(firsts, end.sequence) - 1
        size = -offset
        for between in range(place, last):
            size += self._end(state, between) - SEGMENT_HEADER_BYTES
        size += end.offset if end.segment == firsts[last] else self._end(state, last)
        if start.segment == firsts[last]:
            records = _in_bytes(end.sequence - start.sequence, size)
        else:
            records = self._count(start, end, firsts)
        return Lag(records, size, max(0.0, round(time.time() - written / 1_000_000, 3)))

    def _first(self, state: JournalState, start: Offset) -> tuple[int, int, int]:
        """Return segment, byte offset and time (µs) of the first record from `start` on."""
        place = bisect_right(state.firsts, start.sequence) - 1
        offset = start.offset if start.segment == state.firsts[place] else 0
        while place < len(state.firsts):
            end = self._end(state, place)
            if offset:
                if offset < end:
                    segment = self._storage.open(state.firsts[place], end)
                    head = memoryview(segment.stretch(offset, end, HEADER_BYTES))
                    heads = record_heads(head[:HEADER_BYTES], np.zeros(1, np.int64), offset)
                    return place, offset, int(heads["time"][0])
            else:
                # without the end, storage over HTTP reads the index instead of all records
                known = self._storage.records_end(state, place)
                segment = self._storage.open(state.firsts[place], known)
                for heads in segment_heads(segment, 0, ignore_damage):
                    row = int(np.searchsorted(heads["sequence"], start.sequence))
                    if row < heads.count:
                        return place, int(heads["offset"][row]), int(heads["time"][row])
            place, offset = place + 1, 0
        raise RecordNotFound(f"there is no record from {start.sequence} on")

    def _end(self, state: JournalState, place: int) -> int:
        """Return the offset at which the records of a segment end."""
        if place + 1 == len(state.firsts):
            assert state.durable is not None
            return state.durable.offset
        first = state.firsts[place]
        if first not in self._ends:
            header = self._storage.header(state.firsts[place + 1])
            if header.previous != first:
                raise RecordNotFound(f"the segment after {first} has been removed")
            self._ends = {old: end for old, end in self._ends.items() if old >= state.firsts[0]}
            self._ends[first] = header.previous_end
        return self._ends[first]

    def _count(self, low: Offset, high: Offset, firsts: tuple[int, ...]) -> int:
        place = bisect_right(firsts, low.sequence) - 1
        between = firsts[place + 1 : bisect_left(firsts, high.sequence)]
        bounds = [low.sequence, *between, high.sequence]
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
