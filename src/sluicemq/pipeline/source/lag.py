"""Lag of a reader: records, bytes and time between its position and the end of a journal.

The distance of two sequence numbers is not the number of records: each restart of the broker skips
a million of them, between two segments.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES
from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.journal_storage import JournalState, JournalStorage
from sluicemq.pipeline.source.offsets import Offset
from sluicemq.pipeline.source.records import (
    RecordColumns,
    ignore_damage,
    record_columns,
    segment_columns,
)

_UNKNOWN: Final = (1 << 63) - 1
"""Upper bound of a number of records that is not known."""


@dataclass(frozen=True)
class Lag:
    """Unread part of a journal.

    records  number of records, see LagCounter.lag
    bytes    size of these records
    seconds  time since the first of them was written, by the clocks of the broker and of the
             driver; 0 if there is none
    """

    records: int = 0
    bytes: int = 0
    seconds: float = 0.0


class LagReport(msgspec.Struct):
    """Lag in the progress of a query. `journal` is the identity of the journal."""

    journal: str
    lag: Lag


def lag_of(latest: str) -> LagReport | None:
    """Return the lag in `latestOffset` of a source's progress.

    Return None if the source is of another kind, or its lag is unknown.
    """
    try:
        return msgspec.json.decode(latest, type=LagReport)
    except msgspec.MsgspecError:
        return None


class LagCounter:
    """Counter of the unread records of one journal. Keeps the extents of sealed segments."""

    def __init__(self, storage: JournalStorage) -> None:
        self._storage = storage
        self._sealed: dict[int, tuple[int, int]] = {}
        """End and number of the records of segments, by first sequence number."""

    def lag(self, start: Offset, state: JournalState) -> Lag:
        """Return the lag of a reader at `start`.

        The number of records is too high by the sequence numbers without a record in the segments
        that are read in part, which messages in memory take, but never exceeds the records of these
        segments.
        Raises RecordNotFound if the first record has been removed, JournalError, ClientError.
        """
        if start.sequence >= state.next:
            return Lag()
        if start.sequence < state.earliest:
            raise RecordNotFound(f"the record {start.sequence} has been removed")
        bounds = [*state.segments, state.next]
        begin = bisect_right(state.segments, start.sequence) - 1
        self._sealed = {n: extent for n, extent in self._sealed.items() if n >= bounds[begin]}
        records = size = 0
        unread: RecordColumns | None = None
        for index in range(begin, len(state.segments)):
            end, maximum = self._extent(state, index)
            offset = SEGMENT_HEADER_BYTES
            if unread is None:
                unread = self._unread_records(state, index, start, end)
                if unread is None:
                    continue
                offset = int(unread["offset"][0])
            distance = bounds[index + 1] - max(bounds[index], start.sequence)
            records += min(distance, maximum, (end - offset) // HEADER_BYTES)
            size += end - offset
        if unread is None:
            raise RecordNotFound(f"there is no record from {start.sequence} on")
        age = time.time() - int(unread["time"][0]) / 1_000_000
        return Lag(records, size, max(0.0, round(age, 3)))

    def _unread_records(
        self, state: JournalState, index: int, start: Offset, end: int
    ) -> RecordColumns | None:
        """Return records of a segment, of which the first is the first unread one.

        Return None if all of the segment has been read."""
        first = state.segments[index]
        offset = start.offset if start.segment == first else 0
        if 0 < offset < end:
            head = self._storage.open(first, end).read_bytes(offset, end, HEADER_BYTES)
            return record_columns(memoryview(head)[:HEADER_BYTES], np.zeros(1, np.int64), offset)
        # without the end, storage over HTTP reads the index instead of all records
        segment = self._storage.open(first, self._storage.records_end(state, index))
        for records in segment_columns(segment, offset, ignore_damage):
            row = int(np.searchsorted(records["sequence"], start.sequence))
            if row < records.count:
                return records.take(slice(row, None))
        return None

    def _extent(self, state: JournalState, index: int) -> tuple[int, int]:
        """Return the end of a segment's records and their number, _UNKNOWN if it is not known."""
        first = state.segments[index]
        if index + 1 == len(state.segments):
            return state.durable.offset, _UNKNOWN
        if first not in self._sealed:
            trailer = self._storage.trailer(first)
            if trailer is None:
                end = self._storage.records_end(state, index)
                return self._storage.open(first, end).end, _UNKNOWN
            self._sealed[first] = trailer[:2]
        return self._sealed[first]
